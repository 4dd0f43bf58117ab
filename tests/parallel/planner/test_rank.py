"""Layouts of a small transformer: memory, traffic, time and order by hand."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces import LayerContext, Result, SequenceMixer
from bakeoff.model import LanguageModel
from bakeoff.model.devices import Accelerator
from bakeoff.parallel.mesh import Sizes
from bakeoff.parallel.planner.counting import Kept
from bakeoff.parallel.planner.estimate import Job, estimate, share
from bakeoff.parallel.planner.layouts import layouts
from bakeoff.parallel.planner.rank import rank
from bakeoff.parallel.planner.stages import Weights, kv_share, stages, takes_context, weights
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.attention.sdpa import SDPA
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP

D, T, V = 64, 32, 101
#: Operations, bytes and links of round numbers.
DEVICE = Accelerator("toy", "Toy", "toy", 1000.0, 10_000.0, 100.0, 10.0, 1.0, 4, "made up")


GROUPED = partial(Attention, n_heads=4, n_kv_heads=2)


def build(mixer: Any = GROUPED) -> LanguageModel:
    def block(context: LayerContext) -> PreNorm:
        return PreNorm(context, mixer=mixer, feed_forward=MLP)

    def backbone(context: LayerContext) -> Decoder:
        return Decoder(context, depth=2, pattern=["layer"], blocks={"layer": block})

    with torch.device("meta"):
        return LanguageModel(d_model=D, vocab_size=V, max_length=T, backbone=backbone)


def test_what_a_tensor_rank_holds():
    # table and final norm; Q and O D^2 each, K and V D^2 / 2 each, MLP 8 D^2, two norms; the tied head nothing
    assert weights(build(), 1) == [Weights(V * D + D), *[Weights(11 * D * D + 2 * D)] * 2, Weights()]
    # of 101 rows the first of two ranks has 51; norms stand whole, outside of split parts
    assert weights(build(), 2) == [Weights(51 * D + D), *[Weights(11 * D * D // 2 + 2 * D)] * 2, Weights()]


def test_norms_of_heads_stand_whole_inside_split_parts():
    model = build(partial(Attention, n_heads=4, qk_norm="head"))
    assert weights(model, 2)[1].partial == 2 * 16
    assert weights(model, 1)[1].partial == 0


def test_what_cannot_be_split_is_refused_with_its_reason():
    with pytest.raises(ValueError, match="n_kv_heads is 2 and the mesh's tensor degree 4"):
        weights(build(), 4)

    class Still(SequenceMixer):
        def forward(self, x: Any, sequence: Any, state: Any = None) -> Result:
            return Result(x)

    with pytest.raises(CapabilityError, match="Still"):
        weights(build(Still), 2)


def test_work_of_the_stages():
    before, block, _, head = stages(build(), T)
    pairs = T * (T + 1) // 2
    assert (before.split_flops, before.whole_flops, before.parts) == (0, 0, 0)
    assert block.split_flops == 2 * 11 * D * D * T + 4 * D * pairs
    assert (block.whole_flops, block.parts, block.choices) == (0, 2, 0)
    assert block.passed == 2 * D // 2  # keys and values of half as many heads
    assert head.split_flops == 2 * D * V * T


def test_grouped_heads_are_told_from_what_parts_declare():
    assert kv_share(build(), T) == 2 / 4
    assert kv_share(build(partial(Attention, n_heads=4)), T) == 1
    assert kv_share(build(partial(Attention, n_heads=4, window=8)), T) is None


def test_whether_ranks_may_share_out_rows():
    assert takes_context(build())
    assert not takes_context(build(partial(Attention, n_heads=4, op=SDPA)))


def test_shares_of_activations():
    # Korthikanti et al., equation 2 and 4: 10 + 24 / t; of the 10, what the two parts are given, 4, is gathered here
    kept = Kept(whole=1000, split=2400, gathered=400, working=3400)
    assert share(kept, Sizes(tensor=8))[:2] == (1000, 300)
    assert share(kept, Sizes(tensor=8), sequence_parallel=True)[:2] == (600 / 8 + 400, 300)
    assert share(kept, Sizes(context=2))[:2] == (500, 1200)
    assert share(kept, Sizes(tensor=8)).working == 1000 + 300


def job(modes: tuple[str, ...] = ("none", "full"), kept: int = 100) -> Job:
    """Table of 10 elements, two blocks of 100, head of 10, in 4 bytes, products in 2; Adam."""
    model = build()

    def held(tensor: int) -> list[Weights]:
        if tensor > 2:
            raise ValueError("2 heads")
        return [Weights(10), *[Weights(100 // tensor)] * 2, Weights(10)]

    def activations(rows: int, mode: str) -> list[Kept]:
        return [Kept(), *[Kept(whole=rows * (kept if mode == "none" else 10))] * 2, Kept()]

    return Job(
        stages=stages(model, T),
        weights=held,
        kept=activations,
        rows=lambda ranks: (8 // ranks, 1),
        length=T,
        width=D,
        own=4,
        computing=2,
        optimizer=2.0,
        updating=0.0,
        modes=modes,
    )


def test_memory_by_hand():
    whole = estimate(job(), Sizes(data=4), "none", DEVICE, 4)
    # 220 elements of 4 bytes; 2 rows keep 400; backward: 400 + 40, 400 + 440, 200 + 840, 880: no more than 1040; to add
    # up, the gradients of 880 bytes pass through a bucket
    assert whole.memory == (880, 880, 1760, 880)
    # alone, 8 rows keep 1600, and the head and the last block have gradients of 440
    assert estimate(job(), Sizes(), "none", DEVICE, 4).memory == (880, 880, 1760, 1600 + 440 - 880)
    # a quarter; root 2 x 4 x 20 whole for the step, one block in 2 bytes thrice and its gradient in 4: 1000
    sharded = estimate(job(), Sizes(shard=4), "none", DEVICE, 4)
    assert sharded.memory[:3] == (220, 220, 440)
    assert sharded.memory.activations == 400 + 110 + 160 + 1000 - 220


def test_bytes_by_hand():
    sent = {flow.dimension: sum(flow.sent) for flow in estimate(job(), Sizes(data=4), "none", DEVICE, 4).flows}
    assert sent == {"data": 2 * 3 / 4 * 880}
    sent = {flow.dimension: sum(flow.sent) for flow in estimate(job(), Sizes(shard=4), "none", DEVICE, 4).flows}
    # gathered: root 80 bytes once, blocks 400 twice; scattered: 880
    assert sent == {"shard": 3 / 4 * (80 + 2 * 400 + 880)}
    sent = {flow.dimension: sum(flow.sent) for flow in estimate(job(), Sizes(tensor=2), "none", DEVICE, 4).flows}
    # 8 rows: g of two parts of two blocks and of the table in 2 bytes, f of the parts and of the head in 4
    assert sent == {"tensor": 2 * 1 / 2 * 8 * T * D * 5 * (2 + 4)}


def test_time_by_hand():
    one = estimate(job(), Sizes(), "none", DEVICE, 4)
    work = 3 * 8 * job().forward_flops
    assert one.compute == work / 1000
    assert one.update == (2 * 1760 + 2 * 880 + 880) / 100
    assert one.step == one.compute + one.update
    assert one.mfu == work / (one.step * 1000)
    split = estimate(job(), Sizes(tensor=2), "none", DEVICE, 4)
    assert split.compute == one.compute / 2  # all parts split
    assert split.step == pytest.approx(split.compute + split.flows[0].seconds + split.update)  # f and g are awaited
    hidden = estimate(job(), Sizes(data=2), "none", DEVICE, 4)
    assert hidden.ratio(hidden.flows[0]) > 1
    assert hidden.step == hidden.compute + hidden.update


def test_full_recomputation_does_the_blocks_once_more():
    plain, again = (estimate(job(), Sizes(), mode, DEVICE, 4) for mode in ("none", "full"))
    blocks = sum(stage.split_flops for stage in job().stages[1:-1])
    assert again.compute - plain.compute == pytest.approx(8 * blocks / 1000)
    assert again.mfu < plain.mfu


def test_a_dimension_over_nodes_takes_the_slower_link():
    near, far = (estimate(job(), Sizes(data=2), "none", DEVICE, per_node).flows[0] for per_node in (2, 1))
    assert sum(near.sent) == sum(far.sent)
    assert (near.sent.between, far.sent.inside) == (0, 0)
    assert far.seconds == 10 * near.seconds


def test_what_fits_is_ranked_and_the_rest_is_told_apart():
    ranking = rank(job(), list(layouts(4)), DEVICE, 4)
    assert [one.reason for one in ranking.refused] == ["2 heads"]
    assert len(ranking.fitting) == 5
    assert [one.mfu for one in ranking.fitting] == sorted((one.mfu for one in ranking.fitting), reverse=True)
    assert {one.recompute for one in ranking.fitting} == {"none"}
    none = rank(job(), list(layouts(4)), DEVICE._replace(memory=100.0), 4)
    assert not none.fitting
    assert [one.memory.total for one in none.too_large] == sorted(one.memory.total for one in none.too_large)


def test_blocks_are_recomputed_where_nothing_else_fits():
    large = partial(job, kept=4000)
    assert rank(large(), [Sizes()], DEVICE, 4).fitting[0].recompute == "full"
    assert rank(large(modes=("none",)), [Sizes()], DEVICE, 4).fitting == []


def test_rows_that_fit():
    one = estimate(job(kept=1000), Sizes(data=8), "none", DEVICE, 8)
    assert one.rows == 1
    more = one.rows_that_fit(one.memory.total + 2 * one.memory.activations)
    assert more == 3
