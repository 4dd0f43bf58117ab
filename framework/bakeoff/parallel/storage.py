"""Pieces written by torch.distributed.checkpoint: what several ranks hold alike once, by those with least to write."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from bakeoff.parallel.pieces import Box, Piece
from bakeoff.parts.files import remove, writing
from bakeoff.parts.tensor_files import disk_errors


def store(tensors: Mapping[str, Piece], folder: Path, group: ProcessGroup | None) -> None:
    """Write what all ranks hold into a new folder; an error on one rank is raised on each."""
    alone = not torch.distributed.is_initialized()
    try:
        with warnings.catch_warnings() if alone else nullcontext():
            if alone:
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
            dcp.save(
                dict(tensors), storage_writer=_Folder(folder), planner=_Planner(), process_group=group, no_dist=alone
            )
    except CheckpointException as error:
        raise error.failures[min(error.failures)][0] from None


class _Planner(DefaultSavePlanner):
    """One entry for each box of a piece."""

    state_dict: dict[str, Piece]

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def create_local_plan(self) -> SavePlan:
        """What this rank holds."""
        held = ((name, piece, box) for name, piece in self.state_dict.items() for box in _entries(piece))
        self.plan = SavePlan([_item(*one) for one in held])
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Who writes what."""
        return super().create_global_plan(shared_out(all_plans))

    def resolve_data(self, write_item: WriteItem) -> Tensor:
        """The values of an entry."""
        piece, start = self.state_dict[write_item.index.fqn], write_item.index.offset
        box = next(box for box in _entries(piece) if box.whole == start)
        return piece.view(box) if piece.local.numel() else piece.local.new_empty(box.size)


def _entries(piece: Piece) -> tuple[Box, ...]:
    """Its boxes; of a tensor without elements one, so that its name is kept."""
    zeros = (0,) * len(piece.whole)
    return piece.boxes if piece.whole.numel() else (Box(zeros, zeros, tuple(piece.whole)),)


def _item(name: str, piece: Piece, box: Box) -> WriteItem:
    start = torch.Size(box.whole)
    chunk = ChunkStorageMetadata(offsets=start, sizes=torch.Size(box.size))
    data = TensorWriteData(chunk, TensorProperties(dtype=piece.local.dtype), piece.whole)
    return WriteItem(MetadataIndex(name, start), WriteItemType.SHARD, tensor_data=data)


def shared_out(plans: list[SavePlan]) -> list[SavePlan]:
    """Each entry in one of the plans that have it: the largest first, where there is least to write so far."""
    holders: dict[MetadataIndex, list[int]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            holders.setdefault(item.index, []).append(rank)
    sizes = {item.index: _bytes(item) for plan in plans for item in plan.items}
    given: list[set[MetadataIndex]] = [set() for _ in plans]
    load = [0] * len(plans)
    for index in sorted(holders, key=lambda index: (len(holders[index]) > 1, -sizes[index])):
        rank = min(holders[index], key=lambda rank: load[rank])
        given[rank].add(index)
        load[rank] += sizes[index]
    return [
        replace(plan, items=[item for item in plan.items if item.index in mine])
        for plan, mine in zip(plans, given, strict=True)
    ]


def _bytes(item: WriteItem) -> int:
    data = item.tensor_data
    assert data is not None, "only tensors are written"
    return math.prod(data.chunk.sizes) * data.properties.dtype.itemsize


class _Folder(FileSystemWriter):
    """Files of a folder, which the first rank makes; what the disk refuses is a `UserError` with path and bytes."""

    def __init__(self, folder: Path):
        super().__init__(folder)
        self.folder = folder

    def storage_meta(self) -> None:
        """Nothing: a checkpoint does not know where it stands."""
        return None

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Make the folder, anew if there is one."""
        with writing(self.folder):
            remove(self.folder)
            self.folder.mkdir(parents=True)
        return super().prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file."""
        with writing(self.folder, sum(map(_bytes, plan.items))), disk_errors():
            return super().write_data(plan, planner)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the metadata."""
        with writing(self.folder):
            super().finish(metadata, results)
