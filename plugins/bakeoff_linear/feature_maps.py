"""Maps of queries and keys whose products are the weights of linear attention, by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

FeatureMapName = Literal["elu_plus_one", "relu", "taylor", "identity"]


class FeatureMap(ABC):
    """A map phi from `d` channels to `width` features, `d` of them unless a class says otherwise."""

    of_products: ClassVar[bool] = False
    """Whether it is a `ProductMap`."""

    def __init__(self, d: int):
        self.d = d

    @property
    def width(self) -> int:
        """Features of `d` channels."""
        return self.d

    @abstractmethod
    def features(self, x: Tensor) -> Tensor:
        """`phi(x)` (..., width) of `x` (..., d)."""


class ProductMap(FeatureMap):
    """A map whose weights are a function of `q . k`, so that features need not be formed where tokens are compared."""

    of_products = True

    @abstractmethod
    def gradient(self, x: Tensor, dphi: Tensor) -> Tensor:
        """That of `x` (..., d), from that of its features."""

    @abstractmethod
    def weights(self, products: Tensor) -> Tensor:
        """`phi(q) . phi(k)` of `q . k`."""

    @abstractmethod
    def slope(self, products: Tensor) -> Tensor:
        """The derivative of `weights`."""


class Identity(FeatureMap):
    """`x`: weights are products, of either sign."""

    def features(self, x: Tensor) -> Tensor:
        """`x`."""
        return x


class EluPlusOne(FeatureMap):
    """`elu(x) + 1`, over 0 everywhere (Katharopoulos et al., 2020)."""

    def features(self, x: Tensor) -> Tensor:
        """`x + 1` where x > 0, else `exp(x)`."""
        return F.elu(x) + 1


class ReLU(FeatureMap):
    """`max(x, 0)`."""

    def features(self, x: Tensor) -> Tensor:
        """`max(x, 0)`."""
        return F.relu(x)


class Taylor(ProductMap):
    """`[1, x / d^(1/4), vec(x x^T) / (sqrt(2) sqrt(d))]`, 1 + d + d^2 features (Arora et al., 2024).

    With `s = q . k / sqrt(d)` the weight is `1 + s + s^2 / 2`, the exponential's first terms, and at least 1/2.
    """

    @property
    def width(self) -> int:
        """1 + d + d^2."""
        return 1 + self.d + self.d**2

    def features(self, x: Tensor) -> Tensor:
        """The three parts side by side."""
        phi = x.new_zeros(*x.shape[:-1], self.width)
        phi[..., 0] = 1
        phi[..., 1 : 1 + self.d] = x * self.d**-0.25
        pairs = phi[..., 1 + self.d :].unflatten(-1, (self.d, self.d))
        pairs.addcmul_(x[..., :, None], (x * (2 * self.d) ** -0.5)[..., None, :])
        return phi

    def gradient(self, x: Tensor, dphi: Tensor) -> Tensor:
        """By x / d^(1/4), and by both sides of x x^T."""
        pairs = dphi[..., 1 + self.d :].reshape(-1, self.d, self.d)
        column = x.reshape(-1, self.d, 1)
        both = torch.baddbmm(pairs @ column, pairs.mT, column).view_as(x)
        return both.mul_((2 * self.d) ** -0.5).add_(dphi[..., 1 : 1 + self.d], alpha=self.d**-0.25)

    def weights(self, products: Tensor) -> Tensor:
        """`1 + s + s^2 / 2 = 1/2 + (s + 1)^2 / 2`."""
        return (products * self.d**-0.5).add_(1).square_().add_(1).mul_(0.5)

    def slope(self, products: Tensor) -> Tensor:
        """`(1 + s) / sqrt(d)`."""
        return (products / self.d).add_(self.d**-0.5)


FEATURE_MAPS: dict[str, type[FeatureMap]] = {
    "elu_plus_one": EluPlusOne,
    "relu": ReLU,
    "taylor": Taylor,
    "identity": Identity,
}


def feature_map_called(name: str, d: int) -> FeatureMap:
    """The feature map called `name` of `d` channels; an unknown name is a `ValueError` that lists all."""
    if name not in FEATURE_MAPS:
        raise ValueError(f"feature_map '{name}' is none of {', '.join(FEATURE_MAPS)}")
    return FEATURE_MAPS[name](d)
