"""The scans of Mamba and Mamba-2 on the kernels of `mamba_ssm`, with the signatures of the forms in torch."""

from __future__ import annotations

import torch
from bakeoff.interfaces.spans import Spans
from bakeoff.parts.kernels import NotTaken
from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined
from torch import Tensor
from torch.nn import functional as F

#: A step so long that a state has decayed to nothing after it.
_ENDLESS = 1e10
#: Tokens that the kernels of Mamba-2 compute as one block.
_CHUNK = 256


def selective_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    state: Tensor | None = None,
    segments: Tensor | None = None,
    spans: Spans | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`bakeoff_ssm.selective.selective_scan`; the kernel begins with a state of zeros and takes no other.

    At the first token of a document the step is endless, so that nothing is left of what was before, and the input as
    much smaller, so that what the token writes is the same.
    """
    _check_whole(spans)
    if state is not None and (torch.is_grad_enabled() or bool(state.any())):
        raise NotTaken("a state before the call")
    u = x
    if segments is not None:
        starts = (segments != F.pad(segments[:, :-1], (1, 0)))[..., None]
        u, dt = torch.where(starts, x * dt / _ENDLESS, x), torch.where(starts, _ENDLESS, dt)
    given = [t.mT.contiguous() for t in (u, dt, B, C)]
    result = selective_scan_fn(given[0], given[1], A.contiguous(), *given[2:], return_last_state=state is not None)
    y, after = (result, None) if state is None else result
    return torch.addcmul(y.mT, x, D), after


def ssd(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor,
    *,
    chunk: int = _CHUNK,
    state: Tensor | None = None,
    segments: Tensor | None = None,
    spans: Spans | None = None,
) -> tuple[Tensor, Tensor | None]:
    """`bakeoff_ssm.ssd.ssd`; `chunk` is the form's in torch, the kernels have their own."""
    _check_whole(spans)
    result = mamba_chunk_scan_combined(
        x,
        dt,
        A,
        B,
        C,
        _CHUNK,
        D=D,
        initial_states=state,
        seq_idx=None if segments is None else segments.int(),
        return_final_states=state is not None,
    )
    return (result, None) if state is None else result


def _check_whole(spans: Spans | None) -> None:
    if spans is not None:
        raise NotTaken("rows whose tokens ranks share out")
