"""Task `routing`: what the experts of a trained model do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.precision import autocast
from bakeoff.evaluate.tasks.routed import Choices, Text, read
from bakeoff.evaluate.tasks.routing_html import shown
from bakeoff.evaluate.tasks.token_classes import CLASSES, token_class
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.interfaces.tokenizer import Tokenizer


class Layer(NamedTuple):
    """What is told of one router.

    Attributes
    ----------
    load : (E,) share of all choices that each expert took.
    numbers : the figures of the task, of this layer.
    classes : (C, E) tokens of each class whose first choice an expert was.
    frequent : for each expert its most frequent tokens by first choice, and how often each went to it.
    """

    choices: Choices
    load: Tensor
    numbers: dict[str, float]
    classes: Tensor
    frequent: list[list[tuple[int, int]]]


class RoutingTask(Task):
    """Reads held-out text and tells which experts its tokens go to, of any model with routers.

    Figures are means over layers: `max_violation`, by how much the largest load exceeds the mean, relative to it;
    `entropy` of the routers' probabilities, in nats; `dropped`, the share of choices lost to capacity; `unrouted`, the
    share of tokens that no expert took; `repeated`, the share of tokens with the same first choice as the token before,
    and `shared`, of those with any choice in common, each beside what two tokens drawn at random would give. The first
    choice is that of the largest weight. Shown are the load of each expert, experts against classes of tokens, the most
    frequent tokens of each expert, and passages in the colours of their experts. Soft routers give tokens no choice:
    they are left out, and a model that has no others cannot be asked.

    Parameters
    ----------
    tokens : about how many of the validation split are read, evenly spread over it.
    passages : how many are shown in colour, of `length` tokens each at most.
    frequent : how many tokens are listed for an expert.
    """

    reference = Reference("Jiang et al.", 2024, "Mixtral of Experts", "https://arxiv.org/abs/2401.04088")
    figures: ClassVar = {
        "max_violation": Figure("less"),
        "entropy": Figure(),
        "dropped": Figure("less", "share"),
        "unrouted": Figure(None, "share"),
        "repeated": Figure(None, "share"),
        "repeated_by_chance": Figure(None, "share"),
        "shared": Figure(None, "share"),
        "shared_by_chance": Figure(None, "share"),
    }
    example_model: ClassVar[Mapping[str, Any]] = {
        "model.blocks.layer.feed_forward": {
            "use": "mixture_of_experts",
            "n_experts": 4,
            "expert": {"use": "gated_mlp", "width": 8},
        }
    }

    def __init__(self, *, tokens: int = 32768, passages: int = 2, length: int = 256, frequent: int = 8):
        if tokens < 2:
            raise ValueError(f"tokens is {tokens}; it must be at least 2")
        if min(passages, frequent) < 0 or length < 1:
            raise ValueError(
                f"passages is {passages}, frequent {frequent}, length {length}; the first two must be 0 or more, "
                "length at least 1"
            )
        self.tokens, self.passages, self.length, self.frequent = tokens, passages, length, frequent

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and of few tokens."""
        return [{}, {"tokens": 100, "passages": 1, "length": 20, "frequent": 2}]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Read, count, and colour."""
        batches = measured.data.validation(tokens_wanted=measured.length, tokens=self.tokens)
        batches.num_workers = 0
        with autocast(measured.recipe, measured.device):
            text = read(measured.model, batches, lambda n: progress({"step": n, "total": len(batches)}))
        tokenizer = measured.data.tokenizer
        classes = classes_of(text.tokens, tokenizer)
        layers = {place: told(text, choices, classes, self.frequent) for place, choices in text.layers.items()}
        figures = {name: mean for name in self.figures if (mean := _mean(name, layers)) is not None}
        counts = torch.bincount(classes, minlength=len(CLASSES))
        return Answer(figures, shown(text, layers, counts, list(self._passages(text)), tokenizer))

    def _passages(self, text: Text) -> Iterator[slice]:
        """Places of what is shown, evenly spread over the rows."""
        ends = [*text.starts[1:], len(text.tokens)]
        count = min(self.passages, len(ends))
        for i in range(count):
            row = i * len(ends) // count
            yield slice(text.starts[row], min(ends[row], text.starts[row] + self.length))


def _mean(name: str, layers: Mapping[str, Layer]) -> float | None:
    values = [layer.numbers[name] for layer in layers.values() if name in layer.numbers]
    return sum(values) / len(values) if values else None


def classes_of(tokens: Tensor, tokenizer: Tokenizer) -> Tensor:
    """(N,) long, the number of each token's class."""
    seen, places = tokens.unique(return_inverse=True)
    numbers = [CLASSES.index(token_class(tokenizer.token_bytes(token))) for token in seen.tolist()]
    return torch.tensor(numbers)[places]


def told(text: Text, choices: Choices, classes: Tensor, frequent: int) -> Layer:
    """All that is told of one router."""
    E, first = choices.n_experts, choices.first
    counts = torch.bincount(choices.experts.flatten(), minlength=E + 1)[:E].double()
    load = counts / counts.sum().clamp_min(1)
    lost = float(choices.lost.sum())
    numbers = {
        "max_violation": float(load.max()) * E - 1 if counts.sum() > 0 else 0.0,
        "dropped": lost / max(1.0, lost + float(counts.sum())),
        "unrouted": float((first == E).double().mean()),
        **repetition(choices, text.follows),
    }
    if choices.entropy is not None:
        numbers["entropy"] = float(choices.entropy.double().mean())
    by_class = torch.bincount(classes * (E + 1) + first, minlength=len(CLASSES) * (E + 1)).view(-1, E + 1)[:, :E]
    return Layer(choices, load, numbers, by_class, [_frequent(text.tokens[first == e], frequent) for e in range(E)])


def repetition(choices: Choices, follows: Tensor) -> dict[str, float]:
    """How often neighbours have the first choice, or any, in common; and two tokens drawn at random. Of tokens that
    some expert took; nothing where no two such are neighbours."""
    E, here = choices.n_experts, choices.first < choices.n_experts
    pairs = torch.nonzero(follows & here & here.roll(1)).squeeze(-1)
    if not len(pairs):
        return {}
    taken = torch.nonzero(here).squeeze(-1)
    drawn = taken[torch.randint(len(taken), (2, max(len(pairs), 10_000)))]
    member = torch.zeros(len(here), E + 1, dtype=torch.bool).scatter_(1, choices.experts, True)[:, :E]

    def alike(a: Tensor, b: Tensor) -> tuple[float, float]:
        same = choices.first[a] == choices.first[b]
        return float(same.double().mean()), float((member[a] & member[b]).any(-1).double().mean())

    repeated, shared = alike(pairs - 1, pairs)
    by_chance, shared_by_chance = alike(drawn[0], drawn[1])
    return {
        "repeated": repeated,
        "repeated_by_chance": by_chance,
        "shared": shared,
        "shared_by_chance": shared_by_chance,
    }


def _frequent(tokens: Tensor, most: int) -> list[tuple[int, int]]:
    """Ids with their counts, the most frequent first, of equals the smaller id."""
    ids, counts = tokens.unique(return_counts=True)
    order = counts.sort(descending=True, stable=True).indices[:most]
    return list(zip(ids[order].tolist(), counts[order].tolist(), strict=True))
