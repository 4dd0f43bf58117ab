"""`memorizing_attention`: by hand, what it sees and learns from, its states, its cost, and recall beyond the window."""

import numpy as np
import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.state import nbytes
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.needs import gather
from bakeoff.parts.positions.rope import RoPE
from bakeoff_retro import MemorizingAttention

D, H, N, W = 16, 4, 4, 3
CONTEXT = LayerContext(d_model=D, vocab_size=50, max_length=128)


def build(mixer=MemorizingAttention, **arguments):
    made = mixer(CONTEXT, **{"n_heads": H, "window": W, **arguments})
    initialise(made, seed=0)
    return made.double()


def run(mixer, x, state=None, past=None, **described):
    sequence = Sequence(torch.zeros(x.shape[:2], dtype=torch.long), past=past, **described).prepare(gather(mixer))
    y, state, *_ = mixer(x, sequence, state)
    return y, state, None if past is None else past.advance(sequence)


def run_split(mixer, x, lengths):
    state, past, ys = mixer.empty_state(x.shape[0], x.shape[1], x.dtype), Past(x.shape[0], x.shape[1]), []
    for piece in x.split(lengths, 1):
        y, state, past = run(mixer, piece, state, past)
        ys.append(y)
    return torch.cat(ys, 1), state


def inputs(T, batch=2):
    return torch.randn(batch, T, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


@pytest.mark.parametrize(("k", "memory", "gate"), [(32, None, 0.0), (2, None, 0.0), (1, 3, -0.7), (3, 5, 1.3)])
def test_equals_its_equations_in_numpy(k, memory, gate):
    """Normalised queries and keys, two softmaxes, one gate: with every key taken and g = 1/2, their plain mean."""
    mixer, x, T = build(n_kv_heads=2, k=k, memory=memory), inputs(13, 1), 13
    with torch.no_grad():
        mixer.memory_gate.fill_(gate)
        for norm in (mixer.query_norm, mixer.key_norm):
            norm.weight.copy_(torch.rand(N, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 0.5)
    weight = {name: parameter.detach().numpy() for name, parameter in mixer.named_parameters()}

    def heads(name):
        return (x[0].numpy() @ weight[f"{name}.weight"].T).reshape(T, -1, N)

    def normalised(z, name):
        return z / np.sqrt((z**2).mean(-1, keepdims=True) + mixer.query_norm.eps) * weight[f"{name}.weight"]

    q, keys, v = normalised(heads("query"), "query_norm"), normalised(heads("key"), "key_norm"), heads("value")
    out, g = np.zeros((T, H, N)), 1 / (1 + np.exp(-gate))
    for t, h in np.ndindex(T, H):
        logits, values = keys[:, h // 2] @ q[t, h] / 2.0, v[:, h // 2]
        near = np.arange(max(0, t - W + 1), t + 1)
        far = np.arange(0 if memory is None else max(0, t - W - memory + 1), max(0, t - W + 1))
        far = far[np.argsort(-logits[far])[:k]]
        local = softmax(logits[near]) @ values[near]
        out[t, h] = g * softmax(logits[far]) @ values[far] + (1 - g) * local if len(far) else local
    want = out.reshape(T, D) @ weight["output.weight"].T
    np.testing.assert_allclose(run(mixer, x)[0][0].detach(), want, atol=1e-12)


def test_a_token_with_nothing_beyond_its_window_gets_local_attention_alone():
    mixer, x = build(k=2, position=RoPE), inputs(9)
    local = build(Attention, qk_norm="head", position=RoPE)
    local.load_state_dict({name: value for name, value in mixer.state_dict().items() if name != "memory_gate"})
    documents = torch.tensor([[1] * 3 + [2] * 3 + [3] * 3] * 2)
    assert torch.equal(run(mixer, x, documents=documents)[0], run(local, x, documents=documents)[0])
    y, plain = run(mixer, x)[0], run(local, x)[0]
    assert torch.equal(y[:, :W], plain[:, :W])
    assert bool(((y - plain)[:, W:].abs().amax(-1) > 1e-4).all())
    (slope,) = torch.autograd.grad(run(mixer, x[:, :W])[0].sum(), mixer.memory_gate)
    assert not slope.any()


@pytest.mark.parametrize("bounded", [True, False])
def test_values_come_from_the_memory_and_gradients_from_the_window_alone(bounded):
    memory, T = 4 if bounded else None, 12
    mixer, x = build(k=4 if bounded else 32, memory=memory), inputs(T, 1).requires_grad_()
    y = run(mixer, x)[0]
    (slope,) = torch.autograd.grad(y[0, -1].sum(), x)
    assert (slope[0].abs().amax(-1) > 0).tolist() == [t > T - 1 - W for t in range(T)]
    moved = []
    for t in range(T):
        other = x.detach().clone()
        other[0, t] += 1.0
        moved.append(bool((run(mixer, other)[0][0, -1] - y[0, -1]).abs().max() > 1e-9))
    assert moved == [not bounded or t > T - 1 - W - 4 for t in range(T)]


def test_memories_of_one_token_meet_the_same_query_at_any_distance():
    """Keys in the memory carry no position: where a token stood does not matter, but it does in the window."""
    mixer, x = build(k=32, position=RoPE), inputs(12, 1)
    swapped = x[:, [2, 1, 0, *range(3, 12)]]
    torch.testing.assert_close(run(mixer, swapped)[0][:, 5:], run(mixer, x)[0][:, 5:], rtol=0, atol=1e-12)
    assert not torch.allclose(run(mixer, swapped)[0][:, 4], run(mixer, x)[0][:, 4], atol=1e-6)


@pytest.mark.parametrize("memory", [None, 6])
@pytest.mark.parametrize("gradients", [True, False])
def test_of_equal_keys_the_newest_are_found_in_any_split(memory, gradients):
    """All keys are equal, values are not: which are taken must not depend on how the tokens came."""
    mixer, x = build(k=2, memory=memory), inputs(20)
    with torch.no_grad():
        mixer.key.weight.zero_()
        mixer.memory_gate.fill_(50.0)
    with torch.set_grad_enabled(gradients):
        whole = run(mixer, x)[0]
        values = mixer.value(x)
        newest = (values[:, : 20 - W] + torch.cat([values[:, :1], values[:, : 19 - W]], 1)) / 2
        torch.testing.assert_close(whole[:, W:], mixer.output(newest), rtol=0, atol=1e-12)
        for lengths in ([1] * 20, [7, 1, 9, 3], [19, 1]):
            torch.testing.assert_close(run_split(mixer, x, lengths)[0], whole, rtol=0, atol=1e-12)


def test_the_state_holds_the_window_twice_and_the_memory():
    with torch.no_grad():
        bounded, growing = build(k=2, memory=5, n_kv_heads=2), build(k=2, n_kv_heads=2)
        for mixer, tokens, slots in ((bounded, 64, W + 8), (bounded, 4, W + 4), (growing, 64, W + 64)):
            assert nbytes(mixer.empty_state(1, tokens)) == 2 * slots * 2 * N * 4
    assert (bounded.capabilities.constant_state, bounded.reach) == (True, W + 5 - 1)
    assert (growing.capabilities.constant_state, growing.reach) == (False, 0)


@pytest.mark.parametrize(
    ("arguments", "queries", "keys", "pairs", "searched", "taken"),
    [
        ({"k": 2}, 6, 6, 1 + 2 + 3 * 4, 1 + 2 + 3, 1 + 2 + 2),
        ({"k": 2}, 1, 100, 3, 97, 2),
        ({"k": 2, "memory": 10}, 1, 100, 3, 10, 2),
        ({"k": 2, "memory": 2}, 3, 6, 3 * 3, 1 + 2 + 2, 1 + 2 + 2),
        ({}, 2, 3, 2 + 3, 0, 0),
    ],
)
def test_cost_is_that_of_local_attention_and_what_is_searched_and_taken(
    arguments, queries, keys, pairs, searched, taken
):
    flops = 2 * queries * 4 * D * D + 4 * D * pairs + 2 * D * (searched + taken)
    assert build(**arguments).flops(queries, keys) == flops


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"window": 0}, ["window is 0", "at least 1"]),
        ({"k": 0}, ["k is 0", "at least 1"]),
        ({"memory": 0, "k": 1}, ["memory is 0", "at least 1"]),
        ({"memory": 8, "k": 9}, ["k is 9", "memory 8", "k at most 8", "memory at least 9"]),
        ({"n_heads": 5}, ["n_heads is 5", "16"]),
    ],
)
def test_what_cannot_be_is_refused_with_the_numbers(arguments, words):
    with pytest.raises(UserError) as refusal:
        build(**arguments)
    assert all(word in str(refusal.value) for word in words)
