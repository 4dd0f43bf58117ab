"""Corpora: two disjoint splits in a fixed order, and a fingerprint of what they hold."""

from __future__ import annotations

import json
from itertools import islice

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.corpus import SPLITS
from bakeoff.interfaces.dialogue import Dialogue
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, NotClaimed, law

#: Documents of each split that are read.
_READ = 20


@law(None, "documents", "corpus")
def documents(candidate: Candidate) -> None:
    """Both splits hold texts, none in common, in the same order each time; fingerprint and licence are there."""
    corpus, again = candidate.build(), candidate.build()
    read = {split: list(islice(corpus.documents(split), _READ)) for split in SPLITS}
    for split, texts in read.items():
        if not texts:
            raise Broken(f"documents('{split}') yields nothing")
        if not all(isinstance(text, str) for text in texts):
            raise Broken(f"documents('{split}') yields something that is no text")
        if texts != list(islice(again.documents(split), _READ)):
            raise Broken(f"documents('{split}') of a second object come in another order")
    common = set(read["train"]) & set(read["validation"])
    if common:
        raise Broken(f"both splits hold the document that begins {min(common)[:40]!r}")
    if not (corpus.fingerprint() and corpus.fingerprint() == again.fingerprint()):
        raise Broken("two objects with the same arguments have different fingerprints, or none")
    if not corpus.licence:
        raise Broken("`licence` is empty: say under what terms the text may be used")
    try:
        list(islice(corpus.documents("test"), 1))
    except ValueError:
        return
    raise Broken(f"documents('test') is accepted; the splits are {', '.join(SPLITS)}")


@law(None, "dialogues", "corpus")
def dialogues(candidate: Candidate) -> None:
    """Who has dialogues: both splits hold some, plain values, in the same order each time, and no prompt in common."""
    corpus, again = candidate.build(), candidate.build()
    try:
        read = {split: list(islice(corpus.dialogues(split), _READ)) for split in SPLITS}
    except CapabilityError:
        raise NotClaimed("dialogues") from None
    for split, found in read.items():
        if not found:
            raise Broken(f"dialogues('{split}') yields nothing")
        for dialogue in found:
            _plain(split, dialogue)
        if found != list(islice(again.dialogues(split), _READ)):
            raise Broken(f"dialogues('{split}') of a second object differ, or come in another order")
    common = {one.prompt for one in read["train"]} & {one.prompt for one in read["validation"]}
    if common:
        raise Broken(f"both splits hold the prompt {min(common)}")
    try:
        list(islice(corpus.dialogues("test"), 1))
    except ValueError:
        return
    raise Broken(f"dialogues('test') is accepted; the splits are {', '.join(SPLITS)}")


def _plain(split: str, dialogue: Dialogue) -> None:
    """That JSON keeps a dialogue, and that its steps are its completion."""
    shown = f"dialogues('{split}'): the dialogue with the prompt {dialogue.prompt}"
    details = dict(dialogue.details)
    try:
        kept = json.loads(json.dumps(details))
    except (TypeError, ValueError) as error:
        raise Broken(f"{shown} has details that JSON does not hold: {error}") from error
    if kept != details:
        raise Broken(f"{shown} has details that JSON does not give back as they were: {details}")
    if dialogue.steps and "".join(dialogue.steps) != dialogue.completion:
        raise Broken(f"{shown} has steps that do not add up to its completion")
    if len(dialogue.steps) != len(dialogue.step_labels):
        raise Broken(f"{shown} has {len(dialogue.steps)} steps and {len(dialogue.step_labels)} labels of steps")
