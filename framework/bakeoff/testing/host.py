"""Where a part stands: the smallest mixer, block, backbone or model that calls it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bakeoff.interfaces.context import LayerContext
from bakeoff.model import LanguageModel
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.registry import find
from bakeoff.testing.build import D_MODEL, EXPERTS, HEADS, MAX_LENGTH, VOCABULARY, WINDOW, embeds

Build = Callable[[LayerContext], Any]


def host(kind: str, build: Build) -> Build:
    """The factory of what is called along a sequence: the part itself, or the smallest one that uses it."""
    if kind == "attention_op":
        return partial(Attention, n_heads=HEADS, window=WINDOW, op=build)
    if kind == "position" and not embeds(build):
        return partial(Attention, n_heads=HEADS, position=build)
    if kind == "position":
        return lambda place: Decoder(place, position=build, **_layers(lambda inner: _block(inner)))
    if kind == "router":
        return partial(_mixture, router=build)
    if kind == "balance":
        return lambda place: _mixture(place, router=find("noisy_top_k", "router"), balance=[build(place)])
    if kind == "norm":
        return lambda place: _block(place, norm=build)
    return build


def model(kind: str, build: Build, **changes: Any) -> LanguageModel:
    """A language model with the part in its place, and other `changes` of what `LanguageModel` is given."""
    outer: dict[str, Any] = {}
    given: dict[str, Any] = {}
    block: Build = _block
    if kind in ("mixer", "feed_forward"):
        block = partial(_block, **{kind: build})  # type: ignore[arg-type]
    elif kind == "block":
        block = build
    elif kind in ("backbone", "head"):
        given[kind] = build
    elif kind == "norm" or (kind == "position" and embeds(build)):
        outer[kind] = build
    elif kind in ("attention_op", "position"):
        block = partial(_block, mixer=host(kind, build))
    elif kind == "router":
        block = partial(_block, feed_forward=host(kind, build))
    backbone = partial(Decoder, **_layers(block), **outer)
    size = {"d_model": D_MODEL, "vocab_size": VOCABULARY, "max_length": MAX_LENGTH, "tied_embedding": False}
    return LanguageModel(**{"backbone": backbone, **size, **given, **changes})


def _mixture(place: LayerContext, **parts: Any) -> Any:
    return find("mixture_of_experts", "feed_forward")(place, n_experts=EXPERTS, expert=_expert, **parts)


def _expert(place: LayerContext) -> MLP:
    return MLP(place, width=D_MODEL)


def _layers(block: Build) -> dict[str, Any]:
    return {"depth": 2, "pattern": ["layer"], "blocks": {"layer": block}}


def _block(place: LayerContext, **parts: Any) -> PreNorm:
    return PreNorm(place, **{"mixer": partial(Attention, n_heads=HEADS), "feed_forward": None, **parts})
