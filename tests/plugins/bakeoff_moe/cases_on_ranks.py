"""What several ranks compute together, each beside one process that has the rows of all: called on every rank."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from bakeoff.interfaces import Capabilities, FeedForward, LayerContext, Result, Router, Routing, Sequence
from bakeoff.interfaces.init import initialise
from bakeoff.model.spreading import spread
from bakeoff.parallel.layout import is_spread
from bakeoff.parts.linear import Linear
from bakeoff.parts.needs import gather
from bakeoff.testing.build import built
from bakeoff_moe import MixtureOfExperts
from bakeoff_moe.exchange import exchange
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

D, E = 8, 8
#: Rows of each rank's own batch, by the number of ranks.
ROWS = {2: [3, 1], 4: [3, 1, 0, 2]}


def mesh_of(data: int = 1):
    """All ranks: `data` replicas of what is spread along `expert`."""
    return init_device_mesh("cpu", (data, distributed.get_world_size() // data), mesh_dim_names=("data", "expert"))


def rank() -> int:
    return distributed.get_rank()


def close(one: Tensor, other: Tensor, what: str) -> None:
    rtol = (
        0 if one.dtype == torch.float64 else 1e-6
    )  # counts, and sums that are kept in float32 whatever is computed in
    torch.testing.assert_close(one, other, rtol=rtol, atol=1e-12, msg=lambda told: f"{what}: {told}")


class ById(Router):
    """Token id v goes to experts v mod E and v // E, weighted by sigmoid(x w); from E^2 on, to none."""

    gives = ()

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.scores = Linear(context.d_model, 2, role="gate")

    def route(self, x: Tensor, sequence: Sequence) -> Routing:
        ids = sequence.tokens.flatten()
        experts = torch.stack([ids % self.n_experts, ids // self.n_experts], 1)
        experts = torch.where(ids[:, None] < self.n_experts**2, experts, self.n_experts)
        return Routing(experts, self.scores(x.flatten(0, 1)).sigmoid())

    def pairs(self, tokens: int) -> int:
        return 2 * tokens


class Scaled(FeedForward):
    """x W * s + b: not of linear layers alone."""

    capabilities = Capabilities(documents=True, padding=True, state=True, token_local=True)
    roles = {"scale": "vector"}  # noqa: RUF012

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.product = Linear(context.d_model, context.d_model, role="output")
        self.scale = nn.Parameter(torch.empty(context.d_model))

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        return Result(self.product(x) * self.scale, state)

    def flops(self, queries: int, keys: int) -> int:
        return 2 * queries * self.product.weight.numel()


def layer(arguments: dict[str, Any], mesh=None) -> MixtureOfExperts:
    """A mixture with values that hide nothing, the same on all ranks."""
    arguments = {"expert": {"use": "gated_mlp", "width": 6}, **arguments}
    if arguments.get("router") == "by_id":
        arguments["router"] = ById
    if arguments["expert"] == "scaled":
        arguments["expert"] = Scaled
    context = LayerContext(d_model=D, vocab_size=E * E + 1, max_length=32, mesh=mesh)
    part = built(MixtureOfExperts, {"n_experts": E, **arguments}, context)
    initialise(part, seed=3)
    return part.double()


def batch(ids: str) -> tuple[Tensor, Tensor, Tensor, list[slice]]:
    """Rows of all ranks: tokens (B, T), vectors (B, T, D), which are no padding; and which rows are whose."""
    n, draw = distributed.get_world_size(), torch.Generator().manual_seed(5)
    counts = ROWS[n]
    total, T = sum(counts), 7
    ends = torch.tensor(counts).cumsum(0).tolist()
    mine = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
    tokens = torch.randint(E * E, (total, T), generator=draw)
    real = torch.rand(total, T, generator=draw) < 0.8
    if ids == "skewed":  # most to expert 0, some to none, nothing to the last
        tokens = torch.where(torch.rand(total, T, generator=draw) < 0.6, tokens // E * E, tokens)
        tokens = tokens.clamp_max(E * E - E - 1) // E * E + (tokens % E).clamp_max(E - 2)
        tokens[0, :3] = E * E
    if ids == "at_home":  # every rank's tokens stay on it
        for place, rows in enumerate(mine):
            tokens[rows] = tokens[rows] % (E // n) + place * (E // n)
            tokens[rows] = tokens[rows] * (E + 1)
    if ids == "only_rank_1":
        real[mine[0]] = False
        real[mine[-1]] = real[mine[-1]] & (n == 2)
    x = torch.randn(total, T, D, generator=draw, dtype=torch.float64)
    return tokens, x, real, mine


def run(part: nn.Module, x: Tensor, tokens: Tensor, real: Tensor, pull: Tensor) -> tuple[Tensor, Tensor, dict]:
    """Outputs, gradients by the rows, and sums; gradients of parameters are left in them."""
    x = x.clone().requires_grad_()
    result = part(x, Sequence(tokens, real=real).prepare(gather(part)))
    (result.y * pull).sum().backward()
    return result.y.detach(), x.grad, {name: value.detach() for name, value in result.aux.items()}


def spread_names(part: nn.Module) -> set[str]:
    """Parameters of which each rank has other experts'."""
    owners = dict(part.named_modules())
    return {name for name, _ in part.named_parameters() if is_spread(owners[name.rpartition(".")[0]])}


def layer_equals_one(arguments: dict[str, Any], ids: str = "any", data: int = 1, from_the_start: bool = True) -> None:
    """Outputs, all gradients, sums and what is learnt by rule, of a layer in training mode."""
    mesh = mesh_of(data)
    whole = layer(arguments)
    if from_the_start:
        part = layer(arguments, mesh)
    else:
        part = copy.deepcopy(whole)
        spread(part, mesh)
    tokens, x, real, rows = batch(ids)
    pull = torch.randn(x.shape, generator=torch.Generator().manual_seed(6), dtype=torch.float64)
    mine = rows[rank()]
    y, dx, sums = run(whole, x, tokens, real, pull)
    own_y, own_dx, own_sums = run(part, x[mine], tokens[mine], real[mine], pull[mine])
    close(own_y, y[mine], "outputs")
    close(own_dx, dx[mine], "gradients by the input")
    apart, experts = spread_names(part), E // mesh["expert"].size()
    first = mesh["expert"].get_local_rank() * experts
    for (name, own), (_, theirs) in zip(part.named_parameters(), whole.named_parameters(), strict=True):
        assert (own.grad is None) == (theirs.grad is None)
        assert len(own) == (experts if name in apart else len(theirs))
        if own.grad is not None:
            distributed.all_reduce(own.grad, group=mesh.get_group("data") if name in apart else None)
            expected = theirs.grad[first : first + experts] if name in apart else theirs.grad
            close(own.grad, expected, f"gradient of {name}")
    for name, value in own_sums.items():
        distributed.all_reduce(value)
        close(value, sums[name], f"sum {name}")
    for one, of in ((part, own_sums), (whole, sums)) if sums else ():
        with torch.no_grad():
            one.after_step(one.finish_aux(of)[1])
    for (name, own), (_, theirs) in zip(part.named_buffers(), whole.named_buffers(), strict=True):
        assert torch.equal(own, theirs), name
        assert own.any(), name


def exchange_and_back(dtype: str) -> None:
    """Rank r sends r + q rows to rank q, but nothing to itself; gradients come back."""
    n, r, group = distributed.get_world_size(), rank(), distributed.group.WORLD
    kind = getattr(torch, dtype)
    counts = [[0 if p == q else p + q for q in range(n)] for p in range(n)]
    sent, received = counts[r], [counts[p][r] for p in range(n)]
    rows = torch.full((sum(sent), 3), float(r), dtype=kind, requires_grad=True)
    came = exchange(rows, sent, received, group)
    assert came.dtype == kind
    assert came[:, 0].tolist() == [p for p in range(n) for _ in range(counts[p][r])]
    (came * (r + 1)).sum().backward()
    assert rows.grad[:, 2].tolist() == [q + 1 for q in range(n) for _ in range(sent[q])]


def unspread_layers_learn_under_ddp() -> None:
    """Two tokens and eight experts a rank: a step ends, experts without tokens have gradients of zero."""
    n, r = distributed.get_world_size(), rank()
    for arguments in ({}, {"expert": "scaled"}):
        whole = layer(arguments)
        wrapped = DistributedDataParallel(_Output(layer(arguments)))
        x = torch.randn(n, 1, D, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
        for _ in range(2):  # a parameter that was not reduced would stop the second
            whole.zero_grad()
            wrapped.zero_grad()
            _Output(whole)(x).sum().backward()
            wrapped(x[r : r + 1]).sum().backward()
        unused = 0
        for (name, own), (_, theirs) in zip(
            wrapped.module.inner.named_parameters(), whole.named_parameters(), strict=True
        ):
            close(own.grad * n, theirs.grad, name)
            unused += int((theirs.grad.flatten(1).abs().sum(1) == 0).sum()) if name.startswith("experts") else 0
        assert unused


class _Output(nn.Module):
    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, Sequence(torch.zeros(x.shape[:2], dtype=torch.long))).y


def indivisible() -> None:
    """Experts that cannot be spread evenly."""
    n = distributed.get_world_size()
    told = f"n_experts is {n + 1}, the mesh's dimension `expert` {n}"
    with pytest.raises(ValueError, match=told):
        layer({"n_experts": n + 1}, mesh_of())
    with pytest.raises(ValueError, match=told):
        spread(layer({"n_experts": n + 1}), mesh_of())


def one_fails() -> None:
    """Rank 1 gives up, and the others wait for it."""
    if rank() == 1:
        raise ValueError("rank 1 gives up")
    distributed.barrier()
