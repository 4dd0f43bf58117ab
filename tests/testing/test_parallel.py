"""Law 10 finds what goes wrong where ranks share out a part; parts stand outside functions, for ranks import them."""

from __future__ import annotations

import importlib.util
import sys

import pytest
import torch
from bakeoff.interfaces import Capabilities, Cut, FeedForward, Result, init
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.parts.linear import Linear, columns, rows
from bakeoff.parts.vocabulary import Vocabulary
from bakeoff.testing import check

from .stand_ins import Decay


class Fused(FeedForward):
    """`silu(gate) * up`, of one product; the plan knows of the two."""

    capabilities = MLP.capabilities
    stacked = (24, 24)

    def __init__(self, context):
        super().__init__(context)
        self.both = Linear(context.d_model, 48)
        self.down = Linear(24, context.d_model, role="output")

    def forward(self, x, sequence, state=None):
        gate, up = self.both(x).chunk(2, -1)
        return Result(self.down(torch.nn.functional.silu(gate) * up), state)

    def parallel_plan(self, ranks):
        return {"both.weight": Cut(0, stacked=self.stacked)} | rows(self, "down")


class FusedAsOne(Fused):
    stacked = None


class ByHeads(Decay):
    """Decay of channels that ranks share out."""

    capabilities = Capabilities(documents=True, padding=True, state=True, constant_state=True, tensor_parallel=True)

    def __init__(self, context):
        super().__init__(context)
        self.input = Linear(context.d_model, context.d_model)

    def forward(self, x, sequence, state=None):
        return super().forward(self.input(x), sequence, state)

    def parallel_plan(self, ranks):
        return columns(self, "input") | rows(self, "output")

    def narrow(self, ranks):
        self.width //= ranks.size()


class StateOfTheWhole(ByHeads):
    def narrow(self, ranks):
        pass


class Silent(ByHeads):
    capabilities = Decay.capabilities


class CutsNothing(ByHeads):
    def parallel_plan(self, ranks):
        return {}


class NoName(ByHeads):
    def parallel_plan(self, ranks):
        return columns(self, "input") | {"projection.weight": Cut(1)}


class NoNumbers(ByHeads):
    def parallel_plan(self, ranks):
        if ranks == 3:
            raise ValueError("heads do not divide")
        return super().parallel_plan(ranks)


class Reversed(ByHeads):
    """Its channels in another order on each rank."""

    def forward(self, x, sequence, state=None):
        return super().forward(x.flip(-1) if self.width < x.shape[-1] else x, sequence, state)


class SumsUp(ByHeads):
    """Each rank adds a bias that they all hold."""

    def __init__(self, context):
        super().__init__(context)
        self.bias = torch.nn.Parameter(torch.empty(context.d_model))

    def reset_parameters(self):
        init.fill(self.bias, init.constant(0.5))

    def forward(self, x, sequence, state=None):
        result = super().forward(x, sequence, state)
        return result._replace(y=result.y + self.bias)


class BeginsFromItsShare(ByHeads):
    def reset_parameters(self):
        init.fill(self.input.weight, init.normal(self.width**-0.5))


class Shortened(Vocabulary):
    """Each rank answers with the logits of its ids."""

    def _logits(self, hidden):
        return self.projection(hidden)


def told(component, kind=None):
    """What law 10 found, and why."""
    (finding,) = check(component, arguments={}, kind=kind, laws=["parallel"]).findings
    return finding.status, finding.reason


@pytest.mark.parametrize("component", [Fused, ByHeads])
def test_what_is_shared_out_rightly_passes(component):
    assert told(component) == ("passed", "")


@pytest.mark.parametrize(
    ("component", "reason"),
    [
        (FusedAsOne, "2 ranks: evaluation: the output differs by "),
        (StateOfTheWhole, "2 ranks: "),
        (Silent, "has a `parallel_plan` for 2 ranks, but does not claim `tensor_parallel`"),
        (CutsNothing, "claims `tensor_parallel`, but its `parallel_plan` shares nothing out"),
        (NoName, "`parallel_plan` names projection.weight, but no parameter or buffer is called so"),
        (NoNumbers, "a plan for 3 ranks is refused, but not by both numbers: heads do not divide"),
        (Reversed, "2 ranks: evaluation: the output differs by "),
        (SumsUp, "2 ranks: evaluation: the output differs by "),
        (BeginsFromItsShare, "2 ranks: split on the meta device and then initialised, input.weight is no share"),
        (Shortened, "2 ranks: the answer has shape (2, 11, 32), and (2, 11, 64) in one process"),
    ],
)
def test_faults_are_found(component, reason):
    status, found = told(component)
    assert (status, found[: len(reason)]) == ("failed", reason)


def test_what_ranks_cannot_import_is_told():
    class Inside(ByHeads):
        pass

    status, reason = told(Inside)
    assert status == "not applicable"
    assert "ranks cannot import test_what_ranks_cannot_import_is_told.<locals>.Inside" in reason


def test_a_part_of_a_script_is_found_by_its_file(tmp_path, monkeypatch):
    script = tmp_path / "idea.py"
    script.write_text("from bakeoff.parts.feed_forwards.mlp import MLP\n\n\nclass Idea(MLP):\n    pass\n")
    spec = importlib.util.spec_from_file_location("script_of_an_idea", script)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    assert told(module.Idea) == ("passed", "")
