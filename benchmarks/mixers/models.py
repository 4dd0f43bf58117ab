"""What is measured: every registered mixer in one decoder, and models of `transformers` beside the recipes of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from race import Build, Candidate
from torch import Tensor
from torch.nn import functional as F

WIDTH, DEPTH, VOCABULARY, HIDDEN = 256, 4, 8192, 704

_ATTENTION = {"use": "attention", "n_heads": 4, "position": {"use": "rope"}}
#: The node of each mixer, at d 256; what is left out is the class's own default.
MIXERS: dict[str, dict[str, Any]] = {
    "attention": _ATTENTION,
    "attention, window 64": {**_ATTENTION, "window": 64},
    "mamba2": {"use": "mamba2", "state_size": 64, "head_width": 64},
    "rg_lru": {"use": "rg_lru", "n_heads": 4},
}


def decoder(node: dict[str, Any], length: int, hidden: int | None = HIDDEN) -> Candidate:
    """Pre-norm blocks of the mixer and a gated MLP of width `hidden`, if any."""
    return _ours(_recipe(node, length, hidden), length)


def _recipe(node: dict[str, Any], length: int, hidden: int | None) -> Any:
    import bakeoff

    feed_forward = None if hidden is None else {"use": "gated_mlp", "width": hidden}
    layer = {"use": "pre_norm", "mixer": node, "feed_forward": feed_forward}
    model = {
        "d_model": WIDTH,
        "depth": DEPTH,
        "tied_embedding": False,
        "pattern": ["layer"],
        "blocks": {"layer": layer},
    }
    data = {"corpus": {"use": "python_source"}, "tokenizer": {"use": "byte"}, "length": length, "batch_tokens": length}
    return bakeoff.recipe({"model": model, "data": data, "trainer": {"max_steps": 1}})


def of_shipped(name: str, changes: dict[str, Any], length: int) -> Candidate:
    """A shipped recipe's model, changed to the size of the benchmark."""
    import bakeoff

    size = {"model.d_model": WIDTH, "model.depth": DEPTH, "model.vocab_size": VOCABULARY, "data.length": length}
    return _ours(
        bakeoff.recipe(f"bakeoff:models/{name}.yaml", {**size, "data.tokenizer": {"use": "byte"}, **changes}), length
    )


def _ours(recipe: Any, length: int) -> Candidate:
    from bakeoff.model.generate import complete
    from bakeoff.parts.tokenizers.byte import ByteTokenizer

    model = recipe.build("model", vocab_size=VOCABULARY, max_length=max(length, 512)).initialise(0)
    objective = recipe.build("objective")
    tokenizer = ByteTokenizer()

    def loss(ids: Tensor) -> Tensor:
        total, weight = objective(model, {"tokens": ids})[0]["loss"]
        return total / weight

    def generate(prompts: Tensor, new: int) -> Any:
        return complete(model, tokenizer, prompts.tolist(), max_new_tokens=new, end=[])

    return Candidate(model, loss, generate)


def matched(length: int) -> dict[str, Build]:
    """Every mixer with the feed-forward that gives its model the parameters of attention's."""
    wanted = _parameters(MIXERS["attention"], HIDDEN)
    builds: dict[str, Build] = {}
    for name, node in MIXERS.items():
        alone = _parameters(node, None)
        hidden = round((wanted - alone) / (3 * WIDTH * DEPTH))
        builds[name] = partial(decoder, node, length, hidden)
    return builds


def _parameters(node: dict[str, Any], hidden: int | None) -> int:
    with torch.device("meta"):
        model = _recipe(node, 64, hidden).build("model", vocab_size=VOCABULARY)
    return sum(p.numel() for p in model.parameters())


def of_transformers(name: str, config: dict[str, Any]) -> Candidate:
    """A class of `transformers` without its CUDA kernels, its loss over flat logits, the fastest form."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    held = getattr(transformers, f"{name}Config")(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=DEPTH, tie_word_embeddings=False,
        pad_token_id=0, bos_token_id=0, eos_token_id=None, **config,
    )  # fmt: skip
    model = getattr(transformers, f"{name}ForCausalLM")(held)

    def loss(ids: Tensor) -> Tensor:
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def generate(prompts: Tensor, new: int) -> Any:
        seen = torch.ones_like(prompts)
        with torch.inference_mode():
            return model.generate(
                prompts, attention_mask=seen, max_new_tokens=new, do_sample=False, use_cache=True, pad_token_id=0
            )

    return Candidate(model, loss, generate)


def pairs(length: int) -> dict[str, dict[str, Build]]:
    """Recipes and the classes that they are converted from, both of one shape."""
    mamba2 = {"num_heads": 8, "head_dim": 64, "state_size": 64, "n_groups": 1}
    mixer = "model.blocks.layer.mixer"
    recurrentgemma = {
        f"{mixer}.n_heads": 4,
        "model.blocks.attention.mixer.n_heads": 4,
        "model.blocks.layer.feed_forward.width": HIDDEN,
        "model.embedding_scale": WIDTH**0.5,
        "model.tied_embedding": False,
    }
    return {
        "mamba2": {
            "bakeoff": partial(
                of_shipped, "mamba2_130m", {f"{mixer}.state_size": 64, "model.tied_embedding": False}, length
            ),
            "transformers": partial(of_transformers, "Mamba2", mamba2),
        },
        "recurrentgemma": {
            "bakeoff": partial(of_shipped, "recurrentgemma_2b", recurrentgemma, length),
            "transformers": partial(
                of_transformers,
                "RecurrentGemma",
                {"num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 2 * HIDDEN},
            ),
        },
    }
