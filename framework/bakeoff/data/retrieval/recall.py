"""How much of what exact search finds an index finds."""

from __future__ import annotations

import numpy as np

from bakeoff.data.loading import spread
from bakeoff.data.retrieval.lookup import Lookup

#: Chunks that it is measured on, at most.
SAMPLE = 256


def recall(lookup: Lookup) -> tuple[float, int]:
    """Recall at the recipe's k, and the number of chunks that it was measured on.

    Evenly spread chunks of the database are looked up, each outside its own document: of the neighbours by comparison
    with every chunk, the mean share that the index finds as well. 1 where there are none.
    """
    table, index = lookup.database.table, lookup.database.index
    chosen = spread(len(table), SAMPLE)
    texts = [lookup.text(number) for number in chosen.tolist()]
    documents = table.documents(chosen)
    exclude = np.stack([table.firsts[documents], table.firsts[documents + 1]], axis=1)
    found = index.neighbours(texts, lookup.k, exclude).numbers
    exact = index.exact(texts, lookup.k, exclude).numbers
    there = exact >= 0
    hit = (exact[:, :, None] == found[:, None, :]).any(2) & there
    return (float(hit.sum() / there.sum()) if there.any() else 1.0), len(chosen)
