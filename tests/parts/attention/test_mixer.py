import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Capabilities, LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff.interfaces.state import nbytes
from bakeoff.parts.attention.banded import Banded
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.attention.sdpa import SDPA
from bakeoff.parts.needs import gather
from bakeoff.parts.positions.alibi import ALiBi
from bakeoff.parts.positions.learned import LearnedPosition
from bakeoff.parts.positions.rope import RoPE
from bakeoff.parts.positions.sinusoidal import SinusoidalPosition
from bakeoff.parts.positions.t5 import T5Position
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

CONTEXT = LayerContext(d_model=64, vocab_size=16, max_length=64)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n_heads": 6, "n_kv_heads": 4, "head_width": 8}, ["6", "4", "n_kv_heads must divide n_heads"]),
        ({"n_heads": 7}, ["7", "64", "head_width"]),
        ({"n_heads": 0}, ["n_heads", "0", "at least 1"]),
        ({"n_heads": 4, "window": 0}, ["window", "0", "at least 1"]),
        ({"n_heads": 4, "window": -3}, ["window", "-3", "at least 1"]),
        ({"n_heads": 4, "n_kv_heads": 8}, ["4", "8", "n_kv_heads must divide n_heads"]),
        ({"n_heads": 4, "position": LearnedPosition}, ["LearnedPosition", "model.position"]),
        ({"n_heads": 4, "position": SinusoidalPosition}, ["SinusoidalPosition", "model.position"]),
        ({"n_heads": 4, "op": Banded}, ["banded", "window"]),
        ({"n_heads": 4, "qk_norm": "heads"}, ["qk_norm", "heads", "head", "whole"]),
        ({"n_heads": 4, "soft_cap": 0.0}, ["soft_cap", "0"]),
    ],
)
def test_what_cannot_be_is_refused_by_name(arguments, words):
    with pytest.raises(UserError) as refusal:
        Attention(CONTEXT, **arguments)
    for word in words:
        assert word in str(refusal.value)


@pytest.mark.parametrize(
    ("arguments", "queries", "keys", "flops"),
    [
        ({"n_heads": 4}, 1, 256, 2 * 4 * 64 * 64 + 4 * 256 * 64),
        ({"n_heads": 4, "window": 64}, 1, 256, 2 * 4 * 64 * 64 + 4 * 64 * 64),
        ({"n_heads": 4}, 5, 5, 5 * 2 * 4 * 64 * 64 + 4 * 64 * 15),
        ({"n_heads": 4, "window": 3}, 5, 5, 5 * 2 * 4 * 64 * 64 + 4 * 64 * (1 + 2 + 3 + 3 + 3)),
        ({"n_heads": 4, "window": 3}, 2, 3, 2 * 2 * 4 * 64 * 64 + 4 * 64 * (2 + 3)),
        ({"n_heads": 4, "n_kv_heads": 1, "head_width": 8}, 1, 10, 2 * 64 * 8 * (4 + 1 + 1 + 4) + 4 * 10 * 32),
        ({"n_heads": 4, "output_gate": True}, 1, 1, 2 * 5 * 64 * 64 + 4 * 64),
    ],
)
def test_cost_is_projections_and_visible_pairs(arguments, queries, keys, flops):
    assert Attention(CONTEXT, **arguments).flops(queries, keys) == flops


@pytest.mark.parametrize("window", [None, 7])
def test_cost_adds_up_over_chunks(window):
    mixer = Attention(CONTEXT, n_heads=4, window=window)
    assert mixer.flops(20, 20) == mixer.flops(5, 5) + mixer.flops(3, 8) + sum(mixer.flops(1, n) for n in range(9, 21))


def test_the_whole_square_is_what_the_counter_counts():
    T = 12
    mixer = Attention(CONTEXT, n_heads=4, n_kv_heads=2)
    initialise(mixer, seed=0)
    sequence = Sequence(torch.zeros(1, T, dtype=torch.long)).prepare(gather(mixer))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        mixer(torch.randn(1, T, 64), sequence)
    pairs = T * (T + 1) // 2
    assert counter.get_total_flops() == mixer.flops(T, T) + 4 * 64 * (T * T - pairs)


