"""What ranks do together: an objective on a model of which each has a share, beside the same model whole."""

import copy

import torch
from bakeoff.parallel.context import share_rows
from bakeoff.parallel.tensor import split_model
from bakeoff.registry import find
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from tests.parallel.cases_of_tensor import built
from tests.plugins.bakeoff_align.preference.unigram import rows

BLOCKS = {
    "layer": {
        "use": "pre_norm",
        "mixer": {"use": "attention", "n_heads": 4, "position": {"use": "rope"}},
        "feed_forward": {"use": "mlp", "width": 16},
    }
}


def shared(whole, how):
    """A copy of which this rank has its share, and the parameters of whose gradients it makes a part."""
    ranks = init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=(how,))[how]
    own = copy.deepcopy(whole)
    if how == "context":
        share_rows(own, ranks, order="zigzag", op="ring")
        return own, list(own.parameters())
    return own, split_model(own, ranks, sequence_parallel=how == "sequence")


def objective_equals_whole(how, use, **head):
    """Of pairs of completions."""
    whole = built(BLOCKS, head={"use": "vocabulary", **head}, tied_embedding=False)
    batch = rows((3, 4), (5, 9), (2, 1), (7, 6), prompts=[2, 2, 5, 5])
    same_on_ranks(find(use, "objective")(), whole, batch, how)


def same_on_ranks(objective, whole, batch, how):
    """Terms, statistics and gradients."""
    own, partial = shared(whole, how)
    found = []
    for model in (whole, own):
        terms, statistics = objective(model, batch)
        sum(total for total, _ in terms.values()).backward()
        found.append([value.detach() for pair in terms.values() for value in pair] + list(statistics.values()))
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)
    for parameter in partial:
        distributed.all_reduce(parameter.grad)
    expected, modules = dict(whole.named_parameters()), dict(own.named_modules())
    for name, parameter in own.named_parameters():
        path, _, last = name.rpartition(".")
        cut = modules[path].__dict__.get("shares", {}).get(last)
        wanted = expected[name].grad if cut is None else cut.of(expected[name].grad)
        torch.testing.assert_close(
            parameter.grad, wanted, rtol=1e-9, atol=1e-11, msg=lambda text, n=name: f"{n}: {text}"
        )
