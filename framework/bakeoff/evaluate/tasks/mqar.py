"""Task `mqar`: multi-query associative recall, learnt from nothing by a small model of the arm's own mixers."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bakeoff.errors import UserError
from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.tasks.recall import Recall, check_sizes, draw
from bakeoff.evaluate.tasks.small import small
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.sequence import Sequence
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.model import LanguageModel
from bakeoff.model.cost import plan
from bakeoff.parts.counts import check_counts
from bakeoff.parts.modes import evaluating
from bakeoff.recipe import Recipe
from bakeoff.recipe.demands import outlined
from bakeoff.train.optimizers import build_optimizer

#: Steps between two looks at whether the goal is reached, and between two words on where the training stands.
LOOK, TELL = 100, 10
#: Examples that decide on the goal and between learning rates.
DECIDING = 512


class MQAR(Task):
    """Multi-query associative recall: pairs of keys and values, then the keys again, in another order and apart.

    The share of held-out queries that are answered with their value (`accuracy`), and the bytes of state that the model
    keeps of an example (`state_bytes`). For each seed a model is trained on examples that are never repeated: the
    recipe's own, at width `d_model`, with the pattern of its blocks once through, or as often as `depth` layers take;
    blocks lose their feed-forward, and those without a mixer are left out. Where a mixer takes a `position`, as
    attention does, it gets none, and the embeddings get learned ones; where none does, there are none. Heads, windows,
    sizes of states and all else stay the recipe's. AdamW with weight decay 0.1, gradients clipped at 1, float32. The
    trained model of the recipe is not used.

    The defaults are a reduced size, which takes minutes on one core of a CPU. Published are a vocabulary of 8192,
    lengths of 64 to 512 with 4 to 64 pairs, 100,000 examples 64 times, widths of 64 to 512, the best of four rates.

    Parameters
    ----------
    pairs, length, vocabulary : of an example, the vocabulary halved between keys and values.
    d_model, depth : width, and layers at least, of the model.
    steps, batch : optimizer steps at most, and examples in each.
    learning_rates : the one that does best on examples of its own is reported.
    goal : training ends as soon as this accuracy is seen, on examples of its own, at one of every 100 steps.
    held_out : examples that decide on the reported accuracy.
    """

    reference = Reference(
        "Arora et al.",
        2023,
        "Zoology: Measuring and Improving Recall in Efficient Language Models",
        "https://arxiv.org/abs/2312.04927",
    )
    name: ClassVar = "mqar"
    figures: ClassVar = {
        "accuracy": Figure("more", "share", against="state_bytes"),
        "state_bytes": Figure(None, "bytes"),
    }

    def __init__(
        self,
        *,
        pairs: int = 4,
        length: int = 64,
        vocabulary: int = 256,
        d_model: int = 64,
        depth: int = 2,
        steps: int = 1500,
        batch: int = 128,
        learning_rates: Items[float] = (2e-3,),
        goal: float = 0.99,
        held_out: int = 2048,
    ):
        check_sizes(pairs=pairs, length=length, vocabulary=vocabulary)
        check_counts(d_model=d_model, depth=depth, steps=steps, batch=batch, held_out=held_out)
        if not learning_rates or min(learning_rates) <= 0:
            raise ValueError(f"learning_rates is {list(learning_rates)}; it takes positive numbers, at least one")
        self.d_model, self.depth, self.vocabulary, self.length = d_model, depth, vocabulary, length
        self.steps, self.batch, self.held_out = steps, batch, held_out
        self.learning_rates, self.goal = list(learning_rates), goal
        self.draw = partial(draw, pairs=pairs, length=length, vocabulary=vocabulary)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Few steps, with one rate and with two."""
        tiny = {"pairs": 2, "length": 8, "vocabulary": 16, "d_model": 16, "batch": 4, "held_out": 16, "steps": 3}
        return [tiny, {**tiny, "learning_rates": [1e-3, 1e-2], "goal": 0.1}]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Train with each learning rate, and give the figures of the best."""
        examples = self._drawn(measured.recipe, "held out", self.held_out)
        figures = {"accuracy": accuracy(self.trained(measured, progress), next(examples), self.batch)}
        return Answer(figures | self.state_bytes(measured.recipe))

    def state_bytes(self, recipe: Recipe) -> dict[str, float]:
        """The figure of that name, where the parts declare their states."""
        state = plan(self.untrained(recipe), self.length).whole.state
        return {} if state is None else {"state_bytes": float(state)}

    def trained(self, measured: Measured, progress: Progress) -> LanguageModel:
        """The small model that does best on examples of its own, of one for each learning rate."""
        recipe, device = measured.recipe, measured.device
        tell = _Told(progress, self.steps * len(self.learning_rates))
        best: tuple[float, LanguageModel] | None = None
        for rate in self.learning_rates:
            model = self.untrained(recipe).initialise(recipe.seed_of("initialisation"), device).train()
            reached = self.train(model, rate, partial(self._drawn, recipe), tell)
            if best is None or reached > best[0]:
                best = reached, model
            if reached >= self.goal:
                break
        assert best is not None
        return best[1]

    def untrained(self, recipe: Recipe) -> LanguageModel:
        """The small model, on the meta device. Raises `UserError` where the recipe's parts do not fit its width."""
        try:
            made = small(recipe, d_model=self.d_model, depth=self.depth)
            return outlined(made, self.vocabulary, max_length=self.length)
        except UserError as error:
            what = f"with d_model {self.d_model} and length {self.length}, which are arguments of the task"
            raise UserError(f"{self.name} trains a small model of the same mixers, {what}: {error}") from error

    def train(self, model: LanguageModel, rate: float, drawn: Callable[..., Any], tell: _Told) -> float:
        """Optimizer steps until the goal or the end; returns the accuracy on the examples that decide."""
        make = partial(torch.optim.AdamW, lr=rate, weight_decay=0.1, fused=True)
        optimizer = build_optimizer(make, model)
        training, deciding = drawn("training", self.batch), next(drawn("deciding", DECIDING))
        reached = 0.0
        for step in range(1, self.steps + 1):
            loss = recall_loss(model, next(training))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            tell(loss)
            if step % LOOK == 0 or step == self.steps:
                reached = accuracy(model, deciding, self.batch)
            if reached >= self.goal:
                break
        return reached

    def _drawn(self, recipe: Recipe, purpose: str, n: int) -> Any:
        """Examples without end, `n` at a time."""
        generator = self.generator(recipe, purpose)
        while True:
            yield self.draw(n, generator=generator)

    def generator(self, recipe: Recipe, purpose: str) -> torch.Generator:
        """Another for each seed of the data and each purpose."""
        text = f"{recipe.seed_of('data')}:{self.name}:{purpose}"
        seed = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")
        return torch.Generator().manual_seed(seed)


