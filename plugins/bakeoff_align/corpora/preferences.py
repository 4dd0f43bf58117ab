"""Corpus `preferences`: JSONL files of pairs of answers, one of which was preferred."""

from __future__ import annotations

from typing import Any

from bakeoff.interfaces.dialogue import Dialogue, Turn
from bakeoff.parts.corpora.json_rows import BadRow, JsonRows

from bakeoff_align.corpora.json_dialogues import JsonDialogues
from bakeoff_align.corpora.messages import Messages, number_in


class Preferences(JsonDialogues):
    """One pair a row: `{"prompt": …, "chosen": …, "rejected": …}`, and "margin", by how much, where that is known.

    A prompt is a text, which is a user's, or messages, `[{"role": …, "content": …}, …]`. An answer is a text or
    messages, of which the last is the answer; what stands before it must be the prompt, which the row may then lack.
    Pairs that are equal or half empty are bad rows.

    About the share `validation` of the prompts is held out, chosen by a hash of prompt and `seed`; equal prompts stand
    on one side.

    Parameters
    ----------
    path : a file; a pattern with *, ? or ** ; or a folder, of which all *.jsonl files are taken, at any depth.
    prompt, chosen, rejected, margin : fields.
    bad_rows : what becomes of rows that hold no pair. "error" refuses the corpus, "skip" leaves them out and says so;
        both name their number and the first of them by file and line.
    """

    def __init__(
        self,
        *,
        path: str,
        prompt: str = "prompt",
        chosen: str = "chosen",
        rejected: str = "rejected",
        margin: str = "margin",
        bad_rows: str = "error",
        validation: float = 0.1,
        seed: int = 0,
    ):
        super().__init__(validation, seed)
        self.prompt, self.chosen, self.rejected, self.margin = prompt, chosen, rejected, margin
        self.bad_rows = bad_rows
        told = {"lack": "hold no pair of answers", "advice": "name other fields"}
        self.rows = JsonRows("preferences", path, bad_rows, self._read, **told)

    def fingerprint(self) -> str:
        fields = [self.prompt, self.chosen, self.rejected, self.margin]
        return self.rows.fingerprint(f"{[*fields, self.bad_rows, self.validation, self.seed]}")

    def _read(self, row: dict[str, Any]) -> Dialogue:
        written = Messages()
        given = written.asked(row, self.prompt) if self.prompt in row else None
        before, chosen = written.answer(row, self.chosen)
        before_other, rejected = written.answer(row, self.rejected)
        for name, text in ((self.chosen, chosen), (self.rejected, rejected)):
            if not text:
                raise BadRow(f"the answer in '{name}' is empty")
        if chosen == rejected:
            raise BadRow(f"the answers in '{self.chosen}' and '{self.rejected}' are equal: {chosen[:40]!r}")
        prompt = self._prompt(given, before, before_other)
        margin = number_in(row, self.margin) if self.margin in row else 0.0
        return Dialogue(prompt=prompt, completion=chosen, rejected=rejected, margin=margin)

    def _prompt(self, given: tuple[Turn, ...] | None, *before: tuple[Turn, ...]) -> tuple[Turn, ...]:
        """What both answers answer: the prompt, or, where the row has none, what stands before them."""
        if given is None and not all(before):
            raise BadRow(f"no field '{self.prompt}', and no messages before both answers")
        wanted = before[0] if given is None else given
        for name, turns in zip((self.chosen, self.rejected), before, strict=True):
            if turns and turns != wanted:
                other = f"those in '{self.chosen}'" if given is None else f"the prompt in '{self.prompt}'"
                raise BadRow(f"the messages before the answer in '{name}' are not {other}")
        return wanted
