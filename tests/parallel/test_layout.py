"""Models on meshes: their values and gradients are those of one process."""

import math
from pathlib import Path

import pytest
from bakeoff.data import Data
from bakeoff.parts.corpora.text_files import TextFiles
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff.testing.ranks import shared_ranks

CASES = Path(__file__).with_name("cases_of_layout.py")
ATTENTION = {"use": "attention", "n_heads": 4, "qk_norm": "head", "position": {"use": "rope"}}
GPT = {"layer": {"use": "pre_norm", "mixer": ATTENTION, "feed_forward": {"use": "gated_mlp", "width": 24}}}


EXPERTS = {"use": "mixture_of_experts", "router": {"use": "top_k", "k": 2}, "n_experts": 8}
MIXTURE = {"layer": {**GPT["layer"], "feed_forward": {**EXPERTS, "expert": {"use": "gated_mlp", "width": 8}}}}


def named(sizes):
    return "_".join(f"{name}{size}" for name, size in sizes.items())


def run(sizes, blocks, **more):
    shared_ranks(math.prod(sizes.values())).run(CASES, "step_equals_one_process", sizes=sizes, blocks=blocks, **more)


@pytest.mark.parametrize(
    "sizes",
    [
        {"data": 2},
        {"shard": 2},
        {"tensor": 2},
        {"data": 2, "shard": 2},
        {"data": 2, "tensor": 2},
        {"shard": 2, "tensor": 2},
        {"shard": 4},
    ],
    ids=named,
)
def test_a_step_is_that_of_one_process(sizes):
    run(sizes, GPT)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ({"context": 2}, {}),
        ({"context": 4}, {"context_order": "contiguous"}),
        ({"data": 2, "context": 2}, {}),
        ({"context": 2, "tensor": 2}, {"context_op": "ulysses"}),
        ({"context": 2, "tensor": 2}, {"sequence_parallel": True, "context_order": "contiguous"}),
        ({"shard": 2, "context": 2}, {}),
    ],
    ids=str,
)
def test_a_step_of_shared_rows_is_that_of_one_process(sizes, options):
    run(sizes, GPT, options=options)


@pytest.mark.parametrize(
    "sizes",
    [{"expert": 2}, {"data": 2, "expert": 2}, {"expert": 2, "shard": 2}, {"expert": 2, "context": 2}],
    ids=named,
)
def test_a_step_of_experts_is_that_of_one_process(sizes):
    run(sizes, MIXTURE)


@pytest.mark.parametrize("sizes", [{"shard": 2}, {"tensor": 2}, {"shard": 2, "tensor": 2}], ids=named)
def test_an_embedding_that_is_tied_stays_so(sizes, tmp_path):
    folder = str(tmp_path / "kept")
    shared_ranks(math.prod(sizes.values())).run(CASES, "tied_after_a_step", sizes=sizes, folder=folder)


@pytest.mark.parametrize(
    "sizes",
    [{"shard": 2}, {"tensor": 2}, {"data": 2, "shard": 2}, {"shard": 2, "tensor": 2}, {"data": 2, "expert": 2}],
    ids=named,
)
def test_the_rows_of_a_step_do_not_depend_on_the_layout(sizes, tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(20):
        words = " ".join(str(number * word) for word in range(1, 40))
        (tmp_path / "texts" / f"{number}.txt").write_text(words)
    corpus = TextFiles(path=str(tmp_path / "texts"))
    data = Data(corpus=corpus, tokenizer=ByteTokenizer(), length=4, batch_tokens=64, cache=str(tmp_path / "cache"))
    data.prepare(progress=False)
    shared_ranks(math.prod(sizes.values())).run(CASES, "rows_of_each_step", sizes=sizes, folder=str(tmp_path))


def test_a_step_whose_tokens_are_shared_out():
    run({"shard": 2, "tensor": 2}, GPT, options={"sequence_parallel": True, "reshard": False}, tied_embedding=False)


def test_shards_in_the_memory_of_the_host():
    run({"shard": 2, "data": 2}, GPT, options={"offload": True})
