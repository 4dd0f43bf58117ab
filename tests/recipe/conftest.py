"""Small recipes on disk."""

import pytest
from bakeoff.recipe import recipe

SMALL = """\
model:
  d_model: 32
  depth: 2
  pattern: [layer]
  blocks:
    layer:
      use: pre_norm
      mixer: {use: attention, n_heads: 4, window: 8}
      feed_forward: {use: gated_mlp, width: 64}
data:
  corpus: {use: sotu}
  tokenizer: {use: byte}
  length: 32
  batch_tokens: 256
trainer: {max_steps: 4}
"""


@pytest.fixture
def write(tmp_path):
    """Write a file, give its path."""

    def writer(name, text):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    return writer


@pytest.fixture
def small(write):
    """The path of a small recipe."""
    return write("small.yaml", SMALL)


@pytest.fixture
def extended(write, small):
    """A recipe that extends the small one with the given lines."""

    def extend(text, name="child.yaml", overrides=()):
        return recipe(write(name, f"extends: {small}\n{text}"), overrides)

    return extend
