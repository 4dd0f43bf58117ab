"""A call of which backward keeps nothing but what it was given, at the least cost per call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import get_device_states, set_device_states

from bakeoff_blockwise.kept import Kept

R = TypeVar("R")


class Turn:
    """Whose tensors stand: of calls that share a turn, those of the one that ran anew last."""

    def __init__(self) -> None:
        self.last: Anew | None = None


class Anew(Generic[R]):
    """`call()`, which gives the same each time, run anew in backward; noise and autocast are as they were.

    `torch.utils.checkpoint` does this too (Chen et al., 2016, arXiv:1604.06174). Where calls are small and many, what
    it does for each tensor takes longer than the calls. A graph can be differentiated again; what attention by blocks
    gave is not computed again.
    """

    def __init__(self, call: Callable[[], R], turn: Turn, device: torch.device, noisy: bool):
        self.call, self.turn, self.kept = call, turn, Kept()
        self.places = 0
        self.again: dict[int, Tensor] = {}
        kind = device.type
        self.autocast = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)
        self.noise = None
        if noisy:
            self.noise = torch.get_rng_state(), *get_device_states(torch.empty(0, device=device))

    def run(self) -> R:
        """The call, for the first time."""
        with saved_tensors_hooks(self._count, self._give), self.kept.keeping:
            return self.call()

    def _count(self, tensor: Tensor) -> int:
        self.places += 1
        return self.places - 1

    def _give(self, place: int) -> Tensor:
        """Each tensor is asked for once while a graph is differentiated; a second time is another differentiation."""
        if place not in self.again:
            self._run_again()
        return self.again.pop(place)

    def _run_again(self) -> None:
        if self.turn.last is not None:
            self.turn.last.again = {}
        self.turn.last, self.again = self, {}
        kind, dtype, enabled = self.autocast
        with self._same_noise(), torch.enable_grad(), torch.autocast(kind, dtype, enabled), self.kept.giving:
            try:
                with saved_tensors_hooks(self._hold, lambda nothing: nothing):
                    self.call()
            except _AllThere:
                pass

    def _hold(self, tensor: Tensor) -> None:
        self.again[len(self.again)] = tensor.detach()
        if len(self.again) == self.places:
            raise _AllThere

    @contextmanager
    def _same_noise(self) -> Iterator[None]:
        if self.noise is None:
            yield
            return
        own, devices, states = self.noise
        with torch.random.fork_rng(devices):
            torch.set_rng_state(own)
            set_device_states(devices, states)
            yield


class _AllThere(Exception):
    """All that backward needs has been computed."""
