"""Being asked to stop, by Ctrl-C or by the system, without losing work."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

#: Ctrl-C, the system's request, and a batch system's word that time is almost up.
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


class StopRequested(Exception):
    """A checkpoint was written because the process was asked to stop."""

    def __init__(self, step: int, number: int):
        super().__init__(f"stopped at step {step}")
        self.step, self.number = step, number


class StopSignals:
    """Notes the first SIGINT, SIGTERM or SIGUSR1 instead of obeying it; the second is obeyed at once."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        """Begin to listen; does nothing outside the main thread, where signals cannot be caught."""
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in STOPPING}

    def remove(self) -> None:
        """Give the signals back."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked = number
            return
        self.remove()
        raise KeyboardInterrupt
