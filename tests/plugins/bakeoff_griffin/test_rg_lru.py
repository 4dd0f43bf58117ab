"""`rg_lru` against RecurrentGemma's layers in transformers, and what it owes to splits, padding and initialisation."""

import pytest
import torch
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff.interfaces.state import nbytes
from bakeoff_griffin import RGLRU
from torch.nn import functional as F
from transformers import RecurrentGemmaConfig
from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

D, HEADS = 24, 3


def build(dtype=torch.float64, d_model=D, **arguments):
    mixer = RGLRU(LayerContext(d_model=d_model, vocab_size=50, max_length=128), **{"n_heads": HEADS, **arguments})
    initialise(mixer, seed=0)
    return mixer.to(dtype)


def run(mixer, x, state=None, past=None, **described):
    sequence = Sequence(torch.zeros(x.shape[:2], dtype=torch.long), past=past, **described).prepare(mixer.needs())
    y, state, *_ = mixer(x, sequence, state)
    return y, state, None if past is None else past.advance(sequence)


def run_split(mixer, x, lengths, **described):
    state, past, ys = mixer.empty_state(x.shape[0], 128, x.dtype), Past(x.shape[0], 128), []
    for piece in x.split(lengths, 1):
        y, state, past = run(mixer, piece, state, past, **described)
        ys.append(y)
    return torch.cat(ys, 1), state


def inputs(T, batch=2, dtype=torch.float64):
    return torch.randn(batch, T, D, generator=torch.Generator().manual_seed(1), dtype=dtype)


def peer(mixer):
    """Their block with our weights, by the names of the recipe's converter."""
    config = RecurrentGemmaConfig(hidden_size=D, num_attention_heads=HEADS, lru_width=D, num_hidden_layers=1)
    block = RecurrentGemmaRecurrentBlock(config, 0)
    names = {
        "linear_y": "gate",
        "linear_x": "input",
        "linear_out": "output",
        "rg_lru.recurrent_gate_": "recurrence_gate.",
        "rg_lru.input_gate_": "input_gate.",
        "rg_lru.recurrent_param": "Lambda",
        "conv_1d": "convolve",
    }
    pairs = []
    ours = dict(mixer.named_parameters())
    for name, parameter in block.named_parameters():
        theirs = next(prefix for prefix in names if name.startswith(prefix))
        pairs.append((parameter, ours[names[theirs] + name.removeprefix(theirs)]))
    assert len(pairs) == len(ours)
    with torch.no_grad():
        for parameter, own in pairs:
            parameter.copy_(own.view_as(parameter))
    return block, pairs


def test_equals_the_block_of_recurrentgemma_with_all_gradients():
    mixer, x = build(torch.float32), inputs(19, dtype=torch.float32)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    block, pairs = peer(mixer)
    x, probe = x.requires_grad_(), torch.randn_like(x)
    expected, _ = block(x, torch.arange(19)[None], None, use_cache=False)
    (dx,) = torch.autograd.grad((expected * probe).sum(), x, retain_graph=True)
    (expected * probe).sum().backward(inputs=[parameter for parameter, _ in pairs])
    y, *_ = run(mixer, x)
    torch.testing.assert_close(y, expected, atol=2e-6, rtol=1e-5)
    found = torch.autograd.grad((y * probe).sum(), [x, *(own for _, own in pairs)])
    for a, b in zip(found, [dx, *(parameter.grad for parameter, _ in pairs)], strict=True):
        torch.testing.assert_close(a.view_as(b), b, atol=2e-5 * max(1.0, b.abs().max().item()), rtol=1e-4)


@pytest.mark.parametrize("prompt", [1, 2, 3, 4, 5, 7])
def test_a_short_prompt_then_single_tokens(prompt):
    mixer, x = build(), inputs(16)
    with torch.no_grad():
        whole, *_ = run(mixer, x)
        steps, state = run_split(mixer, x, [prompt, *[1] * (16 - prompt)])
        _, expected = run_split(mixer, x, [16])
    torch.testing.assert_close(steps, whole, rtol=1e-10, atol=1e-10)
    for a, b in zip(state, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_documents_begin_where_rows_do_and_where_they_say():
    """Each document of a row gives what it gives alone, its first token entering whole."""
    mixer, x = build(), inputs(20)
    documents = torch.tensor([[0] * 8 + [1] * 12, [0] * 20])
    packed, *_ = run(mixer, x, documents=documents)
    for row, here in ((0, slice(0, 8)), (0, slice(8, 20)), (1, slice(0, 20))):
        alone, *_ = run(mixer, x[row : row + 1, here])
        torch.testing.assert_close(packed[row : row + 1, here], alone, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("pads", [1, 7])
def test_left_padding_changes_nothing(pads):
    mixer, x = build(), inputs(9)
    padded = torch.cat([torch.full((2, pads, D), 5.0, dtype=x.dtype), x], 1)
    real = torch.arange(9 + pads).expand(2, -1) >= pads
    expected, state = run_split(mixer, x, [9])
    found, held, _ = run(mixer, padded, mixer.empty_state(2, 32, x.dtype), Past(2, 32), real=real)
    torch.testing.assert_close(found[:, pads:], expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(held.h, state.h, rtol=1e-10, atol=1e-10)


def test_rows_that_start_at_different_calls():
    """A row whose first real token comes in the second call starts its document there, beside one that goes on."""
    mixer, x = build(), inputs(6)
    real = torch.tensor([[True] * 6, [False] * 4 + [True] * 2])
    state, past = mixer.empty_state(2, 8, x.dtype), Past(2, 8)
    _, state, past = run(mixer, x[:, :4], state, past, real=real[:, :4])
    y, state, _ = run(mixer, x[:, 4:], state, past)
    torch.testing.assert_close(y[:1], run(mixer, x[:1])[0][:, 4:], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(y[1:], run(mixer, x[1:, 4:])[0], rtol=1e-10, atol=1e-10)


def test_decays_start_as_published():
    """exp(-2 softplus(Lambda)) is uniform between 0.9^2 and 0.999^2."""
    squares = (-2 * F.softplus(build(d_model=1000, n_heads=1).Lambda)).exp()
    low, high = 0.9**2, 0.999**2
    assert low - 1e-6 <= squares.min() < low + 0.01
    assert high - 0.01 < squares.max() <= high + 1e-6
    quartiles = squares.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    torch.testing.assert_close(
        quartiles, low + (high - low) * torch.tensor([0.25, 0.5, 0.75]).double(), atol=0.015, rtol=0
    )


def test_vectors_are_not_decayed():
    kinds = roles(build())
    vectors = {"Lambda", "recurrence_gate.bias", "input_gate.bias", "convolve.weight", "convolve.bias"}
    assert {kinds[name] for name in vectors} == {"vector"}
    assert kinds["recurrence_gate.weight"] == kinds["input_gate.weight"] == "gate"


def test_state_is_as_wide_as_the_recurrence_and_no_longer():
    mixer = build(width=30)
    held = [nbytes(mixer.empty_state(2, length)) for length in (8, 4096)]
    assert held == [2 * 4 * (30 + 3 * 30)] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_heads": 5}, "width 24 .* n_heads 5"),
        ({"width": 20}, "width 20 .* n_heads 3"),
        ({"a_min": 0.99, "a_max": 0.9}, r"a_min is 0\.99 and a_max 0\.9"),
    ],
)
def test_sizes_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        build(**arguments)
