"""Small parts for tests of runs on dialogues: a corpus of sums, a template, and objectives that read and collect."""

import torch
from bakeoff.interfaces import (
    Corpus,
    Dialogue,
    Encoded,
    PolicyObjective,
    Sequence,
    Template,
    TokenLosses,
    Turn,
)
from bakeoff.interfaces.objective import Objective
from bakeoff.registry import register


@register("toy_sums")
class ToySums(Corpus):
    """Sums of one digit each; those that end in 7 are held out."""

    def __init__(self, *, empty: str = "none"):
        self.empty = empty

    def documents(self, split):
        yield from (f"{d.prompt[0].text}{d.completion}" for d in self.dialogues(split))

    def dialogues(self, split):
        if split == self.empty:
            return
        if split not in ("train", "validation"):
            raise ValueError(split)
        for a in range(8):
            for b in range(8):
                if ((a + b) % 10 == 7) == (split == "validation"):
                    yield Dialogue(prompt=(Turn("user", f"{a}+{b}="),), completion=str(a + b), answer=str(a + b))

    def fingerprint(self):
        return f"toy sums {self.empty}"

    @property
    def licence(self):
        return "none"


@register("toy_template")
class ToyTemplate(Template):
    def opening(self, role, tokenizer):
        return []

    def spoken(self, turn, tokenizer):
        return tokenizer.encode(turn.text) + ([tokenizer.end] if turn.role == "assistant" else [])


class _Reads(Objective):
    reads_dialogues = True

    def tokens_wanted(self, length):
        return length + 1

    def encode(self, dialogue, template, tokenizer):
        return Encoded([template.row(dialogue.prompt, dialogue.completion, tokenizer)], {"size": 1.0})

    def _losses(self, model, batch):
        tokens, real = batch["tokens"], batch["real"]
        kept = None if real is None else real[:, :-1]
        result = model.backbone(Sequence(tokens[:, :-1], real=kept))
        nats = model.head(result.y, tokens[:, 1:], reduce="none")
        return TokenLosses(nats, tokens[:, 1:], batch["weights"][:, 1:])

    def token_losses(self, model, batch):
        return self._losses(model, batch)

    def forward(self, model, batch):
        nats, _, weights = self._losses(model, batch)[:3]
        total, count = (nats * weights).sum(), weights.sum()
        rows = torch.tensor(float(len(nats)))
        return (
            {"loss": (total, count)},
            {"nats": total.detach(), "tokens": count, "mean.rows": torch.stack([rows, torch.ones(())])},
        )


@register("toy_answers")
class ToyAnswers(_Reads):
    """Completions are the targets."""


@register("toy_policy")
class ToyPolicy(_Reads, PolicyObjective):
    """Learns the digits of what it said itself, each collection marked by a number of its own."""

    def __init__(self, *, group: int = 2, passes: int = 2, updates: int = 2):
        super().__init__()
        self.group, self.passes, self.updates, self.max_new_tokens = group, passes, updates, 3
        self.register_buffer("collections", torch.zeros(()))

    def attach(self, model, seed):
        self.scale = torch.nn.Parameter(torch.full((), 0.5))

    def collect(self, model, prompts, collecting):
        from bakeoff.model.generate import complete

        read = [collecting.template.prompt(d.prompt, collecting.tokenizer) for d in prompts]
        ids = [prompt for prompt in read for _ in range(self.group)]
        told = {"sampler": collecting.sampler, "seed": collecting.seed, "first": collecting.first}
        told |= {"max_new_tokens": self.max_new_tokens, "copies": self.group}
        said = complete(model, collecting.tokenizer, read, **told)
        self.collections += 1
        L = self.tokens_wanted(collecting.length)
        tokens = torch.full((len(ids), L), collecting.tokenizer.padding)
        weights = torch.zeros(len(ids), L)
        for row, (prompt, one) in enumerate(zip(ids, said, strict=True)):
            both = prompt + one.tokens
            tokens[row, : len(both)] = torch.tensor(both)
            weights[row, len(prompt) : len(both)] = 1.0
        number = self.collections.expand(len(ids)).clone()
        return {"tokens": tokens, "real": tokens != collecting.tokenizer.padding, "weights": weights, "number": number}

    def planned(self, rows, length):
        return {"number": torch.zeros(rows)}

    def forward(self, model, batch):
        terms, statistics = super().forward(model, batch)
        total, count = terms["loss"]
        told = torch.stack([batch["number"].sum(), torch.tensor(float(len(batch["number"])))])
        return {"loss": (total * self.scale, count)}, {**statistics, "mean.number": told}
