"""Killed at any moment and continued, a run ends bit for bit where the uninterrupted one ends."""

import multiprocessing
import os
import random
import signal
import sys
import time

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.parts.files import read_json
from bakeoff.parts.tensor_files import check_plain, save_whole
from bakeoff.train import Interrupted, conductor, fit
from bakeoff.train.conductor import Conductor
from bakeoff.train.curve import Curve, read_curve
from bakeoff.train.module import TrainingModule
from bakeoff.train.randomness import mix
from bakeoff.train.saving import damage
from bakeoff.train.validation import Validation


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_step(monkeypatch):
    """In the second micro-batch of step 6, before its backward pass."""
    backward = TrainingModule.backward

    def dying(self, loss):
        if self.clock.step == 5 and self.clock.micro == 2:
            die()
        backward(self, loss)

    monkeypatch.setattr(TrainingModule, "backward", dying)


def kill_in_validation(monkeypatch):
    """Before the second batch of the validation after step 4, of which a row but no checkpoint is written."""
    measure = Validation.measure

    def dying(self, trainer, module, watch):
        seen = []
        return measure(self, trainer, module, lambda: die() if seen else seen.append(1))

    monkeypatch.setattr(Validation, "measure", dying)


def kill_after_row(monkeypatch):
    """Between the row of step 5 and the checkpoint of step 6: the row is there, and is made again."""
    replace = Curve.replace

    def dying(self, row):
        replace(self, row)
        if row["step"] == 5:
            die()

    monkeypatch.setattr(Curve, "replace", dying)


def kill_in_checkpoint(monkeypatch):
    """With half of the checkpoint of step 4 written."""
    write = torch.save

    def dying(content, file):
        if file.name.endswith("step-4.ckpt.tmp"):
            file.write(b"PK" * 1000)
            file.flush()
            die()
        write(content, file)

    monkeypatch.setattr(torch, "save", dying)


def kill_at_the_end(monkeypatch):
    """After the last checkpoint, before the weights and the summary are written."""
    monkeypatch.setattr(Conductor, "on_train_end", die)


#: Its layers tell something, so that it has rows of layers as well.
MIXTURE = {"use": "mixture_of_experts", "n_experts": 4, "expert": {"use": "gated_mlp", "width": 8}}
KILLS = [kill_in_step, kill_in_validation, kill_after_row, kill_in_checkpoint, kill_at_the_end]


@pytest.mark.parametrize("kill", KILLS, ids=lambda kill: kill.__name__)
def test_a_killed_run_continues_exactly(tiny, tmp_path, monkeypatch, in_child, same_run, kill):
    recipe = tiny(model__blocks__layer__feed_forward=MIXTURE)
    whole = fit(recipe, folder=tmp_path / "whole", progress=False)
    with monkeypatch.context() as patched:
        kill(patched)
        assert in_child(lambda: fit(recipe, folder=tmp_path / "killed", progress=False)) == -signal.SIGKILL
    killed = fit(recipe, folder=tmp_path / "killed", progress=False)
    same_run(whole, killed)
    assert {row["step"] for row in killed.layers} == set(range(1, 9))
    assert not list((tmp_path / "killed" / "checkpoints").glob("*.tmp"))


def test_a_killed_run_with_workers_continues_exactly(tiny, tmp_path, monkeypatch, in_child, same_run):
    whole = fit(tiny(), folder=tmp_path / "whole", progress=False)
    with monkeypatch.context() as patched:
        kill_in_step(patched)
        two = tiny(data__workers=2)
        assert in_child(lambda: fit(two, folder=tmp_path / "killed", progress=False)) == -signal.SIGKILL
    same_run(whole, fit(two, folder=tmp_path / "killed", progress=False))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers look for their parent every few seconds")
