"""Four ways of asking, with somebody who answers each of them differently."""

import re

import pytest
from bakeoff.errors import CapabilityError
from bakeoff_align.reasoning.chain_of_thought import ChainOfThought
from bakeoff_align.scratchpad.corpora import ScratchpadCorpus
from bakeoff_align.scratchpad.forms import Scratchpad
from bakeoff_align.scratchpad.known import exercises
from bakeoff_align.templates import Chat

SUM = re.compile(r"(\d(?: \d)*) \+ (\d(?: \d)*)")
EXTRACTION = " Therefore, the answer (arabic numerals) is"


def corpus(**changed):
    given = {"task": "addition", "lengths": [2, 2], "count": 50, "validation_count": 8}
    return ScratchpadCorpus(**{**given, **changed})


def total(text):
    a, b = (int(part.replace(" ", "")) for part in SUM.findall(text)[-1])
    return a + b


def says(text):
    """Behind a closed scratchpad comes another one; after examples, every sum below 100 is right."""
    if text.endswith("<scratch>\n</scratch>\n"):
        return f"1\n</scratch>\n{' '.join(str(total(text)))}"
    if text.endswith(EXTRACTION):
        return f" ${total(text.partition('A: ')[0]):,}.00."
    if text.endswith("step by step."):
        return " I add.\nQ: what else?"
    if text.endswith("A:"):
        return f" I add. The answer is {total(text) if total(text) < 100 else 7}.\n\nQ: 1 + 1"
    return Scratchpad().right(exercises("addition"), text.removesuffix("\n"))


def test_each_way_is_asked_and_judged_by_itself(measured):
    made, _ = measured(corpus(), says)
    told = []
    found = ChainOfThought(shots=2).measure(made, told.append)
    below = [total(dialogue.prompt[0].text) < 100 for dialogue in corpus().dialogues("validation")]
    assert 0 < sum(below) < 8
    assert found.figures == {"direct": 0, "scratchpad": 1, "zero_shot": 1, "few_shot": sum(below) / 8}
    assert told[-1] == {"step": 40, "total": 40}
    assert "Few-shot: 2 examples" in found.html


def test_prompts_are_to_the_byte_under_the_plain_template(measured):
    made, speaker = measured(corpus(validation_count=1), says)
    ChainOfThought(shots=1).measure(made, lambda told: None)
    (dialogue,) = corpus(validation_count=1).dialogues("validation")
    (example, *_) = corpus(validation_count=1).dialogues("train")
    question = dialogue.prompt[0].text
    first = f"Q: {question}\nA: Let's think step by step."
    shown = f"Q: {example.prompt[0].text}\nA: {example.completion} The answer is {example.answer}.\n\n"
    assert speaker.calls == [
        [f"{question}\n<scratch>\n</scratch>\n"],
        [f"{question}\n"],
        [first],
        [f"{first} I add.{EXTRACTION}"],
        [f"{shown}Q: {question}\nA:"],
    ]


def test_the_model_says_the_trigger_itself_under_a_template_of_roles(measured):
    made, speaker = measured(corpus(validation_count=1), lambda text: "", template=Chat(pattern="[{role}]"))
    ChainOfThought(shots=0).measure(made, lambda told: None)
    (dialogue,) = corpus(validation_count=1).dialogues("validation")
    said = speaker.calls[2][0]
    assert said.endswith("[assistant]A: Let's think step by step.")
    assert said.startswith(f"[user]Q: {dialogue.prompt[0].text}")


def test_a_model_that_learnt_to_answer_at_once_is_given_no_scratchpad(measured):
    made, speaker = measured(corpus(form="direct"), lambda text: " ".join(str(total(text))))
    found = ChainOfThought(shots=0).measure(made, lambda told: None)
    assert found.figures["direct"] == 1
    assert set(found.figures) == {"direct", "zero_shot"}
    assert "Scratchpad: not asked; the completions of the corpus have no scratchpads." in found.html
    assert not any("<scratch>" in text for texts in speaker.calls for text in texts)


def test_as_many_examples_are_shown_as_have_room(measured):
    """An example has more than 80 bytes: 420 hold fewer than four besides the answer, and 130 none."""
    made, speaker = measured(corpus(), says, max_length=420)
    found = ChainOfThought(shots=4).measure(made, lambda told: None)
    count = speaker.calls[-1][0].count("The answer is")
    assert 1 <= count < 4
    assert f"Few-shot: {count} examples" in found.html
    made, _ = measured(corpus(), says, max_length=130)
    found = ChainOfThought(shots=4).measure(made, lambda told: None)
    assert set(found.figures) == {"direct", "scratchpad", "zero_shot"}
    assert re.search(r"with one example, takes \d+ tokens, but the model&#x27;s max_length is 130", found.html)


def test_what_cannot_be_asked_at_all_is_refused(measured):
    made, _ = measured(corpus(), says)
    made.data.template = None
    with pytest.raises(CapabilityError, match=r"no data\.template"):
        ChainOfThought().measure(made, lambda told: None)
    made, _ = measured(corpus(), says, max_length=12)
    with pytest.raises(CapabilityError, match=r"direct answer takes \d+ tokens, but the model's max_length is 12"):
        ChainOfThought().measure(made, lambda told: None)
    for wrong in ({"exercises": 0}, {"max_new_tokens": 0}, {"shots": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} is"):
            ChainOfThought(**wrong)
