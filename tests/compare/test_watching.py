import io
from types import SimpleNamespace

import pytest
from bakeoff.compare.watching import Lines, Live, TimeLeft, describe, watch
from bakeoff.interfaces.executor import Outcome
from rich.console import Console


def trial(name, flops=1.0, seed=0):
    arm = SimpleNamespace(name=name, flops=flops)
    return SimpleNamespace(name=f"{name}-{seed}", arm=arm, seed=seed, stage="run", point={})


def done(name, seconds=2.0):
    return Outcome(name, {"measures": {"throughput.tokens_per_second": 38_100.0}, "seconds": seconds}, None)


@pytest.fixture
def now(monkeypatch):
    moment = [100.0]
    monkeypatch.setattr("bakeoff.compare.watching.time.monotonic", lambda: moment[0])
    return moment


def test_time_left_follows_from_work_done(now):
    # one unit of work took 10 s; 3 units in one trial and 1 in another remain
    left = TimeLeft([trial("a"), trial("b", 3.0), trial("c")], slots=1)
    assert left.seconds() is None
    left.started("a-0")
    left.ended("a-0", 10.0)
    assert left.seconds() == 40.0
    left.started("b-0")
    now[0] += 12.0
    assert left.seconds() == 28.0
    now[0] += 100.0  # longer than it should take: no less than the others' work is left
    assert left.seconds() == 10.0


def test_a_trial_that_runs_longer_than_it_should_says_how_long_itself(now):
    left = TimeLeft([trial("a"), trial("b"), trial("c")], slots=2)
    left.started("a-0")
    left.ended("a-0", 10.0)
    left.started("b-0")
    left.started("c-0")
    now[0] += 9.0
    assert left.seconds() == 1.0  # two of a second each, side by side
    left.tells("b-0", 25.0)
    now[0] += 5.0
    assert left.seconds() == 20.0
    left.ended("b-0", 34.0)
    assert left.seconds() == 44 / 2 - 14


def test_slots_share_what_is_left(now):
    left = TimeLeft([trial("a"), trial("b"), trial("c")], slots=2)
    left.started("a-0")
    left.ended("a-0", 10.0)
    assert left.seconds() == 10.0


def test_a_failed_trial_says_nothing_about_time(now):
    left = TimeLeft([trial("a"), trial("b")], slots=1)
    left.started("a-0")
    left.ended("a-0", None)
    assert left.seconds() is None


def test_without_a_terminal_each_trial_is_a_plain_line_with_its_end(now):
    console = Console(file=io.StringIO(), width=60, color_system=None)
    trials = [trial("attention"), trial("[mamba]")]
    with watch(trials, 1, "bits per byte", console) as watching:
        assert type(watching) is Lines
        for name in ("attention-0", "[mamba]-0"):
            watching.progress(name, {})
            watching.progress(name, {"phase": "training", "step": 3, "total": 10, "loss": 2.5})
        watching.outcome(done("attention-0"), 2.1344)
        watching.outcome(Outcome("[mamba]-0", None, "killed by SIGKILL"), None)
    assert console.file.getvalue().splitlines() == [
        "✓ attention, seed 0: 2.1344 bits per byte, 38.1k tokens/s, 2.0 s  [1 of 2 trials, about 2.0 s left]",
        "✗ [mamba], seed 0: killed by SIGKILL  [2 of 2 trials]",
    ]


def test_on_a_terminal_bars_give_way_to_lines():
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    with watch([trial("a"), trial("b")], 2, "bits per byte", console) as watching:
        assert type(watching) is Live
        watching.progress("a-0", {})
        watching.progress("a-0", {"phase": "training", "step": 3, "total": 10, "loss": 2.5})
        watching.progress("b-0", {})
        watching.progress("b-0", {"phase": "measuring decode"})
        watching.bars.refresh()
        watching.outcome(done("a-0"), 2.0)
        watching.outcome(Outcome("b-0", None, "no memory"), None)
    text = console.file.getvalue()
    for words in ("step 3/10, loss 2.500", "measuring decode", "✓ a, seed 0: 2.0000", "✗ b, seed 0: no memory"):
        assert words in text


def test_what_a_running_trial_says():
    numbers = {"phase": "training", "step": 3, "total": 9, "loss": 2.5, "tokens_per_second": 38_123, "seconds_left": 65}
    assert describe(numbers) == "step 3/9, loss 2.500, 38.1k tokens/s, 1 min 05 s left"
    assert describe({"phase": "validating", "step": 3, "total": 9}) == "validating, step 3/9"
