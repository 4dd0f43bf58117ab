"""Memory of a rank, and bytes that it sends in a step, beside what `bakeoff plan` says; and seconds of a step.

    OMP_NUM_THREADS=1 python -m benchmarks.parallel

Ranks are gloo processes on one machine, so seconds say what the layouts cost here and nothing of a cluster. Memory is
the storages that are live at the peak of a step, the second with a standing optimizer, without what the collectives'
own buffers take.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from bakeoff.evaluate.layouts import plan_layouts
from bakeoff.model.devices import accelerator
from bakeoff.model.memory import Live
from bakeoff.parallel.gradients import Gradients
from bakeoff.parallel.layout import Layout, Learner
from bakeoff.parallel.mesh import Mesh, Sizes
from bakeoff.parallel.planner.estimate import estimate
from bakeoff.parallel.sent import Sent
from bakeoff.recipe import Recipe, recipe
from bakeoff.testing.ranks import Ranks
from torch import distributed
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves

from benchmarks.common.tables import row, table

LAYOUTS: list[dict[str, int]] = [
    {"data": 2},
    {"shard": 2},
    {"tensor": 2},
    {"data": 4},
    {"shard": 4},
    {"tensor": 4},
    {"data": 2, "shard": 2},
    {"data": 2, "tensor": 2},
    {"shard": 2, "tensor": 2},
    {"context": 2},
    {"context": 4},
    {"context": 2, "shard": 2},
]
STEPS = 5


def benched(ranks: int) -> Recipe:
    """A transformer of 27 million parameters, one row a step and rank."""
    shape = ["model.d_model=512", "model.depth=8", "model.blocks.layer.feed_forward.width=1408"]
    batch = [f"data.batch_tokens={256 * ranks}", "data.micro_batch=1"]
    return recipe("bakeoff:models/transformer.yaml", [*shape, *batch, "trainer.accelerator=cpu"])


class Standing(Live):
    """As `Live`, of storages at their present size: what is gathered stands in storages that shrink to nothing."""

    most = 0

    def note(self, values: Any) -> None:
        """Not the wrappers of sharded tensors, which say the size of the whole."""
        super().note([value for value in tree_leaves(values) if not isinstance(value, DTensor)])

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        self.now = sum(storage.nbytes() for storage in list(self._known.keys()))
        self.most = max(self.most, self.now)
        return result


def learner_of(said: Recipe, vocabulary: int, *, filled: bool) -> Learner:
    """The recipe's model under its objective."""
    with torch.device("cpu" if filled else "meta"):
        model = said.build("model", vocab_size=vocabulary, max_length=said.build("data").length)
    return Learner(model.initialise(0) if filled else model, said.build("objective"))


def step_of(sizes: Sizes, said: Recipe, vocabulary: int) -> Any:
    """A call that takes an optimizer step on this rank, and the learner that it trains."""
    layout = Layout(Mesh(sizes, "cpu"))
    learner = learner_of(said, vocabulary, filled=False)
    layout.lay_out(learner, torch.device("cpu"), seed=0)
    leaves = list(layout.leaves(learner))
    gradients = Gradients(leaves, layout.mesh)
    optimizer = said.build("optimizer")([leaf.own for leaf in leaves])
    tokens = torch.randint(0, vocabulary, (1, said.build("data").length + 1))

    def step() -> None:
        terms, _ = learner({"tokens": tokens})
        (terms["loss"][0] / tokens.numel()).backward()
        gradients.adopt()
        gradients.add_up()
        optimizer.step()
        gradients.drop()

    return step, [*leaves, learner]


def measure(folder: str, sizes: dict[str, int], vocabulary: int) -> None:
    """Peak, bytes sent and seconds of a step; the first rank writes them."""
    torch.manual_seed(distributed.get_rank())
    said = benched(Sizes(**sizes).batch)
    with Standing() as live:
        step, _kept = step_of(Sizes(**sizes), said, vocabulary)
        step()
        live.most = 0
        with Sent() as sent:
            step()
    seconds = timed(step)
    if distributed.get_rank() == 0:
        found = {"peak": live.most, "sent": sent.bytes, "seconds": seconds}
        Path(folder, "found.json").write_text(json.dumps(found))


def replicas(folder: str, vocabulary: int) -> None:
    """Seconds of a step of torch's DistributedDataParallel."""
    said = benched(distributed.get_world_size())
    learner = learner_of(said, vocabulary, filled=True)
    wrapped = DistributedDataParallel(learner)
    optimizer = said.build("optimizer")(learner.parameters())
    tokens = torch.randint(0, vocabulary, (1, said.build("data").length + 1))

    def step() -> None:
        terms, _ = wrapped({"tokens": tokens})
        (terms["loss"][0] / tokens.numel()).backward()
        optimizer.step()
        optimizer.zero_grad()

    seconds = timed(step)
    if distributed.get_rank() == 0:
        Path(folder, "found.json").write_text(json.dumps({"seconds": seconds}))


def timed(step: Any) -> float:
    """Seconds of the median step, ranks beginning together."""
    seconds = []
    for _ in range(STEPS):
        distributed.barrier()
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    return median(seconds)


def main() -> None:
    """Print a table."""
    vocabulary = 2048
    table("layout", "peak, MiB", "planned", "ratio", "sent, MB", "planned", "ratio", "step, s")
    pools: dict[int, Ranks] = {}
    with tempfile.TemporaryDirectory() as name:
        for sizes in LAYOUTS:
            count = math.prod(sizes.values())
            folder = Path(name, str(count))
            folder.mkdir(exist_ok=True)
            ranks = pools.setdefault(count, Ranks(count, folder))
            ranks.run(Path(__file__), "measure", folder=name, sizes=sizes, vocabulary=vocabulary)
            found = json.loads(Path(name, "found.json").read_text())
            laid = Sizes(**sizes)
            job = plan_layouts(benched(laid.batch), accelerator("h100"), laid.ranks).job
            told = estimate(job, laid, "none", accelerator("h100"), laid.ranks)
            peak, planned = found["peak"] / 2**20, told.memory.total / 2**20
            sent, said = found["sent"] / 1e6, told.sent / 1e6
            numbers = [f"{peak:.0f}", f"{planned:.0f}", f"{planned / peak:.2f}"]
            numbers += [f"{sent:.1f}", f"{said:.1f}", f"{said / sent:.2f}", f"{found['seconds']:.2f}"]
            row(str(laid), *numbers)
        for count, ranks in pools.items():
            ranks.run(Path(__file__), "replicas", folder=name, vocabulary=vocabulary)
            found = json.loads(Path(name, "found.json").read_text())
            row(f"torch's DistributedDataParallel, {count}", *["–"] * 6, f"{found['seconds']:.2f}")
            ranks.close()


if __name__ == "__main__":
    main()
