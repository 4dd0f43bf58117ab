"""Retrieval in context: each stretch by hand, what is run, what is refused, and weights that fit."""

from functools import partial

import pytest
import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces import LayerContext
from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.neighbours import NEIGHBOURS, Neighbours
from bakeoff.interfaces.objective import Feedback
from bakeoff.interfaces.sequence import Sequence
from bakeoff.interfaces.state import tensors
from bakeoff.model import LanguageModel
from bakeoff.model.cost import plan
from bakeoff.parts.causal import Causal
from bakeoff.parts.decoder import Decoder
from bakeoff.testing.build import resolved
from bakeoff_retro import Prepend

V, CHUNK, CONTEXT, K = 50, 4, 6, 2
LAYER = {
    "use": "pre_norm",
    "mixer": {"use": "attention", "n_heads": 4, "position": {"use": "rope"}},
    "feed_forward": {"use": "mlp"},
}
ROOM = LayerContext(d_model=16, vocab_size=V, max_length=64)


def decoder(**changed):
    return partial(Decoder, depth=2, pattern=["layer"], blocks={"layer": resolved({**LAYER, **changed})})


def filled(backbone):
    initialise(backbone, seed=3, depth=2)
    return backbone.double().eval()


def prepend(context=CONTEXT, k=K, chunk=CHUNK):
    return filled(Prepend(ROOM, backbone=decoder(), chunk=chunk, context=context, k=k))


def tokens_of(B, T, seed=0):
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))


def neighbours_of(ends, k=K, length=2 * CHUNK):
    """Texts for chunks that end at `ends`, one list a row, some of them short and some not found."""
    C = max(map(len, ends))
    last = torch.tensor([[*row, *[-1] * (C - len(row))] for row in ends])
    tokens = tokens_of(len(ends) * C * k, length, seed=1).view(len(ends), C, k, length)
    long = torch.tensor([length, length - 3, 0, 1]).repeat(len(ends) * C * k)[: len(ends) * C * k].view(*last.shape, k)
    return Neighbours(tokens, torch.arange(length) < long[..., None], last)


def by_hand(model, document, begin=0, neighbours=None, row=0):
    """Hidden states of a document's tokens, the first of which has `index` begin in the row, one by one."""
    hidden = []
    for t in range(len(document)):
        u = (t + 1) // model.chunk  # so many chunks are whole
        p = u * model.chunk - 1 if u else 0
        ahead = []
        if u and neighbours is not None:
            for c in (neighbours.last[row] == begin + p).nonzero().flatten().tolist():
                for n in reversed(range(min(model.k, neighbours.tokens.shape[2]))):
                    ahead += neighbours.tokens[row, c, n][neighbours.real[row, c, n]].tolist()
        ahead += document[max(0, p - model.context) : t + 1].tolist()
        hidden.append(model.backbone(Sequence(torch.tensor([ahead]))).y[0, -1])
    return torch.stack(hidden)


def run(model, sequence, neighbours, state=None):
    if neighbours is not None:
        sequence.memory[NEIGHBOURS] = neighbours
    return model(sequence, state)


@pytest.mark.parametrize(("context", "k", "chunk"), [(6, 2, 4), (0, 1, 4), (30, 2, 5), (3, 3, 1)])
@torch.no_grad()
def test_each_stretch_is_run_after_its_texts_and_its_context(context, k, chunk):
    model, tokens = prepend(context, k, chunk), tokens_of(2, 15)
    ends = range(chunk - 1, 15, chunk)
    found = neighbours_of([[*ends], [*ends][1:]], length=2 * chunk)
    want = torch.stack([by_hand(model, tokens[row], 0, found, row) for row in (0, 1)])
    torch.testing.assert_close(run(model, Sequence(tokens), found).y, want)


@torch.no_grad()
def test_documents_and_padding():
    model, tokens = prepend(), tokens_of(2, 21)
    real = torch.stack([torch.arange(21) >= 2, torch.arange(21) < 18])
    documents = torch.stack([torch.arange(21) >= 9, torch.arange(21) >= 5]).long()
    found = neighbours_of([[3, 10, 14], [3, 8, 12, 16]])  # of 7 and 12 tokens, and 5 and 13
    y = run(model, Sequence(tokens, real=real, documents=documents), found).y
    for row, start, stop, begin in ((0, 2, 9, 0), (0, 9, 21, 7), (1, 0, 5, 0), (1, 5, 18, 5)):
        torch.testing.assert_close(y[row, start:stop], by_hand(model, tokens[row, start:stop], begin, found, row))
    assert not y[~real].any()


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("calls", [(8, 9, 10, 11, 12, 13, 14), (7, 14)])
def test_rows_whose_chunks_end_at_different_steps_go_on(calls, gradients):
    model, tokens = prepend(), tokens_of(3, 14)
    real = torch.arange(14) >= torch.tensor([[0], [6], [4]])
    ends = [[3, 7, 11], [3, 7], [3, 7]]
    with torch.set_grad_enabled(gradients):
        state, ys = model.empty_state(3, 14, torch.float64), []
        for start, stop in zip((0, *calls), calls, strict=False):
            part = Sequence(tokens[:, start:stop], real=real[:, start:stop] if start == 0 else None, past=state.past)
            y, state, *_ = run(model, part, neighbours_of(ends), state)
            ys.append(y)
    y = torch.cat(ys, 1)
    for row, pads in enumerate((0, 6, 4)):
        torch.testing.assert_close(y[row, pads:], by_hand(model, tokens[row, pads:], 0, neighbours_of(ends), row))


