"""Several answers to a prompt from one prefill, and log-probabilities that can be trusted, for every kind of state."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from bakeoff.interfaces import Sequence
from bakeoff.interfaces.state import select, tensors
from bakeoff.model import LanguageModel, decoding
from bakeoff.model.generate import Completion, complete
from bakeoff.parts.attention.latent import LatentAttention
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.gated_mlp import GatedMLP
from bakeoff.parts.positions.learned import LearnedPosition
from bakeoff.parts.positions.rope import RoPE
from bakeoff.parts.samplers import Sample
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff_griffin import RGLRU
from bakeoff_linear import RWKV7, RWKVChannelMix
from bakeoff_ssm import Mamba2

TOKENIZER = ByteTokenizer()
LIMIT, G = 40, 3
PROMPTS = ["Fellow citizens of the Senate", "a", "We the people"]

attention = partial(Attention, n_heads=4, n_kv_heads=2, position=RoPE)
window = partial(attention, window=5)
latent = partial(LatentAttention, n_heads=2, head_width=8, rotary_width=4, latent_width=12, position=RoPE)
mamba2 = partial(Mamba2, state_size=8, head_width=8, chunk=4)
rg_lru = partial(RGLRU, n_heads=4)
rwkv7 = partial(RWKV7, head_width=8, chunk=4)
gated = partial(GatedMLP, width=32)

#: name -> (pattern of mixers, feed-forward, position on embeddings)
PATTERNS: dict[str, tuple[list[Any], Any, Any]] = {
    "attention": ([attention], gated, None),
    "learned position": ([partial(Attention, n_heads=4)], gated, LearnedPosition),
    "rolling cache": ([window], gated, None),
    "latent attention": ([latent], gated, None),
    "mamba2": ([mamba2], gated, None),
    "griffin": ([rg_lru, rg_lru, window], gated, None),
    "rwkv": ([rwkv7], partial(RWKVChannelMix, width=48), None),
    "hybrid": ([mamba2, attention], gated, None),
}


def build(name: str) -> LanguageModel:
    """A model whose every parameter matters, and that is sure of little."""
    mixers, feed_forward, position = PATTERNS[name]
    blocks = {f"layer{i}": partial(PreNorm, mixer=mixer, feed_forward=feed_forward) for i, mixer in enumerate(mixers)}
    backbone = partial(Decoder, depth=max(2, len(mixers)), pattern=list(blocks), blocks=blocks, position=position)
    model = LanguageModel(
        d_model=32, vocab_size=TOKENIZER.vocab_size, max_length=LIMIT, backbone=lambda context: backbone(context)
    ).initialise(seed=1)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i)))
    return model


@pytest.fixture(params=PATTERNS)
def model(request: pytest.FixtureRequest) -> LanguageModel:
    return build(request.param)


def of_the_whole(model: LanguageModel, prompt: str, completion: Completion) -> torch.Tensor:
    """Log-probabilities of what was said, by one forward over prompt and answer, without a state."""
    ids = TOKENIZER.encode(prompt)
    text = torch.tensor([ids + completion.tokens])
    with torch.no_grad():
        hidden = model.backbone(Sequence(text[:, :-1])).y[:, len(ids) - 1 :]
        logits = model.head(hidden)[0]
    logits[:, [TOKENIZER.padding, TOKENIZER.mask]] = -torch.inf
    return logits.log_softmax(-1).gather(1, text[0, len(ids) :, None])[:, 0]


def same(found: list[Completion], wanted: list[Completion]) -> None:
    assert [(c.tokens, c.text, c.reason) for c in found] == [(c.tokens, c.text, c.reason) for c in wanted]
    for a, b in zip(found, wanted, strict=True):
        assert a.log_probabilities == pytest.approx(b.log_probabilities, rel=1e-10, abs=1e-10)


#: Ids that end a row, so that rows end one by one; what is drawn is not what the model is sure of.
ENDS = [TOKENIZER.end, *range(8)]
DRAWN: dict[str, Any] = {"sampler": Sample(temperature=1.5, top_k=200), "end": ENDS, "log_probabilities": True}


def test_a_group_says_what_its_prompt_given_so_often_says(model: LanguageModel, monkeypatch: pytest.MonkeyPatch):
    model.double()
    group = complete(model, TOKENIZER, PROMPTS, copies=G, seed=2, **DRAWN)
    assert len({c.reason for c in group}) == 2
    assert len({len(c.tokens) for c in group}) > 3
    numbers = decoding.uniform
    monkeypatch.setattr(decoding, "uniform", lambda seed, row, copy, n: numbers(seed, row // G, row % G, n))
    same(group, complete(model, TOKENIZER, [prompt for prompt in PROMPTS for _ in range(G)], seed=2, **DRAWN))


@pytest.mark.parametrize(("dtype", "near"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_log_probabilities_are_those_of_a_forward_over_the_whole(model: LanguageModel, dtype: Any, near: float):
    model.to(dtype)
    group = complete(model, TOKENIZER, PROMPTS, copies=G, seed=2, **DRAWN)
    for number, found in enumerate(group):
        prompt = PROMPTS[number // G]
        assert found.reason == ("end" if found.tokens[-1] in ENDS else "length")
        assert found.reason == "end" or len(prompt) + len(found.tokens) == LIMIT
        wanted = of_the_whole(model, prompt, found)
        assert torch.tensor(found.log_probabilities, dtype=dtype).sub(wanted).abs().max() < near
        assert len(found.log_probabilities) == len(found.tokens)


def test_an_answer_depends_neither_on_other_prompts_nor_on_other_answers(model: LanguageModel):
    model.double()
    group = complete(model, TOKENIZER, PROMPTS, copies=G, seed=2, **DRAWN)
    same(complete(model, TOKENIZER, PROMPTS, seed=2, **DRAWN), group[::G])
    others = complete(model, TOKENIZER, ["b", "aa", PROMPTS[2], "other"], copies=G + 2, seed=2, **DRAWN)
    same(others[2 * (G + 2) :][:G], group[2 * G :])
    assert complete(model, TOKENIZER, PROMPTS, copies=G, seed=3, **DRAWN) != group
    for i in range(3):
        assert len({tuple(c.tokens) for c in group[i * G :][:G]}) == G


def test_the_state_of_selected_rows_lies_in_memory_as_it_did(model: LanguageModel):
    """Attention reads the slots of a head, which adjoin."""
    with torch.no_grad():
        state = model.empty_state(2, 6)
    for before, after in zip(tensors(state), tensors(select(state, torch.tensor([1, 0]))), strict=True):
        assert after.stride() == before.stride()


def test_some_of_many_prompts_draw_as_among_all():
    network, told = build("attention").double(), {"sampler": Sample(), "max_new_tokens": 6, "seed": 4, "copies": 2}
    whole = complete(network, TOKENIZER, PROMPTS, **told)
    part = complete(network, TOKENIZER, PROMPTS[1:], first=1, **told)
    assert [one.tokens for one in part] == [one.tokens for one in whole[2:]]
