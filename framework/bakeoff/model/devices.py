"""What accelerators are able to do, from their makers' data sheets."""

from __future__ import annotations

import difflib
from typing import NamedTuple

from bakeoff.errors import UserError


class Accelerator(NamedTuple):
    """One device, and the links that it is reached by. Units: operations, bytes, seconds.

    Attributes
    ----------
    name, title : what a command calls it, and what its maker does. in_torch : what torch's name of it contains.
    flops : a second, dense bfloat16 matrix products.
    memory : capacity as sold, in decimal units; what it has beyond, drivers and allocators take.
    bandwidth : of the memory.
    inside, between : what one device sends a second, in one direction, to others of its node, and of other nodes.
    per_node : how many the links inside a node join.
    source : where the figures are from.
    """

    name: str
    title: str
    in_torch: str
    flops: float
    memory: float
    bandwidth: float
    inside: float
    between: float
    per_node: int
    source: str

    @property
    def ridge(self) -> float:
        """Operations a byte of memory above which products are no longer bound by memory."""
        return self.flops / self.bandwidth


ACCELERATORS = (
    Accelerator(
        "a100", "A100 SXM 80 GB", "A100", 312e12, 80e9, 2.039e12, 300e9, 25e9, 8,
        "NVIDIA A100 and DGX A100 data sheets: NVLink 600 GB/s both ways, eight 200 Gb/s adapters a node",
    ),
    Accelerator(
        "h100", "H100 SXM 80 GB", "H100", 989.5e12, 80e9, 3.35e12, 450e9, 50e9, 8,
        "NVIDIA H100 and DGX H100 data sheets: NVLink 900 GB/s both ways, eight 400 Gb/s adapters a node",
    ),
    Accelerator(
        "h200", "H200 SXM 141 GB", "H200", 989.5e12, 141e9, 4.8e12, 450e9, 50e9, 8,
        "NVIDIA H200 and DGX H200 data sheets: NVLink 900 GB/s both ways, eight 400 Gb/s adapters a node",
    ),
    Accelerator(
        "b200", "B200 SXM 180 GB", "B200", 2250e12, 180e9, 8e12, 900e9, 50e9, 8,
        "NVIDIA DGX B200 data sheet: NVLink 1.8 TB/s both ways, eight 400 Gb/s adapters a node",
    ),
    Accelerator(
        "tpu_v4", "TPU v4", "TPU v4", 275e12, 32e9, 1.2e12, 268e9, 6.25e9, 4096,
        "Google Cloud documentation, TPU v4: a slice counts as a node, 200 Gb/s of a host's adapter over 4 chips; "
        "links inside: Liu et al. (2023), table 2",
    ),
    Accelerator(
        "tpu_v5e", "TPU v5e", "TPU v5e", 197e12, 16e9, 0.819e12, 186e9, 3.125e9, 256,
        "Google Cloud documentation, TPU v5e: a slice counts as a node, 6.4 Tb/s of a pod's network over 256 chips; "
        "links inside: Liu et al. (2023), table 2",
    ),
)  # fmt: skip


def accelerator(name: str) -> Accelerator:
    """The one that is called `name`; `UserError` with the nearest names and all of them if none is."""
    asked = name.lower().replace("-", "_").replace(" ", "_")
    for one in ACCELERATORS:
        if one.name == asked:
            return one
    known = [one.name for one in ACCELERATORS]
    near = difflib.get_close_matches(asked, known, n=2)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    raise UserError(f"no device is called '{name}'; {meant}known: {', '.join(known)}")