def test_a_state_is_as_large_as_declared():
    with torch.no_grad():
        growing = Attention(CONTEXT, n_heads=8, n_kv_heads=2).empty_state(3, 50, torch.bfloat16)
        rolling = Attention(CONTEXT, n_heads=8, n_kv_heads=2, window=6).empty_state(3, 50)
        short = Attention(CONTEXT, n_heads=8, window=100).empty_state(3, 50)
    assert growing["k"].shape == growing["v"].shape == (3, 50, 2, 8)
    assert nbytes(growing) == 2 * 3 * 50 * 2 * 8 * 2
    assert rolling["k"].shape == (3, 6, 2, 8)
    assert short["k"].shape == (3, 50, 8, 8)


def test_claims():
    full, local = Attention(CONTEXT, n_heads=4), Attention(CONTEXT, n_heads=4, window=8)
    assert not full.capabilities.constant_state
    assert local.capabilities.constant_state
    for claims in (full.capabilities, local.capabilities):
        assert claims.causal
        assert claims.documents
        assert claims.padding
        assert claims.state
        assert claims.bidirectional


def test_an_op_that_can_less_makes_attention_claim_less():
    class Narrow(SDPA):
        capabilities = Capabilities(state=True)

    claims = Attention(CONTEXT, n_heads=4, op=Narrow).capabilities
    assert claims.state
    assert not claims.documents
    assert not claims.bidirectional


def test_initialisation_leaves_nothing_out_and_knows_the_roles():
    mixer = Attention(CONTEXT, n_heads=4, sinks=True, qk_norm="whole", output_gate=True, bias=True, output_bias=True)
    initialise(mixer, seed=0, depth=8)
    assert roles(mixer)["output.weight"] == "output"
    assert roles(mixer)["gate.weight"] == "gate"
    assert roles(mixer)["sinks"] == "vector"
    assert (mixer.sinks == 0).all()
    assert (mixer.query_norm.weight == 1).all()
    assert (mixer.query.bias == 0).all()
    torch.testing.assert_close(mixer.query.weight.std().item(), 64**-0.5, atol=0.01, rtol=0)
    torch.testing.assert_close(mixer.output.weight.std().item(), 64**-0.5 / 4, atol=0.003, rtol=0)


def test_two_windows_reach_twice_as_far(attention):
    first, second = (attention.build(window=4, seed=seed) for seed in (0, 1))
    x = torch.randn(1, 12, 32, dtype=torch.float64)
    moved = x.clone()
    moved[:, 0] += 1

    def both(x):
        return attention.run(second, x + attention.run(first, x))

    changed = (both(x) != both(moved)).any(-1)[0]
    assert changed.tolist() == [True] * 7 + [False] * 5


@pytest.mark.parametrize("layers", [1, 2, 3, 4])
def test_gradients_reach_exactly_as_far_as_windows_do(attention, layers):
    window, T = 3, 11
    stack = [attention.build(window=window, seed=seed) for seed in range(layers)]
    x = torch.randn(1, T, 32, dtype=torch.float64, requires_grad=True)
    y = x
    for mixer in stack:
        y = y + attention.run(mixer, y)
    for t in range(T):
        (gradient,) = torch.autograd.grad(y[0, t].sum(), x, retain_graph=True)
        seen = (gradient[0] != 0).any(-1)
        assert seen.tolist() == [0 <= t - s <= layers * (window - 1) for s in range(T)]


