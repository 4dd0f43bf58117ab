"""Faults planted in converters."""

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Converter
from bakeoff.parts.name_map import NameMap
from bakeoff.parts.weights import disagreements
from bakeoff.testing import check


class Copies(Converter):
    """A model of the run's shape, with the run's weights."""

    of_runs = True

    def from_run(self, source, model, seed):
        weights = source.state_dict()
        told = disagreements(weights, model.state_dict())
        if told:
            raise UserError("; ".join(told))
        return weights


class TakesWhatFits(Copies):
    def from_run(self, source, model, seed):
        weights = source.state_dict()
        return {name: weights.get(name, tensor) for name, tensor in model.state_dict().items()}


class Draws(Copies):
    def from_run(self, source, model, seed):
        torch.rand(1)
        return super().from_run(source, model, seed)


class Fills(Copies):
    def from_run(self, source, model, seed):
        model.load_state_dict(super().from_run(source, model, seed))
        return model.state_dict()


class LeavesTheFirst(Copies):
    def from_run(self, source, model, seed):
        weights = super().from_run(source, model, seed)
        return {**weights, "backbone.embed.weight": model.state_dict()["backbone.embed.weight"]}


class NamesNothing(Copies):
    def from_run(self, source, model, seed):
        try:
            return super().from_run(source, model, seed)
        except UserError:
            raise UserError("it does not fit") from None


class GoesBack(Copies):
    def to_theirs(self, model):
        return model.state_dict()


class ReadsRunsToo(NameMap):
    def from_run(self, source, model, seed):
        return source.state_dict()


def test_a_sound_one_keeps_the_laws():
    report = check(Copies)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("component", "law", "message"),
    [
        (TakesWhatFits, "from a run", "a run with 1 layers for 2, and nothing is said of it"),
        (Draws, "from a run", "it draws from the generator of the process"),
        (Fills, "from a run", "backbone.embed.weight of the model is changed"),
        (LeavesTheFirst, "from a run", "backbone.embed.weight comes back changed"),
        (NamesNothing, "from a run", "of a run with 1 layers for 2; the refusal does not name it"),
        (GoesBack, "there and back", "to_theirs of a converter of runs does not refuse"),
        (ReadsRunsToo, "from a run", "from_run of a converter of published weights does not refuse"),
    ],
)
def test_a_fault_is_found(component, law, message):
    report = check(component)
    broken = {finding.law: finding.reason for finding in report.failures}
    assert set(broken) == {law}, str(report)
    assert message in broken[law]
