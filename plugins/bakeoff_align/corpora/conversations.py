"""Corpus `conversations`: JSONL files of conversations, or of prompts and completions."""

from __future__ import annotations

from typing import Any

from bakeoff.interfaces.dialogue import ASSISTANT, Dialogue, Turn
from bakeoff.parts.corpora.json_rows import BadRow, JsonRows, text_in

from bakeoff_align.corpora.json_dialogues import JsonDialogues
from bakeoff_align.corpora.messages import Messages, number_in
from bakeoff_align.rewards.final import final_answer


class Conversations(JsonDialogues):
    """One dialogue a row: `{"messages": [{"role": …, "content": …}, …]}`, or `{"prompt": …, "completion": …}`.

    The last message, if it is the assistant's, is the completion, and those before it are the prompt. A prompt is a
    text, which is a user's, or messages; a completion a text or one message. A row may lack a completion, for what
    learns from its own answers; and it may hold a judgement of it, true or false or from 0 to 1, as `kto` reads it.

    About the share `validation` of the prompts is held out, chosen by a hash of prompt and `seed`; equal prompts stand
    on one side.

    Parameters
    ----------
    path : a file; a pattern with *, ? or ** ; or a folder, of which all *.jsonl files are taken, at any depth.
    messages, prompt, completion, label : fields. Where a row has messages, its prompt and completion are not read.
    role, content : fields of a message. roles : what is written for a role -> the role. ShareGPT: `messages:
        conversations, role: from, content: value, roles: {human: user, gpt: assistant}`.
    context : field of what the prompt is about, which stands behind it after an empty line, where there is any. Alpaca:
        `prompt: instruction, context: input, completion: output`.
    answer : field of the right final answer, for rewards that compare.
    answer_marker : the right final answer is what stands behind the last of these in the completion. GSM8K: `prompt:
        question, completion: answer, answer_marker: "#### "`.
    bad_rows : what becomes of rows that hold none of this. "error" refuses the corpus, "skip" leaves them out and says
        so; both name their number and the first of them by file and line.
    """

    def __init__(
        self,
        *,
        path: str,
        messages: str = "messages",
        role: str = "role",
        content: str = "content",
        roles: dict[str, str] | None = None,
        prompt: str = "prompt",
        context: str | None = None,
        completion: str = "completion",
        label: str = "label",
        answer: str | None = None,
        answer_marker: str | None = None,
        bad_rows: str = "error",
        validation: float = 0.1,
        seed: int = 0,
    ):
        super().__init__(validation, seed)
        self.written = Messages(role, content, roles or {})
        self.messages, self.prompt, self.context, self.completion = messages, prompt, context, completion
        self.label, self.answer, self.answer_marker, self.bad_rows = label, answer, answer_marker, bad_rows
        told = {"lack": "hold no conversation", "advice": "name other fields"}
        self.rows = JsonRows("conversations", path, bad_rows, self._read, **told)

    def fingerprint(self) -> str:
        fields = [self.written, self.messages, self.prompt, self.context, self.completion, self.label, self.answer]
        return self.rows.fingerprint(f"{[*fields, self.answer_marker, self.bad_rows, self.validation, self.seed]}")

    def _read(self, row: dict[str, Any]) -> Dialogue:
        prompt, completion = self._turns(row)
        return Dialogue(
            prompt=prompt, completion=completion, right=self._right(row), answer=self._final(row, completion)
        )

    def _turns(self, row: dict[str, Any]) -> tuple[tuple[Turn, ...], str | None]:
        """The prompt, and the completion if there is one."""
        if self.messages in row:
            turns = self.written.turns(row, self.messages)
            return (turns[:-1], turns[-1].text) if turns[-1].role == ASSISTANT else (turns, None)
        if self.prompt not in row:
            fields = ", ".join(map(repr, row)) or "none"
            raise BadRow(f"neither field '{self.messages}' nor field '{self.prompt}' among {fields}")
        prompt = self.written.asked(row, self.prompt)
        about = text_in(row, self.context) if self.context in row else ""
        if about:
            prompt = (*prompt[:-1], Turn(prompt[-1].role, f"{prompt[-1].text}\n\n{about}"))
        if self.completion not in row:
            return prompt, None
        before, completion = self.written.answer(row, self.completion)
        return (*prompt, *before), completion

    def _right(self, row: dict[str, Any]) -> float | None:
        if self.label not in row:
            return None
        found = number_in(row, self.label)
        if not 0 <= found <= 1:
            raise BadRow(f"field '{self.label}' is {found}; it is true, false, or a number from 0 to 1")
        return found

    def _final(self, row: dict[str, Any], completion: str | None) -> str | None:
        if self.answer is not None:
            return text_in(row, self.answer)
        if self.answer_marker is None:
            return None
        if completion is None or self.answer_marker not in completion:
            raise BadRow(f"no {self.answer_marker!r} in the completion, behind which its final answer stands")
        return final_answer(completion, [self.answer_marker])
