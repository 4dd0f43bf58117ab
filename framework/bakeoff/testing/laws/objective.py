"""Objectives: sums and weights that add up over rows and micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from bakeoff.interfaces.objective import Feedback, Objective, Terms
from bakeoff.interfaces.result import Result
from bakeoff.model import LanguageModel
from bakeoff.testing.batch import pulled
from bakeoff.testing.build import VOCABULARY, resolved
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.dialogues import TOKENIZER, Rows, rows_of
from bakeoff.testing.host import model
from bakeoff.testing.law import Broken, NotApplicable, NotClaimed, law
from bakeoff.testing.values import jitter

_LENGTH = 6


@law(None, "terms", "objective")
def terms(candidate: Candidate) -> None:
    """ "loss" with its weight, "nats" and "tokens"; what is learnt from adds up to its batch, packed or not, unless the
    class says that it is not `additive`: then the statistics do that count targets."""
    objective, network = built(candidate)
    for rows in batches(objective, network, candidate):
        told, whole = rows.told, objective(network, rows.batch)
        _complete(told, *whole)
        with torch.set_grad_enabled(objective.additive):
            parts = [objective(network, rows.one(number)) for number in range(rows.things)]
        counted = {"nats", "tokens"} if not objective.additive else whole[1].keys()
        if objective.additive:
            _adds_up(f"{told}: term", whole[0], [part[0] for part in parts])
        _adds_up(f"{told}: statistic", {k: whole[1][k] for k in counted}, [part[1] for part in parts])
        losses = objective.token_losses(network, rows.batch)
        nats = float((losses.nats * losses.weights).sum().detach())
        if abs(nats - float(whole[1]["nats"])) > 1e-6 * abs(nats) + 1e-9:
            raise Broken(
                f"{told}: token_losses add up to {nats:.6g} nats, forward reports {float(whole[1]['nats']):.6g}"
            )


@law(None, "continuing", "objective")
def continuing(candidate: Candidate) -> None:
    """Who `carries_state`: two windows through the state cost what one window of both costs, in both calls."""
    objective: Any = candidate.build()
    if not objective.carries_state:
        raise NotClaimed("carries_state")
    objective, network = built(candidate)
    half, wanted = _LENGTH // 2, objective.tokens_wanted(_LENGTH // 2)
    for told, batch, *_ in batches(objective, network, candidate):
        windows = [{k: t if t is None else t[:, s : s + wanted] for k, t in batch.items()} for s in (0, half)]
        state, found, nats = network.empty_state(3), [], []
        for window in windows:
            nats.append(objective.token_losses(network, window, state).nats)
            *results, state = objective(network, window, state)
            found.append(results)
        whole = objective(network, batch)
        for kind in (0, 1):
            _adds_up(f"{told}, two windows: {('term', 'statistic')[kind]}", whole[kind], [one[kind] for one in found])
        apart = (torch.cat(nats, 1) - objective.token_losses(network, batch).nats).detach().abs().max()
        if not apart < 1e-6:
            raise Broken(f"{told}: token_losses of two windows through the state differ by {float(apart):.2g} nats")


@law(None, "feedback", "objective")
def feedback(candidate: Candidate) -> None:
    """What parts show as feedback is a term that rows add up to, and that reaches the choices' log-probabilities."""
    objective, network = built(candidate)
    given = list(batches(objective, network, candidate))
    network.backbone.register_forward_hook(_shows)
    for rows in given:
        told, whole = rows.told, objective(network, rows.batch)[0]
        if "feedback" not in whole:
            raise Broken(f"{told}: a part shows feedback, but no term has this name: its choices learn nothing")
        if objective.additive:
            parts = [objective(network, rows.one(number))[0] for number in range(rows.things)]
            _adds_up(f"{told}: term", {"feedback": whole["feedback"]}, parts)
        total = whole["feedback"][0]
        (slope,) = pulled(total, [network.backbone.embedding]) if total.requires_grad else (torch.zeros(1),)
        if not bool(slope.any()):
            raise Broken(f"{told}: the term 'feedback' has no gradient in what the log-probabilities come from")


