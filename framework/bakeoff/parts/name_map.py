"""Converter `name_map`: which published weight is which of ours, written as data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bakeoff.errors import UserError
from bakeoff.interfaces.converter import Converter


@dataclass(frozen=True)
class Weights:
    """One line of a map. A name is of a tensor, or of a module: then all tensors in it are meant, their names kept.

    Parameters
    ----------
    theirs, ours : names; `*` stands for the number of a layer, the same on both sides. Several of ours are stacked in
        theirs by rows, in this order. `#` in theirs stands for the number of an expert: ours holds them all, one after
        another in its first dimension, theirs each apart, laid out as the line says.
    stacked : theirs holds all experts in one tensor, one after another in its first dimension, as ours does.
    transposed : theirs holds matrices as (in, out).
    groups : theirs is `groups` runs of rows, one after another, each with a share of the rows of every one of ours.
    squeeze : theirs has one more dimension, of length 1, at this place.
    where : the line speaks only of layers in which ours has this weight or module, for stacks of several kinds.
    """

    theirs: str
    ours: str | list[str]
    transposed: bool = False
    groups: int = 1
    squeeze: int | None = None
    stacked: bool = False
    where: str | None = None


@dataclass(frozen=True)
class _Pair:
    """One tensor of theirs, or one for each expert, and those of ours that they hold."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]
    layout: Weights

    def take_apart(
        self, theirs: Mapping[str, Tensor], shapes: Mapping[str, torch.Size]
    ) -> Iterator[tuple[str, Tensor]]:
        """Ours, of shapes that are known."""
        if not self.of_experts:
            yield from zip(self.ours, self._split(self.theirs[0], theirs[self.theirs[0]], shapes, 0), strict=True)
            return
        wholes = [(name, theirs[name]) for name in self.theirs]
        if self.layout.stacked:
            ((name, whole),) = wholes
            if whole.ndim == 0 or len(whole) != shapes[self.ours[0]][0]:
                raise UserError(f"{name} is {tuple(whole.shape)}; {self._wanted(shapes)}")
            wholes = [(f"{name}[{i}]", each) for i, each in enumerate(whole)]
        pieces = [self._split(name, whole, shapes, 1) for name, whole in wholes]
        yield from zip(self.ours, map(torch.stack, zip(*pieces, strict=True)), strict=True)

    def put_together(self, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Theirs."""
        parts = [ours[name] for name in self.ours]
        if not self.of_experts:
            return {self.theirs[0]: self._join(parts)}
        wholes = [self._join(list(each)) for each in zip(*parts, strict=True)]
        return (
            {self.theirs[0]: torch.stack(wholes)}
            if self.layout.stacked
            else dict(zip(self.theirs, wholes, strict=True))
        )

    @property
    def of_experts(self) -> bool:
        """Whether the layout is of each expert, in the first dimension of ours."""
        return self.layout.stacked or "#" in self.layout.theirs

    def _split(self, name: str, whole: Tensor, shapes: Mapping[str, torch.Size], skip: int) -> list[Tensor]:
        """The tensor `name`, or one expert's, cut up for each of ours; the first `skip` dimensions of ours it lacks."""
        layout, whole = self.layout, self._turned(whole)
        if layout.squeeze is not None and whole.ndim > layout.squeeze and whole.shape[layout.squeeze] == 1:
            whole = whole.squeeze(layout.squeeze)
        rows, rest = [shapes[name][skip] for name in self.ours], shapes[self.ours[0]][skip + 1 :]
        if whole.ndim == 0 or whole.shape != (sum(rows), *rest):
            raise UserError(f"{name} is {tuple(whole.shape)}; {self._wanted(shapes)}")
        if any(count % layout.groups for count in rows):
            raise UserError(f"{name}: groups is {layout.groups}, which does not divide {self._wanted(shapes)}")
        runs = whole.unflatten(0, (layout.groups, -1)).split([count // layout.groups for count in rows], 1)
        return [piece.flatten(0, 1) for piece in runs]

    def _join(self, parts: list[Tensor]) -> Tensor:
        layout = self.layout
        pieces = [part.unflatten(0, (layout.groups, -1)) for part in parts]
        whole = self._turned((pieces[0] if len(pieces) == 1 else torch.cat(pieces, 1)).flatten(0, 1))
        return whole if layout.squeeze is None or whole.ndim < 2 else whole.unsqueeze(layout.squeeze)

    def _turned(self, tensor: Tensor) -> Tensor:
        return tensor.t() if self.layout.transposed and tensor.ndim == 2 else tensor

    def _wanted(self, shapes: Mapping[str, torch.Size]) -> str:
        return "ours: " + ", ".join(f"{name} {tuple(shapes[name])}" for name in self.ours)


class NameMap(Converter):
    """A table of which published weight is which of the model's.

    Parameters
    ----------
    weights : lines `{theirs: NAME, ours: NAME or several, transposed, groups, squeeze, stacked, where}`, each under a
        name of its own, so that a recipe can change one line of what it extends (see `Weights`). `*` in a name is a
        layer's number, `#` an expert's. Each of our weights stands in one line.
    ignored : names of theirs, with `*`, that hold nothing learnt, such as masks and rotary frequencies.
    again : groups of modules of theirs that share weights (a block that several layers share): the one that `weights`
        speaks of, then those that hold the same again.

    A weight that the model shares (a tied embedding) may be given once, or several times with equal values.
    """

    def __init__(
        self,
        *,
        weights: dict[str, Weights],
        ignored: list[str] | None = None,
        again: list[list[str]] | None = None,
    ):
        self.weights, self.ignored, self.again = weights, ignored or [], again or []
        for line in weights.values():
            named = [line.theirs, *_several(line.ours), *([] if line.where is None else [line.where])]
            if len({name.count("*") for name in named}) > 1 or line.theirs.count("*") > 1:
                raise UserError(f"name_map: {' and '.join(named)} must hold `*` once each, or not at all")
            if (
                any("#" in name for name in named[1:])
                or line.theirs.count("#") > 1
                or (line.stacked and "#" in line.theirs)
            ):
                raise UserError(
                    f"name_map: {' and '.join(named)}: `#` stands once, in theirs only, and not where stacked is true"
                )
            if line.groups < 1:
                raise UserError(f"name_map: groups of {line.theirs} is {line.groups}; it must be at least 1")

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """A decoder of attention and an MLP, with stacked and transposed matrices, and a norm held twice."""
        block = "backbone.blocks.*"
        projections = [f"{block}.mixer.{name}" for name in ("query", "key", "value")]
        weights = {
            "embed": {"theirs": "wte", "ours": "backbone.embed"},
            "mixer_norm": {"theirs": "h.*.ln_1", "ours": f"{block}.mixer_norm"},
            "projections": {"theirs": "h.*.attn.qkv", "ours": projections, "groups": 4},
            "output": {
                "theirs": "h.*.attn.out",
                "ours": f"{block}.mixer.output",
                "transposed": True,
                "where": f"{block}.mixer.query",
            },
            "feed_forward_norm": {"theirs": "h.*.ln_2", "ours": f"{block}.feed_forward_norm"},
            "feed_forward": {"theirs": "h.*.mlp", "ours": f"{block}.feed_forward"},
            "norm": {"theirs": "ln_f", "ours": "backbone.norm"},
            "head": {"theirs": "lm_head", "ours": "head.projection"},
        }
        return [{"weights": weights, "ignored": ["h.*.attn.mask"], "again": [["ln_f", "final_norm"]]}]

    def to_ours(self, theirs: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
        """See `Converter`; the tensors are views of theirs where the layout allows."""
        ours = model.state_dict(keep_vars=True)
        theirs = self._once(theirs)
        pairs = self._pairs(ours)
        known = {name for pair in pairs for name in pair.theirs}
        left_over = [name for name in theirs if name not in known and not _matches(name, self.ignored)]
        shapes = {name: tensor.shape for name, tensor in ours.items()}
        found: dict[str, Tensor] = {}
        for pair in pairs:
            if all(name in theirs for name in pair.theirs):
                found.update(pair.take_apart(theirs, shapes))
        shared = _shared(ours, found)
        wanting = [pair for pair in pairs if any(name not in shared for name in pair.ours)]
        missing = [name for pair in wanting for name in pair.theirs if name not in theirs]
        _refuse(left_over, "of theirs stand in no line of the map and in no `ignored`")
        _refuse(missing, "of theirs are not there")
        return shared

    def to_theirs(self, model: nn.Module) -> dict[str, Tensor]:
        """See `Converter`; a weight that the model shares stands under each of its names, in the same memory."""
        ours = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        theirs: dict[str, Tensor] = {}
        for pair in self._pairs(ours):
            theirs |= {name: tensor.contiguous() for name, tensor in pair.put_together(ours).items()}
        for name in list(theirs):
            theirs |= dict.fromkeys(self._others(name), theirs[name])
        return theirs

    def _others(self, name: str) -> list[str]:
        """The names under which theirs holds the weight of this name again."""
        groups = [group for group in self.again if name.startswith(f"{group[0]}.")]
        return [other + name.removeprefix(first) for first, *others in groups for other in others]

    def _once(self, theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Theirs without what they hold again; raises `UserError` where that is not the same."""
        first = {other: module for module, *others in self.again for other in others}
        once: dict[str, Tensor] = {}
        for name, tensor in theirs.items():
            module = next((module for module in first if name.startswith(f"{module}.")), None)
            kept = name if module is None else first[module] + name.removeprefix(module)
            if kept in once and not torch.equal(once[kept], tensor):
                raise UserError(f"{name} and {kept} should hold the same, but differ")
            once[kept] = tensor
        return once

    def _pairs(self, ours: Mapping[str, Tensor]) -> list[_Pair]:
        """The map written out for a model; raises `UserError` for weights of ours in no line or in two."""
        pairs = [pair for line in self.weights.values() for pair in _written_out(line, ours)]
        stand = [name for pair in pairs for name in pair.ours]
        _refuse([name for name in ours if name not in set(stand)], "of ours stand in no line of the map")
        _refuse(sorted({name for name in stand if stand.count(name) > 1}), "of ours stand in more than one line")
        return pairs


def _written_out(line: Weights, ours: Mapping[str, Tensor]) -> Iterator[_Pair]:
    """A line for each layer and each tensor that it speaks of."""
    first, *others = _several(line.ours)
    pattern = re.compile(_regex(first) + r"((?:\..+)?)")
    for name in ours:
        match = pattern.fullmatch(name)
        if match is None:
            continue
        layer, tail = (match[1], match[2]) if "*" in first else ("", match[1])
        if line.where is not None and not _has(ours, line.where.replace("*", layer)):
            continue
        names = tuple(given.replace("*", layer) + tail for given in (first, *others))
        unknown = [given for given in names if given not in ours]
        _refuse(unknown, f"of ours, which {line.theirs} is to hold, are not in the model")
        one = line.theirs.replace("*", layer) + tail
        numbers = range(len(ours[name])) if "#" in one else ()
        yield _Pair(tuple(one.replace("#", str(number)) for number in numbers) or (one,), names, line)


def _has(ours: Iterable[str], module: str) -> bool:
    return any(name == module or name.startswith(f"{module}.") for name in ours)


def _shared(ours: Mapping[str, Tensor], found: dict[str, Tensor]) -> dict[str, Tensor]:
    """`found`, and under its other names what the model holds once."""
    names: dict[int, list[str]] = {}
    for name, tensor in ours.items():
        names.setdefault(id(tensor), []).append(name)
    whole = dict(found)
    for group in names.values():
        given = [name for name in group if name in found]
        for name in given[1:]:
            if not torch.equal(found[given[0]], found[name]):
                raise UserError(
                    f"{given[0]} and {name} are one weight in this model, but the published ones differ; "
                    "give model.tied_embedding: false"
                )
        whole.update({name: found[given[0]] for name in group if given})
    return whole


def _several(names: str | list[str]) -> list[str]:
    return [names] if isinstance(names, str) else names


def _regex(name: str) -> str:
    return r"(\d+)".join(re.escape(part) for part in name.split("*"))


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(re.fullmatch(_regex(pattern) + r"(?:\..+)?", name) for pattern in patterns)


def _refuse(names: list[str], what: str) -> None:
    if names:
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        raise UserError(f"{len(names)} weights {what}: {', '.join(names[:8])}{more}")
