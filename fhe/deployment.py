"""A converted network: its files, its reference, its encrypted run, and what people are told about it.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np

from deploy.arrays import Array
from deploy.cost import Quantity
from deploy.errors import BundleError, DataError, PlanError
from deploy.interface import Feature, InputGuard, Interface
from deploy.model import Mlp
from deploy.progress import SILENT, Progress
from deploy.ranges import Box
from deploy.requirement import require
from deploy.study import Study
from deploy.target import Archives, Bound, Engine, Json, Panel
from fhe.distance import distance_over
from fhe.network import PolynomialNetwork
from fhe.onnx_export import export_onnx
from fhe.options import CkksOptions
from fhe.plan import Plan, Ranges, plan_network
from fhe.runtime.engine import CkksEngine, ClearEngine
from fhe.separation import Separation, separate
from fhe.separation.baselines import compare_baselines
from fhe.separation_report import read_separation_report

__all__ = [
    "EXCHANGE_FILE",
    "NETWORK_FILE",
    "PLAN_FILE",
    "CkksDeployment",
    "convert_model",
    "plan_cost",
    "plan_separated",
    "plan_within_margins",
]

NETWORK_FILE = "coefficients.safetensors"
PLAN_FILE = "plan.json"
EXCHANGE_FILE = "exchange.json"
REPORT_FILE = "separation.json"
ONNX_FILE = "quadratic.onnx"
BASELINES_FILE = "baselines.safetensors"
CERTIFICATES = "certificates/"

REFERENCE = "the polynomial network in float64"


@dataclass(frozen=True, eq=False)
class CkksDeployment:
    """A polynomial network with its plan (:class:`deploy.target.Deployment`).

    Parameters
    ----------
    model : the original.
    network : what runs on ciphertexts; its logits are the reference.
    plan : how it runs.
    report : what the separation found, JSON.
    certificates : file of each certificate by name.
    baselines : coefficient tables of the usual replacements by name, one a hidden layer; empty unless asked for.
    """

    model: Mlp
    network: PolynomialNetwork
    plan: Plan
    report: Mapping[str, Any]
    certificates: Mapping[str, bytes]
    baselines: Mapping[str, tuple[Array, ...]] = field(default_factory=dict)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], model: Mlp) -> Self:
        """Read what :meth:`files` gave; raises :class:`deploy.errors.BundleError` otherwise."""
        missing = [name for name in (NETWORK_FILE, PLAN_FILE, REPORT_FILE) if name not in files]
        if missing:
            raise BundleError(f"{missing[0]} is missing")
        certificates = {
            name.removeprefix(CERTIFICATES): data for name, data in files.items() if name.startswith(CERTIFICATES)
        }
        network = PolynomialNetwork.from_bytes(files[NETWORK_FILE])
        report = read_separation_report(files[REPORT_FILE], network.widths[1:-1])
        baselines = _read_tables(files[BASELINES_FILE]) if BASELINES_FILE in files else {}
        return cls(model, network, Plan.from_bytes(files[PLAN_FILE]), report, certificates, baselines)

    def files(self) -> Mapping[str, bytes]:
        """Coefficients, plan, report, certificates and an ONNX file; no row in any of them."""
        files = {
            NETWORK_FILE: self.network.to_bytes(),
            PLAN_FILE: self.plan.to_bytes(),
            REPORT_FILE: _canonical(self.report),
            ONNX_FILE: export_onnx(self.network),
            **{CERTIFICATES + name: data for name, data in sorted(self.certificates.items())},
        }
        if self.baselines:
            files[BASELINES_FILE] = _write_tables(self.baselines)
        return files

    def archives(self) -> Archives:
        """The client learns parameters and packing, the server weights and plan."""
        return Archives(
            client={EXCHANGE_FILE: self.plan.exchange.to_bytes()},
            server={NETWORK_FILE: self.network.to_bytes(), PLAN_FILE: self.plan.to_bytes()},
        )

    def logits(self, x: Array) -> Array:
        """The polynomial network in float64: (batch, n_in) -> (batch, n_out)."""
        return self.network.logits(x)

    def bound(self, x: Array) -> Bound | None:
        """What the polynomials move a logit by at most, anywhere in the declared box of inputs and at rows x, proved.

        What encryption adds is the plan's (``Plan.bound``, estimated).
        """
        declared = self._interface().guard
        low = np.minimum([feature.low for feature in declared.features], x.min(axis=0, initial=np.inf))
        high = np.maximum([feature.high for feature in declared.features], x.max(axis=0, initial=-np.inf))
        largest = distance_over(self.model, self.network, Box(low, high, "proved"))
        return Bound(
            np.broadcast_to(largest, (len(x), len(largest))),
            "proved",
            "interval arithmetic over the declared box of inputs: |W| |relu - p|, layer by layer",
        )

    def engines(self) -> Mapping[str, Engine]:
        """``ckks`` runs both roles on ciphertexts, ``clear`` the same steps in numpy."""
        return {
            "ckks": CkksEngine(self.plan, self.network, self._interface()),
            "clear": ClearEngine(self.plan, self.network),
        }

    def studies(self) -> Mapping[str, Study]:
        """None."""
        return {}

    def cost(self) -> tuple[Quantity, ...]:
        """Bytes are exact; seconds and memory come from the fixed cost table."""
        return _quantities(self.plan)

    def summary(self) -> Mapping[str, Json]:
        """The target's keys of ``convert --json``."""
        report = self.report
        return {
            "reference": REFERENCE,
            "family": report["family"],
            "degree": report["degree"],
            "fit": report["fit"],
            "refine": report["refine"],
            "packing": self.plan.exchange.packing,
            "separable": report["separable"],
            "min_margin": report["min_margin"],
            "certificates": report["certificates"],
            "units": report["units"],
            "tied_rows": report["tied_rows"],
            "warnings": report["warnings"],
            "plan": self.plan.summary(),
        }

    def panels(self, x: Array) -> tuple[Panel, ...]:
        """Margins on rows x, and what cross-validation saw."""
        margins = np.sort(self.model.decision.margins(self.logits(x)))
        counts, edges = np.histogram(margins, bins=40)
        found = [
            Panel(
                "Margins of the polynomial network",
                "histogram",
                {"edges": edges.tolist(), "counts": counts.tolist()},
                x_label="margin, logits",
                y_label="rows",
                caption=f"encryption moves a logit by at most {max(self.plan.bound):.2g} (estimated)",
            )
        ]
        if "guard" in self.report:
            found.append(self._coverage(x))
        if self.baselines:
            found.append(self._baselines_panel(x))
        selection = self.report.get("selection")
        if selection:
            found.append(
                Panel(
                    "Fits by cross-validation",
                    "table",
                    {
                        "columns": ["fit", "agreement", "standard error", "distance from least squares"],
                        "rows": [
                            [row["fit"], row["agreement"], row["standard_error"], row["distance"]]
                            for row in selection["candidates"]
                        ],
                    },
                    caption=f"kept: {selection['picked']}; rule: {selection['rule']}",
                )
            )
        return tuple(found)

    def _baselines_panel(self, x: Array) -> Panel:
        rows = compare_baselines(self.model, self.network, self.baselines, x)
        return Panel(
            "Usual replacements on the same rows",
            "table",
            {"columns": list(rows[0]), "rows": [list(row.values()) for row in rows]},
            caption="layer: one polynomial for a layer; unit: one for each hidden unit; lead: of the kept network over "
            "this one, paired; low and high: Clopper-Pearson 95 %",
        )

    def _coverage(self, x: Array) -> Panel:
        """Rows that leave the box of pre-activations that the polynomials were fitted on."""
        outside = np.zeros(len(x), dtype=bool)
        lines = []
        for index, (box, z) in enumerate(
            zip(self.report["guard"], self.network.preactivations(x)[:-1], strict=True), start=1
        ):
            low, high = np.array(box["low"]), np.array(box["high"])
            width = np.maximum(high - low, 1e-9 * np.maximum(1.0, np.abs(high)))  # some units never move
            beyond = np.maximum(low - z, z - high) / width
            outside |= (beyond > 0).any(axis=1)
            lines.append([index, float(np.mean((beyond > 0).any(axis=1))), float(np.maximum(beyond, 0.0).max())])
        flagged = np.flatnonzero(outside)
        first = ", ".join(str(row) for row in flagged[:10])
        return Panel(
            "Rows outside the calibrated pre-activations",
            "table",
            {
                "columns": ["hidden layer", "share of rows", "farthest, in widths of the unit's range"],
                "rows": lines,
            },
            caption=f"{len(flagged)} of {len(x)} rows leave the box somewhere"
            + (f": {first} … (counted from 0 among the rows judged)" if first else ""),
        )

    def _interface(self) -> Interface:
        exchange = self.plan.exchange
        reach = 2.0 ** np.array(exchange.exponents, dtype=np.float64)
        names = self.model.features or tuple(f"x{index}" for index in range(exchange.n_in))
        features = tuple(
            Feature(name, float(centre - half), float(centre + half))
            for name, centre, half in zip(names, exchange.offset, reach, strict=True)
        )
        model = self.model
        return Interface(
            model.decision,
            model.classes,
            model.n_out,
            model.input_shape,
            model.tail,
            InputGuard(features, "calibration"),
        )