class _Told:
    """Says now and then where the training stands, and how long the rest takes at most."""

    def __init__(self, progress: Progress, total: int):
        self.progress, self.total, self.step, self.begun = progress, total, 0, time.monotonic()

    def __call__(self, loss: Tensor) -> None:
        self.step += 1
        if self.step % TELL == 0 or self.step == self.total:
            left = (time.monotonic() - self.begun) / self.step * (self.total - self.step)
            self.progress({"step": self.step, "total": self.total, "loss": loss.item(), "seconds_left": left})


def recall_loss(model: LanguageModel, examples: Recall) -> Tensor:
    """Mean nats of the answers, and the auxiliary losses of the layers."""
    result = model.backbone(Sequence(examples.tokens.to(model.backbone.embedding.device)))
    hidden = _at(result.y, examples.queries)
    total, _ = model.head(hidden, examples.answers.to(hidden.device))
    return total / examples.answers.numel() + sum(model.backbone.layer_losses(result.aux).values())


def accuracy(model: LanguageModel, examples: Recall, batch: int) -> float:
    """Share of the queries whose likeliest token is the answer."""
    right = 0
    with evaluating(model), torch.no_grad():
        pieces = zip(*(part.split(batch) for part in examples), strict=True)
        for tokens, queries, answers in pieces:
            result = model.backbone(Sequence(tokens.to(model.backbone.embedding.device)))
            chosen = model.head(_at(result.y, queries)).argmax(-1)
            right += int((chosen == answers.to(chosen.device)).sum())
    return right / examples.answers.numel()


def _at(hidden: Tensor, places: Tensor) -> Tensor:
    """(n, pairs, D): the hidden states (n, T, D) at `places` (n, pairs)."""
    return hidden.gather(1, places.to(hidden.device)[..., None].expand(-1, -1, hidden.shape[-1]))
