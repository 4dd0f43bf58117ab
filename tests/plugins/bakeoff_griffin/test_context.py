"""Griffin's pattern where ranks share out the tokens of rows."""

from pathlib import Path

import pytest
from bakeoff.interfaces.spans import ORDERS
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).parents[2] / "parallel" / "cases_of_context.py"
FEED_FORWARD = {"use": "gated_mlp", "width": 8}
LOCAL = {"use": "attention", "n_heads": 4, "n_kv_heads": 1, "window": 5, "position": {"use": "rope"}}
GRIFFIN = {
    "first": {"use": "pre_norm", "mixer": {"use": "rg_lru", "n_heads": 4}, "feed_forward": FEED_FORWARD},
    "attention": {"use": "pre_norm", "mixer": LOCAL, "feed_forward": FEED_FORWARD},
    "last": {"use": "pre_norm", "mixer": {"use": "rg_lru", "n_heads": 4}, "feed_forward": FEED_FORWARD},
}


@pytest.mark.parametrize("order", ORDERS)
def test_recurrences_and_local_attention_learn_as_on_whole_rows(order):
    shared_ranks(2).run(CASES, "shared_rows_equal_whole", blocks=GRIFFIN, depth=3, order=order)