def convert_model(
    model: Mlp,
    x: Array,
    options: CkksOptions,
    *,
    rng: np.random.Generator,
    progress: Progress = SILENT,
) -> CkksDeployment:
    """Separate on rows x (batch, n_in), plan, and put the deployment together."""
    x = model.check_rows(x)
    separation = separate(model, x, options, rng=rng, progress=progress)
    with progress.stage("plan", 1) as advance:
        plan, budget = plan_within_margins(separation, x, options)
        advance(1)
    progress.say(plan.text())
    report = {**separation.report, "noise_budget": budget}
    if budget is not None and not budget["within"]:
        report["warnings"] = [
            *report["warnings"],
            f"encryption may move a logit by {budget['logit_error']:.2g} (estimated), the least calibration margin allows "
            f"{budget['logit_move']:.2g}: such rows may flip; fit=exact widens margins, logit_error or "
            "poly_modulus_degree lowers the error",
        ]
    for warning in report["warnings"]:
        progress.say(f"warning: {warning}")
    if separation.baselines:
        for row in compare_baselines(model, separation.network, separation.baselines, x):
            progress.say(
                f"{row['replacement']}: {row['agreement']:.4f} [{row['low']:.4f}, {row['high']:.4f}], separation leads "
                f"by {row['lead']:+.4f} ± {row['standard_error']:.4f} (calibration rows; evaluate has the held-out ones)"
            )
    return CkksDeployment(model, separation.network, plan, report, separation.certificates, separation.baselines)


