"""Converter `upcycle`: a mixture of experts from a trained dense run."""

from __future__ import annotations

from typing import Any

import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Converter, Reference
from bakeoff.interfaces.init import generator
from bakeoff.parts.activations import ACTIVATIONS
from bakeoff.parts.weights import disagreements
from torch import Tensor, nn

from bakeoff_moe.inner_width import inner_dimensions, inner_width
from bakeoff_moe.mixture_of_experts import MixtureOfExperts
from bakeoff_moe.top_k import TopK


class Upcycle(Converter):
    """Each expert of a mixture begins as a copy of the feed-forward that the dense run has in its place.

    Routers keep the values that the recipe draws for them; all other weights are the run's. Where the weights of a
    token's experts sum to 1, and without noise and redrawn parts, the mixture computes what the dense run computes;
    else each of its mixtures gives the sum of those weights times what the dense feed-forward gives.

    Parameters
    ----------
    noise : each copy gets Gaussian noise of this many standard deviations of the weight that it is added to.
    redrawn : share of the inner width of each expert that is drawn anew, other parts in each, from a normal of the
        mean and deviation of what stood there (Nakamura et al. 2025, arXiv:2502.19261).
    split : experts of a width `split` times smaller: expert e is piece e mod `split` of the dense feed-forward, its
        output matrix times `split`, and the experts of a whole begin with one score (He et al. 2024,
        arXiv:2410.07524). For the router `top_k`, with a k that `split` divides.
    """

    reference = Reference(
        "Komatsuzaki et al.",
        2022,
        "Sparse Upcycling: Training Mixture-of-Experts from Dense Checkpoints",
        "https://arxiv.org/abs/2212.05055",
    )
    of_runs = True

    def __init__(self, *, noise: float = 0.0, redrawn: float = 0.0, split: int = 1):
        if noise < 0:
            raise UserError(f"upcycle: noise is {noise}; it must be at least 0")
        if not 0 <= redrawn <= 1:
            raise UserError(f"upcycle: redrawn is {redrawn}; it is a share, from 0 to 1")
        if split < 1:
            raise UserError(f"upcycle: split is {split}; it must be at least 1")
        self.noise, self.redrawn, self.split = noise, redrawn, split

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Plain copies, and with every option."""
        return [{}, {"noise": 0.01, "redrawn": 0.5, "split": 2}]

    def from_run(self, source: nn.Module, model: nn.Module, seed: int) -> dict[str, Tensor]:
        """See `Converter`."""
        given, wanted = source.state_dict(), model.state_dict()
        made: dict[str, Tensor] = {}
        for path, mixture, found in _grown(source, model):
            dense = self._checked(path, mixture, found)
            one = _taken(given, path)
            drawn = _taken(wanted, path)
            experts = self._experts(path, mixture, dense, one, seed)
            given |= {f"{path}.experts.{name}": tensor[0] for name, tensor in experts.items()}
            for name, tensor in drawn.items():
                if name.startswith("experts."):
                    wanted[f"{path}.{name}"] = tensor[0]
                else:
                    made[f"{path}.{name}"] = self._router(name, tensor)
            made |= {f"{path}.experts.{name}": tensor for name, tensor in experts.items()}
        told = disagreements(given, wanted)
        if told:
            raise UserError(
                "upcycle: the run (there) has other weights than the recipe's model (here; of each mixture one expert):"
                "\n  " + "\n  ".join(told) + "\nwrite model as the run's recipe has it, but for mixtures whose experts "
                f"are as wide as its feed-forwards{'' if self.split == 1 else f', divided by split, {self.split}'}"
            )
        return given | made

    def _checked(self, path: str, mixture: MixtureOfExperts, dense: nn.Module | None) -> nn.Module:
        """What the run has in the place of a mixture, if that can be made of it; else a `UserError`."""
        expert = mixture.experts.one
        if dense is None:
            raise UserError(f"upcycle: {path} is a mixture, and the run has no feed-forward there")
        if type(dense) is not type(expert) or _settings(dense) != _settings(expert):
            raise UserError(
                f"upcycle: {path} is {_named(dense)} in the run, and its experts are {_named(expert)}; write expert: "
                "as the run's recipe has feed_forward:"
            )
        if mixture.shared is not None:
            raise UserError(
                f"upcycle: {path} has a shared expert, which would add to what the dense feed-forward computes; "
                "set shared: null"
            )
        if self.split > 1:
            self._check_split(path, mixture, dense)
        return dense

    def _check_split(self, path: str, mixture: MixtureOfExperts, dense: nn.Module) -> None:
        if not isinstance(mixture.router, TopK):
            raise UserError(f"upcycle: split takes the router top_k, and {path} has {type(mixture.router).__name__}")
        sizes = {"n_experts": mixture.n_experts, "k": mixture.router.k, "the dense width": inner_width(dense)}
        for name, size in sizes.items():
            if size % self.split:
                raise UserError(f"upcycle: {path}: {name} is {size}, no multiple of split, {self.split}")

    def _experts(
        self, path: str, mixture: MixtureOfExperts, dense: nn.Module, weights: dict[str, Tensor], seed: int
    ) -> dict[str, Tensor]:
        """Name -> (E, …): the copies, with what noise and drawing anew make of them."""
        dimensions = inner_dimensions(dense) if self.split > 1 or self.redrawn else {}
        copies = {
            name: self._copies(tensor, dimensions.get(name), mixture.n_experts) for name, tensor in weights.items()
        }
        varied = {name: self._noised(f"{path}.{name}", tensor, seed) for name, tensor in copies.items()}
        if self.redrawn:
            width = inner_width(dense) // self.split
            draw = generator(seed, f"{path} redrawn")
            for e in range(mixture.n_experts):
                chosen = torch.randperm(width, generator=draw)[: round(self.redrawn * width)]
                for name, dimension in dimensions.items():
                    if dimension is not None and len(chosen):
                        _redraw(varied[name][e], copies[name][e], dimension, chosen, draw)
        return varied

    def _copies(self, tensor: Tensor, dimension: int | None, n: int) -> Tensor:
        pieces = [tensor] if dimension is None else tensor.chunk(self.split, dimension)
        stacked = torch.stack([pieces[e % len(pieces)] for e in range(n)])
        return stacked * self.split if dimension == 1 else stacked

    def _noised(self, name: str, copies: Tensor, seed: int) -> Tensor:
        if not self.noise:
            return copies.clone()
        noise = torch.empty_like(copies).normal_(generator=generator(seed, f"{name} noise"))
        return copies + self.noise * copies[0].std(correction=0) * noise

    def _router(self, name: str, drawn: Tensor) -> Tensor:
        """What is drawn for the router: with `split`, one score for the experts of a whole."""
        if self.split == 1 or not name.startswith("router."):
            return drawn
        return drawn[:: self.split].repeat_interleave(self.split, 0)


def _grown(source: nn.Module, model: nn.Module) -> list[tuple[str, MixtureOfExperts, nn.Module | None]]:
    """The model's mixtures that are none in the run, each with its path and with what the run has there."""
    there = dict(source.named_modules())
    found = [
        (path, part, there.get(path)) for path, part in model.named_modules() if isinstance(part, MixtureOfExperts)
    ]
    return [each for each in found if not isinstance(each[2], MixtureOfExperts)]


def _taken(weights: dict[str, Tensor], path: str) -> dict[str, Tensor]:
    """Take all weights under a path out; names are within it."""
    names = [name for name in weights if name.startswith(f"{path}.")]
    return {name.removeprefix(f"{path}."): weights.pop(name) for name in names}


def _redraw(new: Tensor, old: Tensor, dimension: int, chosen: Tensor, draw: torch.Generator) -> None:
    part = old.index_select(dimension, chosen)
    mean, deviation = float(part.mean()), float(part.std(correction=0))
    new.index_copy_(dimension, chosen, torch.empty_like(part).normal_(mean, deviation, generator=draw))


def _settings(part: nn.Module) -> dict[str, Any]:
    """What of a feed-forward its weights do not show, such as its activation."""
    own = {name: value for name, value in vars(part).items() if name not in ("training", "width") and name[0] != "_"}
    return {name: value for name, value in own.items() if callable(value) or isinstance(value, (bool, int, float, str))}


def _named(part: nn.Module) -> str:
    names = {function: name for name, function in ACTIVATIONS.items()}
    told = [f"{name} {names.get(value, value)}" for name, value in _settings(part).items()]
    return f"{type(part).__name__} ({', '.join(told)})" if told else type(part).__name__
