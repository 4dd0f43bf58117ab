"""What is measured: one case a process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.common.candidate import Shape

#: Models by their parameters, tables and readout counted; quick ones show that the path works.
SHAPES = {
    "125m": Shape(width=768, depth=12, heads=12, kv_heads=12, hidden=2048, vocabulary=32768),
    "350m": Shape(width=1024, depth=24, heads=16, kv_heads=16, hidden=2816, vocabulary=32768),
    "tiny": Shape(width=64, depth=3, heads=1, kv_heads=1, hidden=128, vocabulary=512),
}
#: Tokens that the window of local attention holds, by length.
WINDOWS = {1024: 256, 4096: 1024, 64: 16}


@dataclass(frozen=True)
class Case:
    """One process's work.

    Attributes
    ----------
    family : what the command line names.
    what : "training", "decoding", or a check: "laws", "bf16", "product".
    candidate : who computes it; of checks, the mixer, and of the laws which of its examples.
    shape, length, batch : the size; of decoding, `length` tokens follow a prompt of as many. Zero in checks.
    compiled : by torch.compile, ours block by block as `compile: true` does.
    """

    family: str
    what: str
    candidate: str
    shape: str = ""
    length: int = 0
    batch: int = 0
    compiled: bool = False

    @property
    def name(self) -> str:
        """Its words, one after the other."""
        size = [f"T{self.length}", f"B{self.batch}", "compiled" if self.compiled else "eager"] if self.shape else []
        return " ".join([self.family, self.what, self.candidate, *([self.shape] if self.shape else []), *size])

    def plain(self) -> dict[str, Any]:
        """As it stands in a record."""
        return asdict(self)


#: Candidates of each family that is raced, ours first; classes of `transformers` compute attention or experts as named.
RACED: dict[str, tuple[str, ...]] = {
    "attention": ("bakeoff", "transformers sdpa", "transformers flash_attention_2"),
    "window": ("bakeoff", "transformers sdpa", "transformers flash_attention_2"),
    "mamba2": ("bakeoff", "transformers", "mamba_ssm", "fla"),
    "gated_delta_net": ("bakeoff", "transformers", "fla"),
    "griffin": ("bakeoff", "transformers"),
    "experts": ("bakeoff", "transformers grouped_mm"),
}
#: Families of checks, which are run where they are asked for by name.
CHECKED = ("laws", "bf16")
FAMILIES = (*RACED, *CHECKED)
#: Python loops over tokens, which cannot be traced in a minute.
NEVER_COMPILED = (("griffin", "transformers"),)
#: Classes that generate only with a layer of attention, whose cache they ask for the length.
NEVER_DECODED = (("gated_delta_net", "transformers"),)


def cases(families: tuple[str, ...], quick: bool) -> Iterator[Case]:
    """Those of the families in order; the first of each family tell most."""
    for family in families:
        if family in RACED:
            yield from _raced(family, quick)
        else:
            yield from (Case(family, family, which) for which in _checked(family, quick))


def _raced(family: str, quick: bool) -> Iterator[Case]:
    small, long = (("tiny", 64, 2), ("tiny", 64, 1)) if quick else (("125m", 1024, 16), ("350m", 4096, 4))
    decoded = ("tiny", 8, 2) if quick else ("125m", 128, 8)
    everyone = RACED[family]
    compiled = [each for each in everyone if (family, each) not in NEVER_COMPILED]
    yield from (Case(family, "training", each, *small, compiled=True) for each in compiled)
    yield from (Case(family, "training", each, *small) for each in everyone)
    if not quick:
        yield from (Case(family, "training", each, *long, compiled=True) for each in compiled)
    yield from (Case(family, "decoding", each, *decoded) for each in everyone if (family, each) not in NEVER_DECODED)
    if family == "experts":
        yield Case(family, "product", "grouped")


def _checked(family: str, quick: bool) -> list[str]:
    """Registered mixers of every package here; for the laws, each of a mixer's examples by its number."""
    import bakeoff
    from bakeoff.testing.checking import examples_of

    names = sorted(entry.name for entry in bakeoff.names("mixer"))[: 1 if quick else None]
    if family != "laws":
        return names
    return [f"{name} {i}" for name in names for i in range(1 if quick else len(examples_of(bakeoff.find(name))))]
