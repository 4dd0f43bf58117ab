"""A comparison that is killed again and again ends with what it would have had."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import yaml
from bakeoff.compare.store import Store
from bakeoff.train.curve import read_curve

KILLS = 20
#: Of a trial, so many that there is still something to kill at the end.
STEPS = 600


def run(file, folder, environment):
    words = [sys.executable, "-m", "bakeoff", "compare", str(file), "--folder", str(folder)]
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def last_start(folder):
    """When a trial last began to train, or 0."""
    return max((path.stat().st_mtime for path in folder.glob("trials/*/run/meta.json")), default=0.0)


def children(session_of):
    """Processes that still work in a trial of a folder."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                log = os.readlink(f"/proc/{entry.name}/fd/1")
            except OSError:
                continue
            found += [int(entry.name)] if log.startswith(str(session_of)) else []
    return found


def wait_until(condition, seconds):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def numbers(folder):
    """Everything that a comparison found out, but for time."""
    store = Store(folder)
    rows = {r.name: (r.state, r.result["measures"], [p["loss"] for p in r.result["curve"]]) for r in store.trials()}
    store.close()
    return rows


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_at_random_it_ends_with_the_same_numbers(tiny, tmp_path):
    tiny["budget"]["tokens"] = 256 * STEPS
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny, sort_keys=False))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    process = run(tmp_path / "tiny.yaml", whole, environment)
    assert process.wait() == 0, process.stdout.read()

    draw, kills = random.Random(0), 0
    while kills < KILLS:
        before = last_start(killed)
        process = run(tmp_path / "tiny.yaml", killed, environment)
        if not wait_until(lambda p=process, b=before: last_start(killed) > b or p.poll() is not None, 300):
            pytest.fail("no trial began")
        assert process.poll() is None, f"all trials are done after {kills} kills: give them more steps"
        time.sleep(draw.uniform(0.0, 1.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        assert wait_until(lambda: not children(killed), 1.0), "a trial outlived its comparison by a second"
    assert run(tmp_path / "tiny.yaml", killed, environment).wait() == 0
    assert numbers(killed) == numbers(whole)
    for trial in (killed / "trials").iterdir():
        assert [row["step"] for row in read_curve(trial / "run" / "curve.csv")] == list(range(1, STEPS + 1))


@pytest.mark.slow
def test_a_second_comparison_on_the_folder_waits_and_then_finds_all_done(tiny, tmp_path):
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny, sort_keys=False))
    both = [run(tmp_path / "tiny.yaml", tmp_path / "here", dict(os.environ)) for _ in range(2)]
    texts = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(text.count("✓") for text in texts) == [0, 4]
    assert sum("waiting until it ends" in text for text in texts) == 1