def test_workers_do_not_outlive_the_run(tiny, tmp_path, monkeypatch, in_child):
    def noting(self, batch, batch_idx):
        workers = [process.pid for process in multiprocessing.active_children()]
        (tmp_path / "workers").write_text(" ".join(map(str, workers)))
        die()

    monkeypatch.setattr(TrainingModule, "training_step", noting)
    in_child(lambda: fit(tiny(data__workers=2), folder=tmp_path / "run", progress=False))
    workers = (tmp_path / "workers").read_text().split()
    assert len(workers) == 2
    for _ in range(50):
        left = [pid for pid in workers if is_running(pid)]
        if not left:
            break
        time.sleep(0.02)
    assert not left


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_training_time_goes_on_and_leaves_validation_out(tiny, tmp_path, monkeypatch, in_child):
    now = [0.0]
    measure = Validation.measure

    def tick():
        now[0] += 1.0
        return now[0]

    def slow(self, trainer, module, watch):
        now[0] += 1e6
        return measure(self, trainer, module, watch)

    monkeypatch.setattr(conductor.time, "perf_counter", tick)
    monkeypatch.setattr(Validation, "measure", slow)
    with monkeypatch.context() as patched:
        kill_in_step(patched)
        in_child(lambda: fit(tiny(), folder=tmp_path, progress=False))
    before = [row["seconds"] for row in read_curve(tmp_path / "curve.csv")]
    seconds = [row["seconds"] for row in fit(tiny(), folder=tmp_path, progress=False).curve]
    assert seconds[:4] == before[:4]
    assert seconds == sorted(seconds)
    assert 8 <= seconds[-1] < 1e6


def test_samples_go_on_where_they_stopped(tiny, tmp_path, monkeypatch, in_child):
    # 8 steps of one row; stopped after the third: rows 4 to 8 follow, none again, none left out
    def rows_of(folder, stop=None, workers=0):
        one_row = {"data__batch_tokens": 16, "data__micro_batch": 1, "data__workers": workers}
        recipe = tiny(**one_row, checkpoint__every_steps=1, validation__every_steps=None)
        step = TrainingModule.training_step
        seen = []

        def noting(self, batch, batch_idx):
            if self.clock.step == stop:
                raise KeyError("stopped")
            seen.append(batch["tokens"].tolist())
            return step(self, batch, batch_idx)

        with monkeypatch.context() as patched:
            patched.setattr(TrainingModule, "training_step", noting)
            try:
                fit(recipe, folder=folder, progress=False)
            except KeyError:
                assert len(seen) == stop
        return seen

    whole = rows_of(tmp_path / "whole")
    assert len({str(row) for row in whole}) == 8
    for workers in (0, 2):
        folder = tmp_path / f"stopped{workers}"
        assert rows_of(folder, stop=3, workers=workers) + rows_of(folder, workers=workers) == whole


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_used(
    tiny, tmp_path, monkeypatch, in_child, same_run, capsys
):
    whole = fit(tiny(), folder=tmp_path / "whole", progress=False)
    for number, damaging in enumerate((cut_short, overwritten, emptied)):
        folder = tmp_path / f"killed{number}"
        with monkeypatch.context() as patched:
            kill_in_step(patched)
            in_child(lambda folder=folder: fit(tiny(), folder=folder, progress=False))
        newest = folder / "checkpoints" / "step-4.ckpt"
        damaging(newest)
        same_run(whole, fit(tiny(), folder=folder, progress=False))
        assert f"{newest} is damaged" in capsys.readouterr().err


def cut_short(path):
    os.truncate(path, path.stat().st_size - 100)


