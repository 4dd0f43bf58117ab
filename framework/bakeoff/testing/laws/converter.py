"""Converters: every weight there and back, or from a run; and nothing lost on the way."""

from __future__ import annotations

from typing import Any

import torch

from bakeoff.errors import UserError
from bakeoff.interfaces.converter import Converter
from bakeoff.model import LanguageModel
from bakeoff.recipe import recipe
from bakeoff.testing.build import VOCABULARY
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, NotApplicable, law
from bakeoff.testing.laws.round_trip import base


@law(None, "there and back", "converter")
def there_and_back(candidate: Candidate) -> None:
    """Theirs and back gives every weight bit for bit; a weight that is missing or left over is refused by name.

    `examples()` are of the kit's model: a decoder of two pre-norm layers of attention and an MLP, embeddings tied.
    A converter of runs goes one way, and says so.
    """
    converter: Converter = candidate.build()
    model = _model(candidate)
    if converter.of_runs:
        _refuses(lambda: converter.to_theirs(model), "to_theirs of a converter of runs")
        _refuses(lambda: converter.to_ours(model.state_dict(), model), "to_ours of a converter of runs")
        raise NotApplicable("it goes one way, from a run")
    theirs = converter.to_theirs(model)
    _same(converter, theirs, model, "")
    for name in theirs:
        fewer = {other: tensor for other, tensor in theirs.items() if other != name}
        try:
            _same(converter, fewer, model, f"{name} removed, ")
        except UserError as refusal:
            _named(name, refusal, "removed")
    try:
        converter.to_ours({**theirs, "surplus.weight": torch.zeros(1)}, model)
    except UserError as refusal:
        _named("surplus.weight", refusal, "added")
    else:
        raise Broken("surplus.weight added, and nothing is said of it")


@law(None, "from a run", "converter")
def from_a_run(candidate: Candidate) -> None:
    """Layers that are as they were in the run keep every value; those missing or left over are refused by name.

    Neither model changes, and what is drawn hangs on the seed that is given alone.
    """
    converter: Converter = candidate.build()
    model, source = _model(candidate), _model(candidate, seed=candidate.seed + 1)
    if not converter.of_runs:
        _refuses(lambda: converter.from_run(source, model, 0), "from_run of a converter of published weights")
        raise NotApplicable("it reads published weights")
    before = [{name: tensor.clone() for name, tensor in each.state_dict().items()} for each in (source, model)]
    state = torch.get_rng_state()
    made = converter.from_run(source, model, candidate.seed)
    if not torch.equal(state, torch.get_rng_state()):
        raise Broken("it draws from the generator of the process, not by the seed")
    for what, each, kept in zip(("run", "model"), (source, model), before, strict=True):
        for name, tensor in each.state_dict().items():
            if not torch.equal(tensor, kept[name]):
                raise Broken(f"{name} of the {what} is changed")
    _equal(made, source, "")
    for depth, name in ((1, "backbone.blocks.1.mixer.query.weight"), (3, "backbone.blocks.2.mixer.query.weight")):
        other = _model(candidate, depth=depth)
        try:
            converter.from_run(other, model, candidate.seed)
        except UserError as refusal:
            _named(name, refusal, f"of a run with {depth} layers for 2")
        else:
            raise Broken(f"a run with {depth} layers for 2, and nothing is said of it")


def _model(candidate: Candidate, *, seed: int | None = None, **arguments: Any) -> LanguageModel:
    changes = {f"model.{name}": value for name, value in arguments.items()}
    model: LanguageModel = recipe(base(), changes).build("model", vocab_size=VOCABULARY)
    return model.initialise(candidate.seed if seed is None else seed)


def _refuses(call: Any, what: str) -> None:
    try:
        call()
    except UserError:
        return
    raise Broken(f"{what} does not refuse")


def _same(converter: Converter, theirs: dict[str, torch.Tensor], model: LanguageModel, told: str) -> None:
    _equal(converter.to_ours(theirs, model), model, told)


def _equal(ours: dict[str, torch.Tensor], model: LanguageModel, told: str) -> None:
    for name, tensor in model.state_dict().items():
        if name not in ours or not torch.equal(ours[name], tensor):
            raise Broken(f"{told}{name} {'comes back changed' if name in ours else 'does not come back'}")


def _named(name: str, refusal: UserError, what: str) -> None:
    if name not in str(refusal):
        raise Broken(f"{name} {what}; the refusal does not name it: {refusal}")
