"""Architectures by recipe, and the classes of `transformers` of the same shape."""

from __future__ import annotations

from typing import Any

from benchmarks.common.candidate import Shape, recipe_of, shipped

_MIXER = "model.blocks.layer.mixer"


def llama(shape: Shape, length: int, *, window: int | None = None, feed_forward: dict[str, Any] | None = None) -> Any:
    """Attention with RoPE and gated feed-forwards, or others."""
    mixer = {"use": "attention", "n_heads": shape.heads, "n_kv_heads": shape.kv_heads, "position": {"use": "rope"}}
    if window is not None:
        mixer["window"] = window
    dense = {"use": "gated_mlp", "width": shape.hidden}
    return recipe_of({"use": "pre_norm", "mixer": mixer, "feed_forward": feed_forward or dense}, shape, length)


def llama_config(shape: Shape, **more: Any) -> dict[str, Any]:
    """Of Llama and its like."""
    heads = {"num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads}
    return {"intermediate_size": shape.hidden, **heads, **more}


def experts(shape: Shape, n_experts: int = 8, k: int = 2) -> dict[str, Any]:
    """The feed-forward of so many experts, k a token, that together are as wide as the dense one."""
    return {
        "use": "mixture_of_experts",
        "n_experts": n_experts,
        "expert": {"use": "gated_mlp", "width": shape.hidden // k},
        "router": {"use": "top_k", "k": k},
        "balance": [{"use": "load_balance", "coefficient": 0.01}],
    }


def mixtral_config(shape: Shape, n_experts: int = 8, k: int = 2) -> dict[str, Any]:
    """Mixtral's, of the same experts."""
    more = {"num_local_experts": n_experts, "num_experts_per_tok": k, "intermediate_size": shape.hidden // k}
    return llama_config(shape) | more


def mamba2(shape: Shape, length: int, state: int = 64) -> Any:
    """Blocks of nothing but Mamba-2, heads of 64."""
    changes = {f"{_MIXER}.state_size": state, "model.tied_embedding": False}
    return shipped("mamba2_130m", changes, shape, length)


def mamba2_config(shape: Shape, state: int = 64) -> dict[str, Any]:
    """Mamba-2's."""
    return {"num_heads": 2 * shape.width // 64, "head_dim": 64, "state_size": state, "n_groups": 1}


def griffin(shape: Shape, length: int, window: int = 2048) -> Any:
    """Two recurrent blocks to one of local attention."""
    changes = {
        f"{_MIXER}.n_heads": shape.heads,
        "model.blocks.attention.mixer.n_heads": shape.heads,
        "model.blocks.attention.mixer.window": window,
        "model.blocks.layer.feed_forward.width": shape.hidden,
        "model.embedding_scale": shape.width**0.5,
        "model.tied_embedding": False,
    }
    return shipped("recurrentgemma_2b", changes, shape, length)


def griffin_config(shape: Shape, window: int = 2048) -> dict[str, Any]:
    """RecurrentGemma's, which counts both halves of a feed-forward."""
    heads = {"num_attention_heads": shape.heads, "num_key_value_heads": 1}
    return {**heads, "intermediate_size": 2 * shape.hidden, "attention_window_size": window}


#: Layers of Qwen3-Next: three gated delta nets to one of attention.
HYBRID = ("layer", "layer", "layer", "attention")


def gated_delta_net(shape: Shape, length: int, pattern: tuple[str, ...] = ("layer",)) -> Any:
    """Qwen3-Next with dense feed-forwards: gated delta nets, with attention between them where the pattern says so."""
    blocks = "model.blocks"
    changes = {
        "model.pattern": list(pattern),
        f"{_MIXER}.n_heads": shape.heads,
        f"{_MIXER}.n_key_heads": shape.heads,
        f"{_MIXER}.key_width": shape.head_width,
        f"{_MIXER}.value_width": shape.head_width,
        f"{blocks}.layer.feed_forward.width": shape.hidden,
        f"{blocks}.attention.mixer.n_heads": shape.heads,
        f"{blocks}.attention.mixer.n_kv_heads": shape.kv_heads,
        f"{blocks}.attention.mixer.head_width": shape.head_width,
    }
    return shipped("qwen3_next_dense", changes, shape, length)


def gated_delta_net_config(shape: Shape, pattern: tuple[str, ...] = ("layer",)) -> dict[str, Any]:
    """Qwen3-Next's."""
    theirs = {"layer": "linear_attention", "attention": "full_attention"}
    kinds = [theirs[name] for name in (list(pattern) * shape.depth)[: shape.depth]]
    return {
        **llama_config(shape),
        "mlp_only_layers": list(range(shape.depth)),
        "layer_types": kinds,
        "linear_num_key_heads": shape.heads,
        "linear_num_value_heads": shape.heads,
        "linear_key_head_dim": shape.head_width,
        "linear_value_head_dim": shape.head_width,
        "head_dim": shape.head_width,
    }
