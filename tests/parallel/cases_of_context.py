"""What ranks do in the tests of shared-out rows: a model of which each has some tokens beside the same model whole."""

import copy
import math

import torch
from bakeoff.interfaces.sequence import Sequence
from bakeoff.model import LanguageModel
from bakeoff.parallel.context import share_rows
from bakeoff.parts.causal import Causal
from bakeoff.testing.build import resolved
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

PLAIN = {"layer": {"use": "pre_norm", "mixer": None, "feed_forward": {"use": "mlp", "width": 4}}}


def built(blocks, *, d_model=16, vocab_size=11, tied_embedding=True, depth=2, **decoder):
    """A model with random values everywhere, in float64."""
    arguments = {"use": "decoder", "depth": depth, "pattern": list(blocks), "blocks": blocks, **decoder}
    sizes = {"d_model": d_model, "vocab_size": vocab_size, "max_length": 32, "tied_embedding": tied_embedding}
    model = LanguageModel(**sizes, backbone=resolved(arguments)).initialise(3).double()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def sharing(whole, order, op="ring"):
    """The same model, whose rows all ranks share out."""
    ranks = init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=("context",))["context"]
    own = copy.deepcopy(whole)
    share_rows(own, ranks, order=order, op=op)
    return own


def shared_rows_equal_whole(blocks, *, order, op="ring", real=(0, 99), length=13, **model):
    """Terms, statistics and gradients in training, dropout and noise included; what each token costs, and logits.

    Documents cross ranks; `real` are the first real token of each row and the first after it that is none.
    """
    whole = built(blocks, **model)
    own = sharing(whole, order, op)
    tokens = torch.randint(0, 11, (3, length + 1), generator=torch.Generator().manual_seed(1))
    place = torch.arange(length + 1).expand(3, -1)
    batch = {"tokens": tokens, "documents": (place > 4).long() + (place > length - 4).long()}
    batch["real"] = (place >= real[0]) & (place < real[1])
    learn_alike(whole, own, batch, z_loss=0.1)
    with torch.no_grad():
        each, mine = (Causal().token_losses(one.eval(), batch) for one in (whole, own))
        for wanted, given in zip(each[:3], mine[:3], strict=True):
            same(given * each.weights, wanted * each.weights)
        same(own.logits(tokens)[0], whole.logits(tokens)[0])


def learn_alike(whole, own, batch, **objective):
    """Terms, statistics and gradients of both, on the same batch, are equal and finite; the terms of the whole."""
    (terms, statistics), mine = (learned(one, Causal(**objective), batch) for one in (whole, own))
    same(mine[0], terms)
    assert statistics.keys() == mine[1].keys()
    for name, value in statistics.items():
        same(mine[1][name], value, name, within=1e-6 if value.dtype == torch.float32 else 1e-9)
    for (name, wanted), parameter in zip(whole.named_parameters(), own.parameters(), strict=True):
        distributed.all_reduce(parameter.grad)
        assert parameter.grad.isfinite().all(), name
        same(parameter.grad, wanted.grad, name)
    return terms


def learned(model, objective, batch):
    """Terms and statistics, after the backward pass of the terms' sum."""
    torch.manual_seed(5)
    terms, statistics = objective(model.train(), batch)
    sum(total for total, _ in terms.values()).backward()
    return {name: (total.detach(), weight) for name, (total, weight) in terms.items()}, statistics


def mean_of_unequal_ranks(order):
    """One rank has one token of loss 6, the other three of loss 2: the mean is 3, and the gradient its gradient."""
    first, last = {"zigzag": (1, 6), "contiguous": (3, 8)}[order]
    place = torch.arange(9)[None]
    batch = {"tokens": torch.where(place == first, 1, 2), "real": (place >= first) & (place < last)}
    whole = built(PLAIN, d_model=1, vocab_size=3, tied_embedding=False, depth=1, norm=None)
    hidden = [0.0, math.log(math.exp(6) - 2), math.log(math.exp(2) - 2)]
    with torch.no_grad():  # a token costs log(e^h + 2), whichever of the ids 1 and 2 comes next
        whole.backbone.layers[0].feed_forward.down.weight.zero_()
        whole.backbone.embed.weight.copy_(torch.tensor(hidden, dtype=torch.float64)[:, None])
        whole.head.projection.weight.copy_(torch.tensor([[1.0], [0.0], [0.0]]))
    own = sharing(whole, order)
    spans = Sequence(batch["tokens"][:, :-1]).shared_out(distributed.group.WORLD, order).spans
    targets = batch["real"][:, 1:] & batch["real"][:, :-1]
    assert int(spans.take(targets).sum()) == (1, 3)[spans.rank]
    total, count = learn_alike(whole, own, batch)["loss"]
    assert abs(float(total / count) - 3.0) < 1e-12


def nothing_to_learn(order):
    """Where every target is masked, on all ranks: no loss, no gradient, and no NaN."""
    attention = {"use": "attention", "n_heads": 2}
    whole = built({"layer": {"use": "pre_norm", "mixer": attention, "feed_forward": {"use": "mlp", "width": 4}}})
    batch = {"tokens": torch.ones(2, 10, dtype=torch.long), "documents": torch.arange(10).expand(2, -1)}
    terms = learn_alike(whole, sharing(whole, order), batch)
    assert [float(value) for value in terms["loss"]] == [0.0, 0.0]
    assert not any(parameter.grad.any() for parameter in whole.parameters())


def same(given, wanted, name="", within=1e-9):
    """Equal within rounding, at every depth."""
    torch.testing.assert_close(given, wanted, rtol=within, atol=1e-10, msg=lambda text: f"{name} {text}")
