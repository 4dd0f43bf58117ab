"""A rank that dies, hangs or fails ends the job with its name; the run goes on from its newest checkpoint."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time

import pytest
import yaml
from bakeoff.parallel.member import lives
from bakeoff.train.curve import read_curve

TWO = ("trainer.devices=2", "trainer.strategy=ddp", "trainer.accelerator=cpu")
SECONDS = 60.0

CALLBACK = """
import time
from pathlib import Path
import lightning.pytorch as pl


class Trouble(pl.Callback):
    '''Does `what` on rank 1 after three steps, once.'''

    def __init__(self, *, what: str, once: str):
        self.what, self.once = what, Path(once)

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_rank == 1 and trainer.global_step >= 3 and not self.once.exists():
            self.once.touch()
            if self.what == "hang":
                time.sleep(1000)
            raise ValueError("this rank gives up")
"""


@pytest.fixture
def recipe(values, tmp_path):
    """The tiny recipe as a file, with 40 steps."""
    values["trainer"] = {**values["trainer"], "max_steps": 40}
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@pytest.fixture
def start(recipe, tmp_path):
    """Start `bakeoff fit` on two ranks in a session of its own, whose processes are all ended with the test."""
    started = []

    def begin(*overrides):
        words = [
            sys.executable,
            "-m",
            "bakeoff",
            "fit",
            str(recipe),
            *TWO,
            *overrides,
            "--folder",
            str(tmp_path / "run"),
        ]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(tmp_path)}
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def children(process):
    """Ranks that the first one has started."""
    told = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True)
    return [int(word) for word in told.stdout.split()]


def wait_for_step(process, folder, step):
    end = time.monotonic() + 200
    while len(read_curve(folder / "curve.csv")) < step:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.05)


def ended(process):
    """What the job says at its end, which must come within a minute."""
    try:
        _, errors = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        pytest.fail("the job stalls")
    return errors


def continues(start, folder):
    process = start()
    _, errors = process.communicate(timeout=250)
    assert process.returncode == 0, errors
    assert "continuing after step" in errors
    assert read_curve(folder / "curve.csv")[-1]["step"] == 40


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_rank_that_is_gone_is_named(start, tmp_path, how):
    process = start("trainer.max_steps=100000")
    wait_for_step(process, tmp_path / "run", 5)
    (rank,) = children(process)
    os.kill(rank, how)
    errors = ended(process)
    assert process.returncode not in (0, -signal.SIGKILL)
    name = rf"bakeoff: rank 1 \(host .*, device cpu\).*process {rank}"
    last = r"it was last at step \d+"
    assert len(re.findall(name, errors)) == 1
    assert re.search(last, errors)
    assert "Traceback" not in errors
    end = time.monotonic() + 20  # a process that is killed closes its files before it is gone
    while lives(rank):
        assert time.monotonic() < end, "the rank outlives the job"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_first_rank_killed_is_named_by_the_other(start, tmp_path):
    process = start("trainer.max_steps=100000")
    wait_for_step(process, tmp_path / "run", 5)
    process.send_signal(signal.SIGKILL)
    errors = ended(process)  # once the other has ended too
    assert f"process {process.pid}" in errors
    assert re.search(r"bakeoff: rank 0 .*it was last at step \d+", errors)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("hang", r"rank 1 \(host .*is alive but has stood at step 3 \(reading\) for 4\d s, while rank 0"),
        ("raise", r"rank 1 \(host .*failed at step 3 \(reading\): ValueError: this rank gives up"),
    ],
)
def test_a_rank_in_trouble_is_named_and_the_run_continues(start, recipe, tmp_path, what, told):
    (tmp_path / "trouble.py").write_text(CALLBACK)
    held = yaml.safe_load(recipe.read_text())
    callback = {"class_path": "trouble.Trouble", "init_args": {"what": what, "once": str(tmp_path / "once")}}
    held["trainer"]["callbacks"] = [callback]
    recipe.write_text(yaml.safe_dump(held))
    process = start()
    wait_for_step(process, tmp_path / "run", 3)
    errors = ended(process)
    assert process.returncode > 0
    assert len(re.findall(told, errors)) == 1, errors
    continues(start, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_loss_that_is_not_finite_is_said_once(start):
    process = start("optimizer.lr=1e30")
    errors = ended(process)
    assert process.returncode == 2
    assert errors.count("stopped before optimizer step") == 1
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_port_in_use_is_one_message_before_any_rank_is_started(start, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("MASTER_PORT", str(port))
        process = start()
        errors = ended(process)
    assert process.returncode == 2
    told = [line for line in errors.splitlines() if line.startswith("bakeoff: ")]
    assert len(told) == 1, errors
    assert f"port {port} is in use by another program" in told[0]
    assert "set MASTER_PORT" in told[0]
