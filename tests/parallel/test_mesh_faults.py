"""What goes wrong on one rank of a mesh: all ranks end, one of them says why, and the run goes on from what is kept."""

import errno
import os
import random
import re
import signal
import time

import pytest
import torch
from bakeoff.parallel import checkpoints, storage
from bakeoff.parallel.gradients import Gradients
from bakeoff.parallel.layout import pieces
from bakeoff.parallel.pieces import entire
from bakeoff.parts.files import remove
from bakeoff.train import load_run
from bakeoff.train.checkpoint import Checkpoints
from bakeoff.train.curve import read_curve
from bakeoff.train.failures import NotFinite
from bakeoff.train.module import TrainingModule
from torch import distributed

from .launching import Ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SHARDED = {"shard": 2, "tensor": 2}
STEPS = 30


@pytest.fixture
def path(made):
    """A run of many short steps, each of which is kept."""
    return made(trainer__max_steps=STEPS, validation__every_steps=None, checkpoint__every_steps=1)


@pytest.fixture(scope="module")
def finished():
    """Weights of the run that nothing interrupted, once one is there."""
    return {}


def wait_for_step(ranks, folder, step):
    end = time.monotonic() + 120
    while len(read_curve(folder / "curve.csv")) < step:
        assert ranks.running(), ranks.errors
        assert time.monotonic() < end, "no step is made"
        time.sleep(0.02)


def same(run, finished, on_mesh, path, sizes, folder):
    """The run has ended bit for bit as one that nothing interrupted."""
    if "run" not in finished:
        finished["run"] = on_mesh(path, sizes, folder=folder)
    assert [row["step"] for row in run.curve] == list(range(1, STEPS + 1))
    whole = finished["run"].model.state_dict()
    for name, value in run.model.state_dict().items():
        assert torch.equal(value, whole[name]), name


@pytest.mark.parametrize("sizes", [{"data": 2}, {"shard": 2}, SHARDED, {"expert": 2}], ids=str)
def test_a_gradient_that_is_not_finite_on_one_rank_stops_all(made, start, tmp_path, monkeypatch, sizes):
    odd, adopt = "model.backbone.blocks.1.feed_forward.down.weight", Gradients.adopt
    clip, rank, steps = TrainingModule.configure_gradient_clipping, distributed.get_rank, ["even", "even", "odd"]

    def adopted(self):
        adopt(self)
        here = next(leaf.own for leaf in self.leaves if leaf.name == odd)
        if rank() == 1 and steps.pop(0) == "odd":
            here.grad.view(-1)[-1] = float("inf")

    def clipped(self, *rest, **options):
        before = {name: piece.local.clone() for name, piece in pieces(self.learner).items()}
        try:
            clip(self, *rest, **options)
        except NotFinite:
            after = {name: piece.local for name, piece in pieces(self.learner).items()}
            assert all(torch.equal(after[name], value) for name, value in before.items())
            (tmp_path / f"unchanged-{rank()}").touch()
            raise

    monkeypatch.setattr(Gradients, "adopt", adopted)
    monkeypatch.setattr(TrainingModule, "configure_gradient_clipping", clipped)
    path = made(checkpoint__every_steps=1)
    ranks = start(path, sizes, tmp_path / "run")
    assert set(ranks.wait()) == {2}, ranks.errors
    (told,) = ranks.messages
    assert told.startswith(f"bakeoff: stopped before optimizer step 3: gradient of {odd} is not finite.")
    assert "Traceback" not in ranks.errors
    assert len(list(tmp_path.glob("unchanged-*"))) == len(ranks.pids)
    assert len(load_run(tmp_path / "run").curve) == 2


