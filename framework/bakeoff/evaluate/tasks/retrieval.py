"""Task `retrieval`: what a model gains from what is looked up for it, and from what that comes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from typing import Any, ClassVar

import numpy as np

from bakeoff.data.retrieval.lookup import Lookup
from bakeoff.errors import CapabilityError
from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.tasks.chunk_losses import Chunked, Costs, Shown, bits_per_byte
from bakeoff.evaluate.tasks.common_runs import overlaps
from bakeoff.evaluate.tasks.overlap import OVERLAPS, Chunks
from bakeoff.evaluate.tasks.passages import passages
from bakeoff.evaluate.tasks.retrieval_html import page
from bakeoff.evaluate.tasks.shown_neighbours import AT_ONCE, deranged, drawn, foreign, of_share, searched
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.retriever import Found
from bakeoff.interfaces.task import Answer, Figure, Progress, Task
from bakeoff.model.looking import reads_neighbours
from bakeoff.parts.resampling import Ratio, ratio

#: What stands beside the neighbours that were found.
CONTROLS = ("none", "shuffled", "random")


class Retrieval(Task):
    """Bits per byte of held-out text when the model is shown what was found for it, and when it is not.

    The very same model reads the very same rows of the validation split: with the neighbours that the recipe's
    `data.retrieval` finds; with none; `shuffled`, with those of another chunk of the text; and with `random` chunks
    of the database. What is gained against each is paired by token, with a 95 % interval by the bootstrap over
    documents (over rows, where fewer than 20 documents were read). A retrieval that helps gains against all three: one
    that gains against none alone has learnt to lean on there being neighbours, not on what they say.

    Copying is told apart from generalising as in the paper: the overlap of a chunk is the longest run of tokens that it
    has in common with any of its `candidates` nearest neighbours, each with what follows it, as a share of the chunk.
    `gain_overlap_125` is what is gained in chunks of an overlap of at most 0.125, and so on. A chunk's tokens are
    those in it; as they are predicted, the model sees the neighbours of the chunk before. Tokens of no whole chunk have
    no overlap, and count in the other figures alone.

    Raises `CapabilityError` where the recipe looks nothing up, or no part of the model reads what is found.

    Parameters
    ----------
    tokens : of the validation split, about how many are read, in rows evenly spread over it; null: as many as the
        recipe validates on.
    candidates : neighbours that the overlap is taken over.
    k : further numbers of neighbours to try; figures `bits_per_byte_k_N`.
    shares : further shares of the database's documents to try, each with an index of its own; figures
        `bits_per_byte_share_P`, in percent.
    seed : of what is drawn: the order of shuffled neighbours, random ones, and the samples of intervals.
    """

    reference = Reference(
        "Borgeaud et al.",
        2022,
        "Improving Language Models by Retrieving from Trillions of Tokens",
        "https://arxiv.org/abs/2112.04426",
    )
    figures: ClassVar[Mapping[str, Figure]] = {
        "bits_per_byte": Figure("less"),
        "bits_per_byte_without": Figure(),
        "gain": Figure("more"),
        "gain_low": Figure(),
        "gain_high": Figure(),
        "gain_over_shuffled": Figure("more"),
        "gain_over_random": Figure("more"),
        **{f"gain_overlap_{round(1000 * most)}": Figure("more" if most == OVERLAPS[0] else None) for most in OVERLAPS},
    }
    example_model: ClassVar[Mapping[str, Any]] = {
        "data.retrieval": {"retriever": {"use": "flat", "embedder": {"use": "static"}}, "chunk": 8},
        "model.blocks.layer": {
            "use": "retro",
            "n_heads": 2,
            "chunk": 8,
            "mixer": {"use": "attention", "n_heads": 2},
            "feed_forward": {"use": "mlp"},
        },
    }

    def __init__(
        self,
        *,
        tokens: int | None = None,
        candidates: int = 10,
        k: Items[int] = (),
        shares: Items[float] = (),
        seed: int = 0,
    ):
        if tokens is not None and tokens < 1:
            raise ValueError(f"tokens is {tokens}; it must be at least 1")
        if candidates < 1 or min(k, default=1) < 1:
            raise ValueError(f"candidates is {candidates}, k {list(k)}; all must be at least 1")
        if not all(0 < share <= 1 for share in shares):
            raise ValueError(f"shares is {list(shares)}; each must be above 0 and at most 1")
        self.tokens, self.candidates, self.seed = tokens, candidates, seed
        self.k, self.shares = sorted(set(k)), sorted(set(shares))
        self.figures = {  # type: ignore[misc]  # those of what is tried
            **type(self).figures,
            **{f"bits_per_byte_k_{k}": Figure() for k in self.k},
            **{f"bits_per_byte_share_{percent(share)}": Figure() for share in self.shares},
        }

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with other numbers of neighbours and a smaller database."""
        return [{"tokens": 512}, {"tokens": 256, "candidates": 3, "k": [1, 2], "shares": [0.5, 1.0]}]

    def measure(self, measured: Measured, progress: Progress) -> Answer:
        """Search, read under each condition, and compare."""
        demand(measured)
        lookup, tell = measured.data.lookup(), _Steps(progress)
        tokens = self.tokens or measured.recipe.tree["validation"]["tokens"]
        chunked = Chunked(measured, tokens, lookup.chunk)
        found = searched(lookup, chunked, self._widest(lookup), tell.searching)
        tell.total = chunked.batches * (
            1 + len(CONTROLS) + len(self._more_k(lookup)) + len(self._more_shares(measured))
        )
        costs = self._costs(chunked, lookup, found, tell.read)
        gains = {name: self._gain(chunked, costs[name], costs["found"]) for name in CONTROLS}
        chunks = self._chunks(chunked, lookup, found, costs)
        data = {
            "chunk": lookup.chunk,
            "chunks": len(chunked),
            "database": len(lookup),
            "k": lookup.k,
            "candidates": min(self.candidates, len(lookup)),
            "pieces": [chunked.pieces.kind, chunked.pieces.n],
            "bits": {name: bits_per_byte(cost) for name, cost in costs.items()},
            "gains": {name: list(gain) for name, gain in gains.items()},
            "up_to": [bucket._asdict() for bucket in chunks.up_to()],
            "between": [bucket._asdict() for bucket in chunks.between()],
            "by_k": self._by_k(chunked, lookup, found, costs["found"], tell),
            "by_share": self._by_share(chunked, costs["found"], tell),
        }
        texts = passages(chunked, lookup, found, costs["found"], costs["none"], chunks.overlap)
        return Answer(self._figures(data), page(data, texts, measured.data.tokenizer), data)

    def _figures(self, data: dict[str, Any]) -> dict[str, float]:
        """What is drawn, by name."""
        gain, low, high = data["gains"]["none"]
        return {
            "bits_per_byte": data["bits"]["found"],
            "bits_per_byte_without": data["bits"]["none"],
            **{"gain": gain, "gain_low": low, "gain_high": high},
            **{f"gain_over_{name}": data["gains"][name][0] for name in CONTROLS[1:]},
            **{f"gain_overlap_{thousandths(each)}": each["without"] - each["found"] for each in data["up_to"]},
            **{f"bits_per_byte_k_{k}": bits for k, bits in data["by_k"] if k in self.k},
            **{
                f"bits_per_byte_share_{percent(share)}": bits
                for share, bits in data["by_share"]
                if share in self.shares
            },
        }

    def _costs(self, chunked: Chunked, lookup: Lookup, found: Found, told: Callable[[], None]) -> dict[str, Costs]:
        """Under each condition, with as many neighbours as the recipe asks for."""
        n, own = len(chunked), found.numbers[:, : lookup.k]
        others = {
            "shuffled": own[deranged(n, self.seed)],
            "random": drawn(lookup, n, lookup.k, self.seed),
        }
        costs = {"found": chunked.costs(Shown(lookup, own), told), "none": chunked.costs(None, told)}
        for name, numbers in others.items():
            costs[name] = chunked.costs(Shown(lookup, foreign(lookup, chunked, numbers)), told)
        return costs

    def _gain(self, chunked: Chunked, against: Costs, found: Costs) -> Ratio:
        """Bits per byte by which `found` costs less."""
        saved, size = (chunked.pieces.sums(values) for values in (against.bits - found.bits, found.size))
        return ratio(saved, size, seed=self.seed)

    def _chunks(self, chunked: Chunked, lookup: Lookup, found: Found, costs: dict[str, Costs]) -> Chunks:
        """Overlap and bits of each chunk."""
        parts = []
        for start in range(0, len(chunked), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            tokens, real = lookup.chunk_tokens(found.numbers[part, : self.candidates])
            parts.append(overlaps(chunked.ids[part], tokens.numpy(), real.numpy()))
        found_bits, without = (chunked.per_chunk(costs[name].bits) for name in ("found", "none"))
        return Chunks(np.concatenate(parts), found_bits, without, chunked.per_chunk(costs["found"].size))

    def _by_k(self, chunked: Chunked, lookup: Lookup, found: Found, own: Costs, tell: _Steps) -> list[list[float]]:
        """Numbers of neighbours with their bits per byte, where several are tried."""
        if not self.k:
            return []
        tried = {k: chunked.costs(Shown(lookup, found.numbers[:, :k]), tell.read) for k in self._more_k(lookup)}
        return [[k, bits_per_byte(cost)] for k, cost in sorted({**tried, lookup.k: own}.items())]

    def _by_share(self, chunked: Chunked, own: Costs, tell: _Steps) -> list[list[float]]:
        """Shares of the database with their bits per byte, where several are tried."""
        if not self.shares:
            return []
        tried = {}
        for share in self._more_shares(chunked.measured):
            lookup = of_share(chunked.measured, share)
            found = searched(lookup, chunked, lookup.k, tell.searching)
            tried[share] = chunked.costs(Shown(lookup, found.numbers), tell.read)
        tried[share_of(chunked.measured)] = own
        return [[share, bits_per_byte(cost)] for share, cost in sorted(tried.items())]

    def _widest(self, lookup: Lookup) -> int:
        """How many neighbours are searched for."""
        return min(len(lookup), max(self.candidates, lookup.k, *self.k))

    def _more_k(self, lookup: Lookup) -> list[int]:
        """Those asked for beside the recipe's."""
        return [k for k in self.k if k != lookup.k]

    def _more_shares(self, measured: Measured) -> list[float]:
        return [share for share in self.shares if share != share_of(measured)]


class _Steps:
    """Tells how far the work is."""

    def __init__(self, progress: Progress):
        self.progress, self.step, self.total = progress, 0, 0

    def searching(self, done: int, chunks: int) -> None:
        self.progress({"phase": "searching for retrieval", "step": done, "total": chunks})

    def read(self) -> None:
        """One more batch."""
        self.step += 1
        self.progress({"step": self.step, "total": self.total})


def demand(measured: Measured) -> None:
    """Raise `CapabilityError` where nothing is looked up, or nobody reads it."""
    if measured.data.retrieval is None:
        raise CapabilityError("retrieval: the recipe looks nothing up: data.retrieval is not set")
    if not reads_neighbours(measured.model):
        raise CapabilityError(
            "retrieval: no part of the model reads what is retrieved; block `retro` and backbone `prepend` do"
        )
    objective = type(measured.objective)
    if not objective.shows_neighbours or measured.objective.tokens_wanted(1) != 2:
        raise CapabilityError(f"retrieval: {objective.__name__} shows the model no neighbours; causal does")
    if not measured.data.tokenizer.lossless:
        raise CapabilityError("retrieval is told in bits per byte, which a tokenizer that is not lossless has not")


def share_of(measured: Measured) -> float:
    """Of the database's documents, as the recipe has it."""
    asked = measured.data.retrieval
    assert asked is not None
    return asked.share


def percent(share: float) -> str:
    """0.125 -> 12_5, for the name of a figure."""
    return f"{100 * share:g}".replace(".", "_")


def thousandths(bucket: Mapping[str, Any]) -> int:
    """Of the largest overlap in a bucket, for the name of a figure."""
    return round(1000 * bucket["most"])
