"""The report's charts as Plotly figures, for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bakeoff.compare.report.charts import chart_data
from bakeoff.compare.results import Results

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

#: The report's own on white, in its order; apart for colour-blind eyes too.
COLOURS = ("#04338e", "#b63205", "#14715b", "#db5fa3", "#9c8d3a", "#2a90ef", "#814cbb", "#3d2b26")


def figures(results: Results) -> dict[str, Figure]:
    """`validation`, `loss` against tokens; `speed`, `memory`, `task NAME` with the Pareto front; those there are."""
    data = chart_data(results)
    arms = data["arms"]
    found = {
        "loss" if curve["label"].startswith("training") else "validation": _curves(curve, arms)
        for curve in data["curves"]
    }
    for name, options in data["tradeoffs"].items():
        if options:
            found[name] = _tradeoff(options[0], arms)
    return found


def _curves(curve: dict[str, Any], arms: list[str]) -> Figure:
    """A line an arm, and the band from its lowest to its highest seed."""
    from plotly import graph_objects as go

    figure = go.Figure()
    for name, points in curve["series"].items():
        colour = _colour(name, arms)
        tokens = [point["tokens"] for point in points]
        band = {"mode": "lines", "line": {"width": 0}, "legendgroup": name, "showlegend": False, "hoverinfo": "skip"}
        figure.add_scatter(x=tokens, y=[point["high"] for point in points], **band)
        figure.add_scatter(x=tokens, y=[p["low"] for p in points], fill="tonexty", fillcolor=_faint(colour), **band)
        line = {"color": colour, "width": 2}
        means = [point["mean"] for point in points]
        figure.add_scatter(x=tokens, y=means, name=name, legendgroup=name, mode="lines", line=line)
    figure.update_layout(xaxis_title="tokens", yaxis_title=curve["label"], hovermode="x unified")
    return figure


def _tradeoff(option: dict[str, Any], arms: list[str]) -> Figure:
    """A mark an arm, from its lowest to its highest seed, and the front as steps."""
    from plotly import graph_objects as go

    figure = go.Figure()
    points = {point["arm"]: point for point in option["points"]}
    front = [points[name] for name in option["front"]]
    steps = {"color": "#8a929c", "dash": "dash", "shape": "hv"}
    places = {"x": [point["x"] for point in front], "y": [point["y"] for point in front]}
    figure.add_scatter(**places, name="Pareto front", mode="lines", line=steps)
    for name, point in points.items():
        spread = {"array": [point["high"] - point["y"]], "arrayminus": [point["y"] - point["low"]], "thickness": 1}
        mark = {"color": _colour(name, arms), "size": 11}
        figure.add_scatter(x=[point["x"]], y=[point["y"]], name=name, mode="markers", marker=mark, error_y=spread)
    figure.update_layout(
        xaxis_title=option["label"], yaxis_title=f"{option['unit']} ({'more' if option['up'] else 'less'} is better)"
    )
    return figure


def _colour(name: str, arms: list[str]) -> str:
    return COLOURS[arms.index(name) % len(COLOURS)]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.15)"
