"""Draw docs/architecture.svg: the way of a model from file to deployment, as boxes and arrows.

Run ``python docs/make_architecture_picture.py`` after changing it; nothing but the standard library is needed.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

TRUNK, TARGET, FILE, EDGE = "#e8eef5", "#f9eadf", "#ffffff", "#5b6470"
WIDTH, HEIGHT = 980, 470

# name: (x, y, width, height, fill, title, lines below it)
BOXES = {
    "file": (20, 40, 150, 62, FILE, "model file", ["ONNX, torch, Keras, …"]),
    "rows": (20, 150, 150, 62, FILE, "rows", ["npz, npy, csv, IDX"]),
    "loaders": (215, 40, 150, 62, TRUNK, "deploy.loaders", ["exact, or refused"]),
    "dataset": (215, 150, 150, 62, TRUNK, "deploy.dataset", ["Calibration | HeldOut"]),
    "conversion": (410, 84, 150, 84, TRUNK, "deploy.conversion", ["loops over", "deploy.registry"]),
    "fhe": (640, 20, 150, 56, TARGET, "fhe", ["target ckks"]),
    "quantization": (640, 98, 150, 56, TARGET, "quantization", ["target ternary"]),
    "analog": (640, 176, 150, 56, TARGET, "analog", ["target circuit"]),
    "bundle": (410, 262, 150, 84, TRUNK, "deploy.bundle", ["manifest, weights,", "targets/, owner/"]),
    "evaluation": (20, 273, 150, 62, TRUNK, "deploy.evaluation", ["reference, real runs"]),
    "report": (20, 388, 150, 62, TRUNK, "deploy.report", ["one page"]),
    "simulation": (215, 388, 150, 62, TRUNK, "deploy.simulation", ["joblib, Ray"]),
    "client": (640, 284, 150, 62, FILE, "client archive", ["no weight"]),
    "server": (640, 388, 150, 62, FILE, "server archive", ["no key"]),
    "client_side": (820, 284, 145, 62, TRUNK, "deploy.client", ["encrypts, decrypts"]),
    "service": (820, 388, 145, 62, TRUNK, "deploy.service", ["opaque bytes"]),
}

# from, side, to, side, label
ARROWS = [
    ("file", "right", "loaders", "left", ""),
    ("rows", "right", "dataset", "left", ""),
    ("loaders", "right", "conversion", "left", "Mlp"),
    ("dataset", "right", "conversion", "left", ""),
    ("conversion", "right", "fhe", "left", ""),
    ("conversion", "right", "quantization", "left", ""),
    ("conversion", "right", "analog", "left", ""),
    ("conversion", "bottom", "bundle", "top", "deployments"),
    ("dataset", "bottom", "evaluation", "right", "held out"),
    ("bundle", "left", "evaluation", "right", ""),
    ("evaluation", "bottom", "report", "top", "fidelity.json"),
    ("bundle", "left", "simulation", "top", "studies"),
    ("bundle", "right", "client", "left", ""),
    ("bundle", "right", "server", "left", ""),
    ("client", "right", "client_side", "left", ""),
    ("server", "right", "service", "left", ""),
    ("client_side", "bottom", "service", "top", "HTTP"),
]


def anchor(name: str, side: str) -> tuple[float, float]:
    """Middle of one side of a box."""
    x, y, width, height, *_ = BOXES[name]
    return {
        "left": (x, y + height / 2),
        "right": (x + width, y + height / 2),
        "top": (x + width / 2, y),
        "bottom": (x + width / 2, y + height),
    }[side]


def draw_box(name: str) -> str:
    """A rounded box with its title and lines."""
    x, y, width, height, fill, title, lines = BOXES[name]
    top = y + height / 2 - 8 * len(lines) + 4
    texts = [f'<text x="{x + width / 2}" y="{top}" class="title">{escape(title)}</text>']
    texts += [
        f'<text x="{x + width / 2}" y="{top + 17 * (index + 1)}" class="line">{escape(line)}</text>'
        for index, line in enumerate(lines)
    ]
    dash = ' stroke-dasharray="4 3"' if fill == FILE else ""
    box = f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" fill="{fill}" stroke="{EDGE}"{dash}/>'
    return "\n".join([box, *texts])


def draw_arrow(start: str, start_side: str, end: str, end_side: str, label: str) -> str:
    """A curve from one box to another, which leaves and enters at right angles."""
    (x1, y1), (x2, y2) = anchor(start, start_side), anchor(end, end_side)
    reach = 28
    steps = {"left": (-reach, 0), "right": (reach, 0), "top": (0, -reach), "bottom": (0, reach)}
    (dx1, dy1), (dx2, dy2) = steps[start_side], steps[end_side]
    path = f'<path d="M{x1} {y1} C{x1 + dx1} {y1 + dy1} {x2 + dx2} {y2 + dy2} {x2} {y2}" class="arrow"/>'
    if not label:
        return path
    return f'{path}\n<text x="{(x1 + x2) / 2}" y="{(y1 + y2) / 2 + 4}" class="label">{escape(label)}</text>'


def draw() -> str:
    """The whole picture."""
    style = (
        "text{font-family:system-ui,DejaVu Sans,sans-serif;text-anchor:middle;fill:#22262c}"
        ".title{font-size:14px;font-weight:600}.line{font-size:12px;fill:#4a5058}.label{font-size:11px;fill:#4a5058;paint-order:stroke;stroke:#ffffff;stroke-width:5px}"
        f".arrow{{fill:none;stroke:{EDGE};stroke-width:1.4;marker-end:url(#head)}}"
    )
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{EDGE}"/></marker>'
    )
    legend = (
        f'<rect x="820" y="20" width="14" height="14" fill="{TRUNK}" stroke="{EDGE}"/>'
        '<text x="842" y="32" class="label" style="text-anchor:start">trunk: package deploy</text>'
        f'<rect x="820" y="44" width="14" height="14" fill="{TARGET}" stroke="{EDGE}"/>'
        '<text x="842" y="56" class="label" style="text-anchor:start">targets, by entry point</text>'
        f'<rect x="820" y="68" width="14" height="14" fill="{FILE}" stroke="{EDGE}" stroke-dasharray="4 3"/>'
        '<text x="842" y="80" class="label" style="text-anchor:start">files</text>'
    )
    parts = [draw_arrow(*arrow) for arrow in ARROWS] + [draw_box(name) for name in BOXES]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        'aria-label="The way of a model from file to deployment">\n'
        f"<style>{style}</style>\n<defs>{head}</defs>\n"
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>\n' + "\n".join(parts) + f"\n{legend}\n</svg>\n"
    )


if __name__ == "__main__":
    (Path(__file__).parent / "architecture.svg").write_text(draw(), encoding="utf-8")