@pytest.mark.parametrize("op", [SDPA, Banded])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_op_honours_the_window(attention, op, dtype):
    mixer = attention.build(window=5, op=op, dtype=dtype)
    reference = attention.build(window=None, dtype=dtype)
    x = torch.randn(2, 90, 32, dtype=dtype)
    y = attention.run(mixer, x)
    for t in (0, 4, 5, 63, 64, 89):  # the same query over its window alone
        alone = attention.run(reference, x[:, max(0, t - 4) : t + 1])[:, -1]
        torch.testing.assert_close(y[:, t], alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("arguments", [{}, {"window": 5}, {"window": 40, "op": Banded}], ids=str)
def test_no_later_token_changes_an_earlier_output(attention, arguments):
    mixer = attention.build(position=RoPE, **arguments)
    x = torch.randn(2, 79, 32, dtype=torch.float64, requires_grad=True)
    y = attention.run(mixer, x)
    for t in (1, 31, 32, 33, 78):
        moved = x.detach().clone()
        moved[:, t] += 1
        assert torch.equal(attention.run(mixer, moved)[:, :t], y[:, :t])
        (gradient,) = torch.autograd.grad(y[:, :t].sum(), x, retain_graph=True)
        assert not gradient[:, t:].any()


@pytest.mark.parametrize("position", [RoPE, ALiBi, T5Position])
def test_an_offset_of_all_positions_changes_nothing(attention, position):
    mixer = attention.build(position=position)
    x = torch.randn(1, 9, 32, dtype=torch.float64)
    moved = attention.run(mixer, x, positions=100 + torch.arange(9)[None])
    torch.testing.assert_close(moved, attention.run(mixer, x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("K", [1, 2, 4])
def test_grouped_heads_are_full_heads_with_equal_keys_and_values(attention, K):
    grouped = attention.build(n_kv_heads=K, position=RoPE)
    full = attention.build(position=RoPE)
    weights = grouped.state_dict()
    for name in ("key.weight", "value.weight"):
        weights[name] = weights[name].view(K, 8, 32).repeat_interleave(4 // K, 0).flatten(0, 1)
    full.load_state_dict(weights)
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    torch.testing.assert_close(attention.run(grouped, x), attention.run(full, x))


def test_a_changed_document_changes_nothing_in_the_next(attention):
    mixer = attention.build(position=RoPE)
    x = torch.randn(1, 5, 32, dtype=torch.float64)
    documents = torch.tensor([[0] * 5 + [1] * 5])
    twice = attention.run(mixer, torch.cat([x, x], 1), documents=documents)
    torch.testing.assert_close(twice[:, :5], twice[:, 5:])
    torch.testing.assert_close(twice[:, 5:], attention.run(mixer, x))
    other = attention.run(mixer, torch.cat([x + 1, x], 1), documents=documents)
    assert torch.equal(other[:, 5:], twice[:, 5:])


def test_keys_of_the_past_align_with_the_last_query(attention):
    # uniform attention over values 0 to 4: means of 0..3 and of 0..4, not of 0 and of 0..1
    mixer = attention.build(d_model=1, n_heads=1)
    with torch.no_grad():
        for layer, value in ((mixer.query, 0.0), (mixer.key, 0.0), (mixer.value, 1.0), (mixer.output, 1.0)):
            layer.weight.fill_(value)
        x = torch.arange(5.0, dtype=torch.float64).view(1, 5, 1)
        y, _, _ = attention.in_chunks(mixer, x, [3, 2])
    torch.testing.assert_close(y[0, 3:, 0], torch.tensor([1.5, 2.0], dtype=torch.float64))


@pytest.mark.parametrize("window", [None, 4, 20])
def test_a_full_state_refuses_more_and_names_both_numbers(attention, window):
    mixer = attention.build(window=window)
    x = torch.randn(2, 9, 32, dtype=torch.float64)
    with torch.no_grad():
        _, state, past = attention.in_chunks(mixer, x[:, :8], [8], max_length=8)
        with pytest.raises(ValueError, match=r"8.*9"):
            attention.in_chunks(mixer, x[:, 8:], [1], state=state, past=past)


def test_padding_may_fill_a_state_to_the_brim(attention):
    mixer = attention.build(position=RoPE)
    own = torch.randn(1, 6, 32, dtype=torch.float64)
    real = torch.tensor([[1, 1, 1, 1, 0, 1, 1, 0]], dtype=torch.bool)
    x = torch.zeros(1, 8, 32, dtype=torch.float64)
    x[real] = own[0]
    with torch.no_grad():
        y, _, _ = attention.in_chunks(mixer, x, [5, 3], real=real, max_length=6)
        torch.testing.assert_close(y[real], attention.run(mixer, own)[0])


def test_a_state_and_a_past_of_different_layouts_are_refused(attention):
    mixer = attention.build()
    x = torch.randn(1, 4, 32, dtype=torch.float64)
    with torch.no_grad():
        _, slots, past_of_slots = attention.in_chunks(mixer, x, [4])
    _, blocks, past_of_blocks = attention.in_chunks(mixer, x, [4])
    for state, past in ((slots, past_of_blocks), (blocks, past_of_slots)):
        with pytest.raises(ValueError, match="begin both alike"):
            attention.in_chunks(mixer, x, [4], state=state, past=past)


def test_states_do_not_remember_other_calls(attention):
    mixer = attention.build(position=RoPE, window=4)
    a, b = torch.randn(1, 7, 32, dtype=torch.float64), torch.randn(3, 9, 32, dtype=torch.float64)
    with torch.no_grad():
        first = attention.in_chunks(mixer, a, [4, 1, 2])[0]
        attention.in_chunks(mixer, b, [9])
        assert torch.equal(attention.in_chunks(mixer, a, [4, 1, 2])[0], first)


@pytest.mark.parametrize(
    "arguments", [{}, {"window": 4}, {"sinks": True}, {"soft_cap": 20.0, "sinks": True}, {"qk_norm": "head"}], ids=str
)
def test_bfloat16_autocast_runs_and_stays_near(attention, arguments):
    mixer = attention.build(position=RoPE, n_kv_heads=2, dtype=torch.float32, **arguments)
    x = torch.randn(2, 9, 32)
    expected = attention.run(mixer, x)
    with torch.autocast("cpu", torch.bfloat16):
        y = attention.run(mixer, x)
        y.float().sum().backward()
        with torch.no_grad():
            for dtype in (torch.float32, torch.bfloat16):
                state, past = mixer.empty_state(2, 16, dtype), Past(2, 16)
                z, state, _ = attention.in_chunks(mixer, x, [4, 1, 1, 3], state=state, past=past)
                assert state["k"].dtype == dtype
                torch.testing.assert_close(z.float(), y.float(), atol=2e-2, rtol=2e-2)
    torch.testing.assert_close(y.float(), expected, atol=5e-2, rtol=5e-2)
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in mixer.parameters())


def test_a_left_padded_row_with_a_window_has_no_nan(attention):
    for arguments in ({"window": 2}, {"window": 2, "sinks": True}, {"window": 40, "op": Banded}):
        mixer = attention.build(dtype=torch.float32, position=RoPE, **arguments)
        x = torch.randn(2, 70, 32, requires_grad=True)
        real = torch.ones(2, 70, dtype=torch.bool)
        real[0, :50] = False
        y = attention.run(mixer, x, real=real)
        assert y.isfinite().all()
        (gradient,) = torch.autograd.grad(y[real].sum(), x)
        assert gradient.isfinite().all()
        assert not gradient[0, :50].any()


def test_normalised_queries_and_keys_bound_the_logits(attention):
    mixer = attention.build(qk_norm="head", dtype=torch.float32)
    q, k, _ = mixer._project(100 * torch.randn(2, 20, 32))
    logits = torch.einsum("bthn,bshn->bhts", q, k) / 8**0.5
    bound = 8**0.5 * mixer.query_norm.weight.abs().max() * mixer.key_norm.weight.abs().max()
    assert logits.abs().max() <= bound


def test_without_positions_one_layer_ignores_the_order_of_the_context(attention):
    first, second = attention.build(seed=0), attention.build(seed=1)
    x = torch.randn(1, 8, 32, dtype=torch.float64)
    mixed = x[:, [3, 0, 6, 2, 5, 1, 4, 7]]

    def two(x):
        return attention.run(second, x + attention.run(first, x))[:, -1]

    torch.testing.assert_close(attention.run(first, mixed)[:, -1], attention.run(first, x)[:, -1])
    assert (two(mixed) - two(x)).abs().max() > 1e-3
