"""DeltaNet: the delta rule without decay."""

from __future__ import annotations

from typing import Any

import torch
from bakeoff.interfaces import LayerContext, Reference
from bakeoff.parts.kernels import Backend
from bakeoff.parts.norms import RMSNorm
from torch import Tensor

from bakeoff_linear.delta_mixer import DeltaMixer, equal_widths


class DeltaNet(DeltaMixer):
    """A state that a key overwrites: what is found under it is replaced by its value, and nothing else is forgotten.

    With queries q, keys k and values v by projection, short causal convolution and SiLU, q and k of unit length, and
    with a projection b of the input:

        beta_t = sigmoid(b_t)        S_t = S_(t-1) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T
        out_t = W (w * rmsnorm(S_t q_t / sqrt(N)))

    Parameters
    ----------
    n_heads : H, each with a state (P, N).
    key_width, value_width : N and P (null: D / H).
    conv_width : taps of the short convolutions, the token itself included.
    negative_eigenvalues : beta is twice as large, so that a write can turn what it finds around.
    chunk : tokens that are computed at once in matrix products, a power of two.
    eps : added to the mean square in the norm.
    backend : plain torch, or the kernels of flash-linear-attention on a GPU.
    """

    reference = Reference(
        "Yang et al.",
        2024,
        "Parallelizing Linear Transformers with the Delta Rule over Sequence Length",
        "https://arxiv.org/abs/2406.06484",
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        n_heads: int,
        key_width: int | None = None,
        value_width: int | None = None,
        conv_width: int = 4,
        negative_eigenvalues: bool = False,
        chunk: int = 32,
        eps: float = 1e-5,
        backend: Backend = "auto",
    ):
        super().__init__(
            context,
            part="delta_net",
            n_heads=n_heads,
            n_key_heads=n_heads,
            key_width=equal_widths(context.d_model, n_heads) if key_width is None else key_width,
            value_width=equal_widths(context.d_model, n_heads) if value_width is None else value_width,
            conv_width=conv_width,
            negative_eigenvalues=negative_eigenvalues,
            chunk=chunk,
            backend=backend,
        )
        self.norm = RMSNorm(context.child(d_model=self.value_width), eps=eps)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """A chunk that several documents share."""
        return [{"n_heads": 4, "chunk": 8, "value_width": 3}]

    def _log_decay(self, x: Tensor, wide: torch.dtype) -> None:
        return None

    def _finish(self, y: Tensor, x: Tensor) -> Tensor:
        return self.norm(y.to(x.dtype)).flatten(2)
