"""What a model may look up: a database of chunks, and the neighbours that the chunks of a split have in it."""

from bakeoff.data.retrieval.lookup import Lookup
from bakeoff.data.retrieval.section import Retrieval

__all__ = ["Lookup", "Retrieval"]
