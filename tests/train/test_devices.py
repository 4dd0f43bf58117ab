"""What a recipe's devices cannot do with it is said before anything is prepared, by `bakeoff check` too."""

import re

import pytest
import yaml
from bakeoff.cli.main import main
from bakeoff.errors import UserError
from bakeoff.train.devices import check_devices

EXPERTS = {
    "use": "mixture_of_experts",
    "n_experts": 3,
    "expert": {"use": "mlp", "width": 8},
    "router": {"use": "top_k", "k": 2},
}
FEED_FORWARD, ATTENTION = "model__blocks__layer__feed_forward", "model__blocks__layer__mixer"

#: Devices, strategy, other changes of the recipe, and what is said of it.
REFUSED = {
    "product": (2, {"use": "mesh", "shard": 4}, {}, r"shard 4 = 4 ranks, but the run has 2 processes"),
    "data": (4, {"use": "mesh", "data": 3}, {}, r"data 3 = 3 ranks, but the run has 4 processes"),
    "heads": (
        4,
        {"use": "mesh", "tensor": 4},
        {},
        r"blocks\.0\.mixer .*n_kv_heads is 2 and .*degree 4.*: 1, 2",
    ),
    "channels": (2, "mesh_tensor", {f"{FEED_FORWARD}__width": 15}, r"feed_forward \(MLP\): 15 .* 2 tensor ranks"),
    "experts": (
        2,
        {"use": "mesh", "expert": 2},
        {FEED_FORWARD: EXPERTS},
        r"3 experts .* 2 expert ranks; .*: 1, 3",
    ),
    "rows": (
        3,
        "mesh_fsdp",
        {},
        r"4 rows of 16, which do not divide over 3 ranks; nearest .*: 48 or 96",
    ),
    "rows_of_ddp": (3, "ddp", {}, r"is 4 rows of 16, which do not divide over 3 ranks"),
    "context": (
        2,
        {"use": "mesh", "context": 2},
        {ATTENTION: {"use": "lstm"}},
        r"context over 1 .* `context_parallel`: lstm \(layers 0, 1\); as mixer use one of attention, .*context: 1",
    ),
    "context_router": (
        2,
        {"use": "mesh", "context": 2},
        {FEED_FORWARD: {**EXPERTS, "router": {"use": "soft_mixture"}}, "data__isolate_documents": False},
        r"do not claim `context_parallel`: soft_mixture \(layers 0, 1\); as router use one of .*top_k",
    ),
    "context_op": (
        2,
        {"use": "mesh", "context": 2},
        {f"{ATTENTION}__op": {"use": "sdpa"}},
        r"claim `context_parallel`: sdpa \(layers 0, 1\); as attention_op use one of auto, blockwise, ring, ulysses",
    ),
    "op_of_context": (
        2,
        {"use": "mesh", "context": 2, "context_op": "banded"},
        {},
        r"context_op: banded does not compute over ranks; use one that does \(ring, ulysses\)",
    ),
    "no_op": (
        2,
        {"use": "mesh", "context": 2, "context_op": "rnig"},
        {},
        r"context_op: no attention_op is called 'rnig'; did you mean 'ring'\?",
    ),
    "context_heads": (
        4,
        {"use": "mesh", "context": 4, "context_op": "ulysses"},
        {},
        r"blocks\.0\.mixer\.op: ulysses .* over 4 ranks, and n_kv_heads is 2; .* 1, 2 would do, or op ring",
    ),
    "context_heads_left": (
        4,
        {"use": "mesh", "context": 2, "tensor": 2, "context_op": "ulysses"},
        {},
        r"over 2 ranks, and n_kv_heads is 2, of which each of 2 tensor ranks has 1;",
    ),
    "short": (
        9,
        {"use": "mesh", "context": 9},
        {},
        r"data\.length: a sequence of 16 tokens is shared out over 9 ranks, which is 18 spans .* at least 1 token",
    ),
    "short_contiguous": (
        17,
        {"use": "mesh", "context": 17, "context_order": "contiguous"},
        {},
        r"data\.length: a sequence of 16 tokens is shared out over 17 ranks \(contiguous\)",
    ),
    "order": (
        2,
        {"use": "mesh", "context": 2, "context_order": "zigzga"},
        {},
        r"context_order .*takes one of .* not .zigzga.*; did you mean 'zigzag'\?",
    ),
    "context_of_fsdp": (2, {"use": "mesh_fsdp", "context": 2}, {}, r"mesh_fsdp has no argument 'context'"),
    "states_of_context": (
        2,
        {"use": "mesh", "context": 2},
        {ATTENTION: {"use": "linear_attention", "n_heads": 2}, "trainer__stateful": True},
        r"trainer\.stateful carries states from step to step, which a mesh does not",
    ),
    "unclaimed": (
        2,
        "mesh_tensor",
        {ATTENTION: {"use": "lstm"}},
        r"no `tensor_parallel`: LSTM \(layers 0, 1\)",
    ),
    "states": (
        2,
        "mesh_fsdp",
        {ATTENTION: {"use": "linear_attention", "n_heads": 2}, "trainer__stateful": True},
        r"trainer\.stateful carries states from step to step, which a mesh does not",
    ),
    "pipeline": (2, {"use": "mesh", "pipeline": 2}, {}, r"there is no pipeline parallelism"),
    "dimension": (2, {"use": "mesh", "tensr": 2}, {}, r"mesh has no argument 'tensr'; did you mean 'tensor'\?"),
    "none": (2, {"use": "mesh", "shard": 0}, {}, r"trainer\.strategy\.shard is 0; it must be at least 1"),
    "16-mixed": (2, "mesh_fsdp", {"trainer__precision": "16-mixed"}, r"trainer\.precision: 16-mixed scales gradients"),
    "adafactor": (
        2,
        "mesh_fsdp",
        {"optimizer": {"use": "torch.optim.Adafactor", "lr": 0.01}},
        r"Adafactor does not update each element by itself, and backbone\.embed\.weight and \d+ more are cut",
    ),
    "tokens": (
        2,
        {"use": "mesh", "shard": 2, "sequence_parallel": True},
        {},
        r"sequence_parallel needs ranks along tensor",
    ),
    "offload": (2, {"use": "mesh", "tensor": 2, "cpu_offload": True}, {}, r"cpu_offload needs ranks along shard"),
    "name": (
        2,
        "mesh_tenso",
        {},
        r"is called 'mesh_tenso'; there are mesh, .*did you mean 'mesh_tensor'\?",
    ),
    "lightnings": (2, "dpp", {}, r"no strategy is called 'dpp'; .*did you mean 'ddp'\?"),
}


@pytest.fixture
def refused(tiny):
    """`refused(name)`: the recipe of a case, and what is said of it."""

    def make(name):
        devices, strategy, changes, told = REFUSED[name]
        return tiny(trainer__devices=devices, trainer__strategy=strategy, trainer__accelerator="cpu", **changes), told

    return make


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_laid_out_is_refused(refused, name):
    recipe, told = refused(name)
    with pytest.raises(UserError, match=told) as caught:
        check_devices(recipe, recipe.demands())
    assert str(caught.value).count("\n") <= 3


def test_check_says_the_same_as_fit(refused, tmp_path, capsys):
    recipe, told = refused("heads")
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(recipe.saved()))
    for words in (["check", str(path)], ["fit", str(path), "--folder", str(tmp_path / "run")]):
        assert main(words) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("bakeoff: ")]
        assert re.search(told, line)
    assert not (tmp_path / "run").exists()
