"""Bytes that one rank sends, by formula. Collectives are rings: what bandwidth-optimal ones send."""

from __future__ import annotations


def all_gather(size: float, ranks: int) -> float:
    """Bytes of one rank; `size` is that of the whole, gathered: `(P - 1) / P` of it."""
    return size * (ranks - 1) / ranks


def reduce_scatter(size: float, ranks: int) -> float:
    """Bytes of one rank; `size` is that of the whole, before: `(P - 1) / P` of it."""
    return size * (ranks - 1) / ranks


def all_reduce(size: float, ranks: int) -> float:
    """A reduce-scatter and an all-gather: `2 (P - 1) / P` of `size`."""
    return reduce_scatter(size, ranks) + all_gather(size, ranks)


def all_to_all(size: float, ranks: int) -> float:
    """Bytes of one rank that holds `size` bytes, meant for all ranks alike."""
    return size * (ranks - 1) / ranks


def tensor_parallel(
    size: float, ranks: int, *, parts: int, forwards: int = 1, sequence_parallel: bool = False
) -> float:
    """Bytes for `parts` split parts: f and g around each (Shoeybi et al. 2019, arXiv:1909.08053, figure 3).

    An all-reduce of `size` bytes, the part's activations, in each forward and one in backward: with two parts, two and
    two a block. Sequence parallelism (Korthikanti et al. 2022, section 4.2.2) takes an all-gather and a reduce-scatter
    for each of them, which send as much. `forwards` is 2 where parts are computed again.
    """
    one = reduce_scatter(size, ranks) + all_gather(size, ranks) if sequence_parallel else all_reduce(size, ranks)
    return parts * (forwards + 1) * one


def fully_sharded(parameters: float, gradients: float, ranks: int, *, gathers: int = 2) -> float:
    """Bytes a micro-batch for parameters and gradients of so many bytes, whole: ZeRO stage 3.

    Parameters are gathered for the forward and again for the backward, gradients scattered (Rajbhandari et al. 2020,
    section 7.2.2: 1.5 times what data parallelism sends).
    """
    return gathers * all_gather(parameters, ranks) + reduce_scatter(gradients, ranks)


def exchanged_tokens(tokens: float, choices: float, width: int, element: int, ranks: int, forwards: int = 1) -> float:
    """Bytes of one mixture-of-experts layer: each of a rank's `tokens` goes to `choices` experts and comes back, in
    each forward; gradients go the other way round."""
    return 2 * (forwards + 1) * all_to_all(tokens * choices * width * element, ranks)
