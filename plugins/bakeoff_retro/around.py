"""A backbone around a backbone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.context import LayerContext
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class Around(Backbone):
    """One whose parameters are all those of an inner one, `backbone`, which also speaks for its layers."""

    def __init__(self, place: LayerContext, backbone: Callable[[LayerContext], Backbone]):
        super().__init__(place)
        self.backbone = backbone(place)

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

    def narrow(self, ranks: DeviceMesh) -> None:
        """As the inner backbone does."""
        self.backbone.narrow(ranks)

    def layer_losses(self, aux: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inner backbone's."""
        return self.backbone.layer_losses(aux)

    def layer_statistics(self, aux: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inner backbone's."""
        return self.backbone.layer_statistics(aux)

    def after_step(self, statistics: Mapping[str, Tensor]) -> None:
        """Show the inner backbone its own statistics."""
        self.backbone.after_step(statistics)
