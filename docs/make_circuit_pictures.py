"""Draw the pictures of docs/circuit.md from the shipped digits model, by the library itself.

Run ``python docs/make_circuit_pictures.py`` after a change of the cells or the calibration. It needs matplotlib, and
ngspice for the waveforms; the numbers in the pictures are computed, not typed.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

import deploy
from analog.conditions import Conditions
from analog.conversion import convert_model
from analog.deployment import CircuitDeployment
from analog.devices import D1N4148
from analog.options import CircuitOptions
from analog.solve import plan_circuit
from analog.studies.cell import extract_cell

HERE = Path(__file__).parent
MODEL = Path(deploy.__file__).parent / "demo"
INK, RED, BLUE, GREEN, PALE = "#25303b", "#b5403a", "#2b6cb0", "#2f855a", "#9aa5b1"

plt.rcParams.update(
    {
        "svg.hashsalt": "relu-deploy",
        "svg.fonttype": "path",
        "font.family": "DejaVu Sans",
        "font.size": 10,
        "axes.edgecolor": PALE,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": "#e7ebef",
        "legend.frameon": False,
    }
)


def save(figure: plt.Figure, name: str) -> None:
    """Write an SVG that is the same when made again."""
    figure.savefig(HERE / name, metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    plt.close(figure)


class Sheet:
    """A schematic: symbols on a blank axes, wires in grid units."""

    def __init__(self, axes: Axes) -> None:
        self.axes = axes
        axes.set_aspect("equal")
        axes.axis("off")

    def wire(self, *points: tuple[float, float], color: str = INK) -> None:
        """A polyline."""
        x, y = zip(*points, strict=True)
        self.axes.plot(x, y, color=color, lw=1.3, solid_capstyle="round", zorder=1)

    def dot(self, x: float, y: float) -> None:
        """A junction."""
        self.axes.plot([x], [y], "o", color=INK, ms=3.6, zorder=3)

    def port(self, x: float, y: float, text: str, *, left: bool = True) -> None:
        """An open end with its name."""
        self.axes.plot([x], [y], "o", mfc="white", mec=INK, ms=5, zorder=3)
        self.text(x + (-0.25 if left else 0.25), y, text, ha="right" if left else "left")

    def text(
        self, x: float, y: float, text: str, *, ha: str = "center", color: str = INK, size: float = 10
    ) -> None:
        """A label."""
        self.axes.text(x, y, text, ha=ha, va="center", color=color, fontsize=size)

    def resistor(self, x: float, y: float, length: float = 1.6, text: str = "", *, upright: bool = False) -> None:
        """A zigzag from (x, y) to the right, or downwards."""
        along = np.array([0, 0.15, 0.21, 0.33, 0.45, 0.57, 0.69, 0.79, 0.85, 1.0]) * length
        across = np.array([0, 0, 1, -1, 1, -1, 1, -1, 0, 0]) * 0.17
        across[-2] = 0
        if upright:
            self.axes.plot(x + across, y - along, color=INK, lw=1.3, zorder=2)
            self.text(x + 0.3, y - length / 2, text, ha="left")
        else:
            self.axes.plot(x + along, y + across, color=INK, lw=1.3, zorder=2)
            self.text(x + length / 2, y + 0.42, text)

    def diode(self, x: float, y: float, text: str = "", length: float = 1.4) -> None:
        """A diode that conducts upwards, its anode at (x, y)."""
        low, high = y + length / 2 - 0.22, y + length / 2 + 0.22
        self.wire((x, y), (x, low))
        self.wire((x, high), (x, y + length))
        self.axes.fill([x - 0.24, x + 0.24, x], [low, low, high], fc=RED, ec=RED, zorder=2)
        self.axes.plot([x - 0.24, x + 0.24], [high, high], color=RED, lw=2, zorder=2)
        self.text(x + 0.4, y + length / 2, text, ha="left", color=RED)

    def amplifier(self, x: float, y: float, text: str, size: float = 0.55) -> None:
        """A triangle whose input is at (x, y); its output is 2 sizes to the right."""
        self.axes.fill([x, x, x + 2 * size], [y - size, y + size, y], fc="#e8eef5", ec=INK, lw=1.3, zorder=2)
        self.text(x + 0.68 * size, y, text, size=9)

    def ground(self, x: float, y: float) -> None:
        """The ground symbol below (x, y)."""
        self.wire((x, y), (x, y - 0.25))
        for k, half in enumerate((0.28, 0.18, 0.08)):
            self.wire((x - half, y - 0.25 - 0.1 * k), (x + half, y - 0.25 - 0.1 * k))


def draw_cell(sheet: Sheet, x: float, y: float, *, rail: str = "rail") -> None:
    """The clamp cell from its summing node at (x, y) to its two outputs."""
    sheet.wire((x, y), (x + 0.5, y))
    sheet.amplifier(x + 0.5, y, "A")
    sheet.resistor(x + 1.6, y, 1.5, "R ser")
    node = x + 3.4
    sheet.wire((x + 3.1, y), (node, y), (node + 1.0, y))
    sheet.dot(node, y)
    sheet.diode(node, y - 1.5, "", 1.5)
    sheet.port(node, y - 1.6, "", left=False)
    sheet.text(node, y - 1.95, rail, color=RED)
    sheet.dot(node + 0.6, y)
    sheet.wire((node + 0.6, y), (node + 0.6, y - 1.1), (node + 1.0, y - 1.1))
    sheet.amplifier(node + 1.0, y, "+1", 0.42)
    sheet.amplifier(node + 1.0, y - 1.1, "−1", 0.42)
    sheet.wire((node + 1.84, y), (node + 2.3, y))
    sheet.wire((node + 1.84, y - 1.1), (node + 2.3, y - 1.1))
    sheet.port(node + 2.3, y, "+v", left=False)
    sheet.port(node + 2.3, y - 1.1, "−v", left=False)


def picture_cell(deployment: CircuitDeployment, ideal: CircuitDeployment) -> None:
    """The cell, and what it does: with 1N4148 and its rail, without the rail, and ideally."""
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 3.6), width_ratios=[1.25, 1], gridspec_kw={"wspace": 0.3}
    )
    sheet = Sheet(left)
    sheet.port(-0.4, 0, "sum of the row")
    sheet.wire((-0.4, 0), (0, 0))
    draw_cell(sheet, 0, 0)
    sheet.text(3.1, 1.15, "amplifier, resistor, one diode from a rail", size=10)
    volts = np.linspace(-5, 5, 401)
    cell = extract_cell(deployment.plan.circuit, 0, 0)
    rail = float(cell.voltage_sources.value[-1])
    curves = {
        "ideal diode": (plan_circuit(extract_cell(ideal.plan.circuit, 0, 0)), PALE, 4.0),
        "1N4148, rail at 0": (plan_circuit(_without_rail(cell)), BLUE, 1.5),
        f"1N4148, rail at {rail:.2f} V": (plan_circuit(cell), RED, 1.5),
    }
    for name, (plan, color, width) in curves.items():
        right.plot(volts, plan.outputs(volts[:, None])[:, 0], color=color, lw=width, label=name)
    right.set(xlabel="amplified sum (V)", ylabel="output (V)", xlim=(-3, 3), ylim=(-0.9, 3))
    right.legend(loc="upper left")
    save(figure, "circuit-cell.svg")


def _without_rail(cell: object) -> object:
    table = cell.voltage_sources  # type: ignore[attr-defined]
    value = np.where(table.input < 0, 0.0, table.value)
    return cell.with_(voltage_sources=table.with_(value=value))  # type: ignore[attr-defined]


def picture_layer() -> None:
    """One layer: differential rails, summing rows that total the same conductance, cells."""
    figure, axes = plt.subplots(figsize=(11, 5.2))
    sheet = Sheet(axes)
    rails = {"+x₁": 0.0, "−x₁": 0.7, "+x₂": 1.7, "−x₂": 2.4, "+bias": 3.4}
    top = 0.8
    for name, x in rails.items():
        sheet.wire((x, top), (x, -6.3), color=BLUE if name[0] == "+" else GREEN)
        sheet.port(x, top, "")
        sheet.text(x, top + 0.4, name)
    rows = (("+x₁", "−x₂", "+bias"), ("−x₁", "+x₂", "+bias"))
    for row, chosen in enumerate(rows):
        y0 = -0.4 - 3.2 * row
        for k, name in enumerate(chosen):
            y = y0 - 0.75 * k
            sheet.dot(rails[name], y)
            sheet.wire((rails[name], y), (4.2, y))
            label = ("1/γ|w₁₁|", "1/γ|w₁₂|", "1/γ|b₁|") if row == 0 else ("1/γ|w₂₁|", "1/γ|w₂₂|", "1/γ|b₂|")
            sheet.resistor(4.2, y, 1.5, "")
            sheet.text(4.95, y + 0.33, label[k], size=8.5)
            sheet.wire((5.7, y), (6.3, y))
            sheet.dot(6.3, y)
        sheet.wire((6.3, y0), (6.3, y0 - 1.5))
        sheet.wire((6.3, y0 - 0.75), (7.3, y0 - 0.75), (8.0, y0 - 0.75))
        sheet.dot(7.3, y0 - 0.75)
        sheet.resistor(7.3, y0 - 0.75, 1.1, "", upright=True)
        sheet.text(7.65, y0 - 1.3, "pad", ha="left", size=8.5)
        sheet.ground(7.3, y0 - 1.85)
        draw_cell(sheet, 8.0, y0 - 0.75)
    sheet.text(2.2, -6.9, "every value as a pair of rails: the sign of a weight chooses the rail", size=9.5)
    sheet.text(7.0, 0.35, "pad: every row totals Gt", size=9.5)
    save(figure, "circuit-layer.svg")


def picture_operating_point(deployment: CircuitDeployment, x: np.ndarray) -> None:
    """Voltages of the hidden units and the outputs for one digit, and the network's own values."""
    solution = deployment.plan.solve(x[:1])
    circuit, model = deployment.plan.circuit, deployment.model
    names = {name: k for k, name in enumerate(circuit.node_names)}
    units = model.widths[1]
    amplified = [solution.volts[0, names[f"layer 0 amplified {i}"]] for i in range(units)]
    hidden = [solution.volts[0, names[f"layer 0 hidden {i}"]] for i in range(units)]
    figure, (digit, left, right) = plt.subplots(1, 3, figsize=(11, 3.2), width_ratios=[0.55, 1.6, 1])
    digit.imshow(x[0].reshape(8, 8), cmap="gray_r")
    digit.set(xticks=[], yticks=[], title="64 inputs")
    digit.grid(False)
    index = np.arange(units)
    left.bar(index, amplified, color=PALE, width=0.85, label="before the diode")
    left.bar(index, hidden, color=RED, width=0.5, label="after the diode")
    left.set(xlabel="hidden unit", ylabel="V", title="hidden layer")
    left.legend(loc="lower right", fontsize=8)
    logits, wanted = deployment.logits(x[:1])[0], model.logits(x[:1])[0]
    right.bar(np.arange(10), wanted, color=PALE, width=0.85, label="network")
    right.bar(np.arange(10), logits, color=BLUE, width=0.45, label="circuit")
    right.set(xlabel="class", title="outputs, in logits", xticks=range(10))
    right.legend(fontsize=8)
    figure.tight_layout()
    save(figure, "circuit-operating-point.svg")


