"""Corpora: two disjoint splits in a fixed order, and a fingerprint of what they hold."""

from __future__ import annotations

from itertools import islice

from bakeoff.interfaces.corpus import SPLITS
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, law

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
