"""Our models and their peers in the families that are raced; a library is imported only where it is asked for."""

from __future__ import annotations

import importlib.util
from typing import Any

import torch

from benchmarks.common import families
from benchmarks.common.candidate import Candidate, Shape, of_logits, of_recipe, of_transformers
from benchmarks.gpu.cases import SHAPES, WINDOWS, Case

_STATE = 128


def missing(case: Case) -> str | None:
    """Why a candidate cannot be built here, before its process is started."""
    library, _, how = case.candidate.partition(" ")
    needed = [] if library in ("bakeoff", "grouped") or case.what in ("laws", "bf16") else [library]
    needed += ["flash_attn"] if how == "flash_attention_2" else []
    absent = [name for name in needed if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else None


def recipe(case: Case) -> Any:
    """Ours."""
    shape, T = shape_of(case), case.length
    make = {
        "attention": lambda: families.llama(shape, T),
        "window": lambda: families.llama(shape, T, window=_window(case)),
        "mamba2": lambda: families.mamba2(shape, T, _STATE),
        "gated_delta_net": lambda: families.gated_delta_net(shape, T),
        "griffin": lambda: families.griffin(shape, T, _window(case)),
        "experts": lambda: families.llama(shape, T, feed_forward=families.experts(shape)),
    }
    return make[case.family]()


def shape_of(case: Case) -> Shape:
    """The case's; of Mamba-2, which has no feed-forwards, twice as deep."""
    shape = SHAPES[case.shape]
    return shape._replace(depth=2 * shape.depth) if case.family == "mamba2" else shape


def _window(case: Case) -> int:
    return WINDOWS.get(case.length, 64)


def flops(case: Case) -> int:
    """Mathematical operations of one row's forward pass: our model's own count, for every candidate of its shape."""
    with torch.device("meta"):
        model = recipe(case).build("model", vocab_size=shape_of(case).vocabulary, max_length=case.length)
    return model.flops(case.length, case.length)


def build(case: Case, device: str) -> Candidate:
    """The case's model, float32, on the device."""
    library, _, how = case.candidate.partition(" ")
    if library == "bakeoff":
        return of_recipe(recipe(case), shape_of(case), 2 * case.length, device)
    if library == "transformers":
        return _transformers(case, how, device)
    with torch.device(device):
        return _mamba_ssm(case) if library == "mamba_ssm" else _fla(case)


def _transformers(case: Case, how: str, device: str) -> Candidate:
    shape = shape_of(case)
    name, config = {
        "attention": ("Llama", families.llama_config(shape)),
        "window": ("Mistral", families.llama_config(shape, sliding_window=_window(case))),
        "mamba2": ("Mamba2", families.mamba2_config(shape, _STATE)),
        "gated_delta_net": ("Qwen3Next", families.gated_delta_net_config(shape)),
        "griffin": ("RecurrentGemma", families.griffin_config(shape, _window(case))),
        "experts": ("Mixtral", families.mixtral_config(shape)),
    }[case.family]
    if not how:
        return of_transformers(name, config, shape, device)
    which = "experts_implementation" if case.family == "experts" else "attn_implementation"
    return of_transformers(name, config, shape, device, **{which: how})


def _mamba_ssm(case: Case) -> Candidate:
    """The authors' own Mamba-2, its norms fused with the residual sums."""
    from mamba_ssm.models.config_mamba import MambaConfig
    from mamba_ssm.models.mixer_seq_simple import MambaLMHeadModel

    shape = shape_of(case)
    config = MambaConfig(
        d_model=shape.width,
        n_layer=shape.depth,
        vocab_size=shape.vocabulary,
        ssm_cfg={"layer": "Mamba2", "d_state": _STATE, "headdim": 64},
        tie_embeddings=False,
    )
    model = MambaLMHeadModel(config)

    def generate(prompts: torch.Tensor, new: int) -> Any:
        return model.generate(input_ids=prompts, max_length=prompts.shape[1] + new, cg=True)

    return of_logits(model, lambda ids: model(ids).logits)._replace(generate=generate)


def _fla(case: Case) -> Candidate:
    """Of flash-linear-attention, with its own fused loss; its last token has no target."""
    from fla import models

    shape = shape_of(case)
    common = {
        "hidden_size": shape.width,
        "num_hidden_layers": shape.depth,
        "vocab_size": shape.vocabulary,
        "tie_word_embeddings": False,
        "pad_token_id": 0,
        "eos_token_id": None,
    }
    if case.family == "mamba2":
        heads = {"num_heads": 2 * shape.width // 64, "head_dim": 64, "state_size": _STATE}
        model = models.Mamba2ForCausalLM(models.Mamba2Config(**common, **heads, n_groups=1))
    else:
        heads = {"num_heads": shape.heads, "head_dim": shape.head_width, "expand_v": 1.0}
        feed_forward = {"intermediate_size": shape.hidden}
        model = models.GatedDeltaNetForCausalLM(models.GatedDeltaNetConfig(**common, **heads, **feed_forward))

    def loss(ids: torch.Tensor) -> torch.Tensor:
        return model(input_ids=ids[:, :-1], labels=ids[:, :-1], use_cache=False).loss

    return of_logits(model, lambda ids: model(input_ids=ids, use_cache=False).logits)._replace(loss=loss)
