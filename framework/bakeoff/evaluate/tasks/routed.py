"""Which experts the tokens of a text go to, read off a model's routers as it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.router import Router, Routing, Slots
from bakeoff.interfaces.sequence import Sequence
from bakeoff.model import LanguageModel
from bakeoff.parts.modes import evaluating


class Choices(NamedTuple):
    """What one router did with N tokens.

    Attributes
    ----------
    experts : (N, k) long; E, one past the last, for a choice that was not taken.
    first : (N,) long, of those the one of the largest weight; E where no expert took the token.
    lost : (N,) long, how many choices found no room.
    entropy : (N,) of the router's probabilities, in nats; None where it has none.
    """

    n_experts: int
    experts: Tensor
    first: Tensor
    lost: Tensor
    entropy: Tensor | None


class Text(NamedTuple):
    """What was read, real tokens only, and what the routers did with it.

    Attributes
    ----------
    tokens : (N,) long. follows : (N,) bool, whether a token follows the one before in its document. starts : where
    rows begin. layers : by the router's place, such as "3". soft : places of routers whose tokens have no choices.
    """

    tokens: Tensor
    follows: Tensor
    starts: list[int]
    layers: dict[str, Choices]
    soft: list[str]


def read(
    model: LanguageModel, batches: Iterable[Mapping[str, Tensor | None]], told: Callable[[int], None] = lambda n: None
) -> Text:
    """Read batches of `tokens`, `documents` and `real`, (B, T) each; `told` hears how many have been read.

    Raises `CapabilityError` where no router gives tokens choices.
    """
    places = places_of(model.backbone)
    if not places:
        raise CapabilityError(
            f"{type(model.backbone).__name__} has no router: no layer of the model is a mixture of experts"
        )
    device = model.backbone.embedding.device
    tokens, follows, starts, n = [], [], [], 0
    found: dict[str, list[Choices]] = {}
    soft: dict[str, None] = {}
    with evaluating(model), torch.no_grad(), _listening(places) as heard:
        for number, batch in enumerate(batches):
            sequence, real = _sequence(batch, device)
            heard.clear()
            model.backbone(sequence)
            for place, routing in _named(heard, places):
                if isinstance(routing[1], Slots):
                    soft[place] = None
                else:
                    found.setdefault(place, []).append(_choices(*routing, real))
            keep = real.cpu()
            tokens.append(sequence.tokens.cpu()[keep])
            follows.append(_follows(sequence, real).cpu()[keep])
            lengths = keep.sum(1).tolist()
            starts += [n + sum(lengths[:i]) for i, length in enumerate(lengths) if length]
            n += sum(lengths)
            told(number + 1)
    if not found:
        names = sorted({type(router).__name__ for router in places})
        raise CapabilityError(f"{', '.join(names)} mixes tokens: no token has experts of its own that could be told")
    return Text(torch.cat(tokens), torch.cat(follows), starts, {k: _joined(v) for k, v in found.items()}, list(soft))


def places_of(backbone: Backbone) -> dict[nn.Module, str]:
    """Every router with its place: the number of its layer, with the way inside where a layer has several."""
    found: dict[nn.Module, str] = {}
    for i, layer in enumerate(backbone.layers):
        inside = [(path, module) for path, module in layer.named_modules() if isinstance(module, Router)]
        found |= {module: str(i) if len(inside) == 1 else f"{i}.{path}" for path, module in inside}
    others = ((path, module) for path, module in backbone.named_modules() if isinstance(module, Router))
    return found | {module: path for path, module in others if module not in found}


@contextmanager
def _listening(places: Iterable[nn.Module]) -> Iterator[list[tuple[nn.Module, Any]]]:
    """What the routers give inside, call by call."""
    heard: list[tuple[nn.Module, Any]] = []
    hooks = [
        router.register_forward_hook(lambda module, given, routing: heard.append((module, routing)))
        for router in places
    ]
    try:
        yield heard
    finally:
        for hook in hooks:
            hook.remove()


def _named(
    heard: list[tuple[nn.Module, Any]], places: Mapping[nn.Module, str]
) -> Iterator[tuple[str, tuple[Router, Any]]]:
    """Each call with its router's place; further calls of one that several layers share are numbered."""
    times: dict[nn.Module, int] = {}
    for module, routing in heard:
        times[module] = times.get(module, 0) + 1
        again = f" call {times[module]}" if times[module] > 1 else ""
        assert isinstance(module, Router)
        yield places[module] + again, (module, routing)


def _sequence(batch: Mapping[str, Tensor | None], device: torch.device) -> tuple[Sequence, Tensor]:
    """The sequence, and which of its tokens are real (B, T)."""
    there = {name: None if value is None else value.to(device) for name, value in batch.items()}
    tokens, real = there["tokens"], there.get("real")
    assert tokens is not None
    sequence = Sequence(tokens, documents=there.get("documents"), real=real)
    return sequence, torch.ones_like(tokens, dtype=torch.bool) if real is None else real


def _follows(sequence: Sequence, real: Tensor) -> Tensor:
    """(B, T) bool."""
    follows = torch.zeros_like(real)
    follows[:, 1:] = real[:, 1:] & real[:, :-1]
    if sequence.documents is not None:
        follows[:, 1:] &= sequence.documents[:, 1:] == sequence.documents[:, :-1]
    return follows


def _choices(router: Router, routing: Routing, real: Tensor) -> Choices:
    """Of the real tokens."""
    E, keep = router.n_experts, real.flatten()
    experts, weights = routing.experts[keep], routing.weights[keep]
    taken = experts < E
    largest = weights.float().masked_fill(~taken, -torch.inf).argmax(-1, keepdim=True)
    first = experts.gather(-1, largest).squeeze(-1)
    first = torch.where(taken.any(-1), first, E)
    lost = ((routing.chosen[keep] < E) & ~taken).sum(-1)
    p = routing.probabilities
    entropy = None if p is None else torch.special.entr(p[keep]).sum(-1).cpu()
    return Choices(E, experts.cpu(), first.cpu(), lost.cpu(), entropy)


def _joined(pieces: list[Choices]) -> Choices:
    """Of all batches; a router whose tokens have more choices in one batch than in another is padded."""
    E, k = pieces[0].n_experts, max(piece.experts.shape[1] for piece in pieces)
    experts = [nn.functional.pad(piece.experts, (0, k - piece.experts.shape[1]), value=E) for piece in pieces]
    first, lost = (torch.cat([getattr(piece, name) for piece in pieces]) for name in ("first", "lost"))
    entropies = [piece.entropy for piece in pieces if piece.entropy is not None]
    return Choices(E, torch.cat(experts), first, lost, torch.cat(entropies) if entropies else None)
