"""Task `loss_by_position`: what a token costs, against how much of its context the model has read."""

from __future__ import annotations

import math
from collections.abc import Sequence as Items
from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from bakeoff.data.loading import spread
from bakeoff.data.packing import Batch, Windows
from bakeoff.errors import CapabilityError, UserError
from bakeoff.evaluate.lengthening import lengthened
from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.precision import autocast
from bakeoff.evaluate.tasks.power_law import PowerLaw, fit
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.sequence import Sequence
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.parts.curve_html import Line, curve_html, curve_style
from bakeoff.parts.modes import evaluating

#: Bins in which a curve is told, for each doubling of the context.
PER_DOUBLING = 4
#: `early` and `late` are means over this share of the training length, at its two ends.
END = 1 / 8
X_LABEL, Y_LABEL = "tokens of context", "nats per token"


class Bin(NamedTuple):
    """Mean loss over a stretch of the context: its geometric middle `t`, and how many targets it is of."""

    t: float
    loss: float
    targets: int


class LossByPosition(Task):
    """The mean loss of held-out tokens that have t tokens of context, for every t.

    Read are rows of the validation split at the training length, and at multiples of it. A token's context is what the
    model is shown of its document: where the data keep documents apart, it begins anew with each. Each row begins
    with an empty state. Rows beyond the model's `max_length` are read by a model of that length on the same weights;
    where a part has weights for each place, that is a `CapabilityError`.

    Figures: `loss` at the training length, the mean over all targets; `early` and `late`, over the first and the last
    eighth of that length; `beyond`, at positions behind the training length, in the longest rows; and the power law
    `floor + scale t^-exponent` that is fitted to the curve at the training length, in four bins for each doubling of t
    that count the same, with `fit_error`, the root mean square distance of the bins from it, in nats. It
    is a trend, no more: its exponent lies between 0.02 and 4, and where no curve falls, scale and exponent are 0.

    Parameters
    ----------
    multiples : of the training length, at which rows are read; 1 is always among them.
    tokens : of the validation split, about how many are read at each; null: as many as the recipe validates on.
    """

    reference = Reference(
        "Kaplan et al.", 2020, "Scaling Laws for Neural Language Models", "https://arxiv.org/abs/2001.08361"
    )
    figures: ClassVar = {
        "loss": Figure("less"),
        "early": Figure(),
        "late": Figure("less"),
        "beyond": Figure("less"),
        "floor": Figure(),
        "scale": Figure(),
        "exponent": Figure(),
        "fit_error": Figure(),
    }

    def __init__(self, *, multiples: Items[int] = (1,), tokens: int | None = None):
        if not multiples or min(multiples) < 1:
            raise ValueError(f"multiples is {list(multiples)}; it takes whole numbers from 1 on, at least one")
        if tokens is not None and tokens < 1:
            raise ValueError(f"tokens is {tokens}; it must be at least 1")
        self.multiples, self.tokens = sorted({1, *multiples}), tokens

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """At the training length, and at twice of it."""
        return [{"tokens": 512}, {"tokens": 512, "multiples": [1, 2]}]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Read at each length, and fit."""
        self._demand(measured)
        curves = {m: self.losses(measured, m, progress) for m in self.multiples}
        figures = _figures(curves, measured.length)
        bins = {m: binned(*curve) for m, curve in curves.items()}
        law = fit([each.t for each in bins[1]], [each.loss for each in bins[1]])
        figures |= {"floor": law.floor, "scale": law.scale, "exponent": law.exponent, "fit_error": law.error}
        data = {
            "length": measured.length,
            "law": law._asdict(),
            "curves": {str(m): [list(each) for each in found] for m, found in bins.items()},
            "means": {str(m): _mean(*curve) for m, curve in curves.items()},
        }
        return Answer(figures, _shown(bins, law, figures, measured.length), data)

    def losses(
        self, measured: Measured, multiple: int = 1, progress: Progress = lambda told: None
    ) -> tuple[Tensor, Tensor]:
        """Summed nats and the number of targets at each index of the context, (T,) double each."""
        length, objective = measured.length * multiple, measured.objective
        model, batches = lengthened(measured, length), self._batches(measured, length)
        nats, targets = torch.zeros(2, length, dtype=torch.float64)
        with evaluating(model), evaluating(objective), torch.no_grad():
            for number, batch in enumerate(batches):
                there = {name: None if value is None else value.to(measured.device) for name, value in batch.items()}
                with autocast(measured.recipe, measured.device):
                    found = objective.token_losses(model, there)
                real = found.weights != 0
                at = _index(there, found.nats.shape)[real].cpu()
                nats += torch.bincount(at, found.nats[real].double().cpu(), length)
                targets += torch.bincount(at, minlength=length)
                progress({"step": number + 1, "total": len(batches)})
        return nats, targets

    def _batches(self, measured: Measured, length: int) -> Items[Batch] | DataLoader[Batch]:
        """At the training length those of validation; longer rows are whole ones."""
        data, wanted = measured.data, self.tokens or measured.recipe.tree["validation"]["tokens"]
        if length == measured.length:
            loader = data.validation(tokens_wanted=length + 1, tokens=wanted)
            loader.num_workers = 0
            return loader
        store = data.store("validation")
        windows = Windows(len(store.tokens), length, length + 1)
        if not windows.whole:
            raise UserError(
                f"loss_by_position: a row of {length} tokens and the next does not fit the validation split, which "
                f"holds {len(store.tokens)}: let multiples be at most {(len(store.tokens) - 1) // measured.length}"
            )
        count = windows.whole if wanted is None else max(1, wanted // length)
        starts = spread(windows.whole, count) * length
        read = partial(data.rows, "validation", length=length, wanted=length + 1)
        at_once = max(1, measured.batch * measured.length // length)
        return [read(starts[i : i + at_once]) for i in range(0, len(starts), at_once)]

    def _demand(self, measured: Measured) -> None:
        """All that can be refused is, before anything is read."""
        if measured.objective.tokens_wanted(measured.length) != measured.length + 1:
            raise CapabilityError(
                f"loss_by_position takes an objective by which each token predicts the next, such as causal; "
                f"{type(measured.objective).__name__} has no such order"
            )
        longest = self.multiples[-1] * measured.length
        lengthened(measured, longest)
        self._batches(measured, longest)


def _index(batch: dict[str, Tensor | None], shape: torch.Size) -> Tensor:
    """(B, T) long: how many tokens of the same document stand before each input."""
    tokens, documents, real = batch["tokens"], batch.get("documents"), batch.get("real")
    assert tokens is not None
    sequence = Sequence(
        tokens[:, :-1],
        documents=None if documents is None else documents[:, :-1],
        real=None if real is None else real[:, :-1],
    )
    return sequence.positions.expand(shape)


def _mean(nats: Tensor, targets: Tensor) -> float:
    return float(nats.sum() / targets.sum())


def _figures(curves: dict[int, tuple[Tensor, Tensor]], length: int) -> dict[str, float]:
    """All but the law; what has no target is left out."""
    nats, targets = curves[1]
    far_nats, far_targets = curves[max(curves)]
    end = max(1, round(END * length))
    parts = {
        "loss": (nats, targets),
        "early": (nats[:end], targets[:end]),
        "late": (nats[-end:], targets[-end:]),
        "beyond": (far_nats[length:], far_targets[length:]),
    }
    return {name: _mean(*part) for name, part in parts.items() if part[1].sum() > 0}


def binned(nats: Tensor, targets: Tensor) -> list[Bin]:
    """Means over stretches of the context, t from 1, `PER_DOUBLING` of them for each doubling of t."""
    T = len(nats)
    edges = sorted({1, *(round(2 ** (i / PER_DOUBLING)) for i in range(math.ceil(math.log2(T) * PER_DOUBLING)))})
    found = []
    for begin, end in zip(edges, [*edges[1:], T + 1], strict=True):
        part = slice(begin - 1, end - 1)
        count = int(targets[part].sum())
        if count:
            found.append(Bin(math.sqrt(begin * (end - 1)), float(nats[part].sum()) / count, count))
    return found


def written(law: PowerLaw) -> str:
    """The law as a formula, in HTML, with its distance from the curve."""
    falling = f" + {law.scale:.2f} t<sup>−{law.exponent:.2f}</sup>" if law.scale else ", flat"
    return f"{law.floor:.2f}{falling} ± {law.error:.3f}"


def _shown(bins: dict[int, list[Bin]], law: PowerLaw, figures: dict[str, float], length: int) -> str:
    lines = [
        Line(f"{m}x", [(each.t, each.loss) for each in found], number) for number, (m, found) in enumerate(bins.items())
    ]
    ends = [(t, law.at(t)) for t in (each.t for each in bins[1])]
    drawn = curve_html([*lines, Line("", ends, 0, dotted=True)], X_LABEL, Y_LABEL, (length, "training length"))
    told = (
        f"{figures['loss']:.3f} nats a token at the training length of {length:,}. Dotted: the power law "
        f"{written(law)}, where ± is the root mean square distance of the curve from it."
    )
    return f"{curve_style()}<p>{told}</p>{drawn}"
