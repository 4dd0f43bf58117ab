"""Batches over steps, ranks, workers and resumptions."""

from collections import Counter
from collections.abc import Callable
from itertools import islice

import pytest
from bakeoff.data import Data
from bakeoff.errors import UserError


def steps(data: Data, count: int, first: int = 0, ranks: int = 1, seed: int = 0) -> list[list[int]]:
    """First tokens of the rows that all ranks together see in each optimizer step, sorted."""
    loaders = [
        iter(data.training(tokens_wanted=9, seed=seed, first_step=first, ranks=ranks, rank=rank))
        for rank in range(ranks)
    ]
    seen = []
    for _ in range(count):
        batches = [batch for loader in loaders for batch in islice(loader, data.accumulation(ranks))]
        seen.append(sorted(row for batch in batches for row in batch["tokens"][:, 0].tolist()))
    return seen


@pytest.fixture
def numbered(make: Callable[..., Data]) -> Callable[..., Data]:
    """Data whose rows are known by their first token: row k of `count` starts with id k."""

    def made(count: int, **arguments: object) -> Data:
        text = "".join(chr(number) + "\x00" * 7 for number in range(count))
        return make([text], **{"batch_tokens": 32, **arguments})

    return made


def test_two_epochs_show_each_row_twice(numbered: Callable[..., Data]) -> None:
    data = numbered(8)
    seen = steps(data, 4)
    assert sorted(seen[0] + seen[1]) == sorted(seen[2] + seen[3]) == list(range(8))


@pytest.mark.parametrize("workers", [0, 2])
def test_started_at_a_step_it_goes_on_as_if_it_had_never_stopped(numbered: Callable[..., Data], workers: int) -> None:
    data = numbered(100, workers=workers, micro_batch=2)
    whole = steps(data, 60)  # over an epoch's end, at row 100
    assert steps(data, 10, first=20) == whole[20:30]
    assert steps(data, 7, first=53) == whole[53:]
    assert whole == steps(numbered(100, micro_batch=4), 60)


@pytest.mark.parametrize("micro", [None, 1, 2])
def test_a_step_sees_the_same_rows_on_any_number_of_ranks(numbered: Callable[..., Data], micro: int | None) -> None:
    data = numbered(21, batch_tokens=64, micro_batch=micro)
    alone = steps(data, 12)
    assert steps(data, 12, ranks=2) == steps(data, 12, ranks=4) == alone
    assert all(len(step) == 8 for step in alone)


def test_ranks_and_workers_share_the_rows_out(numbered: Callable[..., Data]) -> None:
    data = numbered(100, batch_tokens=8 * 20, micro_batch=5, workers=2)
    assert sorted(row for step in steps(data, 5, ranks=2) for row in step) == list(range(100))


def test_seeds_give_other_orders(numbered: Callable[..., Data]) -> None:
    assert steps(numbered(50), 5, seed=0) != steps(numbered(50), 5, seed=1)


def test_validation_does_not_disturb_the_order(numbered: Callable[..., Data]) -> None:
    data = numbered(30)
    loader = iter(data.training(tokens_wanted=9, seed=0))
    first = [next(loader)["tokens"][:, 0].tolist() for _ in range(3)]
    list(data.validation(tokens_wanted=9))
    rest = [next(loader)["tokens"][:, 0].tolist() for _ in range(3)]
    fresh = iter(data.training(tokens_wanted=9, seed=0))
    assert first + rest == [next(fresh)["tokens"][:, 0].tolist() for _ in range(6)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("ranks", [1, 4])
def test_validation_shows_each_row_once_over_all_ranks(numbered: Callable[..., Data], ranks: int, workers: int) -> None:
    data = numbered(10, batch_tokens=32, micro_batch=1, workers=workers)
    loaders = [data.validation(tokens_wanted=8, ranks=ranks, rank=rank) for rank in range(ranks)]
    batches = [list(loader) for loader in loaders]
    assert {len(found) for found in batches} == {len(loaders[0])}  # ranks that share a model call it equally often
    seen = Counter(
        row[0].item()
        for found in batches
        for batch in found
        for number, row in enumerate(batch["tokens"])
        if batch["real"] is None or batch["real"][number, 0]
    )
    assert seen == Counter([*range(10), data.tokenizer.end])  # the end id starts an eleventh, partial row


def test_a_batch_that_does_not_fit_names_the_numbers_and_the_nearest_right_ones(make: Callable[..., Data]) -> None:
    with pytest.raises(
        UserError, match=r"data\.batch_tokens is 100, no multiple of data\.length, 8; nearest: 96 or 104"
    ):
        make(["x"], batch_tokens=100)
    with pytest.raises(UserError, match=r"data\.length is 0"):
        make(["x"], length=0)
    with pytest.raises(UserError, match=r"data\.workers is -1"):
        make(["x"], workers=-1)
    data = make(["x"], batch_tokens=8 * 12, micro_batch=5)
    with pytest.raises(UserError, match=r"micro_batch is 5, but each of 1 ranks has 12 rows .*nearest: 4 or 6"):
        data.micro()
    with pytest.raises(UserError, match=r"12 rows of 8, which do not divide over 5 ranks; nearest.*: 80 or 120"):
        data.micro(5)
    with pytest.raises(UserError, match=r"micro_batch is 0.*nearest: 1"):
        make(["x"], micro_batch=0).micro()
    good = make(["x"], batch_tokens=8 * 12, micro_batch=3)
    assert [(good.micro(ranks), good.accumulation(ranks)) for ranks in (1, 2, 4)] == [(3, 4), (3, 2), (3, 1)]
    assert (make(["x"], batch_tokens=96).micro(2), make(["x"], batch_tokens=96).accumulation(2)) == (6, 1)


def test_before_it_is_prepared_it_says_so(make: Callable[..., Data]) -> None:
    ready = make(["x"])
    data = Data(corpus=ready.corpus, tokenizer=ready.tokenizer, length=8, batch_tokens=8)
    with pytest.raises(RuntimeError, match="prepare"):
        data.training(tokens_wanted=9, seed=0)
    with pytest.raises(RuntimeError, match="prepare"):
        _ = data.fingerprint
