import numpy as np
import pytest
from bakeoff.data.dialogues.packing import Packed, naive_pack, pack
from bakeoff.errors import UserError


def rows_of(packed: Packed) -> list[list[int]]:
    return [row.tolist() for row in np.split(packed.order, packed.ends[:-1])] if len(packed.ends) else []


def test_the_longest_goes_first_and_each_where_it_leaves_the_least_room() -> None:
    # By hand, rows of 10: 7 | 6 | 5 begin rows; 4 fits best behind 6 (room 4), 3 behind 7, the second 3 behind 5, and
    # 2 behind that.
    assert rows_of(pack(np.array([3, 6, 2, 7, 4, 3, 5]), 10)) == [[0, 3], [1, 4], [2, 5, 6]]


def test_whole_rows_and_no_dialogue_at_all() -> None:
    assert rows_of(pack(np.array([4, 4, 4]), 4)) == [[0], [1], [2]]
    nothing = pack(np.array([], dtype=np.int64), 4)
    assert nothing.order.tolist() == nothing.ends.tolist() == []
    assert nothing.fill(np.array([]), 4) == 1.0


@pytest.mark.parametrize("seed", range(20))
def test_equals_its_naive_twin(seed: int) -> None:
    draws = np.random.default_rng(seed)
    capacity = int(draws.integers(1, 40))
    lengths = draws.integers(1, capacity + 1, size=int(draws.integers(1, 200)))
    fast, slow = pack(lengths, capacity), naive_pack(lengths, capacity)
    assert rows_of(fast) == rows_of(slow)
    assert sorted(fast.order.tolist()) == list(range(len(lengths)))
    filled = [int(lengths[row].sum()) for row in rows_of(fast)]
    assert max(filled) <= capacity
    assert fast.fill(lengths, capacity) == sum(filled) / (len(filled) * capacity)


def test_rows_are_at_most_eleven_ninths_of_what_must_be() -> None:
    # Best fit decreasing takes at most 11/9 of the fewest rows possible, and 4 more (Johnson et al. 1974).
    draws = np.random.default_rng(0)
    lengths = draws.integers(1, 513, size=20_000)
    fewest = -(-int(lengths.sum()) // 512)
    assert fewest <= len(pack(lengths, 512).ends) <= fewest * 11 / 9 + 4


def test_what_is_longer_than_a_row_is_refused_with_both_numbers() -> None:
    with pytest.raises(UserError, match=r"dialogue 1 takes 9 tokens, but a row holds 8"):
        pack(np.array([3, 9, 8]), 8)
