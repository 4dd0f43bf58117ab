"""The functions of `fla` that this package calls, as plain recurrences in their documented layout.

Queries and keys are (B, T, H, K), values (B, T, HV, V), gates logarithms; a state is (N, HV, K, V) for N sequences:
the rows, or where `cu_seqlens` says that one row holds several, those.
"""

import sys
import types

import torch


def _over_sequences(advance, q, given, *, v, scale, initial_state, output_final_state, cu_seqlens):
    """`advance(state, tokens)` gives the state after one token; outputs are `q^T state`."""
    tensors = [q, v, *given]
    assert all(t.is_contiguous() and t.shape[:2] == q.shape[:2] for t in tensors)
    B, T, K, V = *q.shape[:2], q.shape[-1], v.shape[-1]
    spans = [(row, 0, T) for row in range(B)]
    if cu_seqlens is not None:
        assert B == 1
        assert cu_seqlens.dtype == torch.long
        spans = [(0, a, b) for a, b in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True)]
        assert spans[0][1] == 0
        assert spans[-1][2] == T
        assert all(a < b for _, a, b in spans)
    if initial_state is not None:
        assert initial_state.shape == (len(spans), v.shape[2], K, V)
        assert initial_state.is_contiguous()
    outputs, finals = [], []
    for i, (row, begin, end) in enumerate(spans):
        state = v.new_zeros(v.shape[2], K, V) if initial_state is None else initial_state[i]
        for t in range(begin, end):
            state = advance(state, [x[row, t] for x in (v, *given)])
            query = q[row, t].repeat_interleave(v.shape[2] // q.shape[2], 0)
            outputs.append((scale * query[:, None] @ state)[:, 0])
        finals.append(state)
    return torch.stack(outputs).view(B, T, *outputs[0].shape), torch.stack(finals) if output_final_state else None


def chunk_simple_gla(q, k, v, g=None, g_gamma=None, scale=None, **options):
    assert g is None or (g_gamma is None and g.shape == v.shape[:3])
    assert g_gamma is None or g_gamma.shape == v.shape[2:3]
    decay = g if g is not None else torch.zeros_like(v[..., 0]) if g_gamma is None else g_gamma.expand(v.shape[:3])

    def advance(state, token):
        v, k, g = token
        return state * g.exp()[:, None, None] + k[..., None] * v[:, None]

    return _over_sequences(advance, q, [k, decay.contiguous()], v=v, scale=scale, **_all(options))


def chunk_gla(q, k, v, g, scale=None, **options):
    assert q.shape == k.shape == g.shape

    def advance(state, token):
        v, k, g = token
        return state * g.exp()[..., None] + k[..., None] * v[:, None]

    return _over_sequences(advance, q, [k, g], v=v, scale=scale, **_all(options))


def chunk_gated_delta_rule(q, k, v, g, beta, scale=None, **options):
    assert g.shape == beta.shape == v.shape[:3]
    return _delta_rule(q, k, v, g[..., None], beta, scale, options)


def chunk_kda(q, k, v, g, beta, scale=None, **options):
    assert g.shape == (*v.shape[:3], q.shape[-1])
    return _delta_rule(q, k, v, g, beta, scale, options)


def _delta_rule(q, k, v, g, beta, scale, options):
    def advance(state, token):
        v, k, g, beta = token
        k = k.repeat_interleave(v.shape[0] // k.shape[0], 0)
        state = state * g.exp()[..., None]
        error = v - (k[:, None] @ state)[:, 0]
        return state + k[..., None] * (beta[:, None] * error)[:, None]

    return _over_sequences(advance, q, [k, g, beta], v=v, scale=scale, **_all(options))


def chunk_rwkv7(r, w, k, v, a, b, scale=1.0, **options):
    def advance(state, token):
        v, k, w, a, b = token
        found = (a[:, None] @ state)[:, 0]
        return state * w.exp()[..., None] + b[..., None] * found[:, None] + k[..., None] * v[:, None]

    return _over_sequences(advance, r, [k, w, a, b], v=v, scale=scale, **_all(options))


def _all(options):
    """Options with their defaults; any other is an error."""
    return {"initial_state": None, "output_final_state": False, "cu_seqlens": None} | options


def modules():
    """What `sys.modules` holds where `fla` is installed."""
    found = {name: types.ModuleType(name) for name in ("fla", "fla.ops")}
    functions = {
        "gated_delta_rule": chunk_gated_delta_rule,
        "gla": chunk_gla,
        "kda": chunk_kda,
        "rwkv7": chunk_rwkv7,
        "simple_gla": chunk_simple_gla,
    }
    for name, function in functions.items():
        module = types.ModuleType(f"fla.ops.{name}")
        setattr(module, f"chunk_{name}", function)
        found[module.__name__] = module
    return found


def install(monkeypatch):
    """Make `fla` importable for a test."""
    for name, module in modules().items():
        monkeypatch.setitem(sys.modules, name, module)
