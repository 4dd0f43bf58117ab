"""A backbone around a backbone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.context import LayerContext, Shared
from bakeoff.interfaces.cut import Cut
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from typing_extensions import Self

#: What a module has in it.
_HELD = ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set")


class Around(Backbone):
    """One that has nothing of its own: all parts and parameters are those of an inner one, under their names there.

    The weights of the inner one by itself are therefore those of this one, and both begin with the same values.
    """

    def __init__(self, place: LayerContext, backbone: Callable[[LayerContext], Backbone]):
        super().__init__(place)
        self.inner = Shared(backbone(place))
        for name in _HELD:
            setattr(self, name, getattr(self.backbone, name))
        self.roles, self.keep_float32 = self.backbone.roles, self.backbone.keep_float32  # type: ignore[misc]

    @property
    def backbone(self) -> Backbone:
        """The inner one."""
        return self.inner.module

    @property
    def embedding(self) -> nn.Parameter:
        """The inner backbone's (V, D) input embedding."""
        return self.backbone.embedding

    @property
    def layers(self) -> nn.ModuleList:
        """The inner backbone's blocks."""
        return self.backbone.layers

    @property
    def stream(self) -> list[nn.Module]:
        """What works on the inner backbone's residual stream."""
        return self.backbone.stream

    @property
    def shared_parts(self) -> list[nn.Module]:
        """What the inner backbone's layers share on purpose."""
        return self.backbone.shared_parts

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the inner backbone, too."""
        self.backbone.training = mode
        return super().train(mode)

    def reset_parameters(self) -> None:
        """As the inner backbone does."""
        self.backbone.reset_parameters()

    def spread(self, mesh: DeviceMesh) -> None:
        """As the inner backbone does."""
        self.backbone.spread(mesh)

    def parallel_plan(self, ranks: int) -> Mapping[str, Cut]:
        """The inner backbone's."""
        return self.backbone.parallel_plan(ranks)

    def narrow(self, ranks: DeviceMesh) -> None:
        """As the inner backbone does."""
        self.backbone.narrow(ranks)

    def idle(self) -> int:
        """The inner backbone's."""
        return self.backbone.idle()

    def layer_losses(self, aux: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inner backbone's."""
        return self.backbone.layer_losses(aux)

    def layer_statistics(self, aux: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inner backbone's."""
        return self.backbone.layer_statistics(aux)

    def after_step(self, statistics: Mapping[str, Tensor]) -> None:
        """Show the inner backbone its own statistics."""
        self.backbone.after_step(statistics)
