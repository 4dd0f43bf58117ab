"""Forms on the kernels of `mamba_ssm`, which plain recurrences in its documented layout stand in for."""

import importlib
import sys
import types

import pytest
import torch
from bakeoff.parts.kernels import NotTaken
from bakeoff_ssm.selective import selective_scan_naive
from bakeoff_ssm.ssd import ssd_naive

B, T, E, N = 3, 7, 5, 4
H, G, P = 4, 2, 3
#: Documents that begin at the first token, later, and several times; the second row goes on with what was before.
SEGMENTS = torch.tensor([[1, 1, 1, 2, 2, 2, 2], [0, 0, 0, 0, 0, 0, 0], [0, 1, 2, 2, 2, 3, 3]])


def selective_scan_fn(
    u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, return_last_state=False
):
    """u and delta (B, E, T), A (E, N), B and C (B, N, T); no gradient of the last state."""
    assert D is z is delta_bias is None
    assert not delta_softplus
    assert all(t.stride(-1) == 1 or t.shape[-1] == 1 for t in (u, delta, A, B, C))
    state, outputs = u.new_zeros(*u.shape[:2], A.shape[1]), []
    for t in range(u.shape[2]):
        step = delta[..., t, None]
        state = (step * A).exp() * state + step * u[..., t, None] * B[:, None, :, t]
        outputs.append((state * C[:, None, :, t]).sum(-1))
    y = torch.stack(outputs, -1)
    return (y, state.detach()) if return_last_state else y


def mamba_chunk_scan_combined(
    x, dt, A, B, C, chunk_size, D=None, initial_states=None, seq_idx=None, return_final_states=False
):
    """x (B, T, H, P), dt (B, T, H), A and D (H,), B and C (B, T, G, N), states (B, H, P, N): sequence 0's."""
    assert chunk_size & (chunk_size - 1) == 0
    assert seq_idx is None or (seq_idx.dtype == torch.int32 and seq_idx.shape == dt.shape[:2])
    B, C = (t.repeat_interleave(x.shape[2] // t.shape[2], 2) for t in (B, C))
    state = x.new_zeros(*x.shape[::2], x.shape[3], B.shape[-1]) if initial_states is None else initial_states
    before, outputs = torch.zeros_like(dt[:, 0, 0], dtype=torch.int32), []
    for t in range(x.shape[1]):
        if seq_idx is not None:
            state = torch.where((seq_idx[:, t] == before)[:, None, None, None], state, 0)
            before = seq_idx[:, t]
        state = (dt[:, t] * A).exp()[..., None, None] * state
        state = state + (dt[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        outputs.append((state * C[:, t, :, None]).sum(-1) + D[:, None] * x[:, t])
    y = torch.stack(outputs, 1)
    return (y, state) if return_final_states else y


@pytest.fixture
def kernels(monkeypatch):
    names = ("mamba_ssm", "mamba_ssm.ops", "mamba_ssm.ops.triton")
    scan, chunks = "mamba_ssm.ops.selective_scan_interface", "mamba_ssm.ops.triton.ssd_combined"
    modules = {name: types.ModuleType(name) for name in (*names, scan, chunks)}
    modules[scan].selective_scan_fn = selective_scan_fn
    modules[chunks].mamba_chunk_scan_combined = mamba_chunk_scan_combined
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "bakeoff_ssm.kernels", raising=False)
    return importlib.import_module("bakeoff_ssm.kernels")


def drawn(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]


def of_mamba():
    x, dt, A, B_, C, D = drawn((B, T, E), (B, T, E), (E, N), (B, T, N), (B, T, N), (E,))
    return x, dt.detach().abs().requires_grad_(), -A.detach().exp().requires_grad_(), B_, C, D


def of_mamba2():
    x, dt, A, B_, C, D = drawn((B, T, H, P), (B, T, H), (H,), (B, T, G, N), (B, T, G, N), (H,))
    return x, dt.detach().abs().requires_grad_(), -A.detach().exp().requires_grad_(), B_, C, D


def compare(form, naive, given, state, segments):
    """Values, and gradients of what kernels give gradients of."""
    leaves, found = [t for t in given if t.is_leaf], []
    for each in (form, naive):
        y, after = each(*given, state=state, segments=segments)
        assert (after is None) == (state is None)
        gradients = torch.autograd.grad(y.sin().sum(), leaves) if y.requires_grad else []
        found.append([y, *([] if after is None else [after]), *gradients])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["one document", "documents"])
def test_mamba(kernels, segments):
    compare(kernels.selective_scan, selective_scan_naive, of_mamba(), None, segments)


@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["one document", "documents"])
def test_mamba_begins_a_state(kernels, segments):
    with torch.no_grad():
        compare(kernels.selective_scan, selective_scan_naive, of_mamba(), torch.zeros(B, E, N).double(), segments)


def test_mamba_takes_no_state_that_holds_something(kernels):
    with torch.no_grad(), pytest.raises(NotTaken, match="a state before the call"):
        kernels.selective_scan(*of_mamba(), state=torch.ones(B, E, N).double())
    with pytest.raises(NotTaken, match="a state before the call"):  # nor gives it gradients
        kernels.selective_scan(*of_mamba(), state=torch.zeros(B, E, N).double())


@pytest.mark.parametrize("decay", [1e-3, 1.0, 20.0])
def test_nothing_passes_from_document_to_document_in_float32(kernels, decay):
    x, dt, _, B_, C, D = (t.detach().float() for t in of_mamba())
    given = (x, dt, torch.full((E, N), -decay), B_, C, D)
    starts = torch.arange(T).expand(B, T)  # every token is a document
    y, _ = kernels.selective_scan(*given, segments=starts)
    each = [(*(t[:, [i]] for t in (x, dt)), given[2], *(t[:, [i]] for t in (B_, C)), D) for i in range(T)]
    alone = torch.cat([kernels.selective_scan(*token)[0] for token in each], 1)
    torch.testing.assert_close(y, alone)


@pytest.mark.parametrize("segments", [None, SEGMENTS], ids=["one document", "documents"])
@pytest.mark.parametrize("continued", [False, True], ids=["alone", "continued"])
def test_mamba2(kernels, continued, segments):
    state = torch.rand(B, H, P, N, dtype=torch.float64) if continued else None
    compare(kernels.ssd, ssd_naive, of_mamba2(), state, segments)