@law(None, "forwards", "objective")
def forwards(candidate: Candidate) -> None:
    """A batch goes through a backbone once with gradients, and as often without as `forwards()` says."""
    objective, network = built(candidate)
    if objective.collects:
        raise NotApplicable("the passes of a collection are shared by the steps that it lasts for")
    passes: list[bool] = []

    def count(module: Any, *_: Any) -> None:
        if isinstance(module, type(network.backbone)):
            passes.append(torch.is_grad_enabled())

    hook = torch.nn.modules.module.register_module_forward_hook(count)
    try:
        for rows in batches(objective, network, candidate):
            passes.clear()
            objective(network, rows.batch)
            found, said = (passes.count(True), passes.count(False)), objective.forwards()
            if found != (1, said):
                raise Broken(
                    f"{rows.told}: a batch goes through a backbone {found[0]} times with gradients (not once), or "
                    f"{found[1]} times without, where forwards() says {said:g}"
                )
    finally:
        hook.remove()


def _shows(backbone: Any, given: tuple[Any, ...], result: Result) -> None:
    """As a part would whose choices depend on what the backbone gives."""
    log_p = result.y[..., :2].log_softmax(-1)[..., 0]
    given[0].memory["feedback.kit"] = Feedback(log_p, torch.ones_like(log_p), 0.5)


def built(candidate: Candidate) -> tuple[Any, LanguageModel]:
    """The objective, attached to a small model that has moved on since."""
    objective: Any = candidate.build()
    size = {"vocab_size": TOKENIZER.vocab_size} if objective.reads_dialogues else {}
    parts = {name: resolved(value) for name, value in objective.example_model.items()}
    network = model("objective", candidate.build, **size, **parts).initialise(candidate.seed).double()
    objective.attach(network, candidate.seed)
    objective.double()
    jitter(network, candidate.seed)
    return objective, network


def batches(objective: Objective, network: LanguageModel, candidate: Candidate) -> Iterator[Rows]:
    """Three rows of one document each, and of several; or what is made of dialogues."""
    if objective.reads_dialogues:
        yield from rows_of(objective, network, candidate.seed)
        return
    L = objective.tokens_wanted(_LENGTH)
    tokens = torch.randint(VOCABULARY, (3, L), generator=candidate.generator())
    yield Rows("documents None", {"tokens": tokens, "documents": None}, 1, None)
    documents = (torch.arange(L)[None] >= torch.tensor([[2], [L], [4]])).long()
    yield Rows("packed documents", {"tokens": tokens, "documents": documents}, 1, None)


def _complete(told: str, found: Terms, statistics: dict[str, Tensor]) -> None:
    missing = ({"loss"} - found.keys()) | ({"nats", "tokens"} - statistics.keys())
    if missing:
        raise Broken(f"{told}: the terms or statistics lack {', '.join(sorted(missing))}")
    for name, (total, weight) in found.items():
        if total.ndim or weight.ndim or not bool(total.isfinite() and weight > 0):
            raise Broken(f"{told}: term '{name}' is no finite sum with a positive weight")
    if not found["loss"][0].requires_grad:
        raise Broken(f"{told}: the term 'loss' has no gradient")
    if statistics["nats"].requires_grad:
        raise Broken(f"{told}: the statistic 'nats' is not detached")


def _adds_up(told: str, whole: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    for name, value in whole.items():
        summed = torch.stack([_flat(row[name]) for row in rows]).sum(0)
        if not torch.allclose(_flat(value), summed, rtol=1e-6):
            raise Broken(f"{told} '{name}' is {_flat(value)[0]:.6g} for the whole, but the sum is {summed[0]:.6g}")


def _flat(value: Any) -> Tensor:
    return torch.stack(value if isinstance(value, tuple) else (value,)).detach().double().flatten()
