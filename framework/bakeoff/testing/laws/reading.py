"""Objectives that read dialogues: padding says nothing, prompts are no targets, dialogues in one row are apart; and a
plan knows what a batch holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bakeoff.interfaces.result import Result
from bakeoff.model import LanguageModel
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.dialogues import Batch, Rows
from bakeoff.testing.law import Broken, NotApplicable, law
from bakeoff.testing.laws.objective import batches, built

#: What the trainer itself knows of a batch.
_ALWAYS = ("tokens", "weights", "documents", "real")


@law(None, "padding", "objective")
def padding(candidate: Candidate) -> None:
    """More padding on the right, and rows of nothing but padding, change no term, weight or statistic."""
    for objective, network, rows in _read(candidate):
        plain = _figures(objective, network, rows.batch)
        for said, other in (
            ("5 more tokens of padding", rows.padded(5)),
            ("50 more tokens of padding", rows.padded(50)),
            ("rows of nothing but padding", rows.with_nothing()),
        ):
            found = _figures(objective, network, other)
            if found.keys() != plain.keys():
                raise Broken(f"{rows.told}, {said}: tells of {sorted(found.keys() ^ plain.keys())} or not")
            for name, value in plain.items():
                if not torch.allclose(found[name], value, rtol=1e-9, atol=1e-9):
                    raise Broken(f"{rows.told}, {said}: {name} is {found[name].tolist()} and not {value.tolist()}")


@law(None, "prompts", "objective")
def prompts(candidate: Candidate) -> None:
    """What the model makes of a prompt before its last token is judged by nothing; what it makes of answers is, unless
    these are its own: all may be equally good."""
    for objective, network, rows in _read(candidate):
        if rows.prompts is None:
            continue
        slope = _slope(objective, network, rows.batch)
        T = slope.shape[1]
        early = torch.arange(T) < rows.prompts[:, None] - 1
        if bool(slope[early].any()):
            row, t = (early & slope.any(-1)).nonzero()[0].tolist()
            raise Broken(
                f"{rows.told}: the loss has a gradient in what is made of token {t} of row {row}, whose next token is "
                "of the prompt"
            )
        if not objective.collects and not bool(slope[~early].any()):
            raise Broken(f"{rows.told}: the loss has no gradient in what is made of the answers")


@law(None, "packing", "objective")
def packing(candidate: Candidate) -> None:
    """Dialogues that share rows cost what they cost each in its own."""
    objective: Any = candidate.build()
    if not (objective.reads_dialogues and objective.packs):
        raise NotApplicable("each dialogue has rows of its own")
    (_, _, alone), (objective, network, packed) = _read(candidate)
    apart, together = (_figures(objective, network, rows.batch) for rows in (alone, packed))
    for name, value in apart.items():
        if not torch.allclose(together[name], value, rtol=1e-6, atol=1e-9):
            raise Broken(f"{name} is {together[name].tolist()} where rows are shared, and {value.tolist()} where not")


@law(None, "plan", "objective")
def plan(candidate: Candidate) -> None:
    """`planned` names all that a batch holds beside tokens, weights, documents and `real`, in the same shapes."""
    for objective, _, rows in _read(candidate):
        told = {name: tuple(held.shape) for name, held in rows.batch.items() if held is not None}
        B, L = told["tokens"]
        length = L - objective.tokens_wanted(0)
        planned = {name: tuple(held.shape) for name, held in objective.planned(B, length).items()}
        held = {name: shape for name, shape in told.items() if name not in _ALWAYS}
        for name in sorted(held.keys() | planned.keys()):
            if held.get(name) != planned.get(name):
                raise Broken(
                    f"{rows.told}: '{name}' is {held.get(name)} in a batch, and planned as {planned.get(name)}"
                )


def _read(candidate: Candidate) -> Iterator[tuple[Any, LanguageModel, Rows]]:
    objective, network = built(candidate)
    if not objective.reads_dialogues:
        raise NotApplicable("reads texts, and no dialogues")
    for rows in batches(objective, network, candidate):
        yield objective, network, rows


def _figures(objective: Any, network: LanguageModel, batch: Batch) -> dict[str, Tensor]:
    """All sums and weights by name."""
    with torch.no_grad():
        terms, statistics = objective(network, batch)
    named = {f"term '{name}'": torch.stack([value.double() for value in pair]) for name, pair in terms.items()}
    return named | {f"statistic '{name}'": value.double() for name, value in statistics.items()}


def _slope(objective: Any, network: LanguageModel, batch: Batch) -> Tensor:
    """(B, T, D), of all terms by what the backbone gives."""
    seen: list[Tensor] = []

    def note(backbone: Any, given: Any, result: Result) -> None:
        if result.y.requires_grad:
            seen.append(result.y)

    hook = network.backbone.register_forward_hook(note)
    try:
        terms, _ = objective(network, batch)
    finally:
        hook.remove()
    total = torch.stack([value for value, _ in terms.values()]).sum()
    (hidden,) = seen
    return torch.autograd.grad(total, hidden)[0]
