import hashlib
import subprocess
import sys

import numpy as np
import pytest
from bakeoff_retro import Static

TEXTS = ["The ship sails at dawn", "", "a", "  \n", "x = x + 1", "dawn at sails ship The", "œuvre 字 \ud800"]


def test_a_vector_has_length_1_and_that_of_no_text_is_zero():
    lengths = np.linalg.norm(Static().embed(TEXTS), axis=1)
    assert lengths == pytest.approx([1, 0, 1, 0, 1, 1, 1], abs=1e-6)


def test_case_and_spaces_are_not_looked_at_and_the_order_of_words_is():
    plain, shouted, turned = Static().embed(["the ship sails", " THE\n ship\tSails ", "sails ship the"])
    assert np.array_equal(plain, shouted)
    assert plain @ turned < 0.9


def test_what_stands_beside_a_text_changes_no_bit():
    together = Static(width=99).embed(TEXTS * 100)
    for number, text in enumerate(TEXTS):
        assert np.array_equal(Static(width=99).embed([text])[0], together[number])


def test_texts_that_share_words_lie_near_and_others_are_nearly_orthogonal():
    near, far = Static(width=1024).embed(["the mill by the river", "the mill by the lake"]), []
    words = [f"{i * 7919:x}" for i in range(400)]
    vectors = Static(width=1024).embed([" ".join(words[i : i + 20]) for i in range(0, 400, 20)])
    far = (vectors @ vectors.T)[~np.eye(20, dtype=bool)]
    assert near[0] @ near[1] > 0.5
    assert abs(far.mean()) < 0.1
    assert far.max() < 0.3


def test_a_word_said_twice_weighs_1_plus_ln_2():
    """Of one letter twice there is one word, one pair and one piece, `a a`; width is so large that none collide."""
    vector = Static(width=10007).embed(["a a"])[0]
    assert np.sort(np.abs(vector[vector != 0])) == pytest.approx(
        np.array([1, 1, 1 + np.log(2)]) / np.sqrt(4.8667), rel=1e-4
    )


CODE = """
import hashlib
from bakeoff_retro import Static
print(hashlib.sha256(Static().embed(["dawn at sea"]).tobytes()).hexdigest())
"""


def test_another_process_gives_the_same_bits():
    told = [
        subprocess.run([sys.executable, "-c", CODE], env={"PYTHONHASHSEED": seed}, capture_output=True, timeout=120)
        for seed in ("1", "2")
    ]
    expected = hashlib.sha256(Static().embed(["dawn at sea"]).tobytes()).hexdigest()
    assert [run.stdout.decode().strip() for run in told] == [expected] * 2


def test_a_width_below_1_is_refused():
    with pytest.raises(ValueError, match="width is 0"):
        Static(width=0)


def test_the_fingerprint_tells_the_width():
    assert Static(width=100).fingerprint() != Static().fingerprint() == Static(width=256).fingerprint()
