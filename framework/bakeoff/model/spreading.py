"""What ranks share out among them, such as experts: placement, gradients, whole states.

Ranks along a dimension of the mesh that shares something out hold different pieces and read different batches; what
stands beside the pieces is the same on all of them, as under data parallelism. Sums that layers report (`aux`) are of a
rank's own tokens: added up over ranks they are the global batch's, and so are load and what `after_step` sees. A loss
that is no sum over tokens, such as a balance, is that of each rank's own, averaged by their number, as over
micro-batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, distributed, nn

from bakeoff.interfaces.part import Part

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


def spread(model: nn.Module, mesh: DeviceMesh) -> None:
    """Leave on each rank its own pieces of a model that stands there whole, values included.

    A model that is built inside `built_on(mesh)` is spread from the start: no rank ever holds all of it.
    Raises `ValueError` with both numbers if the ranks do not divide what is to be shared out.
    """
    for part in list(model.modules()):
        if isinstance(part, Part):
            part.spread(mesh)


def spread_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """By qualified name, the parameters that are shared out: along its dimension, no two ranks hold the same of them.

    Data parallelism must leave them alone, as in `DistributedDataParallel._set_params_and_buffers_to_ignore_for_model`.
    """
    return {name: parameter for name, (parameter, _) in _spread(model).items()}


def average_spread_gradients(model: nn.Module, mesh: DeviceMesh) -> None:
    """Bring the gradients of what is shared out to the scale of the others, which are averaged over all ranks.

    A piece has met the tokens of all ranks along its dimension, so its gradients are sums over these; here they are
    added up over the mesh's other dimensions and divided by the number of all ranks. Once a step, by all ranks.
    """
    for parameter, ranks in _spread(model).values():
        if parameter.grad is not None:
            for name in mesh.mesh_dim_names or ():
                if name not in (ranks.mesh_dim_names or ()) and mesh[name].size() > 1:
                    distributed.all_reduce(parameter.grad, group=mesh.get_group(name))
            parameter.grad /= mesh.size()


def total_norm(model: nn.Module, dimension: DeviceMesh) -> Tensor:
    """The norm of all gradients of a model of which `dimension` shares pieces out: the same on all ranks of it."""
    apart = {id(parameter) for parameter in spread_parameters(model).values()}
    own: list[Tensor] = []
    alike: list[Tensor] = []
    for parameter in model.parameters():
        if parameter.grad is not None:
            (own if id(parameter) in apart else alike).append(parameter.grad)
    norm = torch.nn.utils.get_total_norm
    square = norm(own).square() if own else alike[0].new_zeros(())
    distributed.all_reduce(square, group=dimension.get_group())
    return (square + norm(alike).square()).sqrt()


def gathered_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The state of the whole model on the CPU, as one process would have it; empty on ranks that are not the first.

    All ranks call it. `load_state_dict` takes the result under any layout.
    """
    spread = _spread(model)
    first = all(ranks.get_local_rank() == 0 for _, ranks in spread.values())
    whole = {}
    for name, value in model.state_dict().items():
        joined = _joined(value, spread[name][1]) if name in spread else value
        if first and joined is not None:
            whole[name] = joined.cpu()
    return whole


def _spread(model: nn.Module) -> dict[str, tuple[nn.Parameter, DeviceMesh]]:
    """Parameters that are shared out, and the ranks among which they are."""
    return {
        f"{path}.{name}" if path else name: (parameter, owner.ranks)
        for path, owner in model.named_modules()
        if getattr(owner, "ranks", None) is not None
        for name, parameter in owner.named_parameters(recurse=False)
    }


def _joined(piece: Tensor, ranks: DeviceMesh) -> Tensor | None:
    """The pieces of all ranks one after the other, on the first of them."""
    pieces = [torch.empty_like(piece) for _ in range(ranks.size())] if ranks.get_local_rank() == 0 else None
    distributed.gather(piece.contiguous(), pieces, group=ranks.get_group(), group_dst=0)
    return None if pieces is None else torch.cat(pieces)
