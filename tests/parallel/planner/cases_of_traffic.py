"""What ranks do in the tests of traffic: a step on a mesh, its collectives counted, beside what the planner says."""

import pytest
import torch
from bakeoff.model import LanguageModel
from bakeoff.parallel.gradients import Gradients
from bakeoff.parallel.layout import Layout, Learner
from bakeoff.parallel.mesh import Mesh, Sizes
from bakeoff.parallel.planner import traffic
from bakeoff.parallel.planner.estimate import Job, sending
from bakeoff.parallel.planner.stages import stages, weights
from bakeoff.parts.causal import Causal
from bakeoff.testing.build import resolved
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROWS, LENGTH = 2, 32
SENT = {
    "allreduce_": traffic.all_reduce,
    "_allgather_base_": traffic.all_gather,
    "_reduce_scatter_base_": traffic.reduce_scatter,
}


class Sent(TorchDispatchMode):
    """Bytes that this rank sends in collectives of so many ranks, each done as a ring; others are not expected."""

    def __init__(self, ranks):
        super().__init__()
        self.ranks, self.bytes = ranks, 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d" and "barrier" not in str(func):
            whole = max(t.nbytes for t in tree_leaves(args) if isinstance(t, Tensor))
            self.bytes += SENT[func._schema.name.partition("::")[2]](whole, self.ranks)
        return func(*args, **(kwargs or {}))


def as_planned(dimension, ranks, blocks, **model):
    """The planned bytes of one dimension are those counted, within a tenth."""
    sizes = Sizes(**{dimension: ranks})
    arguments = {"use": "decoder", "depth": 2, "pattern": list(blocks), "blocks": blocks}

    def built():
        told = {"d_model": 64, "vocab_size": 256, "max_length": LENGTH, **model}
        return LanguageModel(**told, backbone=resolved(arguments))

    mesh = Mesh(sizes, "cpu")
    layout = Layout(mesh)
    with torch.device("meta"):
        whole, learner = built(), Learner(built(), Causal())
    layout.lay_out(learner, torch.device("cpu"), seed=7)
    tokens = torch.zeros(ROWS, LENGTH + 1, dtype=torch.long)
    with Sent(ranks) as sent:
        learner({"tokens": tokens})[0]["loss"][0].backward()
        gradients = Gradients(list(layout.leaves(learner)), mesh)
        gradients.adopt()
        gradients.add_up()
    job = Job(
        stages=stages(whole, LENGTH),
        weights=lambda tensor: weights(whole, tensor),
        kept=lambda rows, mode: [],
        rows=lambda batch: (ROWS, 1),
        length=LENGTH,
        width=64,
        own=4,
        computing=4,
        optimizer=2.0,
        updating=0.0,
        modes=("none",),
    )
    planned = sending(job, sizes, job.weights(sizes.tensor), ROWS, 1, "none", per_node=8)
    assert list(planned) == [dimension]
    assert sum(planned[dimension]) == pytest.approx(sent.bytes, rel=0.1)
    assert sent.bytes > 0