def plan_within_margins(
    separation: Separation, x: Array, options: CkksOptions
) -> tuple[Plan, dict[str, Json] | None]:
    """Plan so that encryption moves no logit further than the rounding certificate allows, if the same ring can do it.

    Returns
    -------
    plan, and the budget: "logit_move" that the certificate allows, "logit_error" that the plan expects at most, and
    whether it is "within"; None where not all calibration decisions are kept, so that there is nothing to protect.
    """
    plan = plan_separated(separation.network, x, options)
    move = separation.report.get("rounding", {}).get("logit_move")
    if move is None:
        return plan, None
    error = max(plan.bound)
    ring = plan.exchange.parameters.poly_modulus_degree
    asked = min(options.logit_error, move)
    while error > move and asked > move / 1000:
        asked /= 4  # it is asked about typical rows, expected about any: lower until the latter fits
        tighter = options.model_copy(update={"logit_error": asked, "poly_modulus_degree": ring})
        try:
            other = plan_separated(separation.network, x, tighter)
        except PlanError:
            break
        if max(other.bound) <= move:
            plan, error = other, max(other.bound)
    return plan, {"logit_move": move, "logit_error": error, "within": error <= move}


def plan_separated(network: PolynomialNetwork, x: Array, options: CkksOptions) -> Plan:
    """Plan a network over the stated domain, or over the box that rows x (batch, n_in) span.

    Raises
    ------
    DataError : a row leaves the stated domain. PlanError : nothing fits.
    """
    if options.domain is None:
        return plan_network(network, Ranges.seen(network, x), options)
    low, high = options.domain
    outside = (x < low) | (x > high)
    if outside.any():
        row, column = np.argwhere(outside)[0].tolist()
        raise DataError(
            f"calibration row {row}, input {column} is {x[row, column]:g}, outside the stated domain {low:g}:{high:g}",
            remedy="state a domain that every input lies in",
        )
    box = Box(np.full(network.n_in, low), np.full(network.n_in, high), "proved")
    return plan_network(network, Ranges.proved(network, box, rows=x), options)


def plan_cost(model: Mlp, x: Array, options: CkksOptions) -> tuple[Quantity, ...]:
    """Cost of the least-squares network: same shapes, same degrees, nearly the same ranges.

    Raises what a conversion would raise before its work: DataError, PlanError, UsageError, RequirementMissing.
    """
    if options.refine == "distill":
        require("torch", extra="torch")
    quick = options.model_copy(update={"fit": "least-squares", "refine": "none", "family": "per-unit"})
    x = model.check_rows(x)
    network = separate(model, x, quick, rng=np.random.default_rng(0)).network
    return _quantities(plan_separated(network, x, options))


def _quantities(plan: Plan) -> tuple[Quantity, ...]:
    expected = plan.expected
    return (
        Quantity("evaluation_key_bytes", expected.key_bytes, "B", "exact", "client uploads once"),
        Quantity("request_bytes", expected.request_bytes, "B", "exact", "client"),
        Quantity("answer_bytes", expected.answer_bytes, "B", "exact", "client"),
        Quantity("server_seconds_per_request", expected.server_seconds, "s", "modelled", "server"),
        Quantity("client_seconds_per_request", expected.client_seconds, "s", "modelled", "client"),
        Quantity("peak_memory_bytes", expected.peak_memory_bytes, "B", "modelled", "server"),
        Quantity("logit_error", max(plan.bound), "logit", "estimated", "owner"),
    )


def _write_tables(tables: Mapping[str, tuple[Array, ...]]) -> bytes:
    from safetensors.numpy import save

    return bytes(save({f"{name}/{index}": t for name, found in tables.items() for index, t in enumerate(found)}))


def _read_tables(data: bytes) -> dict[str, tuple[Array, ...]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        tensors = load(data)
        found: dict[str, list[Array]] = {}
        for key in sorted(tensors, key=lambda key: (key.rpartition("/")[0], int(key.rpartition("/")[2]))):
            found.setdefault(key.rpartition("/")[0], []).append(tensors[key])
    except (SafetensorError, ValueError) as error:
        raise BundleError(f"not coefficient tables: {error}", place=BASELINES_FILE) from None
    return {name: tuple(tables) for name, tables in found.items()}


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=1, allow_nan=False).encode() + b"\n"
