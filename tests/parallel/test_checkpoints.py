"""Checkpoints of pieces: any ranks read what any others wrote, a kill leaves whole ones, and opening runs nothing."""

import multiprocessing
import os
import pickle
import signal
import subprocess
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from bakeoff.errors import UserError
from bakeoff.parallel import checkpoints, storage
from bakeoff.parallel.checkpoints import MANIFEST, damage, read, read_rest, read_whole, to_safetensors, write
from bakeoff.parallel.contents import METADATA, contents
from bakeoff.parallel.pieces import entire
from bakeoff.parts.files import checksum, settle, write_sealed
from bakeoff.testing.ranks import shared_ranks
from bakeoff.train.optimizer_state import PREFIX, by_index
from bakeoff.train.optimizers import build_optimizer
from safetensors.torch import load_file
from torch import distributed

from . import cases_of_checkpoints as cases

CASES = Path(cases.__file__)


def equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
        assert found[name].dtype == value.dtype


@pytest.fixture
def written(tmp_path):
    """A checkpoint of one process."""
    folder = tmp_path / "step-1.ckpt"
    write({name: entire(value) for name, value in cases.whole().items()}, folder, group=None, plain={"step": 1})
    return folder


def resign(folder):
    """Let the manifest say what is there."""
    files = {path.name: [path.stat().st_size, checksum(path)] for path in folder.iterdir() if path.name != MANIFEST}
    write_sealed(folder / MANIFEST, {"files": files})


def test_one_process_writes_and_reads(written):
    assert damage(written) is None
    equal(read_whole(written), cases.whole())
    assert read_rest(written) == {"step": 1}
    assert [path.name for path in written.parent.iterdir()] == [written.name]
    found = cases.pieces("halves_in_chunks", 4, 2)
    read(written, found)
    cases.same(found, cases.pieces("halves_in_chunks", 4, 2, cases.whole()))


@pytest.mark.parametrize("layout", ["halves_in_chunks", "columns"])
def test_four_ranks_write_and_two_and_one_read(tmp_path, layout):
    folder = tmp_path / "step-1.ckpt"
    shared_ranks(4).run(CASES, "writes", folder=str(folder), layout=layout)
    equal(read_whole(folder), cases.whole())
    assert read_rest(folder) == {"rank": 0}
    for other in cases.LAYOUTS:
        shared_ranks(2).run(CASES, "reads", folder=str(folder), layout=other)
    shared_ranks(2).run(CASES, "dcp_reads", folder=str(folder))
    found = {name: torch.zeros_like(value) for name, value in cases.whole().items()}
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        dcp.load(found, checkpoint_id=folder, no_dist=True)
    equal(found, cases.whole())


def test_what_ranks_hold_alike_is_written_once_by_those_with_least_to_write(tmp_path):
    folder = tmp_path / "step-1.ckpt"
    shared_ranks(4).run(CASES, "writes", folder=str(folder), layout="rows")
    for name, stored in contents(folder).items():
        assert sum(torch.Size(chunk.size).numel() for chunk in stored.chunks) == stored.shape.numel(), name
    replicas = {name: contents(folder)[name].chunks for name in ("scalar", "counts")}
    assert all(len(chunks) == 1 for chunks in replicas.values())
    assert {chunks[0].file for chunks in replicas.values()} == {
        "__3_0.distcp"
    }  # which has none of "short", and fewest rows


def test_the_background_does_not_meet_the_training(tmp_path):
    shared_ranks(2).run(CASES, "saves_in_the_background", folder=str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step}.ckpt" for step in range(3)]


def test_sharded_training_goes_on_and_one_process_continues_it(tmp_path):
    shared_ranks(2).run(CASES, "sharded_training_goes_on", folder=str(tmp_path))
    net = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
    optimizer = build_optimizer(lambda groups: torch.optim.AdamW(groups, lr=0.1), net)
    held, plain = read_whole(tmp_path / "step-2.ckpt"), read_rest(tmp_path / "step-2.ckpt")
    state = {name: value for name, value in held.items() if name.startswith(PREFIX)}
    net.load_state_dict({name: value for name, value in held.items() if name not in state})
    optimizer.load_state_dict(by_index(state, plain))
    cases.one_step(net, optimizer)
    third = torch.load(tmp_path / "third.pt", weights_only=True)
    for name, value in net.state_dict().items():
        torch.testing.assert_close(value, third[name], rtol=1e-6, atol=1e-6)


