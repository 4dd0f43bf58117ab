"""What every registered class tells about itself before a run."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar


@dataclass(frozen=True)
class Reference:
    """The paper, or other source, that a component implements."""

    authors: str
    year: int
    title: str
    url: str

    def __str__(self) -> str:
        return f"{self.authors} ({self.year}). {self.title}. {self.url}"


@dataclass(frozen=True)
class Capabilities:
    """What a part can do; demanded before a run, and tested by the conformance kit, claims and disclaimers alike."""

    causal: bool = True
    """No output depends on a later token (law 1)."""
    row_local: bool = True
    """No row of a batch depends on another row."""
    documents: bool = False
    """Packed documents do not see each other (law 3)."""
    padding: bool = False
    """Padding changes nothing for real tokens (law 4)."""
    state: bool = False
    """Has `empty_state`; any split of the sequence gives the same outputs (laws 2 and 5)."""
    constant_state: bool = False
    """The state's size does not grow with the sequence."""
    bidirectional: bool = False
    """Honours `visibility` "bidirectional" and "prefix", not only "causal"."""
    exact_rows: bool = True
    """Rows are computed alone, so that unchanged means bit for bit; else within 8 eps of the scale."""
    compile: bool = False
    """Compiles to at most two graphs over sequence lengths (law 11)."""
    tensor_parallel: bool = False
    """Ranks can share out its parameters (`Part.parallel_plan`, law 10)."""
    context_parallel: bool = False
    """Ranks can share out the tokens of a row (`sequence.spans`, law 10)."""
    token_local: bool = False
    """Each token's output depends on that token alone, and on nothing that its sequence says of it."""
    lost_in_training: frozenset[str] = frozenset()
    """Names of claims that hold in evaluation mode only."""

    @property
    def training(self) -> Capabilities:
        """What holds in training mode."""
        return replace(self, **dict.fromkeys(self.lost_in_training, False), lost_in_training=frozenset())

    def meet(self, *others: Capabilities) -> Capabilities:
        """What a composition of such parts can do: what all of them can."""
        claims = (self, *others)
        met = {name: all(getattr(claim, name) for claim in claims) for name in CLAIMS}
        training = {name: all(getattr(claim.training, name) for claim in claims) for name in CLAIMS}
        return Capabilities(**met, lost_in_training=frozenset(n for n in CLAIMS if met[n] and not training[n]))


#: Names of all claims.
CLAIMS = tuple(f.name for f in fields(Capabilities) if f.name != "lost_in_training")


class Component(ABC):
    """Base of every interface: a kind, a source, and claims that are checked."""

    kind: ClassVar[str]
    reference: ClassVar[Reference | None] = None

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Small sets of constructor arguments, as in a recipe, that cover the modes of the class.

        The conformance kit checks the laws on each, in a context of 16 channels and 4 heads. A class whose constructor
        has required arguments must define it; `[{}]` asks for the defaults alone.
        """
        return [{}]
