"""Lanes: rows whose windows follow each other from step to step."""

from collections import Counter
from itertools import islice, pairwise

import numpy as np
import pytest
import torch
from bakeoff.errors import UserError


def numbered(make, count, **arguments):
    """Data whose token number n of the split is n mod 128, in `count` windows of 8 and one token more."""
    text = "".join(chr(number % 128) for number in range(8 * count))
    return make([text], **{"batch_tokens": 32, **arguments})


def batches(data, steps, first=0, ranks=1, seed=0):
    """What all ranks together see in each step: rows in order of lanes."""
    told = {"tokens_wanted": 9, "seed": seed, "first_step": first, "ranks": ranks, "stateful": True}
    loaders = [iter(data.training(**told, rank=rank)) for rank in range(ranks)]
    found = []
    for _ in range(steps):
        parts = [next(loader) for _ in range(data.accumulation(ranks)) for loader in loaders]
        fresh = [
            p["fresh"] if p["fresh"] is not None else torch.zeros(len(p["tokens"]), dtype=torch.bool) for p in parts
        ]
        found.append((torch.cat([p["tokens"] for p in parts]), torch.cat(fresh)))
    return found


def test_a_window_begins_where_the_lane_s_last_one_ended(make):
    data = numbered(make, 42)  # 4 lanes of 10 windows; 2 of 42 left over
    before, begun = None, 0
    for step, (tokens, fresh) in enumerate(batches(data, 35)):
        if before is not None:
            goes_on = tokens[:, 0] == before[:, -1]  # the last token that was looked ahead at
            assert bool((goes_on | fresh).all())
        assert bool(fresh.all()) == (step % 10 == 0)
        begun += int(fresh.sum())
        before = tokens
    assert 4 * 4 <= begun <= 4 * 4 + 4  # once more at most in each epoch, where the split ends inside a lane


def test_an_epoch_shows_no_window_twice_and_leaves_out_others_each_time(make):
    sampler = numbered(make, 42).training(tokens_wanted=9, seed=3, stateful=True).batch_sampler
    seen, left = Counter(), []
    for epoch in range(20):
        shown = np.concatenate([sampler.step(epoch * 10 + place)[0] for place in range(10)])
        assert len(set(shown.tolist())) == 40
        left.append(frozenset(range(42)) - set(shown.tolist()))
        seen.update(shown.tolist())
    assert len(seen) == 42
    assert len(set(left)) > 5


def test_the_first_window_of_the_split_begins_a_lane_anew(make):
    sampler = numbered(make, 42).training(tokens_wanted=9, seed=0, stateful=True).batch_sampler
    for step in range(40):
        numbers, fresh = sampler.step(step)
        assert fresh.tolist() == [number == 0 or step % 10 == 0 for number in numbers.tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_order_is_a_pure_function_of_the_seed_and_the_step(make, workers):
    whole = batches(numbered(make, 42), 25)
    later = batches(numbered(make, 42, workers=workers, micro_batch=2), 9, first=16)
    for (tokens, fresh), (again, begun) in zip(whole[16:], later, strict=True):
        assert torch.equal(tokens, again)
        assert torch.equal(fresh, begun)
    other = batches(numbered(make, 42), 25, seed=1)
    assert any(not torch.equal(tokens, again) for (tokens, _), (again, _) in zip(whole, other, strict=True))


@pytest.mark.parametrize(("ranks", "micro"), [(1, 1), (2, None), (2, 1), (4, 1)])
def test_ranks_and_micro_batches_split_the_lanes(make, ranks, micro):
    alone = batches(numbered(make, 42), 12)
    spread = batches(numbered(make, 42, micro_batch=micro), 12, ranks=ranks)
    for (tokens, fresh), (again, begun) in zip(alone, spread, strict=True):
        assert torch.equal(tokens, again)
        assert torch.equal(fresh, begun)


def test_a_rank_keeps_its_lanes(make):
    data = numbered(make, 42, micro_batch=1)
    mine = iter(data.training(tokens_wanted=9, seed=0, ranks=2, rank=1, stateful=True))
    before = [batch["tokens"] for batch in islice(mine, 2)]
    for _ in range(8):
        for number in range(2):
            batch = next(mine)
            assert batch["fresh"] is not None or batch["tokens"][0, 0] == before[number][0, -1]
            before[number] = batch["tokens"]


def test_documents_are_told_apart_in_every_batch(make):
    data = make(["abc" * 100, "de" * 100], batch_tokens=16)
    for batch in islice(data.training(tokens_wanted=9, seed=0, stateful=True), 20):
        assert batch["documents"].shape == (2, 9)
    data = make(["abc" * 100, "de" * 100], batch_tokens=16, isolate_documents=False)
    assert next(iter(data.training(tokens_wanted=9, seed=0, stateful=True)))["documents"] is None


def test_a_corpus_that_is_too_small_is_refused_with_both_numbers(make):
    data = numbered(make, 7)
    with pytest.raises(UserError, match=r"4 rows .* 8 in all, but the train split has 7; .*batch_tokens to at most 24"):
        data.training(tokens_wanted=9, seed=0, stateful=True)
    numbered(make, 8).training(tokens_wanted=9, seed=0, stateful=True)


def validation(data, ranks=1, batch=None, tokens=None):
    """Rows of each lane in order, over all ranks."""
    told = {"tokens_wanted": 9, "ranks": ranks, "batch": batch, "tokens": tokens, "stateful": True}
    loaders = [list(data.validation(**told, rank=rank)) for rank in range(ranks)]
    assert len({len(loader) for loader in loaders}) == 1
    lanes = []
    for loader in loaders:
        for found in loader:
            if found["fresh"] is not None:
                assert bool(found["fresh"].all())
                lanes += [[] for _ in found["fresh"]]
            rows = lanes[-len(found["tokens"]) :]
            real = found["real"] if found["real"] is not None else torch.ones_like(found["tokens"], dtype=torch.bool)
            for lane, tokens, there in zip(rows, found["tokens"], real, strict=True):
                if there.any():
                    lane.append(tokens[there].tolist())
    return sorted(lane for lane in lanes if lane)


def test_validation_goes_on_too_and_shows_each_window_once(make):
    data = numbered(make, 42)
    lanes = validation(data)
    assert len(lanes) == 4
    assert sum(len(lane) for lane in lanes) == 42
    for lane in lanes:
        for one, other in pairwise(lane):
            assert one[-1] == other[0]
    targets = Counter(token for lane in lanes for window in lane for token in window[1:])
    assert sum(targets.values()) == 8 * 42


@pytest.mark.parametrize(("ranks", "batch"), [(1, 1), (1, 3), (2, 2), (2, 8), (4, 1)])
def test_validation_lanes_do_not_depend_on_ranks_and_batches(make, ranks, batch):
    data = numbered(make, 42)
    assert validation(data, ranks, batch) == validation(data)
    assert validation(data, ranks, batch, tokens=100) == validation(data, tokens=100)


def test_part_of_the_validation_is_as_much_as_was_asked_for(make):
    lanes = validation(numbered(make, 42), tokens=9 * 8)
    assert [len(lane) for lane in lanes] == [3, 3, 3]
