"""Law 9: what is saved comes back: values exactly, and, through a recipe, class and arguments."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from bakeoff.recipe import recipe
from bakeoff.recipe.schema import model_arguments
from bakeoff.registry import KINDS, name_of
from bakeoff.testing.build import EXPERTS, VOCABULARY, context, embeds
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import PART_KINDS, Broken, NotApplicable, law
from bakeoff.testing.laws.initialisation import tensors
from bakeoff.testing.report import written
from bakeoff.testing.values import PLAIN

#: Where a component of each kind stands in a recipe.
_PLACES = {
    "mixer": "model.blocks.layer.mixer",
    "feed_forward": "model.blocks.layer.feed_forward",
    "block": "model.blocks.layer",
    "backbone": "model",
    "norm": "model.norm",
    "head": "model.head",
    "attention_op": "model.blocks.layer.mixer.op",
    "router": "model.blocks.layer.feed_forward.router",
    "balance": "model.blocks.layer.feed_forward.balance.0",
    "tokenizer": "data.tokenizer",
    "template": "data.template",
    "corpus": "data.corpus",
    "retriever": "data.retrieval.retriever",
    "embedder": "data.retrieval.retriever.embedder",
    "objective": "objective",
    "schedule": "schedule",
    "sampler": "sampler",
    "converter": "converter",
}


@law(9, "round trip", *KINDS)
def round_trip(candidate: Candidate) -> None:
    """A `state_dict` gives every value bit for bit; recipe -> object -> saved recipe -> object, class and arguments."""
    if candidate.kind in PART_KINDS:
        _values(candidate)
    _arguments(candidate)


def _values(candidate: Candidate) -> None:
    saved, other = (candidate.filled().part for _ in range(2))
    with torch.no_grad():
        for _, tensor in tensors(other):
            tensor.zero_()
    other.load_state_dict(saved.state_dict())
    kept = other.state_dict()
    for name, tensor in tensors(saved):
        if name in kept and not torch.equal(tensor, kept[name]):
            raise Broken(f"{name} does not come back from a state_dict")


def _arguments(candidate: Candidate) -> None:
    name = name_of(candidate.make)
    path = _place(candidate)
    if name is None or path is None:
        raise NotApplicable("values come back; a recipe cannot name it")
    first = recipe(base()).override({**_around(candidate), path: _node(candidate, name, path)})
    second = recipe(first.saved())
    if first.full != second.full:
        changed = _difference(first.full, second.full, "")
        raise Broken(f"a saved recipe, read again, differs at {changed}")
    built, again = (_described(candidate, read.build(path, **_links(path))) for read in (first, second))
    if built != again:
        raise Broken(f"the object of a saved recipe differs at {_difference(built, again, '')}")


def _around(candidate: Candidate) -> dict[str, Any]:
    """What the small recipe lacks for a component of this kind to find its place."""
    if candidate.kind in ("router", "balance"):
        mixture = {"use": "mixture_of_experts", "n_experts": EXPERTS, "balance": [{"use": "router_z_loss"}]}
        return {"model.blocks.layer.feed_forward": mixture}
    if candidate.kind in ("retriever", "embedder"):
        return {"data.retrieval": {"chunk": 8, "retriever": {"use": "flat", "embedder": {"use": "static"}}}}
    return {}


def _links(path: str) -> dict[str, int]:
    return {"vocab_size": VOCABULARY} if path == "model" else {}


def _described(candidate: Candidate, made: Any) -> dict[str, Any]:
    """Plain attributes and shapes of an object, or of what a factory makes."""
    if candidate.kind in PART_KINDS and candidate.kind != "backbone":
        made = made(context(candidate.kind))
    modules = dict(made.named_modules()) if isinstance(made, nn.Module) else {"": made}
    found = {f"{path}:{name}": value for path, inner in modules.items() for name, value in vars(inner).items()}
    shapes = {name: list(t.shape) for name, t in tensors(made)} if isinstance(made, nn.Module) else {}
    return {name: value for name, value in found.items() if isinstance(value, PLAIN)} | shapes


def _node(candidate: Candidate, name: str, path: str) -> dict[str, Any]:
    node = {"use": name, **candidate.arguments}
    if path != "model":
        return node
    taken = model_arguments(candidate.make)[0].parameters  # type: ignore[arg-type]
    return {**{key: value for key, value in base()["model"].items() if key in taken}, **node}


def _place(candidate: Candidate) -> str | None:
    if candidate.kind == "position":
        return "model.position" if embeds(candidate.build) else "model.blocks.layer.mixer.position"
    return _PLACES.get(candidate.kind)


def base() -> dict[str, Any]:
    """A small recipe in which a component of any kind finds its place."""
    layer = {"use": "pre_norm", "mixer": {"use": "attention", "n_heads": 4}, "feed_forward": {"use": "mlp"}}
    return {
        "model": {"d_model": 16, "depth": 2, "pattern": ["layer"], "blocks": {"layer": layer}},
        "data": {"corpus": {"use": "python_source"}, "tokenizer": {"use": "byte"}, "length": 16, "batch_tokens": 16},
        "trainer": {"max_steps": 1},
    }


def _difference(one: Any, other: Any, path: str) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *other]:
            if one.get(key) != other.get(key) or (key in one) != (key in other):
                return _difference(one.get(key), other.get(key), f"{path}.{key}".lstrip("."))
    return f"{path}: {written(one)} became {written(other)}"
