"""The families of published models that recipes claim: the class of `transformers`, and both sides made small."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers
from transformers.core_model_loading import revert_weight_conversion

MODELS = Path(__file__).parents[2] / "recipes" / "models"
#: Common to all small models: vocabulary, width, depth; short windows that a sequence outgrows.
V, D, LAYERS, WINDOW = 67, 32, 3, 5


@dataclass(frozen=True)
class Family:
    """A recipe, the configuration of `transformers` at its published size, and what makes each small."""

    recipe: str
    config: Any
    published: dict[str, Any]
    small: dict[str, Any]
    changes: dict[str, Any] = field(default_factory=dict)
    in_files: Callable[[Any, dict[str, Any]], dict[str, Any]] = revert_weight_conversion
    """Makes of a model's weights those of published files, whose names and layouts its class has changed."""
    noise: float = 1.5
    """Deviation of random weights, times the square root of their inputs; less where rounding would grow with depth."""

    def names(self, model: Any, weights: Mapping[str, Any]) -> dict[str, Any]:
        """A model's weights, or what stands in their place, as in published files."""
        return self.in_files(model, dict(weights))

    def model(self, size: dict[str, Any], **further: Any) -> Any:
        """The model of `transformers`, with random weights."""
        config = self.config(**{**self.published, **size, **further})
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=_implementation(config))


def _implementation(config: Any) -> str | None:
    return None if config.model_type in ("mamba", "mamba2") else "eager"


def _rope(base: float | None, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base, **more}}


def _yarn(base: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "yarn", "rope_theta": base, "beta_fast": 32, "beta_slow": 1, **more}}


def _gpt_neox_files(model: Any, weights: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("lm_head", "embed_out"): tensor for name, tensor in weights.items()}


def _olmo_hybrid_files(model: Any, weights: dict[str, Any]) -> dict[str, Any]:
    """Queries, keys and values have a convolution each; `save_pretrained` would cut theirs as if of one width."""
    keys = model.config.linear_num_key_heads * model.config.linear_key_head_dim
    values = model.config.linear_num_value_heads * model.config.linear_value_head_dim
    written: dict[str, Any] = {}
    for name, tensor in weights.items():
        before, found, after = name.partition(".conv1d.")
        pieces = tensor.split([keys, keys, values]) if found else [tensor]
        named = [f"{before}.{kind}_conv1d.{after}" for kind in "qkv"] if found else [name]
        written |= dict(zip(named, pieces, strict=True))
    return written


