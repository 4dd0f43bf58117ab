"""What ranks do in the tests of tensor parallelism: a model that they work on together beside the same model whole."""

import copy

import torch
from bakeoff.model import LanguageModel
from bakeoff.parallel.tensor import split_model
from bakeoff.parts.causal import Causal
from bakeoff.parts.collectives import own_share, summed
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.testing.build import context, resolved
from torch import Tensor, distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F


def unfilled(blocks, *, vocab_size=11, depth=2, head=None, tied_embedding=True, **decoder):
    """A model as it is constructed."""
    arguments = {"use": "decoder", "depth": depth, "pattern": list(blocks), "blocks": blocks, **decoder}
    backbone, head = resolved(arguments), resolved(head or {"use": "vocabulary"})
    sizes = {"d_model": 16, "vocab_size": vocab_size, "max_length": 32}
    return LanguageModel(**sizes, backbone=backbone, head=head, tied_embedding=tied_embedding)


def built(blocks, **model):
    """A model with random values everywhere, in float64."""
    model = unfilled(blocks, **model).initialise(3).double()
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def share_equals_whole(blocks, *, sequence_parallel=False, length=7, objective=None, **model):
    """Loss and gradients of a model of which each rank has a share are those of the whole."""
    ranks = init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=("tensor",))["tensor"]
    whole = built(blocks, **model)
    share = copy.deepcopy(whole)
    partial = split_model(share, ranks, sequence_parallel=sequence_parallel)
    assert sum(p.numel() for p in share.parameters()) < sum(p.numel() for p in whole.parameters())
    tokens = torch.randint(0, whole.context.vocab_size, (3, length + 1), generator=torch.Generator().manual_seed(1))
    documents = (torch.arange(length + 1) > 4).long().expand(3, -1)
    batch = {"tokens": tokens, "documents": documents}
    losses = [learned(one, Causal(**(objective or {})), batch) for one in (whole, share)]
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-12, atol=1e-12)
    for parameter in partial:
        distributed.all_reduce(parameter.grad)
    expected, modules = dict(whole.named_parameters()), dict(share.named_modules())
    for name, parameter in share.named_parameters():
        path, _, last = name.rpartition(".")
        cut = modules[path].__dict__.get("shares", {}).get(last)
        wanted = expected[name].grad if cut is None else cut.of(expected[name].grad)
        torch.testing.assert_close(
            parameter.grad, wanted, rtol=1e-9, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )


def learned(model, objective, batch) -> Tensor:
    """The losses, after their backward pass."""
    torch.manual_seed(5)
    terms, statistics = objective(model.train(), batch)
    sum(total for total, _ in terms.values()).backward()
    return torch.stack([*(total.detach() for total, _ in terms.values()), statistics["nats"]])


def logits_equal(blocks, **model):
    """Logits, and the nats of each token, are those of the whole; decoding from a state too."""
    ranks = init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=("tensor",))["tensor"]
    whole = built(blocks, **model).eval()
    share = copy.deepcopy(whole)
    split_model(share, ranks)
    tokens = torch.randint(0, whole.context.vocab_size, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        told = []
        for one in (whole, share):
            before, state = one.logits(tokens[:, :5], one.empty_state(2))
            after, _ = one.logits(tokens[:, 5:], state)
            hidden = one.backbone.embed(tokens)
            told.append(torch.cat([before, after], 1))
            told.append(one.head(hidden, tokens, reduce="none"))
    torch.testing.assert_close(told[2], told[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(told[3], told[1], rtol=1e-10, atol=1e-12)


def share_is_drawn_as_of_the_whole(blocks, **model):
    """Initialised after it was split on the meta device, a share is that of the whole, bit for bit; none is another."""
    ranks = init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=("tensor",))["tensor"]
    whole = unfilled(blocks, **model).initialise(7)
    before = copy.deepcopy(whole)
    split_model(before, ranks)
    with torch.device("meta"):
        after = unfilled(blocks, **model)
    split_model(after, ranks)
    after.initialise(7)
    for (name, wanted), (_, own) in zip(before.named_parameters(), after.named_parameters(), strict=True):
        assert torch.equal(own, wanted), name
    gate = after.get_submodule("backbone.blocks.0.feed_forward.up").weight
    others = [torch.empty_like(gate) for _ in range(ranks.size())]
    distributed.all_gather(others, gate.detach())
    assert not any(torch.equal(others[0], other) for other in others[1:])


def rows_first(*, before, equal):
    """An MLP whose first product sums over this rank's channels, added up `before` the nonlinearity or after it."""
    group = distributed.group.WORLD
    mlp, generator = MLP(context(), width=24).double(), torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in mlp.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator, dtype=torch.float64))
        x = torch.randn(2, 3, 16, generator=generator, dtype=torch.float64)
        product = F.linear(own_share(x, -1, group), own_share(mlp.up.weight, 1, group))
        inner = mlp.activation(summed(product, group)) if before else summed(mlp.activation(product), group)
        wanted = mlp(x, None).y
        difference = (mlp.down(inner) - wanted).abs().max() / wanted.abs().max()
    assert bool(difference < 1e-12) == equal, difference
    assert equal or difference > 0.01, difference
