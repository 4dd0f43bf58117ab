"""Laws on the layers of a model as a recipe builds it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.part import StatefulPart
from bakeoff.model import LanguageModel
from bakeoff.testing.candidate import Beside, Ready
from bakeoff.testing.checking import judged
from bakeoff.testing.law import Law, first_slip, laws_for
from bakeoff.testing.laws.causality import leak
from bakeoff.testing.report import Finding, LawFailure, Report
from bakeoff.testing.rereading import of_backbone
from bakeoff.testing.subject import MODES, Subject
from bakeoff.testing.values import PLAIN, jitter

#: A model with more parameters than this is tested in its own precision, without a copy.
_COPIED = 20_000_000


def check_model(
    model: LanguageModel, *, laws: Iterable[int | str] = (1, 2, 3, 4), known: dict[Any, list[Finding]] | None = None
) -> Report:
    """Laws on each distinct layer of a model, at its own width, on copies with fresh values; the model may be on meta.

    A broken law names the mixer or feed-forward inside the layer that breaks it. `known` holds the findings of layers
    that were checked before: give the same dictionary for the models of a comparison, which have layers in common.
    """
    known = {} if known is None else known
    chosen = laws_for("block", laws, slow=False)
    findings: list[Finding] = []
    for layer, indices in _distinct(model).values():
        key = (_signature(layer), tuple(law.name for law in chosen))
        if key not in known:
            known[key] = _of_layer(layer, model, chosen)
        where = {"layers": indices}
        findings += [replace(finding, arguments=where) for finding in known[key]]
    if any(law.name == "causality" for law in chosen) and _size(model.backbone) <= _COPIED:
        key = _signature(model.backbone)
        if key not in known:
            known[key] = [_of_wiring(model)]
        findings += known[key]
    return Report("model", tuple(findings))


def causality_of(model: LanguageModel) -> None:
    """Raise `LawFailure` if an output of the model's backbone depends on a later token against its claims.

    A quick form of law 1 for one model, in both modes; tokens and gradients, lengths around its chunks and windows.
    """
    backbone, training = model.backbone, model.training
    small = _size(backbone) <= _COPIED
    tested = copy.deepcopy(backbone) if small else backbone
    subject = of_backbone(tested, tested, model.context, double=small)
    try:
        found = _leak_of(subject)
        if found is not None:
            culprit = next(_culprits(subject, tested, _leak_of), found)
            raise LawFailure(f"the model breaks the law of causality: {culprit}")
    finally:
        model.train(training)


def _leak_of(subject: Subject, chunks: bool = True) -> str | None:
    """The first leak of the future in a mode in which the part claims none; `chunks`: also around their borders."""
    longest = subject.place.max_length
    chunked = (c + 3 for c in subject.landmarks() if c <= 64 and chunks)
    lengths = sorted({min(T, longest) for T in (5, *chunked)})
    cases = [(T, t) for T in lengths for t in sorted({1, T - 3, T - 1}) if 0 < t < T]
    for mode in MODES:
        with subject.mode(mode):
            found = first_slip(partial(leak, subject), cases) if subject.claimed("causal", mode) else None
            if found is not None:
                return f"{mode}: {found}"
    return None


def _distinct(model: LanguageModel) -> dict[Any, tuple[nn.Module, list[int]]]:
    found: dict[Any, tuple[nn.Module, list[int]]] = {}
    for index, layer in enumerate(model.backbone.layers):
        found.setdefault(_signature(layer), (layer, []))[1].append(index)
    return found


def _signature(layer: nn.Module) -> Any:
    """Classes, plain attributes and shapes of a layer: equal for layers that compute the same map of their values."""
    parts = [
        (path, type(part), *((name, value) for name, value in vars(part).items() if isinstance(value, PLAIN)))
        for path, part in layer.named_modules()
    ]
    return tuple(parts), tuple((name, tuple(p.shape)) for name, p in layer.named_parameters())


def _of_wiring(model: LanguageModel) -> Finding:
    """Law 1 on the whole backbone: what its layers cannot show, because it stands between them."""
    backbone = _fresh(model.backbone, model)
    found = _leak_of(of_backbone(backbone, backbone, model.context), chunks=False)
    where = {"layers": list(range(len(model.backbone.layers)))}
    if found is None:
        return Finding("causality", 1, "passed", "", where)
    return Finding("causality", 1, "failed", f"the backbone as a whole, {found}", where)


def _of_layer(layer: nn.Module, model: LanguageModel, laws: list[Law]) -> list[Finding]:
    beside = _fresh(Beside(layer, model.context.parts), model)
    subject = Subject(beside, beside.part, model.context)
    subject.brief = True
    findings = judged(Ready(subject, {}), laws)
    return [_located(finding, law, subject) for finding, law in zip(findings, laws, strict=True)]


def _fresh(part: nn.Module, model: LanguageModel) -> Any:
    """A copy on the CPU with fresh values, none of them zero."""
    own = copy.deepcopy(part)
    if any(parameter.is_meta for parameter in own.parameters()):
        own.to_empty(device="cpu")
    initialise(own, seed=0, depth=len(model.backbone.layers))
    jitter(own, 0)
    return own.eval()


def _size(part: nn.Module) -> int:
    return sum(parameter.numel() for parameter in part.parameters())


def _located(finding: Finding, law: Law, subject: Subject) -> Finding:
    """The finding with the innermost part that breaks the law, if one does by itself."""
    if finding.status != "failed":
        return finding

    def reason(inner: Subject) -> str | None:
        (found,) = judged(Ready(inner, {}), [law])
        return found.reason if found.status == "failed" else None

    return replace(finding, reason=next(_culprits(subject, subject.module, reason), finding.reason))


def _culprits(subject: Subject, outer: nn.Module, reason: Callable[[Subject], str | None]) -> Iterator[str]:
    """Reasons of the mixers and feed-forwards inside a part that break a law by themselves, with where they stand."""
    for path, part in outer.named_modules():
        if isinstance(part, StatefulPart) and getattr(part, "kind", None) in ("mixer", "feed_forward"):
            found = reason(subject.inner(part))
            if found is not None:
                yield f"{path} ({type(part).__name__}): {found}"
