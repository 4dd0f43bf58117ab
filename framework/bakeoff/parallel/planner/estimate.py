"""One layout on one kind of device: memory of each, bytes that it sends in a step, and the time that both leave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from bakeoff.model.devices import Accelerator
from bakeoff.parallel.gradients import BUCKET
from bakeoff.parallel.mesh import DIMENSIONS, Sizes
from bakeoff.parallel.planner import ring, traffic
from bakeoff.parallel.planner.counting import Kept, step_peak
from bakeoff.parallel.planner.layouts import Shares, over_links
from bakeoff.parallel.planner.stages import Stage, Weights

#: What a device waits for, since the next thing that it computes needs it; other sending goes on meanwhile.
AWAITED = ("tensor", "expert")


@dataclass(frozen=True)
class Job:
    """A recipe's training, whatever it is laid out on.

    Attributes
    ----------
    stages : of the model, in the order of the forward.
    weights : of each stage by tensor degree; raises `ValueError` where a part refuses the degree.
    kept : of each stage by rows of a micro-batch and mode of recomputation, on one device.
    rows : of a micro-batch, and micro-batches a step, by ranks that read rows of their own; raises `ValueError`.
    length, width : of a row in tokens, of the stream in channels.
    own, computing : bytes of an element of the parameters, and of the type that products are computed in.
    optimizer, updating : bytes of optimizer states, and of what its step needs besides, a byte of trained parameters.
    modes : of recomputation that may be chosen, the cheapest first.
    """

    stages: list[Stage]
    weights: Callable[[int], list[Weights]]
    kept: Callable[[int, str], list[Kept]]
    rows: Callable[[int], tuple[int, int]]
    length: int
    width: int
    own: int
    computing: int
    optimizer: float
    updating: float
    modes: tuple[str, ...]

    @property
    def forward_flops(self) -> float:
        """Of a row."""
        return sum(stage.split_flops + stage.whole_flops for stage in self.stages)


class Footprint(NamedTuple):
    """Bytes of one device at the peak of a step."""

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    """Whatever else is live: what backward needs, temporaries, parameters gathered or cast."""

    @property
    def total(self) -> float:
        return sum(self)


class Flow(NamedTuple):
    """What one device sends along one dimension in a step."""

    dimension: str
    sent: Shares
    seconds: float
    """On the links that it goes over, alone."""


@dataclass(frozen=True)
class Estimate:
    """What a layout costs. `compute`, `update` and `step` are seconds: of products, of the optimizer, of all."""

    layout: Sizes
    recompute: str
    rows: int
    accumulation: int
    memory: Footprint
    flows: tuple[Flow, ...]
    compute: float
    update: float
    step: float
    mfu: float

    @property
    def sent(self) -> float:
        """Bytes of one device a step."""
        return sum(sum(flow.sent) for flow in self.flows)

    def rows_that_fit(self, memory: float) -> int:
        """Rows of the largest micro-batch on a device of so many bytes, as if all of the activations grew with them."""
        free = memory - self.memory.total
        more = free / self.memory.activations if self.memory.activations else 0.0
        return max(0, int(self.rows * (1 + more)))

    def ratio(self, flow: Flow) -> float:
        """Seconds of products a second of sending: over 1, it can be hidden behind them."""
        return self.compute / flow.seconds if flow.seconds else float("inf")


def estimate(job: Job, layout: Sizes, recompute: str, device: Accelerator, per_node: int) -> Estimate:
    """The estimate for one layout; `step` is a lower bound and `mfu` an upper one.

    Products run at the device's peak; what a device awaits (tensor, expert) adds to them; all other sending hides
    behind them as far as it is shorter; the optimizer reads and writes its states at the memory's bandwidth.
    Raises `ValueError` where a part or the data refuse the layout.
    """
    rows, accumulation = job.rows(layout.batch)
    held = job.weights(layout.tensor)
    kept = [share(one, layout) for one in job.kept(rows, recompute)]
    memory = footprint(job, layout, held, kept, recompute, accumulation > 1)
    flows = tuple(
        Flow(name, sent, max(sent.inside / device.inside, sent.between / device.between))
        for name, sent in sending(job, layout, held, rows, accumulation, recompute, per_node).items()
    )
    passes = accumulation * rows / layout.context
    compute = passes * work(job, layout.tensor, recompute) / device.flops
    awaited = sum(flow.seconds for flow in flows if flow.dimension in AWAITED)
    others = [flow.sent for flow in flows if flow.dimension not in AWAITED]
    hidden = max(sum(s.inside for s in others) / device.inside, sum(s.between for s in others) / device.between)
    update = (2 * memory.optimizer + 2 * memory.parameters + memory.gradients) / device.bandwidth
    step = max(compute, hidden) + awaited + update
    useful = 3 * job.forward_flops * accumulation * rows * layout.batch
    mfu = useful / (step * device.flops * layout.ranks)
    return Estimate(layout, recompute, rows, accumulation, memory, flows, compute, update, step, mfu)


def work(job: Job, tensor: int, recompute: str) -> float:
    """Operations of one device for a row: forward, twice that backward, and blocks once more if all is recomputed."""
    blocks = [stage.split_flops / tensor + stage.whole_flops for stage in job.stages]
    return 3 * sum(blocks) + (sum(blocks[1:-1]) if recompute == "full" else 0.0)


def share(kept: Kept, layout: Sizes, sequence_parallel: bool = False) -> Kept:
    """What one device has of a stage's activations: of split parts a share, of a row its context's.

    Working memory is taken to be inside of parts as far as what is kept is.
    """
    t, c = layout.tensor, layout.context
    inside = kept.split / kept.activations if kept.activations else 0.0
    whole = (kept.whole - kept.gathered) / t + kept.gathered if sequence_parallel else kept.whole
    return Kept(
        whole=round(whole / c),
        split=round(kept.split / t / c),
        gathered=round(kept.gathered / c),
        copies=round(kept.copies / t),
        working=round(kept.working * (1 - inside + inside / t) / c),
        staying=round(kept.staying / t / c),
    )


def footprint(
    job: Job, layout: Sizes, held: list[Weights], kept: list[Kept], recompute: str, accumulate: bool
) -> Footprint:
    """Bytes of one device.

    Of sharded parameters, those outside of blocks are gathered for the whole step; a block's in the computing type, the
    next block's while they are still there, and its gradient stands whole before it is scattered. Without shards
    autocast's copies of all parameters stay. What replicas, and ranks along context, add up after the backward passes
    through one more bucket.
    """
    elements = [one.on(layout.expert) for one in held]
    trained = [one.trained.on(layout.expert) for one in held]
    left = [job.own * count / layout.shard for count in trained]
    gathered = None
    if layout.shard > 1:
        outside = job.own * (elements[0] + elements[-1] + trained[0] + trained[-1]) + kept[0].copies + kept[-1].copies
        blocks = zip(elements[1:-1], trained[1:-1], strict=True)
        gathered = outside + max(3 * job.computing * count + job.own * learnt for count, learnt in blocks)
    parameters, gradients = job.own * sum(elements) / layout.shard, sum(left)
    standing = gradients if accumulate else 0.0
    most = step_peak(kept, left, recompute=recompute, standing=standing, gathered=gathered)
    bucket = min(job.own * BUCKET, gradients) if layout.data * layout.expert * layout.context > 1 else 0.0
    activations = max(most - gradients, job.updating * gradients, bucket)
    return Footprint(parameters, gradients, job.optimizer * gradients, activations)


def sending(
    job: Job, layout: Sizes, held: list[Weights], rows: int, accumulation: int, recompute: str, per_node: int
) -> dict[str, Shares]:
    """Bytes that one device sends in a step, by dimension; those of size 1 send nothing and are left out."""
    again = 2 if recompute != "none" else 1
    tokens = rows * job.length / layout.context
    dense = job.own * sum(one.trained.dense for one in held) / layout.shard
    pieces = job.own * sum(one.trained.on(layout.expert) for one in held) / layout.shard
    between = {
        "data": lambda n: traffic.all_reduce(pieces, n),
        "expert": lambda n: (
            traffic.all_reduce(dense, n)
            + accumulation
            * sum(traffic.exchanged_tokens(tokens, s.choices, job.width, job.computing, n, again) for s in job.stages)
        ),
        "shard": lambda n: accumulation * _sharded(job, layout, held, n),
        "context": lambda n: (
            traffic.all_reduce(pieces, n)
            + accumulation
            * (again * ring.forward_bytes(n, 1, 1, 1, job.computing) + ring.backward_bytes(n, 1, 1, 1, job.computing))
            * sum(tokens * s.passed / 2 for s in job.stages)
        ),
        "tensor": lambda n: (
            accumulation * _together(job, tokens, n, again)
            + traffic.all_reduce(job.own * sum(w.partial for w in held), n)
        ),
    }
    return {
        name: over_links(between[name](size), layout, name, per_node)
        for name in DIMENSIONS
        if (size := getattr(layout, name)) > 1
    }


def _together(job: Job, tokens: float, ranks: int, again: int) -> float:
    """f and g around each part of each block, the table's sum, and the head's f: of a micro-batch.

    Results travel in the computing type, gradients of what parts are given in the stream's.
    """
    forward, backward = (traffic.all_reduce(tokens * job.width * size, ranks) for size in (job.computing, job.own))
    parts = sum(stage.parts for stage in job.stages[1:-1])
    return parts * (again * forward + backward) + forward + backward


def _sharded(job: Job, layout: Sizes, held: list[Weights], ranks: int) -> float:
    """Parameters outside of blocks gathered once, those of blocks, in the computing type, for the forward and again for
    the backward; gradients scattered: of a micro-batch."""
    count, trained = ([each.on(layout.expert) for each in every] for every in (held, [one.trained for one in held]))
    outside, learnt = (job.own * (one[0] + one[-1]) for one in (count, trained))
    once = traffic.fully_sharded(outside, learnt, ranks, gathers=1)
    return once + traffic.fully_sharded(sum(count[1:-1]) * job.computing, sum(trained[1:-1]) * job.own, ranks)
