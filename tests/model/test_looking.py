"""Decoding that looks up each chunk as it is completed gives what a forward over the whole text gives."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Neighbours, Sequence
from bakeoff.interfaces.neighbours import NEIGHBOURS
from bakeoff.model import LanguageModel
from bakeoff.model.generate import complete
from bakeoff.model.looking import Looking
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.gated_mlp import GatedMLP
from bakeoff.parts.positions.rope import RoPE
from bakeoff.parts.samplers import Sample
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff_retro import Retro
from bakeoff_ssm import Mamba2

TOKENIZER = ByteTokenizer()
CHUNK, K = 4, 2
PROMPTS = ["Fellow citizens", "ab", "four", "", "we the people of"]
attention = partial(Attention, n_heads=4, position=RoPE)
mamba2 = partial(Mamba2, state_size=8, head_width=8, chunk=4)


class Database:
    """Texts that depend on every id of a chunk; some are short, some are not there."""

    def __init__(self, chunk=CHUNK):
        self.chunk, self.asked = chunk, []

    def neighbours(self, chunks):
        self.asked.append(len(chunks))
        ids = torch.tensor(chunks)
        assert ids.shape[1] == self.chunk
        assert (ids >= 0).all()
        seed = (ids * torch.arange(1, self.chunk + 1) ** 2).sum(1)[:, None] + torch.arange(K)
        place = torch.arange(2 * self.chunk)
        tokens = (seed[..., None] * 13 + place**2) % 250
        return tokens, place < (seed % 4 * 3)[..., None]


def build(mixers):
    def retro(mixer, context):
        return Retro(
            context, mixer=mixer, feed_forward=partial(GatedMLP, width=32), n_heads=4, chunk=CHUNK, k=K, encoder_depth=1
        )

    def plain(context):
        return PreNorm(context, mixer=attention, feed_forward=partial(GatedMLP, width=32))

    blocks = {"plain": plain, **{f"retro{i}": partial(retro, mixer) for i, mixer in enumerate(mixers)}}
    backbone = partial(Decoder, depth=len(blocks), pattern=list(blocks), blocks=blocks)
    model = LanguageModel(d_model=32, vocab_size=TOKENIZER.vocab_size, max_length=64, backbone=backbone)
    model.initialise(seed=1)
    with torch.no_grad():
        model.backbone.embedding.mul_(4)
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    return model.double().eval()


def whole(model, ids, database):
    """Log-probabilities (T, V) of a forward over all ids at once, with the neighbours of every whole chunk."""
    last = list(range(CHUNK - 1, len(ids), CHUNK))
    memory = {}
    if last:
        tokens, real = database.neighbours([ids[at - CHUNK + 1 : at + 1] for at in last])
        memory[NEIGHBOURS] = Neighbours(tokens[None], real[None], torch.tensor([last]))
    hidden = model.backbone(Sequence(torch.tensor([ids]), memory=memory)).y
    return said(model.head(hidden))


def said(logits):
    """Log-probabilities among what may be drawn."""
    logits[..., [TOKENIZER.padding, TOKENIZER.mask]] = -torch.inf
    return logits[0].log_softmax(-1)


@pytest.mark.parametrize("mixers", [[attention, attention], [mamba2, attention]], ids=["attention", "hybrid"])
def test_decoding_equals_the_whole_forward(mixers):
    model, database = build(mixers), Database()
    options = {"sampler": Sample(), "max_new_tokens": 11, "seed": 3, "log_probabilities": True, "lookup": database}
    found = complete(model, TOKENIZER, PROMPTS, copies=2, **options)
    assert max(database.asked) > 1
    assert len({tuple(completion.tokens) for completion in found}) > len(PROMPTS)
    with torch.no_grad():
        without = 0.0
        for prompt, completion in zip([prompt for prompt in PROMPTS for _ in range(2)], found, strict=True):
            ids = TOKENIZER.encode(prompt) or [TOKENIZER.end]
            text = [*ids, *completion.tokens]
            rows = range(len(ids) - 1, len(text) - 1)
            logs = whole(model, text, Database())[list(rows), completion.tokens]
            torch.testing.assert_close(torch.tensor(completion.log_probabilities).double(), logs, atol=1e-5, rtol=0)
            none = said(model.head(model.backbone(Sequence(torch.tensor([text]))).y))
            without = max(without, float((none[list(rows), completion.tokens] - logs).abs().max()))
    assert without > 1e-2  # what was found matters


def test_a_row_that_has_ended_is_not_looked_up():
    database = Database()
    looking = Looking(database, build([attention]), [[1, 2, 3, 4, 5, 6, 7], [1, 2, 3]])
    first = looking.memory([7, 3], torch.device("cpu"))[NEIGHBOURS]
    assert first.last.tolist() == [[3], [-1]]
    assert not first.real[1].any()
    looking.push([8, 9], [False, True])
    second = looking.memory([1, 1], torch.device("cpu"))[NEIGHBOURS]
    assert second.last.tolist() == [[7], [-1]]
    looking.take([0])
    looking.push([10], [False])
    assert looking.memory([1], torch.device("cpu")) == {}
    assert database.asked == [1, 1]


def test_a_database_of_other_chunks_is_refused():
    with pytest.raises(UserError, match="chunks of 4 tokens, and the database is searched by chunks of 8"):
        complete(build([attention]), TOKENIZER, ["abcd"], max_new_tokens=1, lookup=Database(chunk=8))


def test_a_model_that_reads_none_looks_nothing_up():
    block = partial(PreNorm, mixer=attention, feed_forward=partial(GatedMLP, width=32))
    backbone = partial(Decoder, depth=1, pattern=["layer"], blocks={"layer": block})
    model = LanguageModel(d_model=32, vocab_size=TOKENIZER.vocab_size, max_length=64, backbone=backbone)
    database = Database()
    complete(model.initialise(seed=0), TOKENIZER, ["abcdefgh"], max_new_tokens=4, lookup=database)
    assert database.asked == []
