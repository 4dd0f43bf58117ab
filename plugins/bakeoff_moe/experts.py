"""Many feed-forwards of one make, their parameters stacked."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from bakeoff.interfaces import Cut, FeedForward, LayerContext, Part, Sequence
from bakeoff.interfaces.cut import shares_of
from bakeoff.parts.adapters import adapter_parameters
from bakeoff.parts.linear import Linear
from bakeoff.parts.products import linear
from torch import Tensor, nn
from torch.func import functional_call

from bakeoff_moe.exchange import by_owners
from bakeoff_moe.grouped_product import Groups, current_groups, grouped_by, grouped_product, has_kernel

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

FeedForwardFactory = Callable[[LayerContext], FeedForward]


class StackedLinear(nn.Module):
    """The same linear layer of E experts: weight (E, d_out, d_in), bias (E, d_out).

    Inside `grouped_by`, each row is multiplied by its group's matrix.
    """

    stacked = True
    summands: int = 1
    """How many ranks' results are added up: each of them adds its part of the bias."""

    def __init__(self, one: Linear, n: int):
        super().__init__()
        self.weight = nn.Parameter(one.weight.new_empty(n, *one.weight.shape))
        self.bias = None if one.bias is None else nn.Parameter(one.bias.new_empty(n, *one.bias.shape))
        self.roles = {**one.roles, "bias": "vector"}

    def forward(self, x: Tensor) -> Tensor:
        """(..., M, d_in) -> (..., M, d_out); of one expert's layer alone the same."""
        return self.product(x, self.weight, self.bias)

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """What `forward` gives, with any weight and bias in the place of the layer's own."""
        groups = current_groups()
        if bias is not None and self.summands > 1:
            bias = bias / self.summands
        if groups is None:
            return linear(x, weight, bias)
        if torch.is_autocast_enabled(x.device.type):
            kind = torch.get_autocast_dtype(x.device.type)
            x, weight = x.to(kind), weight.to(kind)
        y = grouped_product(x.flatten(0, -2), weight, groups)
        if bias is not None:
            y = y + _of_rows(bias, groups, len(y)).to(y.dtype)
        return y.view(*x.shape[:-1], weight.shape[1])