@torch.no_grad()
def test_decoding_runs_a_token_alone_until_a_chunk_ends():
    model, shapes = prepend(), []
    model.backbone.embed.register_forward_hook(lambda _, given, __: shapes.append(tuple(given[0].shape)))
    state = model.empty_state(2, 9)
    for token in tokens_of(2, 9).split(1, 1):
        shapes.append("call")
        state = run(model, Sequence(token, past=state.past), neighbours_of([[3, 7], [3, 7]]), state).state
    told = " ".join(map(str, shapes)).split("call")[1:]
    again = [t for t, shape in enumerate(told) if shape.strip() != "(2, 1)"]
    assert again == [3, 7]  # two chunks end; with the first token of a document nothing is read
    assert sum(t.numel() for t in tensors(state.tail)) == 2 * CONTEXT


@torch.no_grad()
def test_without_neighbours_it_is_the_inner_backbone_as_far_as_the_context_reaches():
    tokens = tokens_of(2, 23)
    plain = filled(decoder()(ROOM))
    none = neighbours_of([[3, 7, 11, 15, 19]] * 2)
    none = Neighbours(none.tokens, torch.zeros_like(none.real), none.last)
    want = plain(Sequence(tokens)).y
    for found in (None, none):
        torch.testing.assert_close(run(prepend(context=23), Sequence(tokens), found).y, want)
        y = run(prepend(context=6), Sequence(tokens), found).y
        torch.testing.assert_close(y[:, :7], want[:, :7])  # from token 7 on, what is read begins at token 7 - 6
        assert not torch.isclose(y[:, 7:], want[:, 7:]).all(-1).any()


@torch.no_grad()
def test_a_chunks_texts_move_from_its_last_token_to_before_the_next_ones():
    model, tokens, found = prepend(), tokens_of(1, 16), neighbours_of([[3, 7, 11, 15]])
    found.real.fill_(True)
    before = run(model, Sequence(tokens), found).y
    for u, places in enumerate(([3, 4, 5, 6], [7, 8, 9, 10], [11, 12, 13, 14], [15])):
        other = Neighbours(found.tokens.clone(), found.real, found.last)
        other.tokens[:, u, 0] += 1
        other.tokens %= V
        after = run(model, Sequence(tokens), other).y
        assert (after != before).any(-1)[0].nonzero().flatten().tolist() == places


@torch.no_grad()
def test_work_is_that_of_the_rows_that_are_run():
    model, rows = prepend(), []
    forward = model.backbone.forward

    def noted(sequence, state=None):
        held = torch.zeros(sequence.batch) if state is None else state.past.length
        new = torch.full_like(held, sequence.length) if sequence.real is None else sequence.real.sum(1)
        rows.extend((int(n), int(n + h)) for n, h in zip(new, held, strict=True) if n)
        return forward(sequence, state)

    model.backbone.forward = noted
    found = neighbours_of([[3, 7, 11, 15, 19]])
    found.real.fill_(True)
    tokens = tokens_of(1, 21)
    for queries, keys in ((21, 21), (1, 1), (2, 2), (1, 12), (1, 13), (9, 19), (20, 21)):
        state = model.empty_state(1, 21, torch.float64)
        for part in (tokens[:, : keys - queries], tokens[:, keys - queries : keys]):
            rows.clear()
            if part.shape[1]:
                state = run(model, Sequence(part, past=state.past), found, state).state
        assert model.flops(queries, keys) == sum(model.backbone.flops(*row) for row in rows)
    # the last of 12 tokens ends a chunk: 2 texts of 8, 6 tokens, and itself
    assert model.flops(1, 12) == model.backbone.flops(23, 23)
    assert model.flops(3, 3) == model.backbone.flops(3, 3)


