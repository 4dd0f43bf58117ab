"""The pages that `bakeoff evaluate` writes."""

import pytest
from bakeoff.cli.evaluate import write_page


def test_a_page_is_named_by_its_label(tmp_path):
    path = write_page(tmp_path, "needle(longest=128)", "<p>found</p>")
    assert path.name == "needle_longest_128_.html"
    assert "<p>found</p>" in path.read_text()
    assert "<title>needle(longest=128): bakeoff</title>" in path.read_text()


@pytest.mark.parametrize("letter", ["a", "ß", "\U0001d400"])
def test_long_labels_are_cut_and_told_apart(tmp_path, letter):
    one, other = (write_page(tmp_path, f"task({letter * 300}{end})", "") for end in "xy")
    assert one != other
    assert one.exists()
    assert other.exists()
    assert len(one.name.encode()) <= 255
