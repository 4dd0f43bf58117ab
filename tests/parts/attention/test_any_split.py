"""One call equals any chunks through the state, for positions, windows, ops and both layouts of the state."""

import pytest
import torch
from bakeoff.interfaces import Past
from bakeoff.interfaces.state import fork, select
from bakeoff.parts.attention.banded import Banded
from bakeoff.parts.attention.sdpa import SDPA
from bakeoff.parts.positions.alibi import ALiBi
from bakeoff.parts.positions.rope import RoPE
from bakeoff.parts.positions.t5 import T5Position

POSITIONS = {"none": None, "rope": RoPE, "alibi": ALiBi, "t5": T5Position}
MIXERS = {
    **{name: {"position": position, "n_kv_heads": 2} for name, position in POSITIONS.items()},
    **{f"{name}, window": {"position": position, "window": 4} for name, position in POSITIONS.items()},
    "masked": {"position": RoPE, "window": 40, "op": SDPA},
    "banded": {"position": ALiBi, "window": 40, "op": Banded},
    "sinks": {"position": RoPE, "window": 3, "sinks": True, "n_kv_heads": 1},
    "capped, with sinks": {"position": RoPE, "window": 3, "sinks": True, "soft_cap": 5.0, "n_kv_heads": 1},
    "everything": {"position": RoPE, "qk_norm": "head", "output_gate": True, "bias": True, "output_bias": True},
}
CHUNKS = {"ones": [1] * 13, "threes": [3, 3, 3, 3, 1], "all": [13], "prompt and ones": [6, 1, 3, 1, 2]}


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=1e-11, rtol=1e-9)


@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("arguments", MIXERS.values(), ids=MIXERS)
def test_without_gradients(attention, arguments, sizes):
    mixer = attention.build(**arguments)
    x = torch.randn(2, 13, 32, dtype=torch.float64)
    with torch.no_grad():
        expected = attention.run(mixer, x)
        close(attention.in_chunks(mixer, x, sizes)[0], expected)


@pytest.mark.parametrize("sizes", CHUNKS.values(), ids=CHUNKS)
@pytest.mark.parametrize("arguments", MIXERS.values(), ids=MIXERS)
@pytest.mark.parametrize("preallocated", [False, True])
def test_under_gradients(attention, arguments, sizes, preallocated):
    mixer = attention.build(**arguments)
    x = torch.randn(2, 13, 32, dtype=torch.float64, requires_grad=True)
    inputs = [x, *mixer.parameters()]
    weights = torch.randn(2, 13, 32, dtype=torch.float64)
    expected = attention.run(mixer, x)
    state = past = None
    if preallocated:
        with torch.no_grad():
            state, past = mixer.empty_state(2, 16, x.dtype), Past(2, 16)
    actual, after, _ = attention.in_chunks(mixer, x, sizes, state=state, past=past)
    assert isinstance(after, dict if preallocated else tuple)
    close(actual, expected)
    for ours, theirs in zip(
        torch.autograd.grad((actual * weights).sum(), inputs),
        torch.autograd.grad((expected * weights).sum(), inputs),
        strict=True,
    ):
        close(ours, theirs)


def test_gradients_continue_from_a_prompt_without_them_and_leave_it_as_it_was(attention):
    for arguments in ({"position": RoPE}, {"position": RoPE, "window": 4}):
        mixer = attention.build(**arguments)
        x = torch.randn(2, 12, 32, dtype=torch.float64)
        with torch.no_grad():
            _, state, past = attention.in_chunks(mixer, x[:, :6], [6])
            before = fork(state)
        y, after, past = attention.in_chunks(mixer, x[:, 6:9], [1, 2], state=state, past=past)
        close(y, attention.run(mixer, x)[:, 6:9])
        assert all(torch.equal(state[name], before[name]) for name in before)
        with torch.no_grad():  # and go on without gradients: what the graph saved stays whole
            close(attention.in_chunks(mixer, x[:, 9:], [3], state=after, past=past)[0], attention.run(mixer, x)[:, 9:])
        y.sum().backward()


