"""What ranks do that share out the tokens of rows: whole models beside the same models in one process."""

import bakeoff
import torch
from bakeoff.parallel.context import share_rows
from bakeoff.parts.causal import Causal
from bakeoff.testing.cases_of_parallel import compare, gradients
from bakeoff.testing.values import jitter
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

B, T, V = 2, 21, 40


def model_equals_one(recipe, changes, orders):
    """Loss and gradients of a recipe's model in float64, of packed documents that cross ranks, and of padding."""
    mesh = init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=("context",))
    for order in orders:
        made = bakeoff.recipe(f"bakeoff:models/{recipe}.yaml", changes)
        whole, own = (made.build("model", vocab_size=V).initialise(0).double().train() for _ in range(2))
        for one in (whole, own):
            jitter(one, 0)
        share_rows(own, mesh["context"], order=order, op="ring")
        wanted, got = (learned(one) for one in (whole, own))
        compare(f"{recipe}, {order}", wanted, got, own, own.parameters())


def learned(model):
    place = torch.arange(T + 1).expand(B, -1)
    batch = {
        "tokens": torch.randint(V, (B, T + 1), generator=torch.Generator().manual_seed(0)),
        "documents": (place > torch.tensor([[3], [12]])).long() + (place > 17).long(),
        "real": torch.stack([place[0] < T - 2, place[0] >= 2]),
    }
    terms, _ = Causal()(model, batch)
    loss = sum(total for total, _ in terms.values())
    return {"the loss": loss.detach()} | gradients(loss, dict(model.named_parameters()))