def test_an_error_of_one_rank_is_told_by_all(tmp_path):
    shared_ranks(2).run(CASES, "is_refused_everywhere", folder=str(tmp_path))


def test_a_full_disk_is_told_by_all(tmp_path):
    place = tmp_path / "disk"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", place], capture_output=True)
    if made.returncode:
        pytest.skip(f"this user may not mount a tmpfs: {made.stderr.decode().strip()}")
    try:
        shared_ranks(2).run(CASES, "meets_a_full_disk", folder=str(place))
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def test_files_are_read_from_beginning_to_end(written, monkeypatch):
    read_entry, places = checkpoints._values, []
    monkeypatch.setattr(
        checkpoints,
        "_values",
        lambda entry, chunk, held: (places.append(chunk.offset), read_entry(entry, chunk, held))[1],
    )
    wanted = {name: entire(torch.zeros_like(value)) for name, value in reversed(cases.whole().items())}
    read(written, wanted)
    assert len(places) == len(wanted) - 1  # one has no elements
    assert places == sorted(places)


def test_the_weights_of_the_model_alone(tmp_path):
    folder, weights = tmp_path / "step-1.ckpt", {"w": torch.randn(3, 4), "n": torch.tensor(2.0)}
    held = {f"model.{name}": entire(value) for name, value in weights.items()}
    write({**held, "optimizer.exp_avg.model.w": entire(torch.zeros(3, 4))}, folder, group=None)
    to_safetensors(folder, tmp_path / "out" / "model.safetensors")
    equal(load_file(tmp_path / "out" / "model.safetensors"), weights)


FILES = ("__0_0.distcp", METADATA, "rest.pt", MANIFEST)


@pytest.mark.parametrize("name", FILES)
def test_damage_is_told_with_the_file(written, name):
    whole = (written / name).read_bytes()
    for harm in (whole[:-1], b"", bytes([*whole[:40], whole[40] ^ 1, *whole[41:]])):
        (written / name).write_bytes(harm)
        assert name in damage(written)
        with pytest.raises(UserError, match=f"{written} is damaged: .*{name}"):
            read_whole(written)
    (written / name).unlink()
    assert name in damage(written)
    (written / name).mkdir()
    assert name in damage(written)


def test_no_checkpoint_is_told(tmp_path):
    assert MANIFEST in damage(tmp_path)
    write_sealed(tmp_path / MANIFEST, {"files": {}})
    assert METADATA in damage(tmp_path)
    for odd in ({}, {"files": [1]}, {"files": {"a": 1}}):
        write_sealed(tmp_path / MANIFEST, odd)
        assert MANIFEST in damage(tmp_path)


class Payload:
    """Calls something when it is unpickled."""

    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


def test_metadata_run_nothing(written, tmp_path):
    canary = tmp_path / "canary"
    for hostile in (
        Payload(open, str(canary), "w"),
        Payload(eval, f"open({str(canary)!r}, 'w')"),
        Payload(os.system, f"touch {canary}"),
    ):
        (written / METADATA).write_bytes(pickle.dumps(hostile))
        resign(written)
        with pytest.raises(UserError, match="which no checkpoint consists of"):
            read_whole(written)
        assert "which no checkpoint consists of" in damage(written)
        assert not canary.exists()


def test_entries_run_nothing(written, tmp_path):
    canary, path = tmp_path / "canary", written / "__0_0.distcp"
    chunk = contents(written)["matrix"].chunks[0]
    hostile = pickle.dumps(Payload(open, str(canary), "w"), protocol=2)
    raw = bytearray(path.read_bytes())
    raw[chunk.offset : chunk.offset + chunk.length] = hostile.ljust(chunk.length, b".")
    path.write_bytes(raw)
    resign(written)
    with pytest.raises(UserError, match=f"{path} cannot be read"):
        read_whole(written)
    assert not canary.exists()