def picture_tolerance(deployment: CircuitDeployment, x: np.ndarray) -> None:
    """Agreement over resistor tolerance, and logit error over temperature."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.4))
    study = deployment.studies()["resistor-tolerance"]
    percents = (1.0, 2.0, 5.0, 10.0, 20.0)
    drawn = []
    for percent in percents:
        cases = study.cases(study.options(percent=(percent,), draws=100), np.random.default_rng(0))
        drawn.append([100 * study.solve(case, x)["agreement"] for case in cases])
    left.boxplot(
        drawn,
        tick_labels=[f"{p:g}" for p in percents],
        whis=(5, 95),
        showfliers=False,
        medianprops={"color": RED},
        boxprops={"color": INK},
    )
    left.set(xlabel="resistor tolerance (± %), 100 circuits each", ylabel="rows that agree (%)")
    for diode, color in (("1N4148", RED), ("BAT54", BLUE)):
        other = convert_model(deployment.model, x, CircuitOptions(diode=diode))
        celsius = np.linspace(-40, 125, 34)
        wanted = deployment.model.logits(x)
        errors = [
            np.sqrt(np.mean((plan_circuit(other.plan.circuit, Conditions(celsius=t)).outputs(x) - wanted) ** 2))
            for t in celsius
        ]
        right.plot(celsius, errors, color=color, label=diode)
    right.set(xlabel="ambient temperature (°C)", ylabel="rms error (logits)", ylim=(0, None))
    right.legend()
    figure.tight_layout()
    save(figure, "circuit-tolerance.svg")


def picture_waveform(deployment: CircuitDeployment, x: np.ndarray) -> None:
    """Outputs after a step of the inputs."""
    study = deployment.studies()["waveform"]
    cases = study.cases(study.options(stop_seconds=6e-7, points=301), np.random.default_rng(0))
    rows = [study.solve(case, x) for case in cases]
    figure, axes = plt.subplots(figsize=(7.5, 3.2))
    time = [1e9 * row["time"] for row in rows]
    outputs = np.array([[row[f"output_{k}"] for k in range(10)] for row in rows])
    winner = int(outputs[-1].argmax())
    for k in range(10):
        axes.plot(time, outputs[:, k], color=RED if k == winner else PALE, lw=1.8 if k == winner else 1.0)
    axes.set(xlabel="time after the step (ns)", ylabel="output (V)")
    axes.text(time[-1] * 1.01, outputs[-1, winner], f"class {winner}", color=RED, va="center")
    save(figure, "circuit-waveform.svg")


def picture_diode() -> None:
    """The law of the diode at three temperatures, forward and reverse."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3))
    for celsius, color in ((-40.0, BLUE), (27.0, INK), (125.0, RED)):
        forward, reverse = np.linspace(0, 0.9, 300), np.linspace(-1.0, 0, 300)
        left.semilogy(forward, D1N4148.current(forward, celsius=celsius), color=color, label=f"{celsius:g} °C")
        right.semilogy(-reverse, -D1N4148.current(reverse, celsius=celsius) + 1e-16, color=color)
    left.set(xlabel="junction voltage (V)", ylabel="current (A)", ylim=(1e-12, 1))
    right.set(xlabel="reverse voltage (V)", ylabel="leakage (A)")
    left.legend()
    figure.tight_layout()
    save(figure, "circuit-diode.svg")


def main() -> None:
    """Draw every picture."""
    model = deploy.load(MODEL / "digits.onnx")
    with np.load(MODEL / "digits.npz") as data:
        x = data["x"].reshape(len(data["x"]), -1)
    deployment = convert_model(model, x, CircuitOptions())
    ideal = convert_model(model, x, CircuitOptions(diode="ideal"))
    picture_cell(deployment, ideal)
    picture_layer()
    picture_operating_point(deployment, x)
    picture_tolerance(deployment, x)
    picture_waveform(deployment, x)
    picture_diode()


if __name__ == "__main__":
    main()