#: Where a rank kills itself: a function, before or after which of its calls, and the rank. The third checkpoint is
#: being written, or the second one after the run went on.
MOMENTS = {
    "before the files": (storage, "store", "before", 3, 1),
    "before its file": (storage._Folder, "write_data", "before", 3, 0),
    "after its file": (storage._Folder, "write_data", "after", 3, 1),
    "before the metadata": (storage._Folder, "finish", "before", 3, 0),
    "before the sums": (checkpoints, "_sums", "before", 3, 1),
    "before the rest": (checkpoints, "save_whole", "before", 3, 0),
    "before the manifest": (checkpoints, "write_sealed", "before", 3, 0),
    "before it stands": (checkpoints, "sync_folder", "before", 5, 0),
    "when it stands": (checkpoints, "sync_folder", "after", 4, 0),
    "before the oldest goes": (Checkpoints, "prune", "before", 3, 0),
}


def killing(monkeypatch, where, name, when, rank, number):
    """Before or after the `number`-th call of a function, a rank kills itself."""
    call, left = getattr(where, name), [number]

    def called(*arguments, **options):
        if distributed.get_rank() != rank:
            return call(*arguments, **options)
        left[0] -= 1
        if left[0] == 0 and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = call(*arguments, **options)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    monkeypatch.setattr(where, name, called)


def test_ranks_that_are_killed_while_they_write(path, start, on_mesh, tmp_path, monkeypatch, finished):
    folder, sizes = tmp_path / "run", {"shard": 2}
    kept = 0
    for moment, (where, name, when, number, one) in MOMENTS.items():
        with monkeypatch.context() as patch:
            killing(patch, where, name, when, one, number)
            ended_by(start(path, sizes, folder), one)
        steps = sorted(int(found.name.split("-")[1][:-5]) for found in (folder / "checkpoints").glob("step-*.ckpt"))
        assert load_run(folder).curve
        assert steps[-1] > kept, f"{moment}: nothing was kept"
        kept = steps[-1]
    run = on_mesh(path, sizes, folder=folder)
    same(run, finished, on_mesh, path, sizes, tmp_path / "whole")


def ended_by(ranks, one):
    """A rank was killed: the other ends within a minute, and names it."""
    codes = ranks.wait(100)
    assert codes[one] == -signal.SIGKILL, ranks.errors
    assert all(code for code in codes)
    assert len(ranks.messages) == 1, ranks.errors
    assert re.search(rf"rank {one} \(host .*has died: its process {ranks.pids[one]} is gone", ranks.errors)


def test_ranks_that_are_killed_at_any_moment(path, start, on_mesh, tmp_path, finished):
    draw, folder, sizes = random.Random(4), tmp_path / "run", {"shard": 2}
    kept = 0
    for _ in range(6):
        ranks, one = start(path, sizes, folder), draw.randrange(2)
        wait_for_step(ranks, folder, kept + 2)
        time.sleep(draw.uniform(0, 0.3))
        os.kill(ranks.pids[one], signal.SIGKILL)
        ended_by(ranks, one)
        kept = len(load_run(folder).curve)
    run = on_mesh(path, sizes, folder=folder)
    same(run, finished, on_mesh, path, sizes, tmp_path / "whole")


def test_a_rank_that_stands_still_is_named(made, start, tmp_path):
    path = made(trainer__max_steps=100000, checkpoint__every_steps=None, validation__every_steps=None)
    ranks = start(path, SHARDED, tmp_path / "run")
    wait_for_step(ranks, tmp_path / "run", 3)
    os.kill(ranks.pids[2], signal.SIGSTOP)
    try:
        end = time.monotonic() + 60
        while len(ranks.codes) < 3:
            ranks.running()
            assert time.monotonic() < end, f"the job stalls: {ranks.errors}"
            time.sleep(0.05)
    finally:
        os.kill(ranks.pids[2], signal.SIGKILL)
    assert all(ranks.wait())
    assert len(ranks.messages) == 1, ranks.errors
    (told,) = ranks.messages
    assert re.match(rf"bakeoff: rank 2 \(host .*, process {ranks.pids[2]}, has not been heard of for", told)


