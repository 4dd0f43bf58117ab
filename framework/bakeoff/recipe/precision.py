"""Which precisions a run can have where it runs; what Lightning would take without a word and not do is refused."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

#: Precisions whose gradients are scaled, so that small ones do not vanish in float16.
SCALED = ("16", "16-mixed")
#: Compute capability from which a CUDA device multiplies float8.
FLOAT8 = (8, 9)
_UNSHARED = ("DDPStrategy", "SingleDeviceStrategy")


def precision_faults(trainer: Mapping[str, Any], optimizer: Mapping[str, Any]) -> Iterator[str]:
    """One message for each reason why `trainer.precision` and `trainer.fp8` cannot be had."""
    precision = str(trainer.get("precision") or "32-true")
    strategy = trainer.get("strategy") or "auto"
    named = strategy if isinstance(strategy, str) else strategy.get("use", strategy.get("class_path", ""))
    if isinstance(strategy, Mapping) and "." not in named:  # one of ours
        yield from refused_on_a_mesh(trainer)
    elif precision in SCALED and not (named == "auto" or named.startswith("ddp") or named.endswith(_UNSHARED)):
        yield (
            f"trainer.precision: {precision} under trainer.strategy {named}: gradients are scaled on a single device "
            "and under ddp only; set trainer.precision: bf16-mixed, or trainer.strategy: ddp"
        )
    if precision in SCALED:
        yield from _scaled(trainer, optimizer)
    if precision == "16-true":
        yield (
            "trainer.precision: 16-true trains in float16 without loss scaling, where small gradients vanish and large "
            "ones overflow; set trainer.precision: bf16-true, or 16-mixed on a CUDA device"
        )
    if precision.startswith("transformer-engine"):
        yield from _transformer_engine(trainer, precision)
    if trainer.get("fp8"):
        yield from _float8(trainer, precision)


def refused_on_a_mesh(trainer: Mapping[str, Any]) -> Iterator[str]:
    """One message for each precision that no mesh of ranks can have."""
    precision = str(trainer.get("precision") or "32-true")
    if precision in SCALED:
        yield (
            f"trainer.precision: {precision} scales gradients, and the scale would have to be agreed on by all ranks "
            "that share out parameters; set trainer.precision: bf16-mixed, or trainer.strategy: ddp"
        )
    if precision.startswith("transformer-engine"):
        yield f"trainer.precision: {precision} replaces layers by its own, which a mesh cannot share; use bf16-mixed"
    if trainer.get("fp8"):
        yield "trainer.fp8: true replaces linear layers, which a mesh then cannot share out; set trainer.fp8: false"


def on_cuda(trainer: Mapping[str, Any]) -> bool:
    """Whether the run is to be on CUDA devices, as far as can be told before it starts."""
    import torch

    accelerator = trainer.get("accelerator") or "auto"
    return accelerator in ("gpu", "cuda") or (accelerator == "auto" and torch.cuda.is_available())


def _scaled(trainer: Mapping[str, Any], optimizer: Mapping[str, Any]) -> Iterator[str]:
    if not on_cuda(trainer):
        yield (
            "trainer.precision: 16-mixed on a CPU would silently run as bf16-mixed, without loss scaling; "
            "set trainer.precision: bf16-mixed"
        )
    if optimizer.get("fused") and trainer.get("gradient_clip_val"):
        yield (
            "optimizer.fused: a fused optimizer unscales 16-mixed gradients by itself, so trainer.gradient_clip_val "
            "would clip scaled ones; set optimizer.fused: false, or trainer.precision: bf16-mixed"
        )


def _transformer_engine(trainer: Mapping[str, Any], precision: str) -> Iterator[str]:
    if importlib.util.find_spec("transformer_engine") is None:
        yield (
            f"trainer.precision: {precision} needs a package that is not installed; "
            "install it with: pip install --no-build-isolation 'transformer-engine[pytorch]'"
        )
    elif not on_cuda(trainer):
        yield f"trainer.precision: {precision} is for CUDA devices; set trainer.precision: bf16-mixed"


def _float8(trainer: Mapping[str, Any], precision: str) -> Iterator[str]:
    if precision not in ("bf16", "bf16-mixed", "bf16-true"):
        yield (
            f"trainer.fp8: true beside trainer.precision {precision}: what is not float8 is bfloat16; "
            "set trainer.precision: bf16-mixed or bf16-true"
        )
    lacking = float8_lacking(trainer)
    if lacking:
        yield f"trainer.fp8: true, but {lacking}; set trainer.fp8: false"
    elif importlib.util.find_spec("torchao") is None:
        yield "trainer.fp8: true needs an optional dependency; install it with: pip install 'bakeoff[fp8]'"


def float8_lacking(trainer: Mapping[str, Any]) -> str | None:
    """Which device the run is to be on and what it lacks for float8 products; None where it has them."""
    import torch

    wanted = ".".join(map(str, FLOAT8))
    if not on_cuda(trainer) or not torch.cuda.is_available():
        return f"the run is on a CPU, which multiplies no float8; it takes a CUDA device of capability {wanted} or more"
    major, minor = torch.cuda.get_device_capability()
    if (major, minor) >= FLOAT8:
        return None
    name = torch.cuda.get_device_name()
    return f"{name} has compute capability {major}.{minor}, and float8 products take {wanted} or more (Ada, Hopper)"
