"""The formulas against the numbers that the papers print, or that follow from them by hand."""

from __future__ import annotations

import pytest
from bakeoff.errors import UserError
from bakeoff.model.devices import ACCELERATORS, accelerator
from bakeoff.parallel.mesh import Sizes
from bakeoff.parallel.planner import ring, traffic
from bakeoff.parallel.planner.layouts import layouts, on_node, over_links
from bakeoff.parallel.planner.memory import (
    block_activations,
    constant_part,
    peak,
    selective_overhead,
    selective_saving,
    zero_bytes,
)

GPT_3 = {"width": 12288, "heads": 96}  # 175 B
MT_NLG = {"width": 20480, "heads": 128}  # 530 B


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.40625), (2, 16.640625), (3, 1.875)])
def test_zero(stage: int, gigabytes: float):
    # Rajbhandari et al., figure 1: 7.5 G parameters on 64 ranks, 120, 31.4, 16.6 and 1.9 GB
    assert zero_bytes(7.5e9, 64, stage) == gigabytes * 1e9


def test_what_selective_recomputation_saves_and_costs():
    # Korthikanti et al., section 5: 70 % and 65 % of activations for 2.7 % and 1.6 % of FLOPs
    assert f"{selective_saving(2048, **GPT_3):.2%}" == "70.18%"
    assert f"{selective_saving(2048, **MT_NLG):.2%}" == "65.31%"
    assert f"{selective_overhead(2048, 12288):.2%}" == "2.78%"
    assert f"{selective_overhead(2048, 20480):.2%}" == "1.67%"


def test_activations_of_a_block():
    assert f"{block_activations(1, 2048, **GPT_3) / 2**30:.3f}" == "2.672"
    assert f"{block_activations(1, 2048, **MT_NLG) / 2**30:.3f}" == "3.828"
    # s = 4096, a = 32, h = 4096, 32 blocks: 34 + 5 * 32 = 194 bytes a token and channel
    assert 32 * block_activations(1, 4096, 4096, 32) == 104_152_956_928
    assert block_activations(2, 4096, 4096, 32, recompute="full") == 2 * 2 * 4096 * 4096
    assert block_activations(1, 4096, 4096, 32, tensor=8, sequence_parallel=True) * 8 == block_activations(
        1, 4096, 4096, 32
    )


def test_the_part_that_does_not_grow_with_the_scores():
    assert (constant_part(), constant_part(8), constant_part(8, sequence_parallel=True)) == (34, 13, 4.25)
    selective = block_activations(1, 2048, **GPT_3, tensor=8, recompute="selective")
    assert selective == 13 * 2048 * 12288


@pytest.mark.parametrize(
    ("flops", "bandwidth", "block", "sequence"),
    [
        (312e12, 300e9, 1.0, 6.2),  # A100, NVLink
        (123e12, 112e9, 1.1, 6.6),  # TPU v3
        (275e12, 268e9, 1.0, 6.2),  # TPU v4
        (196e12, 186e9, 1.1, 6.3),  # TPU v5e
    ],
)
def test_the_smallest_ring_block(flops: float, bandwidth: float, block: float, sequence: float):
    # Liu et al., table 2, in thousands of tokens
    assert round(ring.smallest_block(flops, bandwidth) / 1e3, 1) == block
    assert round(ring.smallest_sequence(flops, bandwidth) / 1e3, 1) == sequence


def test_the_smallest_ring_block_by_hand():
    # between nodes F / B = 312e12 / 12.5e9 (the table prints 24.5 and 149.5 thousand, which no F / B gives)
    assert ring.smallest_block(312e12, 12.5e9) == 24_960
    assert ring.smallest_sequence(312e12, 12.5e9) == 149_760
    # 8 key-value heads of 32: a quarter is sent
    assert ring.smallest_block(312e12, 12.5e9, kv_share=8 / 32) == 6_240


@pytest.mark.parametrize(
    ("ranks", "blockwise", "longest"),
    [
        (8, (64, 32, 16), (512, 256, 128)),  # 8 A100: 3, 7, 13 B
        (32, (128, 64), (4096, 2048)),  # 32 A100: 7, 13 B
        (256, (8,), (2048,)),  # TPU v3-512: 7 B
        (128, (8,), (1024,)),  # TPU v3-512: 13 B
        (512, (32, 16), (16384, 8192)),  # TPU v4-1024: 3, 7 B
        (256, (16, 8), (4096, 2048)),  # TPU v4-1024: 13, 30 B
        (128, (32, 16), (4096, 2048)),  # TPU v5e-256: 3, 7 B
    ],
)
def test_the_longest_context(ranks: int, blockwise: tuple[int, ...], longest: tuple[int, ...]):
    # Liu et al., table 3, thousands of tokens: blockwise on one device, and on a ring
    assert tuple(ring.longest_context(one, ranks) for one in blockwise) == longest


