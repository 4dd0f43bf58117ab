"""What tasks are given: a corpus, a template, and somebody else in place of the model."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff_align.inference import questions
from bakeoff_align.templates import Plain


class Speaker:
    """Says `says(prompt)` to each prompt, up to a stop string.

    `calls`, `most` : of each call, the prompts, and how many tokens might be said.
    """

    def __init__(self, says):
        self.says, self.calls, self.most = says, [], []

    def __call__(self, model, tokenizer, prompts, *, copies, sampler, max_new_tokens, stop, seed):
        assert copies == 1
        texts = [tokenizer.decode(ids) for ids in prompts]
        self.calls.append(texts)
        self.most.append(max_new_tokens)
        said = [self.says(text)[:max_new_tokens] for text in texts]
        for mark in stop:
            said = [text.partition(mark)[0] for text in said]
        return [SimpleNamespace(text=text, tokens=tokenizer.encode(text), reason="end") for text in said]


@pytest.fixture
def measured(monkeypatch):
    """A function that makes them, and the speaker."""

    def make(corpus, says, *, max_length=1024, template=None):
        speaker = Speaker(says)
        monkeypatch.setattr(questions, "complete", speaker)
        data = SimpleNamespace(corpus=corpus, tokenizer=ByteTokenizer(), template=template or Plain())
        made = SimpleNamespace(
            data=data,
            model=SimpleNamespace(context=SimpleNamespace(max_length=max_length)),
            recipe=SimpleNamespace(seed_of=lambda purpose: 0),
            autocast=nullcontext,
            batch=8,
            length=max_length,
        )
        return made, speaker

    return make
