"""What can go wrong in a run and is the user's to mend: numbers that are not finite, memory that is not there."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch

from bakeoff.errors import UserError


class NotFinite(UserError):
    """A loss or gradient is infinite or no number; nothing was updated with it."""


class OutOfMemory(UserError):
    """The device has not enough memory for the run."""


class Interrupted(KeyboardInterrupt):
    """The run was asked to stop and did so after writing a checkpoint."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def check_finite(
    step: int, means: Mapping[str, float], norm: float, not_finite: Callable[[], list[str]], carried: float = 0
) -> None:
    """Raise `NotFinite` before optimizer step `step` (from 1) if a term's mean or the gradients' norm is not finite.

    So too if `carried` values of the states that go on to the next step are not. The message names the terms and the
    first parameters concerned, which `not_finite` finds.
    """
    odd = [f"{name} is {mean}" for name, mean in means.items() if not math.isfinite(mean)]
    if not odd and math.isfinite(norm) and not carried:
        return
    parts = [f"loss term {text}" for text in odd]
    if not math.isfinite(norm):
        names = not_finite()
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        where = f"gradient of {', '.join(names[:3])}{more} is not finite"
        parts.append(where if names else f"the gradients' norm is {norm}, though each of them is finite")
    if carried:
        parts.append(f"{carried:.0f} values of the states for the next window are not finite")
    raise NotFinite(
        f"stopped before optimizer step {step}: {'; '.join(parts)}. No parameter was changed by it. "
        "Lower optimizer.lr, lengthen schedule.warmup, set trainer.gradient_clip_val, or use a wider trainer.precision"
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on whichever device."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def out_of_memory(error: BaseException, *, micro_batch: int, precision: str, length: int) -> OutOfMemory:
    """The one message for it, with the knobs in the order in which to turn them."""
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    smaller = f"data.micro_batch={max(micro_batch // 2, 1)} (now {micro_batch}; same run, smaller pieces)"
    if micro_batch == 1:
        smaller = "data.micro_batch is 1 already"
    return OutOfMemory(
        f"out of memory: {first}\nIn this order:\n"
        f"  1. {smaller}\n"
        f"  2. trainer.precision=bf16-mixed (now {precision})\n"
        f"  3. a shorter data.length (now {length}), or a smaller model"
    )
