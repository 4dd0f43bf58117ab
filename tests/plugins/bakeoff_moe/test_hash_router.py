"""`hash_router`: ids alone decide."""

from types import SimpleNamespace

import pytest
import torch
from bakeoff.errors import CapabilityError
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.model import LanguageModel
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff_moe import HashRouter, LoadBalance, MixtureOfExperts

V, E = 64, 8


def model(k=1, seed=0, n_experts=E, vocab_size=V):
    def mixture(c):
        return MixtureOfExperts(c, n_experts=n_experts, expert=MLP, router=lambda r: HashRouter(r, k=k))

    made = LanguageModel(
        d_model=8, vocab_size=vocab_size, max_length=16,
        backbone=lambda c: Decoder(
            c, depth=2, pattern=["a"], blocks={"a": lambda d: PreNorm(d, mixer=None, feed_forward=mixture)}
        ),
    )  # fmt: skip
    return made.initialise(seed=seed)


def tables(made):
    return [block.feed_forward.router.table for block in made.backbone.blocks]


@pytest.mark.parametrize("k", [1, 3, 8])
def test_every_expert_has_equally_many_ids_in_every_table(k):
    for table in tables(model(k)):
        assert table.shape == (V, k)
        for column in table.T:
            assert torch.bincount(column, minlength=E).tolist() == [V // E] * E
        for row in table:
            assert len(set(row.tolist())) == k


def test_ids_that_experts_do_not_divide_are_balanced_within_one():
    for table in tables(model(2, n_experts=6)):
        for column in table.T:
            counts = torch.bincount(column, minlength=6)
            assert counts.sum() == V
            assert counts.max() - counts.min() <= 1


def test_layers_and_seeds_have_tables_of_their_own_and_the_same_seed_the_same():
    first, second = tables(model())
    assert not torch.equal(first, second)
    assert torch.equal(first, tables(model())[0])
    assert not torch.equal(first, tables(model(seed=1))[0])
    assert "backbone.blocks.0.feed_forward.router.table" in model().state_dict()


def test_an_id_has_its_experts_in_every_batch_at_every_place():
    router = model(2).backbone.blocks[0].feed_forward.router
    generator = torch.Generator().manual_seed(0)
    seen = {}
    for shape in ((2, 16), (5, 7), (1, 1)):
        tokens = torch.randint(V, shape, generator=generator)
        routing = router.route(torch.randn(*shape, 8, generator=generator), Sequence(tokens))
        assert (routing.weights == 0.5).all()
        for token, experts in zip(tokens.flatten().tolist(), routing.experts.tolist(), strict=True):
            assert seen.setdefault(token, experts) == experts
    assert len(seen) > 20


def test_without_token_ids_there_is_one_clear_error():
    router = model().backbone.blocks[0].feed_forward.router
    with pytest.raises(CapabilityError, match=r"hash_router chooses experts by token ids, and this sequence has none"):
        router.route(torch.zeros(1, 2, 8), SimpleNamespace(tokens=None))


@pytest.mark.parametrize("odd", [V, -1])
def test_an_id_beyond_the_table_is_told(odd):
    router = model().backbone.blocks[0].feed_forward.router
    with pytest.raises(
        ValueError, match=rf"ids go from {min(odd, 3)} to {max(odd, 3)}; its table has those from 0 to 63"
    ):
        router.route(torch.zeros(1, 2, 8), Sequence(torch.tensor([[odd, 3]])))


def test_wrong_arguments():
    context = LayerContext(d_model=8, vocab_size=V, max_length=16)
    with pytest.raises(ValueError, match="k is 5, n_experts 4"):
        HashRouter(context.child(n_experts=4), k=5)
    with pytest.raises(ValueError, match="balance load_balance reads probabilities, which HashRouter does not give"):
        MixtureOfExperts(context, n_experts=4, router=HashRouter, balance=[LoadBalance()])
