"""What a part is told about the place it is built for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

M = TypeVar("M", bound="nn.Module")


class Shared(Generic[M]):
    """A handle to a module that several layers share; holding it does not register the module again."""

    __slots__ = ("module",)

    def __init__(self, module: M):
        self.module = module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)


class SharedParts(dict[str, "nn.Module"]):
    """Modules that layers share on purpose, by name; the model registers each of them once."""


@dataclass(frozen=True, kw_only=True)
class LayerContext:
    """The one positional argument of every part's constructor."""

    d_model: int
    vocab_size: int
    max_length: int
    """The longest sequence that the model is asked to see."""
    depth: int = 1
    layer: int = 0
    """Index of the layer that the part belongs to, from 0."""
    d_output: int | None = None
    """Width of what a mixer gives, where its builder wants another than `d_model`."""
    n_heads: int | None = None
    n_kv_heads: int | None = None
    head_width: int | None = None
    n_experts: int | None = None
    window: int | None = None
    """Keys that a query sees at most, itself included; None: all. Set by the mixer for its attention op."""
    soft_cap: float | None = None
    """Attention logits are `cap * tanh(logits / cap)`. Set by the mixer for its attention op."""
    mesh: DeviceMesh | None = field(default=None, repr=False)
    """What the part is laid out on from the start, its dimensions known by name; None: it is built whole."""
    parts: SharedParts = field(default_factory=SharedParts, repr=False)

    def child(self, **known: Any) -> LayerContext:
        """The context of a part inside this one, with what its builder knows."""
        return replace(self, **known)

    def shared(self, name: str, factory: Callable[[LayerContext], M]) -> Shared[M]:
        """The module shared under `name`, built at first request by `factory`, which sees no layer index.

        Raises `ValueError` if another layer shares a module of another class under this name.
        """
        if name not in self.parts:
            self.parts[name] = factory(replace(self, layer=0))
            return Shared(self.parts[name])  # type: ignore[arg-type]
        held = self.parts[name]
        wanted = getattr(factory, "func", factory)
        if isinstance(wanted, type) and type(held) is not wanted:
            raise ValueError(
                f"layers share '{name}' as {type(held).__name__} and as {wanted.__name__}; give one another name"
            )
        return Shared(held)  # type: ignore[arg-type]