@pytest.mark.parametrize("arguments", MIXERS.values(), ids=MIXERS)
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("left", [False, True])
def test_rows_of_unequal_length_are_the_rows_alone(attention, arguments, gradients, left):
    mixer = attention.build(**arguments)
    lengths, longest, more = (5, 9, 2), 9, 4
    alone = [torch.randn(1, n + more, 32, dtype=torch.float64) for n in lengths]
    prompt = torch.randn(3, longest, 32, dtype=torch.float64)  # padding holds noise
    real = torch.zeros(3, longest, dtype=torch.bool)
    for row, (n, own) in enumerate(zip(lengths, alone, strict=True)):
        at = slice(longest - n, None) if left else slice(0, n)
        prompt[row, at], real[row, at] = own[0, :n], True
    rest = torch.cat([own[:, -more:] for own in alone])
    with torch.set_grad_enabled(gradients):
        y, state, past = attention.in_chunks(mixer, prompt, [longest], real=real)
        z, state, past = attention.in_chunks(mixer, rest[:, :3], [1, 2], state=state, past=past)
        w, _, _ = attention.in_chunks(mixer, rest[:, 3:], [1], state=state, past=past)
        assert y.isfinite().all()
        for row, own in enumerate(alone):
            expected = attention.run(mixer, own)[0]
            close(torch.cat([y[row, real[row]], z[row], w[row]]), expected)


@pytest.mark.parametrize("arguments", MIXERS.values(), ids=MIXERS)
@pytest.mark.parametrize("gradients", [False, True])
def test_padding_in_later_chunks_is_skipped(attention, arguments, gradients):
    mixer = attention.build(**arguments)
    own = torch.randn(1, 10, 32, dtype=torch.float64)
    real = torch.tensor([[1, 1, 1, 0, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1]], dtype=torch.bool)
    x = torch.full((1, 14, 32), 3.0, dtype=torch.float64)
    x[real] = own[0]
    with torch.set_grad_enabled(gradients):
        y, _, _ = attention.in_chunks(mixer, x, [4, 3, 1, 1, 1, 4], real=real)
        close(y[real], attention.run(mixer, own)[0])


@pytest.mark.parametrize("arguments", MIXERS.values(), ids=MIXERS)
@pytest.mark.parametrize("gradients", [False, True])
def test_packed_documents_are_the_documents_alone(attention, arguments, gradients):
    mixer = attention.build(**arguments)
    lengths = (5, 1, 7)
    alone = [torch.randn(1, n, 32, dtype=torch.float64) for n in lengths]
    documents = torch.repeat_interleave(torch.tensor([3, 8, 5]), torch.tensor(lengths))[None]
    packed = torch.cat(alone, 1)
    with torch.set_grad_enabled(gradients):
        expected = torch.cat([attention.run(mixer, x) for x in alone], 1)
        close(attention.run(mixer, packed, documents=documents), expected)
        for sizes in CHUNKS.values():
            close(attention.in_chunks(mixer, packed, sizes, documents=documents)[0], expected)


@pytest.mark.parametrize("arguments", MIXERS.values(), ids=MIXERS)
@pytest.mark.parametrize("gradients", [False, True])
def test_selected_rows_and_forks_go_their_own_way(attention, arguments, gradients):
    mixer = attention.build(**arguments)
    x, y = torch.randn(2, 3, 8, 32, dtype=torch.float64)
    rows = torch.tensor([2, 0, 2])
    with torch.set_grad_enabled(gradients):
        _, state, past = attention.in_chunks(mixer, x[:, :6], [6])
        saved = fork((state, past))
        chosen = select((state, past), rows)
        attention.in_chunks(mixer, y[:, :2], [1, 1], state=state, past=past)
        z, _, _ = attention.in_chunks(mixer, x[rows, 6:], [1, 1], state=chosen[0], past=chosen[1])
        close(z, attention.run(mixer, x)[rows, 6:])
        z, _, _ = attention.in_chunks(mixer, x[:, 6:], [2], state=saved[0], past=saved[1])
        close(z, attention.run(mixer, x)[:, 6:])
