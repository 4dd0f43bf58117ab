"""Lightning's strategy for a run on a mesh."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch.plugins.precision import MixedPrecision
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, distributed
from torch.optim import Optimizer

from bakeoff.errors import CapabilityError
from bakeoff.parallel import checkpoints
from bakeoff.parallel.contents import contents
from bakeoff.parallel.layout import Layout, pieces
from bakeoff.parallel.mesh import Mesh, Sizes
from bakeoff.parallel.pieces import fill_from
from bakeoff.parallel.writer import Writer
from bakeoff.train.optimizer_state import PREFIX, by_name, empty_state, named, restore, state_pieces
from bakeoff.train.saving import OPTIMIZER, load_rest, rest_of

if TYPE_CHECKING:
    from bakeoff.train.checkpoint import WholeFiles
    from bakeoff.train.module import TrainingModule

#: How long a rank waits for another in an exchange.
PATIENCE = timedelta(seconds=45)


class MeshStrategy(DDPStrategy):
    """Starts the ranks and lays the mesh; the training module stands on it by itself, unwrapped.

    Checkpoints are folders, written behind the training over a process group of their own.

    Parameters
    ----------
    sizes : of the mesh. options : of the layout, see `bakeoff.parallel.layout.Layout`.
    """

    def __init__(self, sizes: Sizes, options: Mapping[str, Any]):
        super().__init__(timeout=PATIENCE)
        self.sizes, self.options = sizes, dict(options)
        self.layout: Layout | None = None
        self.writer: Writer | None = None
        self._source: Path | None = None

    @property
    def restore_checkpoint_after_setup(self) -> bool:
        """The model has no values before."""
        return True

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        """Rows of their own are read by ranks along data, expert and shard only."""
        rank = 0 if self.layout is None else self.layout.mesh.batch_rank
        return {"num_replicas": self.sizes.batch, "rank": rank}

    def setup_environment(self) -> None:
        """Begin the process groups, and lay the mesh."""
        if isinstance(self.precision_plugin, MixedPrecision) and self.precision_plugin.scaler is not None:
            raise CapabilityError(
                "trainer.precision 16-mixed scales its loss, which a mesh does not do; use bf16-mixed, or strategy ddp"
            )
        super().setup_environment()
        gathered = torch.bfloat16 if str(self.precision_plugin.precision) == "bf16-mixed" else None
        mesh = Mesh(self.sizes, self.root_device.type)
        self.layout = Layout(mesh, gathered=gathered, **self.options)
        self.writer = Writer(distributed.new_group(backend="gloo", timeout=timedelta(minutes=30)))

    def configure_ddp(self) -> None:
        """Nothing: what is to be added up over ranks, the module adds up."""

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Nothing: see `save_checkpoint`."""
        return {}

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """Nothing: see `save_checkpoint`."""
        return {}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None) -> None:
        """Copy this rank's pieces, and write them while training goes on; all ranks call it.

        `storage_options` is called on the first rank when the checkpoint stands.
        """
        assert self.writer is not None
        here = pieces(self.module.learner)
        state, plain = by_name(self._optimizer, self.module.learner, self.module.own)
        rest = rest_of(checkpoint, plain, self._identity)
        done: Callable[[], None] = storage_options or (lambda: None)
        self.writer.save({**here, **state_pieces(state, here)}, rest, Path(filepath), done)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """All but the tensors of a folder, which are read where they belong; of a file, everything."""
        path = Path(checkpoint_path)
        if not path.is_dir():
            return super().load_checkpoint(path, weights_only=weights_only)
        self._source = path
        rest = load_rest(path, self._identity)
        return {**rest, "state_dict": {}, "optimizer_states": [rest.pop(OPTIMIZER)]}

    def load_model_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> None:
        """Fill this rank's pieces of the model."""
        here = pieces(self.module.learner)
        if self._source is None:
            fill_from(checkpoint["state_dict"], here)
        else:
            checkpoints.read(self._source, here, within=("model.", "objective."))

    def load_optimizer_state_dict(self, checkpoint: Mapping[str, Any]) -> None:
        """Fill this rank's pieces of the optimizer's state."""
        (saved,), module = checkpoint["optimizer_states"], self.module
        here = pieces(module.learner)
        if self._source is None:
            whole, plain = named(saved, module.learner)
            state = empty_state(whole, self._optimizer, module.learner, here, module.own)
            fill_from(whole, state_pieces(state, here))
        else:
            held, plain = contents(self._source, PREFIX), saved
            state = empty_state(held, self._optimizer, module.learner, here, module.own)
            checkpoints.read(self._source, state_pieces(state, here), within=PREFIX)
        restore(self._optimizer, module.learner, state, plain, module.own)

    def teardown(self) -> None:
        """Wait for the checkpoint that is being written, and end the process groups."""
        try:
            if self.writer is not None:
                self.writer.wait()
        finally:
            super().teardown()
            if distributed.is_initialized():
                distributed.destroy_process_group()

    @property
    def module(self) -> TrainingModule:
        """The run's module."""
        return cast("TrainingModule", self.lightning_module)

    @property
    def _optimizer(self) -> Optimizer:
        return self.optimizers[0]

    @property
    def _identity(self) -> str:
        return cast("WholeFiles", self.checkpoint_io).identity
