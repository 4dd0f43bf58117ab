"""Which of two forms computes a part: plain torch, or the kernels of an optional package on a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from bakeoff.errors import CapabilityError, MissingExtra

#: `kernels` demands them, `torch` does without, `auto` takes them where a GPU and the package are there.
Backend = Literal["auto", "torch", "kernels"]

#: What has been said already: everything once a process.
_SAID: set[str] = set()


class NotTaken(Exception):  # a caught signal, not an error
    """Raised by a form on kernels for a call that they do not take; the message says what, after "they do not take"."""


@dataclass(frozen=True, eq=False)
class Choice:
    """A function in the form that was chosen for this machine.

    Attributes
    ----------
    part : the component's registered name. package : that has its kernels.
    torch : the form that runs anywhere.
    kernels : "module:function" of the form on a GPU, imported when it is first called; None: torch was chosen.
    reason : why, in a few words.
    """

    part: str
    package: str
    torch: Callable[..., Any]
    kernels: str | None
    reason: str

    def __call__(self, x: Tensor, *arguments: Any, **named: Any) -> Any:
        """Call the form that was chosen; on a CPU, in float64 and where kernels do not take a call, it is torch's."""
        if self.kernels is None or not x.is_cuda or x.dtype == torch.float64:
            return self.torch(x, *arguments, **named)
        module, _, function = self.kernels.partition(":")
        try:
            return getattr(importlib.import_module(module), function)(x, *arguments, **named)
        except NotTaken as why:
            say(f"{self.part} runs in plain torch where the kernels of {self.package} do not take {why}")
        return self.torch(x, *arguments, **named)

    def __deepcopy__(self, memo: Any) -> Choice:
        return self

    def __str__(self) -> str:
        return f"{'torch' if self.kernels is None else 'kernels'} ({self.reason})"


def choose(
    backend: Backend,
    *,
    part: str,
    torch: Callable[..., Any],
    kernels: str,
    package: str,
    limit: str | None = None,
) -> Choice:
    """The form of a function that `backend` asks for, decided from what is installed, before anything is computed.

    Parameters
    ----------
    part : the component's registered name, for messages.
    torch : the form that runs anywhere.
    kernels : "module:function" of the form on a GPU, with the same signature; imported only when it is called.
    package : the module that it needs, of the extra `kernels`.
    limit : why the kernels do not take these sizes; None: they do.

    Raises `ValueError` for another backend, `MissingExtra` or `CapabilityError` where `kernels` are demanded and cannot
    be had; warns once where `auto` leaves a GPU to plain torch.
    """
    if backend not in ("auto", "torch", "kernels"):
        raise ValueError(f"{part}: backend is '{backend}'; it is auto, torch or kernels")
    if backend == "torch":
        return Choice(part, package, torch, None, "asked for")
    gpu, installed = _gpu(), _installed(package)
    if backend == "kernels":
        _demand(part, package, gpu, installed, limit)
    if not gpu:
        return Choice(part, package, torch, None, "no GPU")
    if not installed:
        say(f"{part} runs in plain torch on this GPU: {package} is not installed (pip install 'bakeoff[kernels]')")
        return Choice(part, package, torch, None, f"{package} is not installed")
    if limit is not None:
        say(f"{part} runs in plain torch on this GPU: the kernels of {package} do not take these sizes: {limit}")
        return Choice(part, package, torch, None, limit)
    return Choice(part, package, torch, kernels, package)


def choices(module: torch.nn.Module, device: torch.device) -> dict[str, str]:
    """What computes the parts of a model on a device that have a choice, by their names: `torch (no GPU)` and such."""
    found: dict[str, dict[str, None]] = {}
    for inner in module.modules():
        for choice in vars(inner).values():
            if isinstance(choice, Choice):
                elsewhere = choice.kernels is not None and device.type != "cuda"
                told = f"torch (on {device.type})" if elsewhere else str(choice)
                found.setdefault(choice.part, {})[told] = None
    return {part: "; ".join(told) for part, told in found.items()}


def say(message: str) -> None:
    """Warn, once a process."""
    if message not in _SAID:
        _SAID.add(message)
        warnings.warn(message, stacklevel=3)


def _demand(part: str, package: str, gpu: bool, installed: bool, limit: str | None) -> None:
    if not installed:
        raise MissingExtra(f"backend 'kernels' of {part} ({package})", "kernels")
    if not gpu:
        raise CapabilityError(f"{part}: backend 'kernels' runs on a CUDA GPU and there is none; use torch or auto")
    if limit is not None:
        raise CapabilityError(f"{part}: the kernels of {package} do not take these sizes: {limit}; use torch or auto")


def _gpu() -> bool:
    return torch.cuda.is_available()


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
