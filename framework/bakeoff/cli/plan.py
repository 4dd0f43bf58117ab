"""`bakeoff plan R`: what a recipe costs, before anything is allocated."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bakeoff.interfaces.command import Command

if TYPE_CHECKING:
    from bakeoff.evaluate.planning import RecipePlan
    from bakeoff.model.cost import Cost
    from bakeoff.recipe import Recipe

Row = tuple[str, ...]


class Plan(Command):
    """Parameters, work, state and memory of a recipe, and the speed that memory allows in decoding."""

    help = "parameters, FLOPs, memory and state of a recipe; nothing is allocated"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The recipe (of a comparison: each arm, as it stands before matching), overrides, and what to plan for."""
        parser.add_argument("recipe", help="a recipe or comparison, or bakeoff:NAME for one that is shipped")
        parser.add_argument("overrides", nargs="*", metavar="PATH=VALUE", help="values set by path")
        parser.add_argument("--length", type=int, help="tokens in a row (default: data.length)")
        parser.add_argument("--batch", type=int, default=1, help="rows that are decoded at once (default: 1)")
        parser.add_argument(
            "--bandwidth", type=float, metavar="GB/S", help="of memory, for decoding (default: measured here)"
        )
        parser.add_argument("--devices", type=int, metavar="N", help="rank the layouts of training on so many devices")
        parser.add_argument(
            "--gpu", metavar="NAME", help="their kind: a100, h100 (default), h200, b200, tpu_v4, tpu_v5e"
        )
        parser.add_argument("--nodes", type=int, metavar="N", help="that they stand in (default: as few as hold them)")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print the plan."""
        from rich.console import Console

        from bakeoff.errors import UserError
        from bakeoff.recipe import comparison, is_comparison, recipe

        for name in ("length", "batch", "bandwidth", "devices", "nodes"):
            value = getattr(arguments, name)
            if value is not None and value <= 0:
                raise UserError(f"--{name} is {value:g}; it must be positive")
        if arguments.nodes and not (arguments.devices or arguments.gpu):
            raise UserError("--nodes says where devices stand; give --devices, and --gpu for their kind")
        console = Console()
        if not is_comparison(arguments.recipe):
            _show(console, recipe(arguments.recipe, arguments.overrides), arguments)
            return 0
        for name, arm in comparison(arguments.recipe, arguments.overrides).arms.items():
            console.rule(name, align="left")
            _show(console, arm, arguments)
        return 0


def _show(console: Any, planned: Recipe, arguments: argparse.Namespace) -> None:
    """One recipe: its layouts where devices are named, else its cost."""
    if arguments.devices or arguments.gpu:
        from bakeoff.cli.plan_layouts import show_layouts
        from bakeoff.evaluate.layouts import plan_layouts
        from bakeoff.model.devices import accelerator

        device = accelerator(arguments.gpu or "h100")
        show_layouts(console, plan_layouts(planned, device, arguments.devices or 1, arguments.nodes))
        return
    from bakeoff.evaluate.planning import plan_recipe

    show(console, plan_recipe(planned, arguments.length), arguments.batch, arguments.bandwidth)


def show(console: Any, planned: RecipePlan, batch: int, bandwidth: float | None) -> None:
    """Print one plan."""
    console.print(layers_table(planned))
    console.print(_grid([*training_rows(planned), *decoding_rows(planned, batch, bandwidth)]))
    for note in planned.notes:
        console.print(f"[yellow]note:[/] {note}", highlight=False)


def layers_table(planned: RecipePlan) -> Any:
    """One row a group of equal layers and one a part; figures are of one layer."""
    from rich.table import Table

    model = planned.model
    last = "the last" if model.decoded == 1 else f"of the last {model.decoded}"
    title = f"forward FLOPs of a token (average of {model.length} in a row; {last}), of one layer each"
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for title in ("part", "component"):
        table.add_column(title, no_wrap=True)
    for title in ("parameters", "average", "decoding", "state"):
        table.add_column(title, justify="right", no_wrap=True)
    for layer in model.layers:
        table.add_row(*_cost_row(f"layer {ranges(layer.numbers)}", layer.whole), style="bold")
        for part in layer.parts:
            table.add_row(*_cost_row(f"  {part.name}", part))
    table.add_row(*_cost_row("head", model.head), style="bold")
    table.add_row(*_cost_row("all", model.whole), style="bold", end_section=True)
    return table


def training_rows(planned: RecipePlan) -> Iterator[Row]:
    """What training costs."""
    from bakeoff.compare.words import count, size

    model, memory = planned.model, planned.memory
    without = model.parameters.without_embeddings
    yield (
        "parameters",
        f"{model.parameters.total:,}",
        f"{without:,} without embeddings; vocabulary {planned.vocabulary:,}",
    )
    if model.parameters.idle:
        active = f"{model.parameters.active_without_embeddings:,} without embeddings; what one token uses"
        yield "active parameters", f"{model.parameters.active:,}", active
    share = planned.trained / model.parameters.total
    if share < 1:
        yield "trained parameters", f"{planned.trained:,}", f"{share:.1%}; the others have no gradient, and no state"
    most = "" if share == 1 else "; at most, as the others need no gradient"
    most += "; at most, as rows may be shorter" if planned.dialogues else ""
    beside = f", and {planned.forwards:.3g} forward without gradients" if planned.forwards else ""
    yield "training, a token", f"{count(planned.training_flops)} FLOP", f"three times the forward{beside}{most}"
    if planned.recompute != "none":
        told = f"recompute: {planned.recompute}; at most, and not counted in utilisation"
        yield "  and anew in backward", f"{count(planned.recomputed)} FLOP", told
    yield "6 N (1 + s / 6 d)", f"{count(model.formula_flops)} FLOP", "rule of thumb, N active without embeddings"
    if planned.total_flops is not None:
        step = f"{planned.steps:,} steps of {planned.step_tokens:,} tokens"
        yield "training, all", f"{count(planned.total_flops)} FLOP", step
    if memory is not None:
        many = f", {planned.accumulation} a step" if planned.accumulation > 1 else ""
        yield "training memory", size(memory.peak), f"micro-batches of {planned.rows} rows{many}; of this:"
        yield "  parameters", size(memory.parameters), ""
        yield "  gradients", size(memory.gradients), ""
        yield "  optimizer", size(memory.optimizer), ""
        kept = "" if planned.recompute == "none" else f"; recompute: {planned.recompute}"
        yield "  activations", size(memory.activations), f"and temporaries, at the peak{kept}"
        if memory.states:
            yield "  states", size(memory.states), "of all lanes of a device, before and after a step"
    else:
        yield "training memory", "–", "see the note"


def decoding_rows(planned: RecipePlan, batch: int, bandwidth: float | None) -> Iterator[Row]:
    """What decoding costs, and the bound that memory sets to it."""
    from bakeoff.compare.words import count, size
    from bakeoff.model.machine import measured_bandwidth

    model = planned.model
    yield "weights", size(model.weight_bytes), ""
    yield "state of a row", size(model.whole.state), f"with {model.length} tokens"
    speed = measured_bandwidth() if bandwidth is None else bandwidth * 1e9
    bound = model.decode(batch, speed)
    if bound is None:
        yield "decoding bound", "–", "see the note"
        return
    if batch > 1:
        yield "state of the batch", size(model.whole.state and model.whole.state * batch), f"{batch} rows"
    source = "measured here" if bandwidth is None else "as given"
    reads = f"{size(bound.read)} a step at {speed / 1e9:.3g} GB/s ({source})"
    yield "decoding bound", f"{count(bound.tokens_per_second)} tokens/s", f"{bound.seconds * 1e3:.3g} ms for {reads}"
    if bound.intensity is not None:
        yield "intensity", f"{bound.intensity:.3g} FLOP/byte", "of decoding with a full past"


def _cost_row(name: str, cost: Cost) -> Row:
    from bakeoff.compare.words import count, size

    figures = count(cost.parameters), count(cost.flops), count(cost.decode_flops), size(cost.state)
    return name, cost.component, *figures


def ranges(numbers: tuple[int, ...]) -> str:
    """0-2, 4 for (0, 1, 2, 4)."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][-1] == number - 1:
            spans[-1].append(number)
        else:
            spans.append([number])
    return ", ".join(f"{span[0]}-{span[-1]}" if len(span) > 1 else str(span[0]) for span in spans)


def _grid(rows: list[Row]) -> Any:
    from rich.table import Table

    grid = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column(style="dim")
    for row in rows:
        grid.add_row(*row)
    return grid
