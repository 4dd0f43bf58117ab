"""Converters: every weight there and back, and nothing lost on the way."""

from __future__ import annotations

import torch

from bakeoff.errors import UserError
from bakeoff.interfaces.converter import Converter
from bakeoff.model import LanguageModel
from bakeoff.recipe import recipe
from bakeoff.testing.build import VOCABULARY
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, law
from bakeoff.testing.laws.round_trip import base


@law(None, "there and back", "converter")
def there_and_back(candidate: Candidate) -> None:
    """Theirs and back gives every weight bit for bit; a weight that is missing or left over is refused by name.

    `examples()` are of the kit's model: a decoder of two pre-norm layers of attention and an MLP, embeddings tied.
    """
    converter: Converter = candidate.build()
    model: LanguageModel = recipe(base()).build("model", vocab_size=VOCABULARY)
    model.initialise(candidate.seed)
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


def _same(converter: Converter, theirs: dict[str, torch.Tensor], model: LanguageModel, told: str) -> None:
    ours = converter.to_ours(theirs, model)
    for name, tensor in model.state_dict().items():
        if name not in ours or not torch.equal(ours[name], tensor):
            raise Broken(f"{told}{name} {'comes back changed' if name in ours else 'does not come back'}")


def _named(name: str, refusal: UserError, what: str) -> None:
    if name not in str(refusal):
        raise Broken(f"{name} {what}; the refusal does not name it: {refusal}")
