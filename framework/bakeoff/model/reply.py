"""What one row of a generation has said so far."""

from __future__ import annotations

from collections.abc import Sequence as Items

from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.parts.tokenizers.streaming import StreamDecoder


class Reply:
    """Text that grows token by token: whole characters only, and never a part of a stop string.

    Attributes
    ----------
    text : what has been shown. stopped : a stop string has come; the text ends before it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Items[str] = ()):
        self.stop = tuple(stop)
        self.text, self.stopped = "", False
        self._decoder = StreamDecoder(tokenizer)
        self._held = ""  # may turn out to begin a stop string

    def push(self, token: int) -> str:
        """Add a token; returns the text that it brings to light."""
        return self._show(self._decoder.push(token))

    def flush(self) -> str:
        """End the reply; returns what was held back."""
        if self.stopped:
            return ""
        shown = self._show(self._decoder.flush())
        rest, self._held = self._held, ""
        self.text += rest
        return shown + rest

    def _show(self, piece: str) -> str:
        text = self._held + piece
        found = [at for at in (text.find(stop) for stop in self.stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            shown = text[: min(found)]
        else:
            end = len(text) - self._beginning(text)
            shown, self._held = text[:end], text[end:]
        self.text += shown
        return shown

    def _beginning(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = max((len(stop) - 1 for stop in self.stop), default=0)
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self.stop):
                return length
        return 0
