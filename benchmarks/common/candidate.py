"""A model of whichever library behind one small interface: ours by recipe, those of `transformers` by class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Candidate(NamedTuple):
    """A model and what is measured of it: a loss of (B, T + 1) ids, and greedy generation of n ids after (B, T).

    None where there is no prefill that leaves a state.
    """

    model: nn.Module
    loss: Callable[[Tensor], Tensor]
    generate: Callable[[Tensor, int], Any] | None = None


#: How a candidate is built.
Build = Callable[[], Candidate]


class Shape(NamedTuple):
    """The size of a model; `hidden` is the width of a dense feed-forward."""

    width: int
    depth: int
    heads: int
    kv_heads: int
    hidden: int
    vocabulary: int

    @property
    def head_width(self) -> int:
        """Of a query head."""
        return self.width // self.heads


def recipe_of(layer: dict[str, Any], shape: Shape, length: int) -> Any:
    """A decoder of `depth` equal blocks, untied."""
    import bakeoff

    model = {"d_model": shape.width, "depth": shape.depth, "tied_embedding": False}
    data = {"corpus": {"use": "python_source"}, "tokenizer": {"use": "byte"}, "length": length, "batch_tokens": length}
    return bakeoff.recipe(
        {
            "model": {**model, "pattern": ["layer"], "blocks": {"layer": layer}},
            "data": data,
            "trainer": {"max_steps": 1},
        }
    )


def shipped(name: str, changes: dict[str, Any], shape: Shape, length: int) -> Any:
    """A shipped recipe, changed to this size; `changes` by path."""
    import bakeoff

    size = {"model.d_model": shape.width, "model.depth": shape.depth, "model.vocab_size": shape.vocabulary}
    size |= {"data.length": length, "data.tokenizer": {"use": "byte"}}
    return bakeoff.recipe(f"bakeoff:models/{name}.yaml", {**size, **changes})


def of_recipe(recipe: Any, shape: Shape, length: int, device: str = "cpu") -> Candidate:
    """A recipe's model under its objective, with the prompts and answers of decoding as ids."""
    from bakeoff.model.generate import complete
    from bakeoff.parts.tokenizers.byte import ByteTokenizer

    longest = max(length, 512)
    model = recipe.build("model", vocab_size=shape.vocabulary, max_length=longest).initialise(0).to(device)
    objective, tokenizer = recipe.build("objective"), ByteTokenizer()

    def loss(ids: Tensor) -> Tensor:
        terms = objective(model, {"tokens": ids})[0].values()
        return torch.stack([total / weight for total, weight in terms]).sum()

    def generate(prompts: Tensor, new: int) -> Any:
        return complete(model, tokenizer, prompts.tolist(), max_new_tokens=new, end=[])

    return Candidate(model, loss, generate)


def of_transformers(
    name: str, config: dict[str, Any], shape: Shape, device: str = "cpu", **implementation: str
) -> Candidate:
    """A class of `transformers` of this size, its loss over flat logits, the fastest form.

    `implementation`: how it computes attention or experts (`attn_implementation`, `experts_implementation`).
    """
    import transformers

    transformers.utils.logging.set_verbosity_error()
    held = getattr(transformers, f"{name}Config")(
        vocab_size=shape.vocabulary, hidden_size=shape.width, num_hidden_layers=shape.depth, tie_word_embeddings=False,
        pad_token_id=0, bos_token_id=0, eos_token_id=None, **config,
    )  # fmt: skip
    with torch.device(device):
        model = getattr(transformers, f"{name}ForCausalLM")._from_config(held, **implementation)
    return of_logits(model, lambda ids: model(input_ids=ids, use_cache=False).logits)


def of_logits(model: Any, logits: Callable[[Tensor], Tensor], *, generates: bool = True) -> Candidate:
    """A model by its logits (B, T, V) of ids (B, T), that generates as those of `transformers` do."""

    def loss(ids: Tensor) -> Tensor:
        return F.cross_entropy(logits(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    def generate(prompts: Tensor, new: int) -> Any:
        seen = torch.ones_like(prompts)
        with torch.inference_mode():
            return model.generate(
                prompts, attention_mask=seen, max_new_tokens=new, do_sample=False, use_cache=True, pad_token_id=0
            )

    return Candidate(model, loss, generate if generates else None)