def overwritten(path):
    with open(path, "r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 16)


def emptied(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_keeps_the_work_and_says_how_to_go_on(tiny, tmp_path, monkeypatch, same_run, number):
    whole = fit(tiny(), folder=tmp_path / "whole", progress=False)
    step = TrainingModule.training_step

    def asking(self, batch, batch_idx):
        if self.clock.step == 5 and self.clock.micro == 0:
            os.kill(os.getpid(), number)
        return step(self, batch, batch_idx)

    with monkeypatch.context() as patched, pytest.raises(Interrupted) as caught:
        patched.setattr(TrainingModule, "training_step", asking)
        fit(tiny(), folder=tmp_path / "stopped", progress=False)
    assert caught.value.code == 128 + number
    assert f"bakeoff fit --resume {tmp_path / 'stopped'}" in str(caught.value)
    assert (tmp_path / "stopped" / "checkpoints" / "step-5.ckpt").exists()  # the step that had begun is made again
    same_run(whole, fit(tiny(), folder=tmp_path / "stopped", progress=False))


def test_a_validation_that_was_broken_off_is_made_up(tiny, tmp_path, monkeypatch, same_run):
    whole = fit(tiny(), folder=tmp_path / "whole", progress=False)
    measure = Validation.measure

    def asking(self, trainer, module, watch):
        os.kill(os.getpid(), signal.SIGINT)
        return measure(self, trainer, module, watch)

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(Validation, "measure", asking)
        fit(tiny(), folder=tmp_path / "stopped", progress=False)
    assert [row["step"] for row in read_curve(tmp_path / "stopped" / "curve.csv")] == [1, 2, 3]
    same_run(whole, fit(tiny(), folder=tmp_path / "stopped", progress=False))


def test_a_checkpoint_opens_with_plain_values_only(tiny, tmp_path):
    fit(tiny(), folder=tmp_path, progress=False)
    path = tmp_path / "checkpoints" / "step-8.ckpt"
    kept = torch.load(path, weights_only=True)
    assert kept["global_step"] == 8
    assert damage(path) is None
    with pytest.raises(UserError, match=r"checkpoint\.callbacks\.mine is a pathlib\.\w+"):
        check_plain({"callbacks": {"mine": tmp_path}})


def test_a_full_disk_is_one_message_and_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(content, file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(UserError, match=r"step-1\.ckpt: No space left on device"):
        save_whole({}, tmp_path / "step-1.ckpt")
    assert not list(tmp_path.iterdir())


def test_a_curve_that_was_cut_in_a_line_keeps_its_whole_rows(tmp_path):
    curve = Curve(tmp_path / "curve.csv")
    curve.start()
    for step in (1, 2, 3):
        curve.replace({"step": step, "loss": step / 3, "tokens": 64 * step})
        if step == 2:
            mark = curve.mark()
    curve.replace({"step": 3, "loss": 1.0, "bits_per_byte": 2.5, "tokens": 192})
    with open(curve.path, "a") as file:
        file.write("4,256,,0.1")
    rows = read_curve(curve.path)
    assert [(row["step"], row["loss"], row["bits_per_byte"]) for row in rows] == [
        (1, 1 / 3, None),
        (2, 2 / 3, None),
        (3, 1.0, 2.5),
    ]
    Curve(curve.path).resume(mark)
    assert [row["step"] for row in read_curve(curve.path)] == [1, 2]


def test_every_place_of_a_run_draws_its_own_numbers():
    places = {
        mix(seed, step, micro, rank)
        for seed in range(4)
        for step in range(8)
        for micro in range(4)
        for rank in range(4)
    }
    assert len(places) == 4 * 8 * 4 * 4
    assert all(0 <= place < 2**63 for place in places)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("workers", [0, 2])
def test_ten_kills_at_random_moments(tiny, tmp_path, in_child, same_run, workers):
    changes = {"trainer__max_steps": 60, "checkpoint__every_steps": 3, "validation__every_steps": 5}
    recipe = tiny(**changes, data__workers=workers)
    whole = fit(recipe, folder=tmp_path / "whole", progress=False)
    draw, folder = random.Random(workers), tmp_path / "killed"

    def dying():
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.05, 0.6))
        signal.signal(signal.SIGALRM, die)
        fit(recipe, folder=folder, progress=False)

    codes = []
    for _ in range(10):
        draw.random()
        codes.append(in_child(dying))
    assert -signal.SIGKILL in codes
    same_run(whole, fit(recipe, folder=folder, progress=False))


RECORDER = """
from lightning.pytorch.loggers.logger import Logger

class Recorder(Logger):
    seen, name, version = [], None, None

    def __init__(self, name: str | None = None, id: str | None = None, **kwargs):
        self.about = (id, name, kwargs)

    def log_hyperparams(self, params): ...

    def log_metrics(self, metrics, step=None):
        self.seen.append((step, *self.about))
        if len(self.seen) == 5:
            raise RuntimeError("cut")
"""


def test_a_logger_gets_the_same_id_after_a_resume(tiny, tmp_path, monkeypatch):
    (tmp_path / "recording.py").write_text(RECORDER)
    monkeypatch.syspath_prepend(tmp_path)
    recipe = tiny(trainer__logger={"use": "recording.Recorder"})
    with pytest.raises(RuntimeError, match="cut"):
        fit(recipe, folder=tmp_path / "run", progress=False)
    fit(recipe, folder=tmp_path / "run", progress=False)
    other = fit(recipe, folder=tmp_path / "other", progress=False)

    seen = sys.modules["recording"].Recorder.seen
    assert [step for step, *_ in seen] == [1, 2, 3, 4, 5, *range(5, 9), *range(1, 9)]
    ids = [key for _, key, *_ in seen]
    assert len(set(ids[:9])) == 1
    assert len(set(ids[9:])) == 1
    assert ids[0] != ids[-1]
    assert all(more == {"group": "tiny"} for *_, more in seen)
    assert {name for _, _, name, _ in seen} == {"run", "other"}
    assert read_json(other.folder / "meta.json")["id"] == ids[-1]
