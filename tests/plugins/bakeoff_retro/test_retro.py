"""Who sees which neighbours, by hand; what is refused; and one encoder for all layers."""

import math
from unittest.mock import patch

import pytest
import torch
from bakeoff.interfaces import LayerContext, Neighbours, Sequence
from bakeoff.interfaces.neighbours import NEIGHBOURS
from bakeoff.interfaces.past import Past
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import DecoderState
from bakeoff_retro.encoder import NeighbourEncoder
from bakeoff_retro.relative import FEATURES, RelativeLogits

from tests.plugins.bakeoff_retro.layers_of_retro import (
    D,
    M,
    V,
    context,
    decoder,
    found,
    layer,
    numbers,
    retro,
    run,
    show,
    texts,
    tokens,
)


def changed(beside, T, u, **given):
    """Positions that the neighbours of chunk u change."""
    sequence = found(Sequence(tokens(1, T), **given))
    x, here = numbers(1, T, D), sequence.memory[NEIGHBOURS]
    other = here.tokens.clone()
    other[:, u] = (other[:, u] + 1) % V
    show(sequence, Neighbours(other, here.real, here.last))
    moved = run(beside, x, sequence).y
    show(sequence, here)
    return (run(beside, x, sequence).y != moved).any(-1)[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize(("u", "positions"), [(0, [3, 4, 5, 6]), (1, [7, 8, 9, 10]), (2, [11, 12, 13, 14]), (3, [15])])
def test_neighbours_change_the_tokens_from_their_chunks_last_on(u, positions):
    assert changed(layer(mixer=None), 16, u) == positions


@pytest.mark.parametrize(("u", "positions"), [(0, [3, 4, 5, 6]), (1, [7, 8, 9, 10])])
def test_a_last_chunk_may_be_short(u, positions):
    assert changed(layer(mixer=None), 11, u) == positions


def test_chunks_count_from_each_documents_first_token():
    documents = torch.tensor([[0] * 6 + [1] * 9])
    assert changed(layer(mixer=None), 15, 0, documents=documents) == [3, 4, 5]  # of tokens 0 to 3; 6 begins anew
    assert changed(layer(mixer=None), 15, 1, documents=documents) == [9, 10, 11, 12]  # of tokens 6 to 9
    assert changed(layer(mixer=None), 15, 2, documents=documents) == [13, 14]


def test_padding_is_not_counted():
    real = torch.tensor([[False] * 3 + [True] * 8 + [False] * 2])
    assert changed(layer(mixer=None), 13, 0, real=real) == [6, 7, 8, 9]
    assert changed(layer(mixer=None), 13, 1, real=real) == [10]


@pytest.mark.parametrize(
    ("given", "training"),
    [("none", False), ("none", True), ("no chunk", True), ("too short", True), ("not found", False)],
)
def test_without_neighbours_it_is_pre_norm_exactly(given, training):
    beside = layer(dropout=0.3)
    ours = beside.part.train(training)
    base = PreNorm(context(), mixer=lambda c: ours.mixer, feed_forward=lambda c: ours.feed_forward, dropout=0.3)
    base.load_state_dict({name: value for name, value in ours.state_dict().items() if "cross" not in name})
    base.double().train(training)
    T = 3 if given == "too short" else 9
    sequence, x = Sequence(tokens(2, T)), numbers(2, T, D)
    if given in ("no chunk", "too short"):
        show(sequence, Neighbours(texts(2, 0), texts(2, 0).bool(), texts(2, 0)[:, :, 0, 0]))
    if given == "not found":
        real = torch.zeros(2, 2, 2, 2 * M, dtype=torch.bool)
        sequence = found(sequence, real=real)
    torch.manual_seed(0)
    got = run(beside, x, sequence).y
    torch.manual_seed(0)
    want = base(x, sequence).y.detach()
    assert torch.equal(got, want)


def test_distances_in_the_logits_are_those_of_the_paper():
    """d(i, i') = i - i' + m - 1; the first feature is the sine of the distance."""
    logits = RelativeLogits(context(), n_heads=1, queries=M, keys=2 * M, shift=M - 1)
    with torch.no_grad():
        logits.weight.weight.zero_()[0, 0] = 1.0
        got = logits()[0]
    assert got.shape == (4, 8)
    want = [[math.sin(i - other + 3) for other in range(8)] for i in range(4)]
    assert torch.allclose(got, torch.tensor(want), atol=1e-6)
    shifts = {name: part.shift for name, part in layer().named_modules() if isinstance(part, RelativeLogits)}
    assert shifts == {
        "part.cross.attention.logits": 3,
        "shared.neighbour_encoder.layers.0.mixer.logits": 0,
        "shared.neighbour_encoder.layers.0.cross.logits": 0,
    }
    assert FEATURES == 32


@pytest.mark.parametrize("lengths", [[19], [1] * 19, [3, 4, 1, 1, 6, 4], [8, 8, 3]])
def test_decoding_of_ragged_rows_equals_the_whole(lengths):
    """Rows of two documents, one behind padding: two layers, in calls of any lengths."""
    model = decoder(2)
    place = torch.arange(19)
    real = torch.stack([place >= 0, place >= 5])
    documents = torch.stack([(place >= 6).long(), (place >= 11).long()])
    text = tokens(2, 19)
    whole = found(Sequence(text, documents=documents, real=real))
    there = whole.memory[NEIGHBOURS]
    assert there.last.tolist() == [[3, 9, 13, 17], [3, 9, 13, -1]]
    with torch.no_grad():
        want = model(whole).y
        assert not torch.allclose(want, model(Sequence(text, documents=documents, real=real)).y)
        state, got = model.empty_state(2, 19, torch.float64), []
        for start, length in zip([0, *torch.tensor(lengths).cumsum(0).tolist()], lengths, strict=False):
            cut = slice(start, start + length)
            called = Sequence(text[:, cut], documents=documents[:, cut], real=real[:, cut], past=state.past)
            show(called, there)  # of all chunks: what ends in other calls is of no account
            y, state, *_ = model(called, state)
            got.append(y)
    assert isinstance(state, DecoderState)
    assert torch.allclose(torch.cat(got, 1)[real], want[real], atol=1e-12)


def test_a_chunk_for_which_nothing_is_given_has_no_neighbours():
    """Also where the chunk before it had some, which a state holds."""
    beside, text, x = layer(mixer=None), tokens(1, 12), numbers(1, 12, D)
    whole = found(Sequence(text))
    first = whole.memory[NEIGHBOURS]
    alone = Neighbours(first.tokens[:, :1], first.real[:, :1], first.last[:, :1])
    show(whole, alone)
    want = run(beside, x, whole).y
    with torch.no_grad():
        state, past, got = beside.part.empty_state(1, 12, torch.float64), Past(1, 12), []
        for t in range(12):
            called = Sequence(text[:, t : t + 1], past=past)
            if t == 3:
                show(called, alone)
            y, state, *_ = run(beside, x[:, t : t + 1], called, state)
            past = past.advance(called)
            got.append(y)
    assert torch.allclose(torch.cat(got, 1), want, atol=1e-12)


def test_neighbours_are_encoded_once_for_all_layers():
    model = decoder(3)
    assert [name for name, part in model.named_modules() if isinstance(part, NeighbourEncoder)] == [
        "shared.neighbour_encoder"
    ]
    calls = []
    model.shared.neighbour_encoder.register_forward_hook(lambda *_: calls.append(1))
    model(found(Sequence(tokens(2, 9))))
    assert calls == [1]


def test_every_layer_reads_what_was_encoded():
    """In three layers without a mixer, what changes is still only what sees the chunk."""
    model = decoder(3, mixer=None)
    sequence = found(Sequence(tokens(1, 16)))
    with patch.object(model.blocks[0].cross.attention, "attend", lambda q, *_: torch.zeros_like(q)):
        first = model(sequence).y
        sequence.memory.pop(NEIGHBOURS)
        none = model(sequence).y
    assert (first != none).any(-1)[0].nonzero()[:, 0].tolist() == list(range(3, 16))


def test_sizes_that_do_not_fit_are_refused():
    place = context()
    with pytest.raises(ValueError, match="n_heads is 3 and d_model 16"):
        retro(place, n_heads=3)
    with pytest.raises(ValueError, match="encoder_heads is 3 and encoder_width 16"):
        retro(context(), encoder_heads=3)
    with pytest.raises(ValueError, match="chunk is 0; it must be at least 1"):
        retro(context(), chunk=0)
    retro(place)
    with pytest.raises(ValueError, match="encoder_depth is 1 in one layer and 2 in another"):
        retro(place, encoder_depth=2)
    with pytest.raises(ValueError, match="chunk is 4 in one layer and 8 in another"):
        retro(place, chunk=8)


def test_neighbours_that_do_not_fit_are_refused():
    beside, x = layer(), numbers(1, 4, D)
    sequence = Sequence(tokens(1, 4))
    text = torch.zeros(1, 1, 2, 6).long()
    show(sequence, Neighbours(text, text == 0, torch.tensor([[3]])))
    with pytest.raises(ValueError, match="have 6 tokens, and chunk is 4; they must have twice as many, 8"):
        run(beside, x, sequence)
    text = torch.zeros(1, 1, 3, 8).long()
    show(sequence, Neighbours(text, text == 0, torch.tensor([[3]])))
    assert run(beside, x, sequence).y.shape == x.shape  # without a state, as many as one likes
    begun = Sequence(sequence.tokens, past=Past(1, 4), memory=sequence.memory)
    with pytest.raises(ValueError, match="3 neighbours of each chunk are given, and a state has room for k = 2"):
        run(beside, x, begun, beside.part.empty_state(1, 4, torch.float64))


def test_cost_by_hand():
    """D 256, 64 tokens a chunk, k 2, H N = 256, W = 256, one chunk of 64 tokens and 63 tokens that see no more."""
    place = LayerContext(d_model=256, vocab_size=8, max_length=128)
    with torch.device("meta"):
        cross = retro(place, n_heads=8, chunk=64, encoder_depth=2).cross
        later = retro(place, n_heads=8, chunk=64, encoder_depth=2).cross
    product = 2 * 256 * 256
    seen, tokens_found = 64, 256
    own = 2 * product * seen + 2 * product * tokens_found + 4 * 256 * seen * tokens_found
    text = 4 * product * tokens_found + 4 * 256 * tokens_found * 128  # attention within
    text += 2 * product * tokens_found + 2 * product * 64 + 4 * 256 * tokens_found * 64  # to the chunk
    text += 8 * product * tokens_found  # an mlp of four times the width
    assert later.flops(127, 127) == own
    assert cross.flops(127, 127) == own + 2 * text
    assert cross.flops(63, 63) == 0
