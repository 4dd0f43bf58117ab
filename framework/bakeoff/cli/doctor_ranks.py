"""`bakeoff doctor --distributed`: whether the ranks of this machine meet, and how fast the way between them is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bakeoff.errors import UserError

if TYPE_CHECKING:
    from bakeoff.parallel.probe import Probe


def ranks(devices: int | None) -> int:
    """Probe, print a table and what is wrong; exit code 1 if something is.

    Raises `UserError` if there are fewer than two ranks to speak of, or more than devices.
    """
    import torch
    from rich.console import Console

    from bakeoff.parallel.probe import probe

    there = torch.cuda.device_count()
    size = devices if devices is not None else (there if there > 1 else 2)
    if size < 2:
        raise UserError(f"--devices is {size}; two ranks are the fewest that can speak to each other")
    device = "cuda" if there > 1 else "cpu"
    if device == "cuda" and size > there:
        raise UserError(f"--devices is {size}, but this machine has {there}")
    found = probe(size, device=device)
    console = Console()
    if found.times:
        console.print(table(found))
    for line in found.wrong:
        console.print(f"! {line}", markup=False, highlight=False, soft_wrap=True)
    if not found.wrong:
        console.print(f"{size} ranks meet over {found.backend} in {found.meeting:.1f} s, and add up right")
    return 1 if found.wrong else 0


def table(found: Probe) -> Any:
    """Times of each collective by the size of what a rank gives."""
    from rich.table import Table

    from bakeoff.compare.words import size

    shown = Table(box=None, padding=(0, 2, 0, 0))
    shown.add_column("collective")
    for name in ("a rank gives", "time", "a rank sends, over a ring"):
        shown.add_column(name, justify="right")
    for name, given, seconds, speed in found.times:
        shown.add_row(name, size(given), f"{seconds * 1e3:.3g} ms", f"{size(int(speed))}/s")
    return shown