def test_ring_attention_sends_keys_and_values_to_all_others():
    # 4 ranks, 2 rows, 128 tokens, 3 heads of 64, 2 bytes: 3 times a block of keys and one of values
    assert ring.forward_bytes(4, 2, 128, 3 * 64) == 2 * 3 * 2 * 128 * 192 * 2


def test_the_backward_of_ring_attention_sends_blocks_and_their_gradients():
    # 4 ranks, 2 rows, 128 tokens, 3 heads of 64: keys and values in 2 bytes or 4, and of each a gradient in 4
    assert ring.backward_bytes(4, 2, 128, 3 * 64) == 3 * 2 * 128 * 192 * (2 + 2 + 4 + 4)
    assert ring.backward_bytes(4, 2, 128, 3 * 64, 4) == 3 * 2 * 128 * 192 * (4 + 4 + 4 + 4)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_collectives_of_a_ring(ranks: int):
    size = 24.0
    assert traffic.all_reduce(size, ranks) == pytest.approx(2 * (ranks - 1) / ranks * size, rel=1e-15)
    scattered = traffic.reduce_scatter(size, ranks) + traffic.all_gather(size, ranks)
    assert scattered == traffic.all_reduce(size, ranks)


def test_a_split_block_adds_up_twice_forward_and_twice_backward():
    size = 4 * 128 * 64 * 2.0  # b s h in 2 bytes
    plain = traffic.tensor_parallel(size, 4, parts=2)
    assert plain == 4 * 2 * 3 / 4 * size
    assert traffic.tensor_parallel(size, 4, parts=2, sequence_parallel=True) == plain
    assert traffic.tensor_parallel(size, 4, parts=2, forwards=2) == plain * 6 / 4


def test_full_sharding_sends_half_as_much_again_as_data_parallelism():
    assert traffic.fully_sharded(100.0, 100.0, 5) == 1.5 * traffic.all_reduce(100.0, 5) == 240


def test_tokens_go_to_experts_and_back():
    # 10 tokens to 2 experts, 8 channels of 2 bytes; on 4 ranks a quarter stays; twice forward, twice backward
    assert traffic.exchanged_tokens(10, 2, 8, 2, 4) == 4 * 10 * 2 * 8 * 2 * 3 / 4


def test_the_peak_of_a_backward_pass_by_hand():
    # head 5 kept, 10 gradients, 20 working: 40 + 10 + 20; then 35 + (10 + 30) + 1; then 10 + (40 + 7) + 0
    stages = [(5.0, 10.0, 20.0), (25.0, 30.0, 1.0), (10.0, 7.0, 0.0)]
    assert peak(stages) == 76
    assert peak([(5.0, 10.0, 20.0), (25.0, 30.0, 1.0), (10.0, 70.0, 0.0)]) == 120
    assert peak(stages, standing=47.0) == 40 + 47 + 20


def test_layouts_are_all_products():
    found = list(layouts(8))
    assert len(set(found)) == len(found) == 10  # three factors of two over three dimensions
    assert all(one.ranks == 8 and one.context == one.expert == 1 for one in found)
    assert len(list(layouts(8, context=True, expert=True))) == 35
    assert list(layouts(1)) == [Sizes()]
    assert Sizes(data=3, tensor=2) in set(layouts(6))


def test_neighbours_of_inner_dimensions_share_a_node():
    layout = Sizes(data=2, shard=4, tensor=4)
    assert [on_node(layout, name, 8) for name in ("data", "shard", "tensor")] == [1, 2, 4]
    assert over_links(80.0, layout, "tensor", 8) == (80.0, 0.0)
    assert over_links(80.0, layout, "shard", 8) == (40.0, 40.0)  # every second link leaves the node
    assert over_links(80.0, layout, "data", 8) == (0.0, 80.0)


def test_a_device_is_found_by_name():
    assert accelerator("H100").flops == 989.5e12
    assert accelerator("tpu-v5e").per_node == 256
    with pytest.raises(UserError, match="no device is called 'h10'; did you mean h100"):
        accelerator("h10")
    with pytest.raises(UserError, match=r"known: a100, h100, h200, b200, tpu_v4, tpu_v5e"):
        accelerator("abacus")


def test_the_table_says_where_it_is_from():
    for one in ACCELERATORS:
        assert one.source
        assert one.between < one.inside < one.bandwidth < one.flops
