"""Balances: real tokens alone are counted, sums add up as claimed, and the loss is a finite number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from bakeoff.testing.batch import pulled
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, first_slip, hold, law
from bakeoff.testing.laws import padding, split
from bakeoff.testing.subject import Subject


@law(4, "padding", "balance")
def counted(candidate: Candidate) -> None:
    """Padding is not counted, and the sums of rows are those of the batch: in a mixture in training."""
    subject = candidate.subject
    cases = [([3, 5, 1], 2, True), ([3, 5, 1], 1, False), ([3, 5, 1], 2, True, True)]
    small = [([total], pads, left) for total in range(1, 6) for pads in (1, 2) for left in (True, False)]
    with subject.mode("training", quiet=True):
        hold("training", partial(padding.slip, subject), cases, small)


@law(2, "split", "balance")
def added_up(candidate: Candidate) -> None:
    """The sums of a row in several calls are those of one call, if it claims `additive`; a disclaimer is seen."""
    subject, balance = candidate.subject, candidate.build()
    cases = [([1] * 5, 2), ([2, 3], 2), ([3, 1, 1, 4], 2)]
    with subject.mode("training", quiet=True):
        if balance.additive:
            hold(
                "training",
                partial(split.slip, subject),
                cases,
                [(cut,) for T in (2, 3) for cut in split.compositions(T)],
            )
        elif first_slip(partial(split.slip, subject), cases) is None:
            raise Broken("training: disclaims `additive`, but the sums of several calls are those of one: claim it")


@law(6, "loss", "balance")
def loss(candidate: Candidate) -> None:
    """One finite number under the name of the balance, of inputs of any size and of no tokens; finite gradients."""
    subject, name = candidate.subject, candidate.build().name
    for size in (0.0, 1.0, 1e3):
        batch = subject.batch(2, 5)
        batch = replace(batch, x=(batch.x * size).requires_grad_())
        with subject.mode("training", quiet=True):
            told, found = f"training, inputs of size {size:g}", _loss(subject, name, subject.run(batch).aux)
        _check(told, found)
        if found.requires_grad and not all(bool(s.isfinite().all()) for s in _slopes(subject, found)):
            raise Broken(f"{told}: a gradient of the loss is not finite")
    with subject.mode("training", quiet=True):
        nothing = replace(subject.batch(2, 5), real=torch.zeros(2, 5, dtype=torch.bool))
        _check("training, padding alone", _loss(subject, name, subject.run(nothing).aux))


def _loss(subject: Subject, name: str, sums: Mapping[str, Tensor]) -> Tensor:
    losses, _ = subject.module.finish_aux(sums)
    if set(losses) != {name}:
        raise Broken(f"training: the losses of a layer are {', '.join(losses) or 'none'}, where {name} balances it")
    return losses[name]


def _slopes(subject: Subject, found: Tensor) -> list[Tensor]:
    return pulled(found, list(subject.parameters().values()))


def _check(told: str, found: Tensor) -> None:
    if found.shape != () or not bool(found.isfinite()):
        raise Broken(f"{told}: the loss is {found.tolist()}, not one finite number")
