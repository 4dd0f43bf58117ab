"""What ranks do in test_checkpoints.py: they write and read pieces of tensors that each can draw whole."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from bakeoff.errors import UserError
from bakeoff.parallel.checkpoints import read, read_rest, read_whole, write
from bakeoff.parallel.contents import contents
from bakeoff.parallel.pieces import Piece, chunked, cut, entire, local_of
from bakeoff.parallel.writer import Writer
from bakeoff.train.optimizer_state import by_name, empty_state, restore, state_pieces
from bakeoff.train.optimizers import build_optimizer
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, zeros

SHAPES = {
    "scalar": ((), torch.float32),
    "vector": ((7,), torch.bfloat16),
    "counts": ((5,), torch.int64),
    "matrix": ((13, 5), torch.float32),
    "stacked": ((12, 10), torch.float64),
    "short": ((2, 3), torch.float32),
    "nothing": ((0, 4), torch.float32),
    "cube": ((3, 6, 4), torch.float32),
}


def whole(seed=0):
    """All tensors, of odd values."""
    drawn = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(-(2**31), 2**31, shape, generator=drawn)
        if dtype == torch.int64
        else torch.randn(shape, generator=drawn).to(dtype)
        for name, (shape, dtype) in SHAPES.items()
    }


def share(length, ranks, rank):
    """The rank's range of a dimension that does not divide: the last ones have less, or nothing."""
    size = -(-length // ranks)
    return min(rank * size, length), min((rank + 1) * size, length)


def uneven(length, ranks, rank):
    """A range that grows with the rank."""
    bounds = [length * k * (k + 1) // (ranks * (ranks + 1)) for k in range(ranks + 1)]
    return list(pairwise(bounds))[rank]


def rows(shape, ranks, rank):
    return cut(shape, 0, [share(shape[0], ranks, rank)])


def columns(shape, ranks, rank):
    return cut(shape, len(shape) - 1, [uneven(shape[-1], ranks, rank)])


def halves(shape, ranks, rank):
    """Of each half of the rows (of two stacked projections) the rank's range."""
    half = shape[0] // 2
    start, stop = share(half, ranks, rank)
    return cut(shape, 0, [(start, stop), (half + start, shape[0] if rank == ranks - 1 else half + stop)])


def halves_in_chunks(shape, ranks, rank):
    """Halves over pairs of ranks, each in two chunks of rows."""
    inner = 2 if ranks > 1 else 1
    boxes = halves(shape, ranks // inner, rank // inner)
    height = sum(box.size[0] for box in boxes)
    return chunked(boxes, *share(height, inner, rank % inner))


LAYOUTS = {"rows": rows, "columns": columns, "halves": halves, "halves_in_chunks": halves_in_chunks}


def pieces(layout, ranks, rank, values=None):
    """The rank's pieces, of given whole tensors or of NaN and -1; scalars and `counts` are held by all."""
    made = {}
    for name, (shape, dtype) in SHAPES.items():
        if len(shape) < 1 or name in ("counts", "nothing"):
            tensor = values[name].clone() if values else torch.full(shape, -1).to(dtype)
            made[name] = entire(tensor)
            continue
        boxes = LAYOUTS[layout](shape, ranks, rank)
        extent = [max((b.local[d] + b.size[d] for b in boxes), default=0) for d in range(len(shape))]
        local = torch.full(extent, -1).to(dtype)
        for box in boxes if values else ():
            source = tuple(slice(start, start + length) for start, length in zip(box.whole, box.size, strict=True))
            target = tuple(slice(start, start + length) for start, length in zip(box.local, box.size, strict=True))
            local[target] = values[name][source]
        made[name] = Piece(torch.Size(shape), boxes, local)
    return made


def mine(layout, values=None):
    return pieces(layout, distributed.get_world_size(), distributed.get_rank(), values)


def same(found, expected):
    for name, piece in expected.items():
        assert torch.equal(found[name].local, piece.local), name
        assert found[name].local.dtype == piece.local.dtype, name


def writes(folder, layout, seed=0):
    """All ranks write."""
    write(mine(layout, whole(seed)), Path(folder), group=None, plain={"rank": distributed.get_rank()})


def reads(folder, layout, seed=0):
    """All ranks read what somebody wrote."""
    found = mine(layout)
    read(Path(folder), found)
    same(found, mine(layout, whole(seed)))


def dcp_reads(folder):
    """The library itself reads it, into tensors of its own."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
    expected = whole()
    for dim, names in ((0, ("vector", "matrix", "stacked", "short", "cube")), (1, ("matrix", "stacked", "cube"))):
        found = {
            name: zeros(expected[name].shape, dtype=expected[name].dtype, device_mesh=mesh, placements=[Shard(dim)])
            for name in names
        }
        dcp.load(found, checkpoint_id=folder)
        for name in names:
            assert torch.equal(found[name].full_tensor(), expected[name]), name


def saves_in_the_background(folder):
    """Three checkpoints, while the tensors change and the ranks go on adding up over the default group."""
    group, rank = distributed.new_group(backend="gloo"), distributed.get_rank()
    writer, called = Writer(group), []
    kept = mine("halves_in_chunks", whole(0))
    plain = {"step": 0, "more": [torch.zeros(2)]}
    for step in range(3):
        for name, piece in mine("halves_in_chunks", whole(step)).items():
            kept[name].local.copy_(piece.local)
        plain["step"] = step
        plain["more"][0].fill_(step)
        writer.save(kept, plain, Path(folder, f"step-{step}.ckpt"), lambda step=step: called.append(step))
        for piece in kept.values():
            piece.local.fill_(7)
        plain["step"] = 99
        plain["more"][0].fill_(99)
        for _ in range(50):
            total = torch.ones(100)
            distributed.all_reduce(total)
            assert total.eq(distributed.get_world_size()).all()
    writer.wait()
    assert called == ([0, 1, 2] if rank == 0 else [])
    for step in range(3):
        found = read_whole(Path(folder, f"step-{step}.ckpt"))
        assert all(torch.equal(found[name], value) for name, value in whole(step).items())
        rest = read_rest(Path(folder, f"step-{step}.ckpt"))
        assert rest["step"] == step
        assert rest["more"][0].tolist() == [step, step]
    distributed.destroy_process_group(group)


def is_refused_everywhere(folder):
    """What one rank cannot write, or read, is one message on each."""
    rank, place = distributed.get_rank(), Path(folder, "refused.ckpt")
    with pytest.raises(UserError, match=r"checkpoint\.what is a builtins\.object"):
        write(mine("rows", whole()), place, group=None, plain={"what": object() if rank == 0 else None})
    assert not place.exists()
    write(mine("rows", whole()), place, group=None)
    wanted = mine("columns")
    if rank == 1:
        del wanted["matrix"]
    with pytest.raises(UserError, match=r"matrix: \(13, 5\) float32 there, none here"):
        read(place, wanted)


def meets_a_full_disk(folder):
    """The disk is full, and later is not."""
    group = distributed.new_group(backend="gloo")
    writer, values = Writer(group), torch.randn(300_000)
    start, stop = share(300_000, distributed.get_world_size(), distributed.get_rank())
    held = {"values": Piece(values.shape, cut(values.shape, 0, [(start, stop)]), values[start:stop].clone())}
    place = Path(folder, "step-1.ckpt")
    writer.save(held, {}, place)
    with pytest.raises(UserError, match=f"cannot write {place}.*No space left on device; it takes .* bytes"):
        writer.wait()
    assert not place.exists()
    assert torch.equal(held["values"].local, values[start:stop])
    other = Path(folder).parent / "step-1.ckpt"
    writer.save(held, {}, other)
    writer.wait()
    assert torch.equal(read_whole(other)["values"], values)
    distributed.destroy_process_group(group)


def sharded_net(seed):
    """An odd layer in FSDP2's even chunks, its optimizer, and its pieces by name."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 1))
    fully_shard(net, mesh=init_device_mesh("cpu", (distributed.get_world_size(),)))
    held = {}
    for name, parameter in net.named_parameters():
        start, stop = share(parameter.shape[0], distributed.get_world_size(), distributed.get_rank())
        boxes = cut(parameter.shape, 0, [(start, stop)])
        held[name] = Piece(parameter.shape, boxes, local_of(parameter))
    return net, build_optimizer(lambda groups: torch.optim.AdamW(groups, lr=0.1), net), held


def one_step(net, optimizer):
    net(torch.tensor([[1.0, -2.0, 3.0]])).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def sharded_training_goes_on(folder):
    """Two steps of FSDP2, kept, taken over by another model, and a third step of both."""
    net, optimizer, held = sharded_net(0)
    for _ in range(2):
        one_step(net, optimizer)
    tensors, plain = by_name(optimizer, net)
    place = Path(folder, "step-2.ckpt")
    write({**held, **state_pieces(tensors, held)}, place, group=None, plain=plain)
    other, fresh, wanted = sharded_net(1)
    made = empty_state(contents(place), fresh, other, wanted)
    read(place, {**wanted, **state_pieces(made, wanted)})
    restore(fresh, other, made, read_rest(place))
    one_step(net, optimizer)
    one_step(other, fresh)
    for (name, mine), theirs in zip(net.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(local_of(mine), local_of(theirs)), name
    third = {name: parameter.full_tensor() for name, parameter in net.named_parameters()}
    if distributed.get_rank() == 0:
        torch.save(third, Path(folder, "third.pt"))
