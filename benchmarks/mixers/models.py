"""What is measured: every registered mixer in one decoder, and models of `transformers` beside the recipes of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from race import Build, Candidate
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH, DEPTH, VOCABULARY, HIDDEN = 256, 4, 8192, 704

_ATTENTION = {"use": "attention", "n_heads": 4, "position": {"use": "rope"}}
#: The node of each mixer, at d 256; what is left out is the class's own default.
MIXERS: dict[str, dict[str, Any]] = {
    "attention": _ATTENTION,
    "attention, window 64": {**_ATTENTION, "window": 64},
    "mamba2": {"use": "mamba2", "state_size": 64, "head_width": 64},
    "mamba": {"use": "mamba"},
    "s4": {"use": "s4"},
    "s4d": {"use": "s4d"},
    "rg_lru": {"use": "rg_lru", "n_heads": 4},
    "min_gru": {"use": "min_gru"},
    "mlstm": {"use": "mlstm", "n_heads": 4},
    "linear_attention": {"use": "linear_attention", "n_heads": 4},
    "linear_attention, taylor": {
        "use": "linear_attention",
        "n_heads": 4,
        "feature_map": "taylor",
        "feature_width": 16,
        "eps": 1e-12,
    },
    "retention": {"use": "retention", "n_heads": 4},
    "gla": {"use": "gla", "n_heads": 4},
    "delta_net": {"use": "delta_net", "n_heads": 4},
    "gated_delta_net": {"use": "gated_delta_net", "n_heads": 4, "key_width": 64, "value_width": 64},
    "kda": {"use": "kda", "n_heads": 4},
    "rwkv7": {"use": "rwkv7", "head_width": 64},
    "lstm": {"use": "lstm"},
    "multiplicative_lstm": {"use": "multiplicative_lstm"},
    "slstm": {"use": "slstm", "n_heads": 4},
}
#: A true loop over tokens, which is only measured at a length that it can bear.
LOOPS = ("lstm", "multiplicative_lstm", "slstm")


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


def of_mambapy(length: int) -> Candidate:
    """The blocks of `mambapy`, whose scan is parallel, between an embedding and a head."""
    from mambapy.mamba import Mamba, MambaConfig, RMSNorm

    blocks, norm = Mamba(MambaConfig(d_model=WIDTH, n_layers=DEPTH)), RMSNorm(WIDTH, 1e-5)
    model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), blocks, norm, nn.Linear(WIDTH, VOCABULARY, bias=False))

    def loss(ids: Tensor) -> Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return Candidate(model, loss)


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
    mixer, untied = "model.blocks.layer.mixer", {"model.tied_embedding": False}
    mambapy = {"use_mambapy": True}  # the loop over tokens that is the default cannot be waited for
    return {
        "mamba": {
            "bakeoff": partial(of_shipped, "mamba_130m", untied, length),
            "transformers": partial(of_transformers, "Mamba", mambapy),
            "mambapy": partial(of_mambapy, length),
        },
        "mamba2": {
            "bakeoff": partial(of_shipped, "mamba2_130m", {f"{mixer}.state_size": 64, **untied}, length),
            "transformers": partial(
                of_transformers, "Mamba2", {"num_heads": 8, "head_dim": 64, "state_size": 64, "n_groups": 1}
            ),
        },
        "recurrentgemma": {
            "bakeoff": partial(
                of_shipped,
                "recurrentgemma_2b",
                {
                    f"{mixer}.n_heads": 4,
                    "model.blocks.attention.mixer.n_heads": 4,
                    "model.blocks.layer.feed_forward.width": HIDDEN,
                    "model.embedding_scale": WIDTH**0.5,
                    **untied,
                },
                length,
            ),
            "transformers": partial(
                of_transformers,
                "RecurrentGemma",
                {"num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 2 * HIDDEN},
            ),
        },
        "gated delta net": _gated_delta_nets(["layer"], ["linear_attention"] * DEPTH, length),
        "qwen3_next": _gated_delta_nets(
            ["layer", "layer", "layer", "attention"], ["linear_attention"] * 3 + ["full_attention"], length
        ),
    }


#: Whose class at `transformers` does not generate: it asks the cache of an attention layer for the length.
TRAINED_ONLY = ("gated delta net",)


def _gated_delta_nets(pattern: list[str], kinds: list[str], length: int) -> dict[str, Build]:
    """Qwen3-Next with dense feed-forwards."""
    blocks = "model.blocks"
    changes = {
        "model.pattern": pattern,
        f"{blocks}.layer.mixer.n_heads": 4,
        f"{blocks}.layer.mixer.n_key_heads": 4,
        f"{blocks}.layer.mixer.key_width": 64,
        f"{blocks}.layer.mixer.value_width": 64,
        f"{blocks}.layer.feed_forward.width": HIDDEN,
        f"{blocks}.attention.mixer.n_heads": 4,
        f"{blocks}.attention.mixer.n_kv_heads": 2,
        f"{blocks}.attention.mixer.head_width": 64,
    }
    config = {
        "intermediate_size": HIDDEN,
        "mlp_only_layers": list(range(DEPTH)),
        "layer_types": kinds,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
    }
    return {
        "bakeoff": partial(of_shipped, "qwen3_next_dense", changes, length),
        "transformers": partial(of_transformers, "Qwen3Next", config),
    }
