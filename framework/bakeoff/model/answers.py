"""What each row of a generation has said so far, and why it ended."""

from __future__ import annotations

from collections.abc import Callable

from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.model.reply import Reply


class Answer:
    """New ids of one row, whose text is made only when it is asked for.

    Parameters
    ----------
    ends : ids that end the row.
    room : so many ids end it, too.

    Attributes
    ----------
    tokens : the ids, the one that ended the row included. log_probabilities : what was pushed beside them.
    reason : why the row has ended; None while it goes on.
    """

    def __init__(self, tokenizer: Tokenizer, ends: frozenset[int], room: int):
        self.tokenizer, self.ends, self.room = tokenizer, ends, room
        self.tokens: list[int] = []
        self.log_probabilities: list[float] = []
        self.reason: str | None = None

    @property
    def text(self) -> str:
        """Of the ids, without the one that ended the row."""
        said = self.tokens[:-1] if self.reason == "end" else self.tokens
        return self.tokenizer.decode_bytes(said).decode("utf-8", errors="replace")

    def push(self, token: int) -> None:
        """Add an id that was drawn; afterwards `reason` says whether the row has ended."""
        self.tokens.append(token)
        if token in self.ends:
            self.close("end")
        elif self.stops(token):
            self.close("stop")
        elif len(self.tokens) == self.room:
            self.close("length")

    def stops(self, token: int) -> bool:
        """Take in an id that ends nothing by itself; True if its text does."""
        return False

    def close(self, reason: str) -> None:
        """End the row."""
        self.reason = reason


class HeardAnswer(Answer):
    """An answer whose text is made as it grows: for stop strings, and for somebody who listens.

    `hear` is called with each piece of text that comes to light.
    """

    def __init__(
        self, tokenizer: Tokenizer, ends: frozenset[int], room: int, stop: tuple[str, ...], hear: Callable[[str], None]
    ):
        super().__init__(tokenizer, ends, room)
        self.reply, self.hear = Reply(tokenizer, stop), hear

    @property
    def text(self) -> str:
        """What has come to light: it ends before a stop string."""
        return self.reply.text

    def stops(self, token: int) -> bool:
        """Tell what the id brings to light; True if a stop string has come."""
        self._tell(self.reply.push(token))
        return self.reply.stopped

    def close(self, reason: str) -> None:
        """End the row, and tell what was held back."""
        super().close(reason)
        self._tell(self.reply.flush())

    def _tell(self, piece: str) -> None:
        if piece:
            self.hear(piece)
