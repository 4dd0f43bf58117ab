"""Memory by formula: of parameters and their companions (ZeRO), and of a transformer block's activations.

The planner itself counts the activations of the recipe's own blocks; these formulas are what that count is held
against, and what it would be for a block of the papers' kind.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Bytes a parameter that mixed-precision Adam keeps in float32: the master copy, and two moments.
OPTIMIZER_BYTES = 12


def zero_bytes(parameters: float, ranks: int, stage: int, optimizer: float = OPTIMIZER_BYTES) -> float:
    """Bytes on one of `ranks` ranks of half-precision parameters, gradients and optimizer states.

    Rajbhandari et al. (2020), arXiv:1910.02054, section 5 and figure 1, with K = `optimizer`: stage 0 `(2 + 2 + K) P`,
    stage 1 (states shared out) `(4 + K / N) P`, stage 2 (gradients too) `(2 + (2 + K) / N) P`, stage 3 (parameters
    too) `(4 + K) P / N`.
    """
    whole, shared = ((4 + optimizer, 0), (4, optimizer), (2, 2 + optimizer), (0, 4 + optimizer))[stage]
    return parameters * (whole + shared / ranks)


def constant_part(tensor: int = 1, sequence_parallel: bool = False) -> float:
    """Bytes a token and channel that a block keeps besides attention scores: Korthikanti et al. (2022),
    arXiv:2205.05198, equations 2 and 4: `10 + 24 / t`; with sequence parallelism `34 / t`."""
    return 34 / tensor if sequence_parallel else 10 + 24 / tensor


def score_part(tokens: int, width: int, heads: int, tensor: int = 1) -> float:
    """Bytes a token and channel that scores, their softmax and its dropout take: `5 a s / (h t)`, equation 2."""
    return 5 * heads * tokens / (width * tensor)


def block_activations(
    rows: int,
    tokens: int,
    width: int,
    heads: int,
    *,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> float:
    """Bytes that backward needs of one block of width-4 h MLP, attention with scores held, and dropout, in 16 bits.

    Korthikanti et al. (2022), arXiv:2205.05198, table 2: `s b h (10 + 24 / t + 5 a s / (h t))`; with sequence
    parallelism `s b h / t (34 + 5 a s / h)`; selective recomputation leaves out the scores; full leaves `2 s b h`.
    """
    size = rows * tokens * width
    if recompute == "full":
        return 2 * size
    scores = 0.0 if recompute == "selective" else score_part(tokens, width, heads, tensor)
    return size * (constant_part(tensor, sequence_parallel) + scores)


def selective_saving(tokens: int, width: int, heads: int) -> float:
    """The share of a block's activations that selective recomputation saves: section 5 of the same paper."""
    scores = score_part(tokens, width, heads)
    return scores / (constant_part() + scores)


def selective_overhead(tokens: int, width: int) -> float:
    """Work that selective recomputation adds, a share of the model's: `s / (6 h)`, from equations 7 and 9."""
    return tokens / (6 * width)


def peak(stages: Sequence[tuple[float, float, float]], standing: float = 0.0) -> float:
    """The most bytes live in a backward pass over `stages`, last stage of the model first.

    A stage is `(kept, gradients, working)`: bytes that its forward left for it, that its backward leaves, and that it
    needs meanwhile. `standing` are gradients that were there before, which those of the stages are added to.
    """
    kept, gradients, most = sum(stage[0] for stage in stages), standing, 0.0
    for own, left, working in stages:
        gradients += 0.0 if standing else left
        most = max(most, kept + gradients + working)
        kept -= own
    return most
