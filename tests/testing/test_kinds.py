"""Faults planted in tokenizers, samplers, schedules, norms, heads, positions, ops, corpora and objectives."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from bakeoff.interfaces import Corpus, PositionalEncoding, Schedule
from bakeoff.parts.attention.sdpa import SDPA
from bakeoff.parts.causal import Causal
from bakeoff.parts.norms import RMSNorm
from bakeoff.parts.positions.alibi import ALiBi
from bakeoff.parts.positions.learned import LearnedPosition
from bakeoff.parts.positions.sinusoidal import SinusoidalPosition
from bakeoff.parts.samplers import Greedy, Sample
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff.parts.vocabulary import Vocabulary
from bakeoff.testing import check
from torch.nn import functional as F

from .stand_ins import Mean


class ControlIds(ByteTokenizer):
    """Turns what is written as "<|end|>" into the id of the end."""

    def encode(self, text):
        before, found, after = text.partition("<|end|>")
        return super().encode(before) + ([self.end, *self.encode(after)] if found else [])


class Strips(ByteTokenizer):
    def encode(self, text):
        return super().encode(text.strip())


class ByFrequency(ByteTokenizer):
    """Numbers bytes by frequency, ties in order of appearance."""

    def train(self, texts):
        counts = Counter(byte for text in texts for byte in text.encode())
        self.order = [byte for byte, _ in counts.most_common()]
        self.order += [byte for byte in range(256) if byte not in counts]

    def encode(self, text):
        return [self.order.index(byte) for byte in text.encode()]

    def encode_arrays(self, texts, threads=1):
        return self.encode_batch(texts)

    def token_bytes(self, token):
        return bytes([self.order[token]]) if token < 256 else b""


class OtherBatches(ByteTokenizer):
    def encode_batch(self, texts, threads=1):
        return [self.encode(text)[:1] for text in texts]


class CountsCharacters(ByteTokenizer):
    def bytes_per_token(self):
        return super().bytes_per_token() * 2


class SharesRandomness(Sample):
    def choose(self, logits, seen, uniform):
        return super().choose(logits, seen, uniform[:1].expand_as(uniform))


class SecondBest(Greedy):
    def choose(self, logits, seen, uniform):
        return logits.topk(2).indices[:, 1]


class Draws(Greedy):
    def choose(self, logits, seen, uniform):
        return torch.multinomial(logits.softmax(-1), 1)[:, 0]


class OneMore(Greedy):
    def choose(self, logits, seen, uniform):
        return logits.argmax(-1) + 1


class Negative(Schedule):
    def factor(self, step: int, total: int) -> float:
        return 1 - 2 * step / total


class StartsAtZero(Schedule):
    def factor(self, step: int, total: int) -> float:
        return step / total


class Counts(Schedule):
    """Counts its calls instead of reading the step."""

    calls = 0

    def factor(self, step: int, total: int) -> float:
        self.calls += 1
        return 1 / self.calls


class NoNorm(RMSNorm):
    def forward(self, x):
        return x * self.weight.to(x.dtype)


class OverTokens(RMSNorm):
    def forward(self, x):
        return x / x.float().square().mean((-2, -1), keepdim=True).add(1e-6).sqrt().to(x.dtype)


class ForgetsWeights(Vocabulary):
    def forward(self, hidden, targets=None, weights=None, reduce="sum", **penalties):
        return super().forward(hidden, targets, None, reduce, **penalties)


class OnlyTheFirst(Vocabulary):
    """Stops after a chunk of tokens."""

    def forward(self, hidden, targets=None, weights=None, reduce="sum", **penalties):
        if targets is None or reduce == "none":
            return super().forward(hidden, targets, weights, reduce, **penalties)
        return super().forward(hidden[:, :512], targets[:, :512], weights[:, :512], reduce, **penalties)


class HalfTheCost(Vocabulary):
    def flops(self, queries, keys):
        return super().flops(queries, keys) // 2


class ByShape(LearnedPosition):
    """Counts positions from what is there."""

    def embed(self, x, sequence):
        return x + self.vectors.weight[: x.shape[1]].to(x.dtype)


class UndeclaredHook(SinusoidalPosition):
    def rotate(self, q, k, sequence):
        return q, k


class ClaimsRelative(SinusoidalPosition):
    relative = True


class DisclaimsRelative(ALiBi):
    relative = False


class Nothing(PositionalEncoding):
    hooks = frozenset({"rotate"})

    def rotate(self, q, k, sequence):
        return q, k


class NoScale(SDPA):
    def forward(self, q, k, v, sequence, **given):
        return super().forward(q, k, v, sequence, **{**given, "scale": 1.0})


class IgnoresSinks(SDPA):
    def forward(self, q, k, v, sequence, **given):
        return super().forward(q, k, v, sequence, **{**given, "sinks": None})


class TopLeft(SDPA):
    """Aligns the first query with the first key when there is a past."""

    def forward(self, q, k, v, sequence, *, rolling=False, **given):
        if rolling or q.shape[1] in (1, k.shape[1]):
            return super().forward(q, k, v, sequence, rolling=rolling, **given)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2), None


class SharesDocuments(Corpus):
    licence = "none"

    def documents(self, split):
        if split not in ("train", "validation"):
            raise ValueError(split)
        yield from ("one", "two")

    def fingerprint(self):
        return "0"


class AnySplit(SharesDocuments):
    def documents(self, split):
        yield split


class Averages(Causal):
    def forward(self, model, batch):
        terms, statistics = super().forward(model, batch)
        total, count = terms["loss"]
        return {"loss": (total / count, count)}, statistics


class BeginsAnew(Causal):
    def token_losses(self, model, batch, state=None):
        return super().token_losses(model, batch)._replace(state=state)


class HearsNoFeedback(Causal):
    def _feedback(self, *_):
        return {}


class HearsOnlyCosts(Causal):
    def _feedback(self, *given):
        return {name: (total.detach(), n) for name, (total, n) in super()._feedback(*given).items()}


class AsksTwice(Causal):
    def forward(self, model, batch):
        with torch.no_grad():
            super().forward(model, batch)
        return super().forward(model, batch)


class Positional(Mean):
    def __init__(self, context, width=4):
        super().__init__(context)


class Swallows(Mean):
    def __init__(self, context, **options):
        super().__init__(context)


class Untyped(Mean):
    def __init__(self, context, *, width=4):
        super().__init__(context)


class NoExamples(Mean):
    def __init__(self, context, *, width: int):
        super().__init__(context)


@pytest.mark.parametrize(
    ("component", "law", "message"),
    [
        (ControlIds, "lossless", "encode('<|end|>') gives 257, which is no text id (0 to 255)"),
        (Strips, "lossless", "decode(encode(' ')) is ''"),
        (ByFrequency, "training", "trained on the same texts in reverse order, it gives other ids"),
        (OtherBatches, "ids", "encode_batch(…, threads=1) gives other ids for"),
        (CountsCharacters, "lossless", "bytes_per_token counts 2 bytes in 'a', which has 1"),
        (
            SharesRandomness,
            "choice",
            "B=4, uniform different in each row: row 1 alone gets another id",
        ),
        (SecondBest, "choice", "B=1: all mass is on token 0, but token"),
        (Draws, "choice", "asked again with the same randomness, other ids are chosen"),
        (OneMore, "choice", "B=4, uniform=0: ids [11, 9, 6, 6] are not all from 0 to 10"),
        (Negative, "factor", "factor(6, 10) is -0.19"),
        (StartsAtZero, "factor", "factor(0, 1) is 0: the first step moves nothing"),
        (Counts, "factor", "of 1 steps, asked in reverse"),
        (NoNorm, "scale", "inputs 1000 times as large give outputs 1e+03 times as large"),
        (OverTokens, "scale", "T=4, token 0 removed: another output moved"),
        (ForgetsWeights, "loss", "T=5: the loss is"),
        (OnlyTheFirst, "loss", "T=700: the loss is"),
        (HalfTheCost, "cost", "flops(queries=1, keys=1) is 1,024, but the products of a run are 2,048"),
        (ByShape, "positions", "positions [0, 1, 2, 3, 4, 5] and their doubles give the same outputs"),
        (ByShape, "split", "evaluation, no_grad: T=2 in calls of 1 + 1: output 1 differs by"),
        (UndeclaredHook, "hooks", "`hooks` declares embed, but the class defines embed, rotate"),
        (ClaimsRelative, "positions", "claims `relative`, but positions moved by 5 move output 0 by"),
        (DisclaimsRelative, "positions", "positions moved by 5 move no output: claim `relative`"),
        (Nothing, "positions", "and their doubles give the same outputs"),
        (NoScale, "definition", "T=7 after 0, window None, soft_cap None, 4 key-value heads: an output differs by"),
        (
            IgnoresSinks,
            "definition",
            "T=7 after 0, window None, soft_cap None, 4 key-value heads, sinks: an output differs",
        ),
        (TopLeft, "definition", "T=3 after 5, window None, soft_cap None, 4 key-value heads: an output differs by"),
        (SharesDocuments, "documents", "both splits hold the document that begins 'one'"),
        (AnySplit, "documents", "documents('test') is accepted; the splits are train, validation"),
        (Averages, "terms", "documents None: term 'loss' is"),
        (BeginsAnew, "continuing", "documents None: token_losses of two windows through the state differ by"),
        (HearsNoFeedback, "feedback", "documents None: a part shows feedback, but no term has this name"),
        (HearsOnlyCosts, "feedback", "the term 'feedback' has no gradient in what the log-probabilities come from"),
        (AsksTwice, "forwards", "or 1 times without, where forwards() says 0"),
        (Positional, "schema", "argument 'width' is not keyword-only"),
        (Swallows, "schema", "argument 'options' swallows what is not known"),
        (Untyped, "schema", "argument 'width' has no type, so a recipe cannot be checked against it"),
        (NoExamples, "schema", "examples() leaves out required arguments: width"),
    ],
)
def test_planted_faults_are_caught(component, law, message):
    report = check(component, laws=None if law in ("split", "schema") else [law])
    reasons = [finding.reason for finding in report.failures if finding.law == law]
    assert any(message in reason for reason in reasons), str(report)
