"""Figures as inline SVG: text stays text, colours are few, and the same data give the same bytes."""

from __future__ import annotations

import io
import math
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from deploy.requirement import require

__all__ = ["draw_agreement", "draw_panel"]

COLOURS = ("#2b5d8a", "#c8642c", "#4f8a4b", "#8a4f7d", "#7a6a3a", "#5b5b66")
_LONGEST = 28
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "relu-deploy",
    "font.family": "sans-serif",
    "text.parse_math": False,  # names are the user's, and a $ in them is a $
    "font.size": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a8f98",
    "axes.labelcolor": "#40444b",
    "axes.titlesize": 10.0,
    "xtick.color": "#40444b",
    "ytick.color": "#40444b",
    "axes.grid": True,
    "grid.color": "#e6e8eb",
    "axes.axisbelow": True,
}


def draw_agreement(targets: Mapping[str, Mapping[str, Any]]) -> str:
    """Share of held-out rows decided as the original, with its 95 % interval: a line for each target."""
    names = list(targets)

    def draw(axes: Any) -> None:
        for place, name in enumerate(names):
            low, high = targets[name]["agreement_interval"]
            share = targets[name]["agreement"]
            axes.plot([low, high], [place, place], color=COLOURS[0], linewidth=3, alpha=0.35, solid_capstyle="butt")
            axes.plot([share], [place], "o", color=COLOURS[0], markersize=6)
        lowest = min(targets[name]["agreement_interval"][0] for name in names)
        axes.set_xlim(max(0.0, lowest - 0.1 * (1 - lowest) - 1e-3), 1 + 0.02 * (1 - lowest) + 1e-4)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(range(len(names)), [_short(name) for name in names])
        axes.set_xlabel("share of held-out rows decided as the original, 95 % interval")
        axes.grid(axis="y", visible=False)

    return _svg(draw, height=0.7 + 0.3 * len(names))


def draw_panel(panel: Mapping[str, Any]) -> str:
    """A target's own figure, see :class:`deploy.target.Panel`; tables are not drawn here."""
    data = panel["data"]
    drawers = {
        "line": _draw_lines,
        "scatter": _draw_points,
        "bar": _draw_bars,
        "histogram": _draw_histogram,
        "image": _draw_image,
    }

    def draw(axes: Any) -> None:
        drawers[panel["form"]](axes, data)
        axes.set_xlabel(panel.get("x_label", ""))
        axes.set_ylabel(panel.get("y_label", ""))

    return _svg(draw, height=2.2)


def _draw_lines(axes: Any, data: Mapping[str, Any], style: str = "-") -> None:
    for index, (name, values) in enumerate(data["series"].items()):
        colour = COLOURS[index % len(COLOURS)]
        axes.plot(
            data["x"], _numbers(values), style, label=_short(name), color=colour, markersize=3.5, linewidth=1.4
        )
    _legend(axes, data["series"])


def _draw_points(axes: Any, data: Mapping[str, Any]) -> None:
    _draw_lines(axes, data, "o")


def _draw_bars(axes: Any, data: Mapping[str, Any]) -> None:
    labels, series = data["labels"], data["series"]
    width = 0.8 / max(len(series), 1)
    for index, (name, values) in enumerate(series.items()):
        places = [place + (index - (len(series) - 1) / 2) * width for place in range(len(labels))]
        axes.bar(places, _numbers(values), width, label=_short(name), color=COLOURS[index % len(COLOURS)])
    many = len(labels) > 6
    axes.set_xticks(
        range(len(labels)),
        [_short(label) for label in labels],
        rotation=60 if many else 0,
        fontsize=7 if many else 9,
    )
    axes.grid(axis="x", visible=False)
    _legend(axes, series)


def _draw_histogram(axes: Any, data: Mapping[str, Any]) -> None:
    axes.stairs(_numbers(data["counts"]), data["edges"], fill=True, color=COLOURS[0])


def _draw_image(axes: Any, data: Mapping[str, Any]) -> None:
    shown = axes.imshow(
        [_numbers(row) for row in data["values"]], cmap="RdBu_r", aspect="auto", interpolation="nearest"
    )
    axes.grid(visible=False)
    axes.figure.colorbar(shown, ax=axes, fraction=0.04)


def _legend(axes: Any, series: Mapping[str, Any]) -> None:
    if len(series) > 1:
        axes.legend(frameon=False, fontsize=8, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderpad=0)


def _short(name: Any) -> str:
    """A name that leaves room for the figure, without characters that XML cannot hold."""
    text = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(name))
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _numbers(values: Sequence[Any]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]


def _svg(draw: Any, *, height: float) -> str:
    """Draw into one pair of axes, 4.8 inches wide (text is read on a phone too), and give the <svg> element."""
    matplotlib = require("matplotlib", extra="report")
    figure_module = require("matplotlib.figure", extra="report")
    with matplotlib.rc_context(_STYLE):
        figure = figure_module.Figure(figsize=(4.8, height), layout="constrained")
        draw(figure.subplots())
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    svg = text[text.index("<svg") :]
    # Identifiers are unique within a figure only; a page holds several.
    mark = f"f{zlib.crc32(svg.encode()):08x}"
    svg = re.sub(r'id="([^"]+)"', rf'id="{mark}-\1"', svg)
    svg = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{mark}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{mark}-\1)", svg)
    return svg.replace("<svg ", '<svg class="figure" ', 1)
