import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from bakeoff.errors import UserError


def run(executor, folders):
    said = []
    outcomes = {o.trial: o for o in executor.run(folders, lambda name, numbers: said.append((name, numbers)))}
    return outcomes, said


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def wait_for(condition, seconds=20.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def test_every_way_to_end_is_told_and_the_others_go_on(toys):
    local, folder = toys
    ways = {
        "good": "count",
        "raises": "raise",
        "refuses": "refuse",
        "memory": "kill",
        "exits": "exit:3",
        "silent": "silent",
        "last": "count",
    }
    outcomes, _ = run(local(slots=2), [folder(name, do) for name, do in ways.items()])
    assert outcomes["good"].result == {"trial": "good"}
    assert outcomes["last"].result == {"trial": "last"}
    assert outcomes["raises"].reason == "ValueError: the number 7 is odd"
    assert outcomes["refuses"].reason == "width 7: must be a multiple of 8"
    assert "memory" in outcomes["memory"].reason
    assert "exit code 3" in outcomes["exits"].reason
    assert "without a result" in outcomes["silent"].reason
    assert all(o.result is None for name, o in outcomes.items() if name not in ("good", "last"))


def test_traceback_of_a_failure_stands_in_the_log(toys):
    local, folder = toys
    path = folder("raises", "raise")
    run(local(), [path])
    assert "Traceback" in (path / "log.txt").read_text()


def test_threads_and_session_are_the_trials_own(toys):
    local, folder = toys
    path = folder("t", "threads")
    run(local(slots=1, threads=1), [path])
    threads, environment, leader = json.loads((path / "threads").read_text())
    assert (threads, leader) == (1, True)
    assert environment.isdigit()


def test_progress_comes_at_most_four_times_a_second(toys):
    local, folder = toys
    start = time.monotonic()
    _, said = run(local(), [folder("talker", "say:100")])
    seconds = time.monotonic() - start
    steps = [numbers for _, numbers in said if numbers]
    assert 2 <= len(steps) <= 4 * seconds + 1


@pytest.mark.slow
def test_a_trial_starts_within_two_seconds_after_the_first(toys):
    local, folder = toys
    executor = local()
    run(executor, [folder("first", "count")])
    start = time.monotonic()
    run(executor, [folder("second", "count")])
    assert time.monotonic() - start < 2.0


def test_slots_run_side_by_side(toys):
    local, folder = toys
    both = [folder("a", "pid meet:b"), folder("b", "pid meet:a")]  # each ends only while the other is there
    outcomes, _ = run(local(slots=2, threads=1), both)
    assert all(outcome.result for outcome in outcomes.values())


def test_data_workers_of_a_killed_trial_do_not_outlive_it(toys):
    local, folder = toys
    path = folder("w", "worker kill")
    run(local(), [path])
    worker = int((path / "worker").read_text())
    wait_for(lambda: not alive(worker), 2.0)


def test_leaving_the_loop_stops_what_runs(toys):
    local, folder = toys
    long, short = folder("long", "pid worker sleep:60"), folder("short", "count sleep:1")
    for _ in local(slots=2).run([long, short], lambda *_: None):
        break
    wait_for(lambda: not alive(int((long / "pid").read_text())), 2.0)
    assert not (long / "result.json").exists()


def test_slots_must_be_positive(toys):
    local, _ = toys
    with pytest.raises(UserError, match="got 0"):
        local(slots=0)


PARENT = """
    import sys
    from pathlib import Path
    from bakeoff.compare.local import Local
    Local.target = "toy_trials:toy"
    for outcome in Local(slots=1).run([Path(a) for a in sys.argv[1:]], lambda *_: None):
        print(outcome.trial, flush=True)
"""


def test_trials_and_their_workers_end_within_a_second_of_a_killed_parent(toys, tmp_path):
    _, folder = toys
    # The script has no `if __name__ == "__main__"`: a trial must not run it again.
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT))
    path = folder("victim", "count worker pid sleep:60")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "toys")}
    parent = subprocess.Popen([sys.executable, str(script), str(path)], env=environment)
    wait_for(lambda: (path / "pid").exists() and (path / "pid").read_text(), 60.0)
    pids = [int((path / name).read_text()) for name in ("pid", "worker")]
    assert all(map(alive, pids))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_for(lambda: not any(map(alive, pids)), 1.0)
    assert (path / "count").read_text() == "x"
