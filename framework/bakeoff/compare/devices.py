"""Which GPUs each of several trials that run at once may see."""

from __future__ import annotations

import os
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any

from bakeoff.errors import UserError


def devices_of(folder: Path) -> Any:
    """What the recipe in a trial's folder says of devices: a number, "auto", or a list; 0 if it is for a CPU."""
    path = folder / "run" / "recipe.yaml"
    if not path.exists():
        return "auto"
    from bakeoff.recipe.reading import read

    trainer = read(path).values["trainer"]
    return 0 if trainer.get("accelerator") == "cpu" else trainer.get("devices") or "auto"


def slot_environments(slots: int, wanted: Items[Any]) -> list[dict[str, str]]:
    """Environment of each slot: its GPUs, and a port of its own where ranks meet at a given one.

    Where trials say how many GPUs they want, no two slots share one. Where all leave it to the machine (`auto`), slots
    have equal shares, and share single GPUs if there are fewer of them than slots.

    Raises `UserError` if the slots together want more GPUs than there are.
    """
    environments: list[dict[str, str]] = [{} for _ in range(slots)]
    if slots > 1 and "MASTER_PORT" in os.environ:
        for slot, environment in enumerate(environments):
            environment["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + slot)
    there = visible()
    said = [_number(number, slots) for number in wanted if number not in ("auto", "-1", -1)]
    if not there or (said and len(said) == len(wanted) and not any(said)):
        return environments
    each = max(said, default=0)
    if each * slots > len(there):
        what = f"{slots} slots x trainer.devices {each} = {each * slots}" if slots > 1 else f"trainer.devices {each}"
        nearest = f"set executor.slots={len(there) // each}, or " if each <= len(there) and slots > 1 else "set "
        raise UserError(
            f"executor local: {what} GPUs are wanted at once, but this machine shows {len(there)}; "
            f"{nearest}trainer.devices={max(len(there) // slots, 1)}"
        )
    if slots > 1 and len(there) > 1:
        share = max(each, len(there) // slots, 1)
        for slot, environment in enumerate(environments):
            first = slot * share % len(there)
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(there[first : first + share])
    return environments


def visible() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return shown.split(",")[:count] if shown else [str(number) for number in range(count)]


def _number(wanted: Any, slots: int) -> int:
    if isinstance(wanted, int) or (isinstance(wanted, str) and wanted.isdigit()):
        return int(wanted)
    if slots > 1:
        raise UserError(f"executor local: trainer.devices names {wanted}, but {slots} slots share GPUs out by number")
    names = wanted if isinstance(wanted, list) else str(wanted).split(",")
    return len([name for name in names if str(name).strip()])
