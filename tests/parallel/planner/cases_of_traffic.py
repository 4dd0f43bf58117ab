"""What ranks do in the tests of traffic: a step on a mesh, its collectives counted, beside what the planner says."""

import pytest
import torch
from bakeoff.model import LanguageModel
from bakeoff.parallel.gradients import Gradients
from bakeoff.parallel.layout import Layout, Learner
from bakeoff.parallel.mesh import Mesh, Sizes
from bakeoff.parallel.planner.estimate import Job, sending
from bakeoff.parallel.planner.stages import stages, weights
from bakeoff.parallel.sent import Sent
from bakeoff.parts.causal import Causal
from bakeoff.testing.build import resolved

ROWS, LENGTH = 2, 32


def as_planned(sizes, blocks, **model):
    """The planned bytes of a layout are those counted, within a tenth."""
    sizes = Sizes(**sizes)
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
    with Sent() as sent:
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
    assert sum(sum(flow) for flow in planned.values()) == pytest.approx(sent.bytes, rel=0.1)
    assert sent.bytes > 0