class Experts(Part):
    """E feed-forwards that differ in their values only; tokens come sorted by expert.

    A parameter of one expert stands here under its own name, with a first dimension of E. Where all of them are those
    of linear layers, the rows of all experts pass each layer together; else one expert is called after the other.

    Under a mesh with a dimension `expert` of P ranks, each of them holds E / P experts, from index `first` on, and rows
    travel to the rank that has theirs and back; all ranks call it alike. A whole state is loaded all the same.
    Tensor ranks share out the inside of each expert, as the feed-forward plans it, where its parameters are those of
    linear layers and it has no parts within.

    `active` is how many experts a token goes to, on average.
    """

    stacked = True
    adaptable = False  # what stands here directly is used as the experts', one after the other
    first: int
    ranks: DeviceMesh | None

    def __init__(self, context: LayerContext, *, n_experts: int, expert: FeedForwardFactory, active: int):
        super().__init__(context)
        self.active = min(active, n_experts)
        one = expert(context.child(n_experts=None))
        if not one.capabilities.token_local:
            raise ValueError(
                f"{type(one).__name__} cannot be an expert: experts see single tokens, and its tokens depend on "
                "others; use a feed-forward that claims `token_local`, such as mlp or gated_mlp"
            )
        self.n_experts = n_experts
        self.own_work = one.flops(1, 1)
        self.roles = one.roles  # type: ignore[misc]
        ranks = expert_ranks(context.mesh)
        self.together = _stack(one, self._share(ranks))
        plain = self.together and not any(isinstance(part, Part) for part in one.children())
        self.claims = replace(one.capabilities, tensor_parallel=one.capabilities.tensor_parallel and plain)
        self._one = (one,)  # not a child: its parameters are this module's
        for name, child in one.named_children():
            self.add_module(name, child)
        for name, parameter in one.named_parameters(recurse=False):
            self.register_parameter(name, parameter)
        self._stand(ranks)

    def idle(self) -> int:
        """Parameters of the experts that one token does not go to."""
        return (self.n_experts - self.active) * _of_one(self.parameters())

    @property
    def work(self) -> int:
        """Operations of one expert on one token, its adapters' among them."""
        return self.own_work + 2 * _of_one(adapter_parameters(self).values())

    def spread(self, mesh: DeviceMesh) -> None:
        """Keep this rank's experts of all, which stand here with their values."""
        assert self.ranks is None
        ranks = expert_ranks(mesh)
        here = self._share(ranks)
        self._stand(ranks)
        for parameter in self.parameters():
            parameter.data = parameter.data[self.first : self.first + here].clone()

    def parallel_plan(self, ranks: int) -> dict[str, Cut]:
        """Each rank has a share of every expert, as the feed-forward would share out its own parameters."""
        if not self.claims.tensor_parallel:
            return {}
        return {path: replace(cut, dim=cut.dim + 1) for path, cut in self.one.parallel_plan(ranks).items()}

    def narrow(self, ranks: DeviceMesh) -> None:
        """Biases of what is summed over ranks are divided among them."""
        self.one.narrow(ranks)
        for owner in self.modules():
            share = shares_of(owner).get("weight")
            if isinstance(owner, StackedLinear) and share is not None and share.dim == 2:
                owner.summands = ranks.size()

    def _share(self, ranks: DeviceMesh | None) -> int:
        """How many of the experts each rank holds."""
        n = 1 if ranks is None else ranks.size()
        if self.n_experts % n:
            raise ValueError(
                f"n_experts is {self.n_experts}, the mesh's dimension `expert` {n}: experts are spread evenly, so "
                "n_experts must be a multiple of it"
            )
        return self.n_experts // n

    def _stand(self, ranks: DeviceMesh | None) -> None:
        """Tell all that is stacked which expert is the first here, and who has the others."""
        first = 0 if ranks is None else ranks.get_local_rank() * self._share(ranks)
        for owner in self.modules():
            if getattr(owner, "stacked", False):
                owner.first, owner.ranks = first, ranks  # type: ignore[assignment]

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, own in self.named_parameters():
            held = state_dict.get(prefix + name)
            if held is not None and len(held) == self.n_experts:
                state_dict[prefix + name] = held[self.first : self.first + len(own)]
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @property
    def one(self) -> FeedForward:
        """The feed-forward that all are copies of."""
        return self._one[0]

    def train(self, mode: bool = True) -> Experts:
        """Training or evaluation mode, of the experts too."""
        self._one[0].train(mode)
        return super().train(mode)

    def reset_parameters(self) -> None:
        """As the feed-forward fills its own."""
        one = self._one[0]
        for name, parameter in self.named_parameters(recurse=False):
            one._parameters[name] = parameter
        one.reset_parameters()

    def counted(self, x: Tensor) -> bool:
        """Whether rows must be counted on the host: all but those that stay here, where one kernel takes them."""
        return self.ranks is not None or not self._in_one_kernel(x)

    def forward(self, rows: Tensor, groups: Groups, sequence: Sequence) -> Tensor:
        """(M, D) sorted by expert -> (M, D)."""
        if self.ranks is None:
            return self._here(rows, groups, sequence)
        on_host = not self._in_one_kernel(rows)
        return by_owners(rows, groups, self.ranks, lambda x, own: self._here(x, own, sequence), on_host=on_host)

    def _in_one_kernel(self, x: Tensor) -> bool:
        if not (x.is_cuda and self.together):
            return False
        kind = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else x.dtype
        return all(has_kernel(x, p, kind) for p in self.parameters() if p.ndim == 3)

    def _here(self, rows: Tensor, groups: Groups, sequence: Sequence) -> Tensor:
        """(M, D) -> (M, D), by the experts that stand here."""
        if self.together:
            with grouped_by(groups):
                return self._one[0](rows[None], sequence).y[0]
        assert groups.counts is not None
        values = (stack.unbind() for stack in self.parameters())
        names = [name for name, _ in self.named_parameters()]
        each = [dict(zip(names, own, strict=True)) for own in zip(*values, strict=True)]
        *pieces, rest = rows.split([*groups.counts, len(rows) - sum(groups.counts)])
        ys = [self._call(own, piece, sequence) for own, piece in zip(each, pieces, strict=True)]
        return torch.cat([*ys, torch.zeros_like(rest)])

    def alone(self, e: int, rows: Tensor, sequence: Sequence) -> Tensor:
        """(M, D) -> (M, D), all rows by expert e, by its own matrices; where all experts stand here."""
        assert self.ranks is None
        return self._call({name: stack[e] for name, stack in self.named_parameters()}, rows, sequence)

    def _call(self, parameters: dict[str, Tensor], rows: Tensor, sequence: Sequence) -> Tensor:
        return functional_call(self._one[0], parameters, (rows[None], sequence)).y[0]


def _of_one(stacks: Iterable[Tensor]) -> int:
    """Numbers of one expert in what holds those of all that stand here."""
    return sum(stack.numel() // len(stack) for stack in stacks)


def expert_ranks(mesh: DeviceMesh | None) -> DeviceMesh | None:
    """The ranks among which experts are spread: a mesh's dimension `expert`, where that has several."""
    if mesh is None or "expert" not in (mesh.mesh_dim_names or ()) or mesh["expert"].size() == 1:
        return None
    return mesh["expert"]


def _stack(module: nn.Module, n: int) -> bool:
    """Give every parameter inside a first dimension of `n`; whether all of them are those of linear layers."""
    together = True
    for owner in list(module.modules()):
        for name, child in owner.named_children():
            if type(child) is Linear:
                setattr(owner, name, StackedLinear(child, n))
        if isinstance(owner, StackedLinear) or type(owner) is Linear:
            continue
        for name, parameter in list(owner.named_parameters(recurse=False)):
            together = False
            owner.stacked = True  # type: ignore[assignment]
            owner.register_parameter(name, nn.Parameter(parameter.new_empty(n, *parameter.shape)))
    return together


def _of_rows(bias: Tensor, groups: Groups, rows: int) -> Tensor:
    """(E, F) -> (M, F): each row's bias; zeros for rows of no group."""
    places = torch.arange(rows, device=bias.device)
    owners = torch.searchsorted(groups.ends, places, right=True, out_int32=False)
    padded = torch.cat([bias, bias.new_zeros(1, bias.shape[1])])
    return padded.index_select(0, owners)