_MIXER, _FEED_FORWARD = "model.blocks.layer.mixer", "model.blocks.layer.feed_forward"
_GPT = {"n_embd": D, "n_layer": LAYERS, "n_head": 4, "vocab_size": V, "bos_token_id": 0, "eos_token_id": 0}
_LLAMA = {
    "hidden_size": D,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "vocab_size": V,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
_HEADS = {f"{_MIXER}.n_heads": 4}
_WIDTH = {**_HEADS, f"{_FEED_FORWARD}.width": 48}
_GROUPS = {**_WIDTH, f"{_MIXER}.n_kv_heads": 2}
_OF_EXPERTS = {**_HEADS, f"{_FEED_FORWARD}.expert.width": 48, f"{_FEED_FORWARD}.n_experts": 4}
_OF_MIXTURES = {**_OF_EXPERTS, f"{_MIXER}.n_kv_heads": 2}
_OF_LLAMA = {**_LLAMA, "num_key_value_heads": 4}
_OF_GROUPS = {**_LLAMA, "num_key_value_heads": 2}


def _gpt2(d: int, layers: int, heads: int) -> dict[str, Any]:
    return {"n_embd": d, "n_layer": layers, "n_head": heads}


def _llama(d: int, layers: int, heads: int, width: int, **more: Any) -> dict[str, Any]:
    shape = {"hidden_size": d, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": width}
    return {**shape, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "vocab_size": 32000, **more}


def _mamba(d: int, layers: int) -> dict[str, Any]:
    return {"hidden_size": d, "num_hidden_layers": layers, "vocab_size": 50280, "tie_word_embeddings": True}


def _mamba2(d: int, layers: int) -> dict[str, Any]:
    return {
        "hidden_size": d,
        "num_hidden_layers": layers,
        "num_heads": 2 * d // 64,
        "n_groups": 1,
        "vocab_size": 50288,
        "tie_word_embeddings": True,
    }


def _zamba2(d: int, layers: int, heads: int, state: int) -> dict[str, Any]:
    kinds = ["hybrid" if i % 6 == 5 else "linear_attention" for i in range(layers)]
    options = {"use_shared_attention_adapter": True, "use_mem_rope": True, "num_mem_blocks": 1}
    shape = {"hidden_size": d, "num_hidden_layers": layers, "layers_block_type": kinds, "intermediate_size": 4 * d}
    return {**shape, "n_mamba_heads": heads, "mamba_d_state": state, **options}


def _linear_attention(key_heads: int, value_heads: int, key_width: int, value_width: int) -> dict[str, Any]:
    return {
        "linear_num_key_heads": key_heads,
        "linear_num_value_heads": value_heads,
        "linear_key_head_dim": key_width,
        "linear_value_head_dim": value_width,
    }


_SMALL_QWEN3_NEXT = {
    **_OF_GROUPS,
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    **_linear_attention(2, 4, 8, 12),
}
_OF_QWEN3_NEXT = {
    "model.pattern": ["layer", "attention", "layer"],
    f"{_MIXER}.n_heads": 4,
    f"{_MIXER}.n_key_heads": 2,
    f"{_MIXER}.key_width": 8,
    f"{_MIXER}.value_width": 12,
    "model.blocks.attention.mixer.n_heads": 4,
    "model.blocks.attention.mixer.n_kv_heads": 2,
    "model.blocks.attention.mixer.head_width": 16,
}


def _jamba(d: int, layers: int, heads: int, width: int) -> dict[str, Any]:
    shape = {"hidden_size": d, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": width}
    options = {"num_experts": 1, "num_key_value_heads": 1, "tie_word_embeddings": True}
    return {**shape, **options, "attn_layer_period": 14, "attn_layer_offset": 7}


def _mixture(name: str, experts: int, k: int) -> dict[str, Any]:
    return {name: experts, "num_experts_per_tok": k}


#: By name of the recipe; sizes of one family first, the family that they stand for having `small` weights to compare.
FAMILIES = {
    family.recipe: family
    for family in [
        Family("gpt2", transformers.GPT2Config, _gpt2(768, 12, 12), _GPT, _HEADS),
        Family("llama_7b", transformers.LlamaConfig, _llama(4096, 32, 32, 11008), _OF_LLAMA, _WIDTH),
        Family(
            "llama3_8b",
            transformers.LlamaConfig,
            _llama(4096, 32, 32, 14336, num_key_value_heads=8, rms_norm_eps=1e-5, vocab_size=128256, **_rope(5e5)),
            _OF_GROUPS,
            _GROUPS,
        ),
        Family(
            "mistral_7b",
            transformers.MistralConfig,
            _llama(4096, 32, 32, 14336, num_key_value_heads=8, rms_norm_eps=1e-5, sliding_window=4096),
            {**_OF_GROUPS, "sliding_window": WINDOW, "head_dim": None},
            {**_GROUPS, f"{_MIXER}.window": WINDOW},
        ),
        Family(
            "gemma2_2b",
            transformers.Gemma2Config,
            {"vocab_size": 256000},
            {**_OF_GROUPS, "head_dim": 16, "sliding_window": WINDOW},
            {
                **_GROUPS,
                f"{_MIXER}.head_width": 16,
                f"{_MIXER}.window": WINDOW,
                "model.blocks.global.mixer.n_heads": 4,
                "model.blocks.global.mixer.n_kv_heads": 2,
                "model.blocks.global.mixer.head_width": 16,
                "model.embedding_scale": D**0.5,
            },
        ),
        Family(
            "gpt_neox_20b",
            transformers.GPTNeoXConfig,
            {"vocab_size": 50432, "hidden_act": "gelu_fast"},
            {**_LLAMA, "intermediate_size": 4 * D, **_rope(1e4, partial_rotary_factor=0.25)},
            _HEADS,
            in_files=_gpt_neox_files,
        ),
        Family("gptj_6b", transformers.GPTJConfig, {"vocab_size": 50400}, {**_GPT, "rotary_dim": 2}, _HEADS),
        Family(
            "olmo2_7b",
            transformers.Olmo2Config,
            _llama(4096, 32, 32, 11008, vocab_size=100352, rms_norm_eps=1e-6, **_rope(5e5)),
            _OF_LLAMA,
            _WIDTH,
        ),
        Family(
            "qwen3_8b",
            transformers.Qwen3Config,
            _llama(4096, 36, 32, 12288, vocab_size=151936, num_key_value_heads=8, head_dim=128, **_rope(1e6)),
            {**_OF_GROUPS, "head_dim": 12},
            {**_GROUPS, f"{_MIXER}.head_width": 12},
        ),
        Family(
            "command_r",
            transformers.CohereConfig,
            {"vocab_size": 256000, **_rope(8e6)},
            _OF_LLAMA,
            _WIDTH,
        ),
        Family(
            "bloom_560m",
            transformers.BloomConfig,
            {"hidden_size": 1024, "n_layer": 24, "n_head": 16, "vocab_size": 250880},
            {"hidden_size": D, "n_layer": LAYERS, "n_head": 4, "vocab_size": V},
            _HEADS,
        ),
        Family(
            "mamba2_130m",
            transformers.Mamba2Config,
            _mamba2(768, 24),
            {
                "hidden_size": D,
                "num_hidden_layers": LAYERS,
                "head_dim": 16,
                "num_heads": 4,
                "state_size": 8,
                "chunk_size": 4,
                "vocab_size": V,
                "pad_token_id": 0,
                "bos_token_id": 0,
                "eos_token_id": 0,
            },
            {f"{_MIXER}.head_width": 16, f"{_MIXER}.state_size": 8, f"{_MIXER}.chunk": 4},
        ),
        Family(
            "recurrentgemma_2b",
            transformers.RecurrentGemmaConfig,
            {"intermediate_size": 15360, "num_key_value_heads": 1},
            {**_LLAMA, "intermediate_size": 2 * 48, "attention_window_size": WINDOW},
            {
                **_WIDTH,
                "model.blocks.attention.mixer.n_heads": 4,
                "model.blocks.attention.mixer.window": WINDOW,
                "model.embedding_scale": 5.65625,  # sqrt(D) in bfloat16
            },
            noise=0.75,  # its class takes 1 - a^2 from a rounded a, which gates that are nearly shut bring near 1
        ),
        Family(
            "mamba_130m",
            transformers.MambaConfig,
            _mamba(768, 24),
            {
                "hidden_size": D,
                "num_hidden_layers": LAYERS,
                "vocab_size": V,
                "pad_token_id": 0,
                "bos_token_id": 0,
                "eos_token_id": 0,
            },
            noise=0.75,  # a layer's output is of the fourth degree in its input, and rounding grows with it
        ),
        Family(
            "zamba2_1_2b",
            transformers.Zamba2Config,
            _zamba2(2048, 38, 64, 128),
            # its class bounds dt from below in a prompt and not in decoding; the published models do neither
            {
                **_LLAMA,
                **_zamba2(D, 7, 4, 8),
                "layers_block_type": ["linear_attention"] * 5 + ["hybrid"] * 2,
                "intermediate_size": 48,
                "adapter_rank": 3,
                "chunk_size": 4,
                "time_step_min": 1e-9,
            },
            {
                "model.depth": 7,
                "model.pattern": ["layer"] * 5 + ["hybrid"] * 2,
                "converter.again": [[f"model.layers.{i}.shared_transformer" for i in (5, 6)]],
                f"{_MIXER}.state_size": 8,
                f"{_MIXER}.head_width": 16,
                "model.blocks.hybrid.shared_mixer.n_heads": 4,
                "model.blocks.hybrid.shared_mixer.scale": 8**-0.5,
                "model.blocks.hybrid.shared_feed_forward.width": 48,
                "model.blocks.hybrid.adapter_rank": 3,
            },
            noise=0.7,
        ),
        Family(
            "xlstm_7b",
            transformers.xLSTMConfig,
            {},
            {
                "hidden_size": D,
                "embedding_dim": D,
                "num_hidden_layers": LAYERS,
                "num_blocks": LAYERS,
                "num_heads": 4,
                "vocab_size": V,
            },
            {f"{_MIXER}.n_heads": 4, f"{_MIXER}.key_width": 16, f"{_FEED_FORWARD}.width": 128},
        ),
        Family(
            "qwen3_next_dense",
            transformers.Qwen3NextConfig,
            {
                "intermediate_size": 5120,
                "mlp_only_layers": list(range(48)),
                "rms_norm_eps": 1e-6,
                **_rope(1e7, partial_rotary_factor=0.25),
            },
            _SMALL_QWEN3_NEXT,
            {**_OF_QWEN3_NEXT, f"{_FEED_FORWARD}.width": 48},
            noise=1.0,  # outputs are normalised head by head, which magnifies the rounding of small ones
        ),
        Family(
            "olmo_hybrid_7b",
            transformers.OlmoHybridConfig,
            _rope(None),
            {
                **_OF_LLAMA,
                "layer_types": ["linear_attention", "linear_attention", "full_attention"],
                **_linear_attention(4, 4, 6, 12),
            },
            {
                **_WIDTH,
                "model.pattern": ["delta", "delta", "layer"],
                "model.blocks.delta.mixer.n_heads": 4,
                "model.blocks.delta.mixer.key_width": 6,
                "model.blocks.delta.mixer.value_width": 12,
            },
            in_files=_olmo_hybrid_files,
        ),
        Family(
            "jamba_3b",
            transformers.JambaConfig,
            _jamba(2560, 28, 20, 8192),
            {**_LLAMA, **_jamba(D, LAYERS, 4, 48), "attn_layer_period": 3, "attn_layer_offset": 1},
            {
                "model.pattern": ["layer", "attention", "layer"],
                f"{_FEED_FORWARD}.width": 48,
                "model.blocks.attention.mixer.n_heads": 4,
            },
            noise=0.7,
        ),
        Family(
            "mixtral_8x7b",
            transformers.MixtralConfig,
            _rope(1e6),
            {**_OF_GROUPS, **_mixture("num_local_experts", 4, 2)},
            {**_OF_MIXTURES, f"{_FEED_FORWARD}.router.k": 2},
        ),
        Family(
            "olmoe_1b_7b",
            transformers.OlmoeConfig,
            {"intermediate_size": 1024},
            {**_OF_LLAMA, **_mixture("num_experts", 4, 3)},
            {**_OF_EXPERTS, f"{_FEED_FORWARD}.router.k": 3},
        ),
        Family(
            "qwen3_30b_a3b",
            transformers.Qwen3MoeConfig,
            {"num_hidden_layers": 48, "head_dim": 128, "norm_topk_prob": True, **_rope(1e6)},
            {**_OF_GROUPS, "head_dim": 12, "moe_intermediate_size": 48, **_mixture("num_experts", 4, 3)},
            {**_OF_MIXTURES, f"{_FEED_FORWARD}.router.k": 3, f"{_MIXER}.head_width": 12},
        ),
        Family(
            "gpt_oss_20b",
            transformers.GptOssConfig,
            {"num_hidden_layers": 24, "num_local_experts": 32},
            {**_OF_GROUPS, "head_dim": 16, "sliding_window": WINDOW, **_mixture("num_local_experts", 4, 3)},
            {
                **_OF_MIXTURES,
                f"{_FEED_FORWARD}.router.k": 3,
                f"{_MIXER}.head_width": 16,
                f"{_MIXER}.window": WINDOW,
            },
        ),
        Family(
            "deepseek_v3",
            transformers.DeepseekV3Config,
            _yarn(1e4, factor=40.0, original_max_position_embeddings=4096, mscale=1.0, mscale_all_dim=1.0),
            {
                **_OF_LLAMA,
                **_mixture("n_routed_experts", 8, 3),
                "moe_intermediate_size": 24,
                "first_k_dense_replace": 1,
                "n_group": 4,
                "topk_group": 2,
                "q_lora_rank": 12,
                "kv_lora_rank": 10,
                "qk_nope_head_dim": 16,
                "qk_rope_head_dim": 8,
                "v_head_dim": 12,
            },
            {
                **_HEADS,
                "model.pattern": ["dense", "layer", "layer"],
                f"{_MIXER}.head_width": 16,
                f"{_MIXER}.rotary_width": 8,
                f"{_MIXER}.value_width": 12,
                f"{_MIXER}.latent_width": 10,
                f"{_MIXER}.query_rank": 12,
                f"{_MIXER}.scale": (0.1 * math.log(40) + 1) ** 2 / 24**0.5,
                f"{_FEED_FORWARD}.n_experts": 8,
                f"{_FEED_FORWARD}.expert.width": 24,
                f"{_FEED_FORWARD}.shared.width": 24,
                f"{_FEED_FORWARD}.router.k": 3,
                f"{_FEED_FORWARD}.router.groups": 4,
                f"{_FEED_FORWARD}.router.groups_chosen": 2,
                "model.blocks.dense.feed_forward.width": 48,
            },
        ),
        Family(
            "qwen3_next_80b_a3b",
            transformers.Qwen3NextConfig,
            _rope(1e7, partial_rotary_factor=0.25),
            {
                **_SMALL_QWEN3_NEXT,
                **_mixture("num_experts", 8, 3),
                "moe_intermediate_size": 24,
                "shared_expert_intermediate_size": 40,
            },
            {
                **_OF_QWEN3_NEXT,
                f"{_FEED_FORWARD}.n_experts": 8,
                f"{_FEED_FORWARD}.expert.width": 24,
                f"{_FEED_FORWARD}.shared.width": 40,
                f"{_FEED_FORWARD}.router.k": 3,
            },
            noise=0.4,  # as of the dense one; experts magnify it again
        ),
        Family(
            "jamba_52b",
            transformers.JambaConfig,
            {},
            {
                **_LLAMA,
                "num_key_value_heads": 2,
                "attn_layer_period": 3,
                "attn_layer_offset": 2,
                **_mixture("num_experts", 4, 2),
            },
            {
                "model.pattern": ["layer", "sparse", "attention"],
                f"{_FEED_FORWARD}.width": 48,
                "model.blocks.sparse.feed_forward.n_experts": 4,
                "model.blocks.attention.mixer.n_heads": 4,
                "model.blocks.attention.mixer.n_kv_heads": 2,
            },
            noise=0.7,
        ),
    ]
}

#: Further sizes of these families: recipe -> whose, and its published configuration.
SIZES = {
    "gpt2_medium": ("gpt2", _gpt2(1024, 24, 16)),
    "gpt2_large": ("gpt2", _gpt2(1280, 36, 20)),
    "gpt2_xl": ("gpt2", _gpt2(1600, 48, 25)),
    "llama_13b": ("llama_7b", _llama(5120, 40, 40, 13824)),
    "llama_33b": ("llama_7b", _llama(6656, 60, 52, 17920)),
    "llama_65b": ("llama_7b", _llama(8192, 80, 64, 22016)),
    "llama2_70b": ("llama3_8b", _llama(8192, 80, 64, 28672, num_key_value_heads=8)),
    "mamba2_370m": ("mamba2_130m", _mamba2(1024, 48)),
    "mamba2_780m": ("mamba2_130m", _mamba2(1536, 48)),
    "mamba2_1_3b": ("mamba2_130m", _mamba2(2048, 48)),
    "mamba2_2_7b": ("mamba2_130m", _mamba2(2560, 64)),
    "mixtral_8x22b": (
        "mixtral_8x7b",
        {
            "hidden_size": 6144,
            "num_hidden_layers": 56,
            "num_attention_heads": 48,
            "intermediate_size": 16384,
            "vocab_size": 32768,
        },
    ),
    "gpt_oss_120b": ("gpt_oss_20b", {"num_hidden_layers": 36, "num_local_experts": 128}),
    "mamba_370m": ("mamba_130m", _mamba(1024, 48)),
    "mamba_790m": ("mamba_130m", _mamba(1536, 48)),
    "mamba_1_4b": ("mamba_130m", _mamba(2048, 48)),
    "mamba_2_8b": ("mamba_130m", _mamba(2560, 64)),
}

_SAMBA = ("421m", "1_3b")
_RWKV7 = ("0_1b", "0_4b", "1_5b", "2_9b")
#: Recipes at a published shape that `transformers` has no class of, and what makes each small.
SHAPES: dict[str, dict[str, Any]] = {
    "retnet_1_3b": _WIDTH,
    "gla_1_3b": _WIDTH,
    "based_360m": {
        f"{_FEED_FORWARD}.width": 48,
        "model.blocks.linear.mixer.n_heads": 4,
        "model.blocks.window.mixer.n_heads": 4,
        "model.pattern": ["layer", "linear", "window"],
    },
    "delta_net_1_3b": _WIDTH,
    "gated_delta_net_1_3b": _WIDTH,
    **{f"rwkv7_{size}": {f"{_MIXER}.head_width": 16, f"{_FEED_FORWARD}.width": 48} for size in _RWKV7},
    "sentiment_neuron": {f"{_MIXER}.width": 48},
    "s4_wikitext103": {f"{_FEED_FORWARD}.width": 48},
    **{f"samba_{size}": {f"{_FEED_FORWARD}.width": 48, "model.blocks.attention.mixer.n_heads": 4} for size in _SAMBA},
}
