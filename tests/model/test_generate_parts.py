"""One loop decodes every mixer under every position, as a plain forward over the whole text would."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from bakeoff.interfaces import LayerContext
from bakeoff.model import LanguageModel
from bakeoff.model.generate import Completion, complete
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.gated_mlp import GatedMLP
from bakeoff.parts.positions.alibi import ALiBi
from bakeoff.parts.positions.learned import LearnedPosition
from bakeoff.parts.positions.rope import RoPE
from bakeoff.parts.positions.scaled_rope import DynamicNTKRoPE
from bakeoff.parts.positions.sinusoidal import SinusoidalPosition
from bakeoff.parts.positions.t5 import T5Position
from bakeoff.parts.positions.yarn_rope import YaRNRoPE
from bakeoff.parts.samplers import Sample
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff_rnn import LSTM
from bakeoff_ssm import Mamba2

TOKENIZER = ByteTokenizer()
heads = partial(Attention, n_heads=4)
yarn = partial(YaRNRoPE, factor=4.0, original_length=16)
dynamic = partial(DynamicNTKRoPE, factor=2.0, original_length=16)
mamba2 = partial(Mamba2, state_size=8, head_width=8, chunk=4)

#: name -> (pattern of mixers, position on embeddings)
PATTERNS: dict[str, tuple[list[Any], Any]] = {
    "plain": ([heads], None),
    "rope": ([partial(heads, position=RoPE)], None),
    "scaled rope": ([partial(heads, position=yarn), partial(heads, position=dynamic)], None),
    "alibi": ([partial(heads, position=ALiBi)], None),
    "t5": ([partial(heads, position=T5Position)], None),
    "learned": ([heads], LearnedPosition),
    "sinusoidal": ([heads], SinusoidalPosition),
    "grouped": ([partial(heads, n_kv_heads=2, position=RoPE)], None),
    "window": ([partial(heads, window=4, position=RoPE)], None),
    "window-alibi": ([partial(heads, window=4, position=ALiBi)], None),
    "sinks": ([partial(heads, sinks=True, soft_cap=5.0, output_gate=True, qk_norm="head", position=RoPE)], None),
    "mamba2": ([mamba2], None),
    "lstm": ([LSTM], None),
    "hybrid": ([mamba2, partial(heads, window=4, position=RoPE), LSTM, partial(heads, position=RoPE)], None),
}
PROMPTS = ["Fellow citizens of the Senate", "a", "We the people"]


def build(name: str) -> LanguageModel:
    """A model that says something: random weights, larger than a trained model begins with."""
    mixers, position = PATTERNS[name]

    def block(mixer: Any, context: LayerContext) -> PreNorm:
        return PreNorm(context, mixer=mixer, feed_forward=partial(GatedMLP, width=32))

    blocks = {f"layer{i}": partial(block, mixer) for i, mixer in enumerate(mixers)}
    backbone = partial(Decoder, depth=max(2, len(mixers)), pattern=list(blocks), blocks=blocks, position=position)
    model = LanguageModel(
        d_model=32, vocab_size=TOKENIZER.vocab_size, max_length=64, backbone=lambda context: backbone(context)
    ).initialise(seed=1)
    with torch.no_grad():
        model.backbone.embedding.mul_(50)
    return model.double()


def same(found: list[Completion], wanted: list[Completion]) -> None:
    assert [c.tokens for c in found] == [c.tokens for c in wanted]
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(
            torch.tensor(a.log_probabilities), torch.tensor(b.log_probabilities), atol=1e-5, rtol=0
        )


@pytest.fixture(params=PATTERNS)
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return build(request.param)


def test_decoding_with_a_state_equals_a_forward_over_the_whole(model: LanguageModel):
    (found,) = complete(model, TOKENIZER, PROMPTS[0], max_new_tokens=16, log_probabilities=True)
    ids = TOKENIZER.encode(PROMPTS[0])
    with torch.no_grad():
        logits = model.logits(torch.tensor([ids + found.tokens]))[0][0, len(ids) - 1 : -1]
    logits[:, [TOKENIZER.padding, TOKENIZER.mask]] = -torch.inf  # what is never drawn is no part of what is said
    wanted = logits.log_softmax(-1).gather(1, torch.tensor(found.tokens)[:, None])[:, 0].float()
    torch.testing.assert_close(torch.tensor(found.log_probabilities), wanted, atol=1e-5, rtol=0)
    assert logits.argmax(-1).tolist() == found.tokens


def test_rows_of_a_batch_say_what_each_says_alone(model: LanguageModel):
    options: dict[str, Any] = {"max_new_tokens": 12, "log_probabilities": True}
    together = complete(model, TOKENIZER, PROMPTS, **options)
    same(together, [complete(model, TOKENIZER, prompt, **options)[0] for prompt in PROMPTS])


def test_rows_go_on_alike_when_others_are_dropped(model: LanguageModel):
    options: dict[str, Any] = {"log_probabilities": True, "sampler": Sample(temperature=50.0), "seed": 3}
    whole = complete(model, TOKENIZER, PROMPTS, max_new_tokens=20, **options)
    # end rows 0 and 2 early, by ids that they draw and row 1 does not
    early = [next(t for t in whole[i].tokens[2:] if t not in whole[1].tokens) for i in (0, 2)]
    found = complete(model, TOKENIZER, PROMPTS, max_new_tokens=20, end=early, **options)
    assert [c.reason for c in found] == ["end", "length", "end"]
    same(found[1:2], whole[1:2])
    assert found[0].tokens == whole[0].tokens[: len(found[0].tokens)]


def test_prefill_in_chunks_changes_nothing(model: LanguageModel, monkeypatch: pytest.MonkeyPatch):
    options: dict[str, Any] = {"max_new_tokens": 6, "log_probabilities": True}
    whole = complete(model, TOKENIZER, PROMPTS, **options)
    monkeypatch.setattr("bakeoff.model.decoding.PREFILL_TOKENS", 15)  # five tokens a row: all padding for some
    same(complete(model, TOKENIZER, PROMPTS, **options), whole)


def test_one_generation_leaves_nothing_behind_for_the_next(model: LanguageModel):
    options: dict[str, Any] = {"max_new_tokens": 6, "log_probabilities": True}
    first = complete(model, TOKENIZER, PROMPTS[0], **options)
    complete(model, TOKENIZER, PROMPTS, **options)
    same(complete(model, TOKENIZER, PROMPTS[0], **options), first)