def rewritten(folder, change):
    """The metadata, as `change` leaves what the library reads."""
    held = pickle.loads((folder / METADATA).read_bytes())
    change(held)
    (folder / METADATA).write_bytes(pickle.dumps(held))
    resign(folder)


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "rest.pt"])
def test_metadata_name_no_other_files(written, file):
    def change(held):
        for info in held.storage_data.values():
            info.relative_path = file

    rewritten(written, change)
    with pytest.raises(UserError, match="does not hold together"):
        read_whole(written)


def test_metadata_that_cover_less_are_told(written):
    rewritten(written, lambda held: held.state_dict_metadata["matrix"].chunks.clear())
    with pytest.raises(UserError, match="the description of matrix does not hold together"):
        read_whole(written)


def test_an_entry_of_another_shape_is_told(written):
    def change(held):
        held.state_dict_metadata["matrix"].size = torch.Size((5, 13))
        held.state_dict_metadata["matrix"].chunks[0].sizes = torch.Size((5, 13))

    rewritten(written, change)
    with pytest.raises(UserError, match="not the tensor that the metadata speak of"):
        read_whole(written)


#: Where a rank is killed: (rank, whose function, its name, at which call, whether that has been made).
MOMENTS = [
    (0, storage._Folder, "prepare_global_plan", 1, True),
    (1, storage._Folder, "write_data", 1, False),
    (0, storage._Folder, "write_data", 1, True),
    (0, dcp.filesystem, "_write_item", 2, True),
    (1, dcp.filesystem, "_write_item", 1, True),
    (0, storage._Folder, "finish", 1, False),
    (0, storage._Folder, "finish", 1, True),
    (1, checkpoints, "_sums", 1, False),
    (0, checkpoints, "save_whole", 1, False),
    (0, checkpoints, "write_sealed", 1, False),
    (0, checkpoints, "write_sealed", 1, True),
    (0, checkpoints, "sync_folder", 1, True),
    (0, checkpoints, "sync_folder", 2, False),
]
#: At which the new checkpoint stands.
LAST = MOMENTS[-1]


def killed_at(rank, folder, moment, names):
    """One of two ranks that write the first name, whole, and then the second, in which one is killed."""
    who, owner, name, count, after = moment
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=20)
    )
    cases.writes(folder / names[0], "halves", 1)
    if rank == who:
        call, calls = getattr(owner, name), []

        def last(*arguments, **more):
            calls.append(name)
            if len(calls) == count and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = call(*arguments, **more)
            if len(calls) == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        setattr(owner, name, last)
    cases.writes(folder / names[1], "columns", 2)


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("moment", MOMENTS, ids=lambda m: f"{m[0]}-{'after' if m[4] else 'before'}-{m[2]}-{m[3]}")
def test_a_rank_that_is_killed_leaves_whole_checkpoints(tmp_path, monkeypatch, moment, again):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    names = ("step-1.ckpt", "step-1.ckpt" if again else "step-2.ckpt")
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=killed_at, args=(rank, tmp_path, moment, names)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(60)
        assert process.exitcode is not None, "it hangs"
    assert ranks[moment[0]].exitcode == -signal.SIGKILL
    assert ranks[1 - moment[0]].exitcode == 1  # it noticed
    assert [damage(path) for path in tmp_path.glob("step-*.ckpt")] in ([], [None], [None, None])
    settle(tmp_path)
    assert not list(tmp_path.glob("*.tmp")) + list(tmp_path.glob("*.old"))
    expected = {"step-1.ckpt": 1} | ({names[1]: 2} if moment is LAST else {})
    found = {path.name: read_whole(path) for path in tmp_path.glob("step-*.ckpt")}
    assert found.keys() == expected.keys()
    for name, seed in expected.items():
        equal(found[name], cases.whole(seed))
