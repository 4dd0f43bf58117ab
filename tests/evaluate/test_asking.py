"""Measures and tasks by name, with arguments, and who is told what."""

from __future__ import annotations

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.evaluate import MEASURES, asked
from bakeoff.evaluate.asking import Asked, label_of
from bakeoff.evaluate.tasks.mqar import MQAR
from bakeoff.interfaces import Answer


def test_all_measures_and_no_task_where_nothing_is_asked_for():
    assert [each.label for each in asked()] == list(MEASURES)
    assert all(each.task is None and not each.figures for each in asked())


def test_tasks_come_with_or_without_arguments():
    plain, given = asked(["mqar", {"use": "mqar", "steps": 5, "pairs": 2}])
    assert (plain.label, given.label, given.task) == ("mqar", "mqar(pairs=2, steps=5)", "mqar")
    assert given.figures is MQAR.figures
    assert given.take.__self__.steps == 5
    assert label_of({"use": "mqar"}) == "mqar"
    assert label_of({"pairs": 2, "use": "mqar", "batch": 4}) == label_of({"use": "mqar", "batch": 4, "pairs": 2})


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (
            ["mqr"],
            r"no measure or task is called 'mqr'; did you mean 'mqar'\? Measures: validation, .*; tasks: .*mqar, .*",
        ),
        (["zebra"], r"no measure or task is called 'zebra'\. Measures"),
        (["validation", "validation"], "'validation' is to be measured twice"),
        ([{"use": "memory", "steps": 3}], "measure 'memory' takes no arguments"),
        ([{"pairs": 3}], r"what is measured is a name, or a task with arguments, \{use: NAME, …\}"),
        ([{"use": "mqar", "pears": 3}], "mqar has no argument 'pears'; did you mean 'pairs'"),
        ([{"use": "mqar", "pairs": "3"}], "task.pairs: takes a whole number"),
        ([{"use": "mqar", "pairs": 99}], r"task mqar\(pairs=99\): length is 64; 99 pairs"),
    ],
)
def test_slips(entries, said):
    with pytest.raises(UserError, match=said):
        asked(entries)


def test_figures_are_named_by_the_label_and_randomness_begins_with_the_seed():
    class Seeded:
        def seed_of(self, purpose):
            return {"sampling": 11}[purpose]

    class Given:
        device, recipe = torch.device("cpu"), Seeded()

    def take(measured, progress):
        progress({"step": 1, "total": 2})
        return Answer({"draw": torch.rand(1).item()}, "<p>shown</p>")

    said = []
    before = torch.get_rng_state()
    answer = Asked("try(n=1)", take).answer(Given(), said.append)
    expected = torch.rand(1, generator=torch.Generator().manual_seed(11)).item()
    assert answer == Answer({"try(n=1).draw": expected}, "<p>shown</p>")
    assert said == [{"phase": "measuring try(n=1)"}, {"phase": "measuring try(n=1)", "step": 1, "total": 2}]
    assert torch.equal(torch.get_rng_state(), before)
