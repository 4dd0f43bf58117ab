"""Recipes at published shapes have exactly the published numbers of parameters, and name every weight."""

import bakeoff
import pytest
import torch
from bakeoff.model.cost import count_parameters

from . import published

#: Published, or counted by the authors' code.
COUNTS = {
    "gpt2": 124_439_808,
    "gpt2_medium": 354_823_168,
    "gpt2_large": 774_030_080,
    "gpt2_xl": 1_557_611_200,
    "llama_7b": 6_738_415_616,
    "llama_13b": 13_015_864_320,
    "llama_33b": 32_528_943_616,
    "llama_65b": 65_285_660_672,
    "llama2_70b": 68_976_648_192,
    "llama3_8b": 8_030_261_248,
    "mistral_7b": 7_241_732_096,
    "mamba2_130m": 128_989_632,
    "mamba2_370m": 368_346_624,
    "mamba2_780m": 780_161_280,
    "mamba2_1_3b": 1_343_757_312,
    "mamba2_2_7b": 2_702_599_680,
    "recurrentgemma_2b": 2_682_862_080,
    "mamba_130m": 129_135_360,
    "mamba_370m": 371_516_416,
    "mamba_790m": 793_204_224,
    "mamba_1_4b": 1_372_178_432,
    "mamba_2_8b": 2_768_345_600,
    "zamba2_1_2b": 1_215_064_704,
    "xlstm_7b": 6_865_424_896,
    # counted by hand: of a layer retention 8 d^2 and feed-forward 4 d^2 (as the paper says), two layer norms
    "retnet_1_3b": 24 * (12 * 2048**2 + 4 * 2048) + 2 * 2048 + 50257 * 2048,
    # q and k; v, gate and output; the low-rank gate; the norm of a head; feed-forward; norms
    "gla_1_3b": 24 * (2 * 2048 * 1024 + 3 * 2048**2 + 2048 * 16 + 17 * 1024 + 512 + 3 * 2048 * 5632 + 2 * 2048)
    + 2048
    + 2 * 32000 * 2048,
    # 27 feed-forwards and norms; 17 convolutions, 5 layers of linear attention with 256 channels of q and k, 5 windows
    "based_360m": 27 * (6 * 1024**2 + 2 * 1024)
    + 17 * (6 * 1024**2 + 4 * 1024 + 3 * 2048 + 1024)
    + 5 * (2 * 1024 * 256 + 2 * 1024**2 + 4 * 1024**2)
    + 1024
    + 50280 * 1024,
    # q, k, v and output; beta; convolutions; the norm of a head; feed-forward; norms
    "delta_net_1_3b": 24 * (4 * 2048**2 + 2048 * 16 + 3 * 2048 * 4 + 128 + 3 * 2048 * 5632 + 2 * 2048)
    + 2048
    + 2 * 32000 * 2048,
    # q and k of 1536; v, gate and output of 3072; beta and decay of 6 heads with A and dt; as above
    "gated_delta_net_1_3b": 21
    * (2 * 2048 * 1536 + 3 * 2048 * 3072 + 12 * 2048 + 12 + 6144 * 4 + 512 + 3 * 2048 * 5632 + 2 * 2048)
    + 2048
    + 2 * 32000 * 2048,
    # the paper's table
    "rwkv7_0_1b": 191_034_624,
    "rwkv7_0_4b": 450_767_872,
    "rwkv7_1_5b": 1_527_404_544,
    "rwkv7_2_9b": 2_947_735_040,
    "jamba_3b": 3_029_337_472,
    "mixtral_8x7b": 46_702_792_704,
    "mixtral_8x22b": 140_630_071_296,
    "olmoe_1b_7b": 6_919_161_856,
    "qwen3_30b_a3b": 30_532_122_624,
    "gpt_oss_20b": 20_914_757_184,
    "gpt_oss_120b": 116_829_156_672,
    "deepseek_v3": 671_026_404_352,
    "qwen3_next_80b_a3b": 79_674_391_296,
    "jamba_52b": 51_570_323_328,
    "samba_421m": 421_793_280,
    "samba_1_3b": 1_330_207_488,
}


#: Of these, what one token uses.
ACTIVE = {
    "mixtral_8x7b": 12_879_925_248,
    "mixtral_8x22b": 39_161_468_928,
    "olmoe_1b_7b": 6_919_161_856 - 16 * 56 * 3 * 2048 * 1024,
    "qwen3_30b_a3b": 30_532_122_624 - 48 * 120 * 3 * 2048 * 768,
    # 3.61 B and 5.13 B as published, without the embedding
    "gpt_oss_20b": 20_914_757_184 - 24 * 28 * (3 * 2880**2 + 3 * 2880),
    "gpt_oss_120b": 116_829_156_672 - 36 * 124 * (3 * 2880**2 + 3 * 2880),
    "deepseek_v3": 37_552_282_624,
    "qwen3_next_80b_a3b": 79_674_391_296 - 48 * 502 * 3 * 2048 * 512,
    "jamba_52b": 51_570_323_328 - 16 * 14 * 3 * 4096 * 14336,
}


def meta(name):
    recipe = bakeoff.recipe(published.MODELS / f"{name}.yaml")
    with torch.device("meta"):
        return recipe, recipe.build("model", vocab_size=1)


@pytest.mark.parametrize("name", COUNTS)
def test_published_count(name):
    _, model = meta(name)
    assert sum(parameter.numel() for parameter in model.parameters()) == COUNTS[name]


@pytest.mark.parametrize("name", ACTIVE)
def test_published_count_of_what_a_token_uses(name):
    assert count_parameters(meta(name)[1]).active == ACTIVE[name]


@pytest.mark.parametrize("name", [*published.FAMILIES, *published.SIZES])
def test_weights_are_those_of_transformers_name_by_name(name):
    of, size = published.SIZES.get(name, (name, {}))
    with torch.device("meta"):
        theirs = published.FAMILIES[of].model(size)
    recipe, model = meta(name)
    converted = recipe.build("converter").to_theirs(model)
    expected = published.FAMILIES[of].names(theirs, theirs.state_dict())
    assert {k: v.shape for k, v in converted.items()} == {k: v.shape for k, v in expected.items()}
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_every_recipe_that_reads_published_weights_is_held_against_them():
    converters = {p.stem: bakeoff.recipe(p).tree["converter"] for p in published.MODELS.glob("*.yaml")}
    claimed = {name for name, node in converters.items() if node is not None and node["use"] == "name_map"}
    assert claimed == {*published.FAMILIES, *published.SIZES}