def test_a_disk_that_is_full_for_one_rank(path, start, on_mesh, tmp_path, monkeypatch, finished):
    write, left = storage.FileSystemWriter.write_data, [3]

    def full(self, plan, planner):
        left[0] -= 1
        if left[0] == 0 and distributed.get_rank() == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(self, plan, planner)

    folder, sizes = tmp_path / "run", {"shard": 2}
    with monkeypatch.context() as patch:
        patch.setattr(storage.FileSystemWriter, "write_data", full)
        ranks = start(path, sizes, folder)
        assert set(ranks.wait()) == {2}, ranks.errors
    (told,) = ranks.messages
    assert re.search(r"cannot write .*step-3\.ckpt\.tmp: No space left on device; it takes [\d,]+ bytes, ", told)
    assert "Traceback" not in ranks.errors
    run = on_mesh(path, sizes, folder=folder)
    same(run, finished, on_mesh, path, sizes, tmp_path / "whole")


@pytest.mark.parametrize(
    ("sizes", "overrides", "told"),
    [
        ({"tensor": 4}, ["model.blocks.layer.mixer.n_heads=2"], "n_kv_heads is 2 and the mesh's tensor degree 4"),
        ({"shard": 2}, ["optimizer={use: torch.optim.Adafactor, lr: 0.01}"], "does not update each element by itself"),
        ({"shard": 2, "tensr": 2}, [], "did you mean 'tensor'?"),
        ({"shard": 2}, ["data.batch_tokens=48"], "do not divide over 2 ranks"),
    ],
)
def test_what_cannot_be_laid_out_is_said_once_for_all_ranks(path, start, tmp_path, sizes, overrides, told):
    ranks = start(path, sizes, tmp_path / "run", *overrides)
    assert set(ranks.wait()) == {2}, ranks.errors
    (message,) = ranks.messages
    assert message.startswith("bakeoff: rank 0 (host ")
    assert told in message
    assert "Traceback" not in ranks.errors
    assert not (tmp_path / "run").exists()


def test_ranks_with_different_recipes(path, tmp_path):
    words = ["fit", str(path), "trainer.devices=2", "trainer.strategy=mesh_fsdp", "--folder", str(tmp_path / "run")]
    ranks = Ranks(2, [[*words, f"optimizer.lr={rate}"] for rate in (0.01, 0.02)], tmp_path / "logs")
    assert ranks.wait() == [2, 2], ranks.errors
    (message,) = ranks.messages
    assert "the ranks of this run were not started alike, so none of them trains" in message
    assert re.search(r"recipe: \w{12} on rank 0 \(host .*; \w{12} on rank 1 \(host ", ranks.errors)
    assert not (tmp_path / "run" / "meta.json").exists()


def test_a_checkpoint_of_another_model_is_refused_once(made, start, on_mesh, tmp_path):
    path, folder = made(checkpoint__every_steps=2, checkpoint__keep=9), tmp_path / "run"
    on_mesh(path, {"shard": 2}, folder=folder)
    for name in ("summary.json", "checkpoints/step-4.ckpt", "checkpoints/step-5.ckpt"):
        remove(folder / name)
    place = folder / "checkpoints" / "step-2.ckpt"
    held = checkpoints.read_whole(place)
    held["model.backbone.norm.weight"] = torch.ones(17)
    whole = {name: entire(tensor) for name, tensor in held.items()}
    checkpoints.write(whole, place, group=None, plain=checkpoints.read_rest(place))
    ranks = start(path, {"shard": 2}, folder)
    assert set(ranks.wait()) == {2}, ranks.errors
    (message,) = ranks.messages
    assert "step-2.ckpt holds other tensors than the run has:" in message
    assert "model.backbone.norm.weight: (17,) float32 there, (16,) float32 here" in ranks.errors
    assert "Traceback" not in ranks.errors
