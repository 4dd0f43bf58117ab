"""What is measured: two Llama shapes, and their cost by the definition that all candidates are held to."""

from __future__ import annotations

from typing import NamedTuple


class Shape(NamedTuple):
    """Widths of a Llama, untied, and what a training step and a generation take."""

    width: int
    depth: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int
    length: int
    batch: int
    prompt: int = 64
    new: int = 128

    @property
    def head_width(self) -> int:
        """Channels of a head."""
        return self.width // self.heads

    @property
    def matrices(self) -> int:
        """Weights that multiply every token."""
        attention = 2 * self.width * (self.width + self.kv_heads * self.head_width)
        return self.depth * (attention + 3 * self.width * self.hidden) + self.width * self.vocabulary

    @property
    def flops(self) -> int:
        """Of a training step: 6 per weight and token, and causal attention, forward and backward."""
        pairs = self.batch * self.length * (self.length + 1) // 2
        return 6 * self.batch * self.length * self.matrices + 3 * self.depth * 4 * self.width * pairs


#: Builds in no time.
SMALLEST = Shape(16, 1, 2, 1, 16, 512, 8, 1)

SHAPES = {
    "tiny": Shape(256, 4, 4, 2, 704, 8192, 256, 8),
    "small": Shape(512, 8, 8, 4, 1408, 8192, 512, 4, new=64),
}
