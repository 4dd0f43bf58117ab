"""Which of two forms computes a part: plain torch, or the kernels of an optional package on a GPU."""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from bakeoff.errors import CapabilityError, MissingExtra

#: `kernels` demands them, `torch` does without, `auto` takes them where a GPU and the package are there.
Backend = Literal["auto", "torch", "kernels"]


class Choice:
    """A function in the form that was chosen for this machine; tensors on a CPU are computed by torch all the same.

    Attributes
    ----------
    name : "torch" or "kernels". reason : why, in a few words.
    """

    def __init__(self, torch: Callable[..., Any], kernels: str | None, reason: str):
        self.torch, self.kernels, self.reason = torch, kernels, reason
        self.name = "torch" if kernels is None else "kernels"

    def __call__(self, x: Tensor, *arguments: Any, **named: Any) -> Any:
        """Call the form that was chosen; it is imported when a tensor on a GPU first needs it."""
        if self.kernels is None or not x.is_cuda:
            return self.torch(x, *arguments, **named)
        module, _, function = self.kernels.partition(":")
        return getattr(importlib.import_module(module), function)(x, *arguments, **named)

    def __deepcopy__(self, memo: Any) -> Choice:
        return self


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

    Raises `MissingExtra` or `CapabilityError` where `kernels` are demanded and cannot be had; warns once where `auto`
    leaves a GPU to plain torch.
    """
    if backend == "torch":
        return Choice(torch, None, "asked for")
    gpu, installed = _gpu(), importlib.util.find_spec(package) is not None
    if backend == "kernels":
        if not installed:
            raise MissingExtra(f"backend 'kernels' of {part} ({package})", "kernels")
        if not gpu:
            raise CapabilityError(f"{part}: backend 'kernels' runs on a CUDA GPU and there is none; use torch or auto")
        if limit is not None:
            raise CapabilityError(f"{part}: the kernels of {package} do not take these sizes: {limit}; use torch")
    if not gpu:
        return Choice(torch, None, "no GPU")
    if not installed:
        _warn(f"{part} runs in plain torch on this GPU: {package} is not installed (pip install 'bakeoff[kernels]')")
        return Choice(torch, None, f"{package} is not installed")
    if limit is not None:
        _warn(f"{part} runs in plain torch on this GPU: the kernels of {package} do not take these sizes: {limit}")
        return Choice(torch, None, limit)
    return Choice(torch, kernels, package)


def _gpu() -> bool:
    return torch.cuda.is_available()


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


def choices(module: torch.nn.Module) -> dict[str, str]:
    """What was chosen in each part of a model that has a choice: by the part's path, `torch (no GPU)` and the like."""
    found = {}
    for path, part in module.named_modules():
        for choice in vars(part).values():
            if isinstance(choice, Choice):
                found[path] = f"{choice.name} ({choice.reason})"
    return found
