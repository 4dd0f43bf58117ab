"""A trained model made to read longer rows than it was built for."""

from __future__ import annotations

from torch import nn

from bakeoff.errors import CapabilityError
from bakeoff.evaluate.measured import Measured
from bakeoff.model import LanguageModel


def lengthened(measured: Measured, length: int) -> LanguageModel:
    """The measured model where its `max_length` is enough, else one of `max_length` = `length` on the same weights.

    Raises `CapabilityError` naming the part whose weights would have another shape there, with both lengths.
    """
    model = measured.model
    if length <= model.context.max_length:
        return model
    recipe = measured.recipe.override({"model.max_length": length})
    longer: LanguageModel = recipe.build("model", vocab_size=model.context.vocab_size)
    held = model.state_dict()
    for name, tensor in longer.state_dict().items():
        if tensor.shape != held[name].shape:
            part = _part(longer, name)
            raise CapabilityError(
                f"{type(part).__name__} has weights for each of the {model.context.max_length} places that it was "
                f"trained on, and none for rows of {length} tokens ({name}: {tuple(held[name].shape)}, where "
                f"{tuple(tensor.shape)} is needed); ask for lengths up to {model.context.max_length}, or train with a "
                "position that goes on, as rope"
            )
    longer.load_state_dict(held, assign=True)
    return longer.to(model.backbone.embedding.device).train(model.training)


def _part(model: nn.Module, name: str) -> nn.Module:
    """The innermost part of a kind of its own that holds a weight."""
    while "." in name:
        name = name.rpartition(".")[0]
        module = model.get_submodule(name)
        if hasattr(module, "kind"):
            return module
    return model
