"""Experts of a model spread over the ranks of a mesh: placement, gradients, whole states.

Ranks along the mesh's dimension `expert` hold different experts and read different batches; what stands beside the
experts is the same on all of them, as under data parallelism. Sums that layers report (`aux`) are those of a rank's own
tokens: added up over ranks they are the global batch's, and so are load and what `after_step` sees. A balance loss that
is no sum over tokens is that of each rank's own tokens, averaged by their number, as over micro-batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn

from bakeoff_moe.experts import Experts

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def spread(model: nn.Module, mesh: DeviceMesh) -> None:
    """Leave on each rank of the mesh's dimension `expert` its own experts of a model that holds all, values included.

    A model built inside `built_on(mesh)` is spread from the start, and no rank ever holds all experts.
    Raises `ValueError` with both numbers if the ranks do not divide the experts.
    """
    for _, experts in _all(model):
        experts.spread(mesh)


def spread_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """By qualified name, the parameters whose values differ between ranks: those of experts that are spread.

    Data parallelism must leave them alone, as in `DistributedDataParallel._set_params_and_buffers_to_ignore_for_model`.
    """
    return {
        f"{path}.{name}" if path else name: parameter
        for path, experts in _all(model)
        if experts.ranks is not None
        for name, parameter in experts.named_parameters()
    }


def average_spread_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """Bring the gradients of spread experts to the scale of the others, which data parallelism averages over all ranks.

    A rank's experts have met the tokens of all ranks along `expert`, so their gradients are sums over these; here they
    are added up over the mesh's other dimensions and divided by the number of all ranks. Once a step, by all ranks.
    """
    gradients = [p.grad for p in spread_parameters(model).values() if p.grad is not None]
    for name in mesh.mesh_dim_names or ():
        if name != "expert" and mesh[name].size() > 1:
            for gradient in gradients:
                distributed.all_reduce(gradient, group=mesh.get_group(name))
    if gradients:
        torch._foreach_div_(gradients, float(mesh.size()))


def total_norm(model: nn.Module, mesh: DeviceMesh) -> Tensor:
    """The norm of the gradients of the whole model, all experts included; all ranks call it and get the same."""
    apart = {id(p) for p in spread_parameters(model).values()}
    own: list[Tensor] = []
    alike: list[Tensor] = []
    for parameter in model.parameters():
        if parameter.grad is not None:
            (own if id(parameter) in apart else alike).append(parameter.grad)
    norm = torch.nn.utils.get_total_norm
    square = norm(own).square() if own else alike[0].new_zeros(())
    distributed.all_reduce(square, group=mesh.get_group("expert"))
    return (square + norm(alike).square()).sqrt()


def gathered_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state of the whole model on the CPU, as one process would have it; empty but on the first rank of `expert`.

    All ranks call it. `load_state_dict` takes the result under any layout.
    """
    ranks = {id(p): experts.ranks for _, experts in _all(model) for p in experts.parameters()}
    first = all(of is None or of.get_local_rank() == 0 for of in ranks.values())
    whole = {}
    for name, value in model.state_dict(keep_vars=True).items():
        of = ranks.get(id(value))
        value = value.detach() if of is None else _joined(value.detach(), of)
        if first and value is not None:
            whole[name] = value.cpu()
    return whole


def _joined(piece: Tensor, ranks: DeviceMesh) -> Tensor | None:
    """The pieces of all ranks one after the other, on the first of them."""
    pieces = [torch.empty_like(piece) for _ in range(ranks.size())] if ranks.get_local_rank() == 0 else None
    distributed.gather(piece.contiguous(), pieces, group=ranks.get_group(), group_dst=0)
    return None if pieces is None else torch.cat(pieces)


def _all(model: nn.Module) -> list[tuple[str, Experts]]:
    return [(path, module) for path, module in model.named_modules() if isinstance(module, Experts)]
