"""What routers claim."""

from __future__ import annotations

from bakeoff.interfaces import Capabilities

#: A router that chooses for each token by that token alone.
BY_TOKEN = Capabilities(
    documents=True,
    padding=True,
    state=True,
    constant_state=True,
    bidirectional=True,
    tensor_parallel=True,
    context_parallel=True,
)
