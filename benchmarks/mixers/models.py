"""What is measured: every registered mixer in one decoder, and models of `transformers` beside the recipes of them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks.common.candidate import Build, Candidate, Shape, of_logits, of_recipe, of_transformers, recipe_of
from benchmarks.common.families import (
    HYBRID,
    gated_delta_net,
    gated_delta_net_config,
    griffin,
    griffin_config,
    mamba2,
    mamba2_config,
    shipped,
)

SHAPE = Shape(width=256, depth=4, heads=4, kv_heads=2, hidden=704, vocabulary=8192)

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


def decoder(node: dict[str, Any], length: int, hidden: int | None = SHAPE.hidden) -> Candidate:
    """Pre-norm blocks of the mixer and a gated MLP of width `hidden`, if any."""
    return of_recipe(_recipe(node, length, hidden), SHAPE, length)


def _recipe(node: dict[str, Any], length: int, hidden: int | None) -> Any:
    feed_forward = None if hidden is None else {"use": "gated_mlp", "width": hidden}
    return recipe_of({"use": "pre_norm", "mixer": node, "feed_forward": feed_forward}, SHAPE, length)


def of_mambapy() -> Candidate:
    """The blocks of `mambapy`, whose scan is parallel, between an embedding and a head."""
    from mambapy.mamba import Mamba, MambaConfig, RMSNorm

    width, V = SHAPE.width, SHAPE.vocabulary
    blocks, norm = Mamba(MambaConfig(d_model=width, n_layers=SHAPE.depth)), RMSNorm(width, 1e-5)
    model = nn.Sequential(nn.Embedding(V, width), blocks, norm, nn.Linear(width, V, bias=False))
    return of_logits(model, model, generates=False)


def matched(length: int) -> dict[str, Build]:
    """Every mixer with the feed-forward that gives its model the parameters of attention's."""
    wanted = _parameters(MIXERS["attention"], SHAPE.hidden)
    builds: dict[str, Build] = {}
    for name, node in MIXERS.items():
        alone = _parameters(node, None)
        hidden = round((wanted - alone) / (3 * SHAPE.width * SHAPE.depth))
        builds[name] = partial(decoder, node, length, hidden)
    return builds


def _parameters(node: dict[str, Any], hidden: int | None) -> int:
    with torch.device("meta"):
        model = _recipe(node, 64, hidden).build("model", vocab_size=SHAPE.vocabulary)
    return sum(p.numel() for p in model.parameters())


def pairs(length: int) -> dict[str, dict[str, Build]]:
    """Recipes and the classes that they are converted from, both of one shape."""

    def ours(make: Any, *arguments: Any) -> Build:
        return lambda: of_recipe(make(*arguments), SHAPE, length)

    def theirs(name: str, config: dict[str, Any]) -> Build:
        return partial(of_transformers, name, config, SHAPE)

    # the loop over tokens that is the default of transformers' Mamba cannot be waited for
    return {
        "mamba": {
            "bakeoff": ours(shipped, "mamba_130m", {"model.tied_embedding": False}, SHAPE, length),
            "transformers": theirs("Mamba", {"use_mambapy": True}),
            "mambapy": of_mambapy,
        },
        "mamba2": {
            "bakeoff": ours(mamba2, SHAPE, length),
            "transformers": theirs("Mamba2", mamba2_config(SHAPE)),
        },
        "recurrentgemma": {
            "bakeoff": ours(griffin, SHAPE, length),
            "transformers": theirs("RecurrentGemma", griffin_config(SHAPE)),
        },
        "gated delta net": {
            "bakeoff": ours(gated_delta_net, SHAPE, length),
            "transformers": theirs("Qwen3Next", gated_delta_net_config(SHAPE)),
        },
        "qwen3_next": {
            "bakeoff": ours(gated_delta_net, SHAPE, length, HYBRID),
            "transformers": theirs("Qwen3Next", gated_delta_net_config(SHAPE, HYBRID)),
        },
    }


#: Whose class at `transformers` does not generate: it asks the cache of an attention layer for the length.
TRAINED_ONLY = ("gated delta net",)
