"""Shades by hand, on tokens that are bytes and parts of characters."""

from __future__ import annotations

from bakeoff.evaluate.tasks.coloured import SHADES, characters, coloured, shade, style
from bakeoff.parts.tokenizers.byte import ByteTokenizer


def test_a_character_has_the_value_of_the_byte_that_completes_it():
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode("aé<")
    assert list(characters(tokenizer, ids, [1.0, 2.0, 3.0, 4.0])) == [("a", 1.0), ("é", 3.0), ("<", 4.0)]


def test_shades_run_from_none_to_full_on_both_sides():
    assert SHADES == 6
    assert [shade(v, 2.0) for v in (0.0, 0.1, 0.4, 1.0, 2.0, 9.0)] == ["", "", "p1", "p3", "p6", "p6"]
    assert [shade(v, 2.0) for v in (-0.1, -0.4, -2.0)] == ["", "n1", "n6"]
    assert shade(3.0, 0.0) == ""


def test_runs_of_a_shade_are_one_element_and_text_is_escaped():
    text = [("a", 1.0), ("b", 0.98), ("<", -1.0), ("&", 0.0)]
    assert coloured(text, 1.0) == '<p class="shades"><span class=p6>ab</span><span class=n6>&lt;</span>&amp;</p>'
    assert all(f".shades .{side}{level} " in style() for side in "pn" for level in range(1, 7))