def test_gradients_reach_what_is_read():
    model = LanguageModel(
        d_model=16, vocab_size=V, max_length=16, backbone=partial(Prepend, backbone=decoder(), chunk=4)
    )
    model.initialise(0)
    found = neighbours_of([[3, 7, 11]])
    found.tokens.fill_(V - 1)
    found.real.fill_(True)
    batch = {"tokens": tokens_of(1, 13) % (V - 1), "neighbours": found.tokens, "neighbours_real": found.real}
    losses = {}
    for told, last in (("shown", found.last), ("hidden", torch.full_like(found.last, -1))):
        terms, _ = Causal()(model, {**batch, "neighbours_last": last})
        (losses[told],) = torch.autograd.grad(terms["loss"][0], model.backbone.embedding)
    assert not torch.allclose(losses["shown"][V - 1], losses["hidden"][V - 1])


@torch.no_grad()
def test_choices_learn_from_the_tokens_own_loss():
    """Each token shows its id as what was chosen for it, wherever it is read."""
    model, tokens = prepend(), tokens_of(3, 14)
    real = torch.arange(14) >= torch.tensor([[0], [6], [4]])
    found = neighbours_of([[3, 7, 11], [3, 7], [3, 7]])

    def shows(_, given, __):
        ids = given[0].tokens
        given[0].memory["feedback.3"] = Feedback(ids.double(), -ids, 0.5)

    model.backbone.register_forward_hook(shows)
    whole = Sequence(tokens, real=real)
    run(model, whole, found)
    parts, state = [], model.empty_state(3, 14, torch.float64)
    for start, stop in ((0, 8), (8, 9), (9, 14)):
        parts.append(Sequence(tokens[:, start:stop], real=real[:, :8] if start == 0 else None, past=state.past))
        state = run(model, parts[-1], found, state).state
    for field, want in (("log_probability", tokens), ("baseline", -tokens)):
        told = [getattr(part.memory["feedback.3"], field) for part in (whole, *parts)]
        assert torch.equal(told[0], (want * real).to(told[0].dtype))
        assert torch.equal(torch.cat(told[1:], 1), told[0])
    assert whole.memory["feedback.3"].coefficient == 0.5


def test_a_router_that_learns_from_losses_learns():
    mixture = {
        "use": "mixture_of_experts",
        "n_experts": 2,
        "expert": {"use": "mlp"},
        "router": {"use": "reinforce_router"},
    }
    backbone = partial(Prepend, backbone=decoder(feed_forward=mixture), chunk=4)
    model = LanguageModel(d_model=16, vocab_size=V, max_length=16, backbone=backbone).initialise(0)
    terms, _ = Causal()(model, {"tokens": tokens_of(2, 13)})
    terms["feedback"][0].backward()
    for layer in model.backbone.layers:
        assert layer.feed_forward.router.baseline.weight.grad.any()


def test_weights_and_first_values_are_those_of_the_inner_backbone():
    plain, around = filled(decoder()(ROOM)), prepend()
    assert list(around.state_dict()) == list(plain.state_dict())
    for name, value in plain.state_dict().items():
        assert torch.equal(value, around.state_dict()[name])
    around.train()
    assert around.backbone.training
    assert around.layers is around.backbone.layers


def test_a_plan_counts_the_state_of_a_stretch():
    model = LanguageModel(
        d_model=16, vocab_size=V, max_length=512, backbone=partial(Prepend, backbone=decoder(), chunk=4, context=6)
    )
    rows = 2 * 8 + 6 + 4
    cache, tail = 2 * 2 * rows * 16 * 4, 6 * 8  # two layers' keys and values in float32; ids
    past = 2 * rows * 8 + 3 * 8
    assert plan(model).whole.state == cache + tail + past


def test_what_cannot_be_run_is_refused():
    with pytest.raises(ValueError, match="chunk is 0"):
        prepend(chunk=0)
    with pytest.raises(ValueError, match="context is -1"):
        prepend(context=-1)
    with pytest.raises(ValueError, match=r"texts that were found have 9 tokens; .* chunks of 4 have at most 8"):
        run(prepend(), Sequence(tokens_of(1, 5)), neighbours_of([[3]], length=9))
    with pytest.raises(CapabilityError, match="Prepend, inside its inner backbone, reads neighbours"):
        Prepend(ROOM, backbone=partial(Prepend, backbone=decoder()))
    router = {"use": "expert_choice", "capacity": 1.0}
    mixture = {"use": "mixture_of_experts", "n_experts": 2, "expert": {"use": "mlp"}, "router": router}
    with pytest.raises(CapabilityError, match="inner backbone, Decoder, does not claim `causal`"):
        Prepend(ROOM, backbone=decoder(feed_forward=mixture))
