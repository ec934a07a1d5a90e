"""The two checks.

Axes: ``batch``, ``units``, ``classes``, ``pairs``.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from deploy.errors import CertificateRejected
from deploy.model import Mlp
from fhe.certificate_checker.enclosure import Enclosed
from fhe.certificate_checker.integers import Exact

__all__ = ["Checked", "check_certificate"]

_BLOCK_ROWS = 4096


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Feasible(_Strict):
    version: Literal[1]
    kind: Literal["feasible"]
    model: str
    rows: str
    tie: float
    margin: float
    biases: list[list[float]]
    weights: list[list[list[float]] | None]
    coefficients: list[list[list[float]]]
    sha256: str


class _Infeasible(_Strict):
    version: Literal[1]
    kind: Literal["infeasible"]
    model: str
    rows: str
    degree: int
    before: list[list[list[float]]]
    before_biases: list[list[float]]
    row: list[int]
    other: list[int]
    multipliers: list[str]
    sha256: str


@dataclass(frozen=True, slots=True)
class Checked:
    """A certificate that holds.

    Parameters
    ----------
    kind : "feasible" or "infeasible".
    claim : what is now known, for people.
    exact_rows : rows that floating point could not settle and integers did.
    """

    kind: str
    claim: str
    exact_rows: int


def check_certificate(data: bytes, model: Mlp, x: Any) -> Checked:
    """Check a certificate file against a model and its calibration rows x (batch, n_in).

    Raises
    ------
    CertificateRejected : the file is damaged, speaks of another model or other rows, or its claim does not hold.
    """
    document = _parse(data)
    if document.model != model.sha256:
        raise CertificateRejected("it speaks of another model", remedy="give the model that was converted")
    x = np.ascontiguousarray(x, dtype=np.float64) + 0.0
    if document.rows != hashlib.sha256(x.astype("<f8").tobytes()).hexdigest():
        raise CertificateRejected("it speaks of other rows", remedy="give the calibration rows in the same order")
    if isinstance(document, _Feasible):
        return _check_feasible(document, model, x)
    return _check_infeasible(document, model, x)


def _first(error: ValidationError) -> str:
    found = error.errors()[0]
    return f"{'.'.join(map(str, found['loc'])) or 'the document'}: {found['msg']}"


def _parse(data: bytes) -> _Feasible | _Infeasible:
    try:
        raw = json.loads(data)
        kind = raw.get("kind") if isinstance(raw, dict) else None
        document = (_Infeasible if kind == "infeasible" else _Feasible).model_validate_json(data)
    except (ValueError, ValidationError) as error:
        raise CertificateRejected(
            f"not a certificate: {_first(error) if isinstance(error, ValidationError) else error}",
            remedy="give a certificate that convert wrote",
        ) from None
    raw.pop("sha256")
    digest = hashlib.sha256(json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    if digest != document.sha256:
        raise CertificateRejected("its content does not match its own hash", remedy="the file was changed")
    return document


# Decisions of the original


def _oriented(model: Mlp, scores: Any) -> Any:
    if model.decision.rule == "argmin":
        return -scores
    if model.decision.rule == "sign":
        return np.concatenate([np.zeros_like(scores), scores], axis=1)
    return scores


def _enclose_original(model: Mlp, x: Any) -> Enclosed:
    h = Enclosed.of(x)
    for layer, activation in zip(model.affines, model.activations, strict=False):
        h = h.affine(layer.weight, layer.bias)
        if activation == "relu":
            h = h.relu()
        else:
            h = h.polynomial(np.tile([0.0, 0.0, 1.0], (layer.n_out, 1)))
    last = model.affines[-1]
    return h.affine(last.weight, last.bias)


def _exact_original(model: Mlp, x: Any) -> Exact:
    h = Exact.of(x)
    for layer, activation in zip(model.affines, model.activations, strict=False):
        h = h.affine(layer.weight, layer.bias)
        h = h.relu() if activation == "relu" else h.times(h)
    last = model.affines[-1]
    return h.affine(last.weight, last.bias)


# Feasible


def _check_feasible(document: _Feasible, model: Mlp, x: Any) -> Checked:
    tables = [np.array(table) for table in document.coefficients]
    biases = [np.array(bias) for bias in document.biases]
    weights = [
        layer.weight if given is None else np.array(given)
        for given, layer in zip(document.weights, model.affines, strict=True)
    ]
    if len(tables) != len(weights) - 1 or len(biases) != len(weights):
        raise CertificateRejected("its polynomials do not fit the model's layers")
    if not (np.isfinite(document.margin) and document.margin >= 0 and 0 <= document.tie <= 1e-6):
        raise CertificateRejected(f"margin {document.margin} and tie {document.tie} are no sound claim")
    unsettled: list[int] = []
    for start in range(0, len(x), _BLOCK_ROWS):
        part = x[start : start + _BLOCK_ROWS]
        holds = _surely_holds(model, weights, biases, tables, part, document)
        unsettled.extend((start + np.flatnonzero(~holds)).tolist())
    for row in unsettled:
        if not _exactly_holds(model, weights, biases, tables, x[row : row + 1], document):
            raise CertificateRejected(
                f"row {row}: the polynomials do not keep the decision with margin {document.margin:g}",
                remedy="the claim is false for this model and these rows",
            )
    return Checked(
        "feasible",
        f"all {len(x)} decisions are kept with margin {document.margin:g} or more",
        len(unsettled),
    )


def _surely_holds(
    model: Mlp, weights: list[Any], biases: list[Any], tables: list[Any], x: Any, document: _Feasible
) -> Any:
    """Rows (batch,) where floating point with its error bound settles both the decision and every margin."""
    original = _enclose_original(model, x)
    scores, error = _oriented(model, original.value), _oriented(model, original.error)
    error = np.abs(error)
    chosen = np.argmax(scores, axis=1)
    place = np.arange(len(x))
    gap = scores[place, chosen][:, None] - scores
    doubt = error[place, chosen][:, None] + error
    surely_chosen = gap > doubt
    surely_chosen[place, chosen] = True
    h = Enclosed.of(x)
    for weight, bias, table in zip(weights, biases, tables, strict=False):
        h = h.affine(weight, bias).polynomial(table)
    h = h.affine(weights[-1], biases[-1])
    ours, our_error = _oriented(model, h.value), np.abs(_oriented(model, h.error))
    margin = ours[place, chosen][:, None] - ours
    bound = margin - (our_error[place, chosen][:, None] + our_error)
    enough = bound >= document.margin
    enough[place, chosen] = True
    return np.all(surely_chosen & enough, axis=1)


def _exactly_holds(
    model: Mlp, weights: list[Any], biases: list[Any], tables: list[Any], x: Any, document: _Feasible
) -> bool:
    """Exact decision and exact margins of one row; pairs that tie by the certificate's own measure do not count."""
    original = _exact_original(model, x)
    scores = _oriented(model, original.whole)[0]
    chosen = int(np.argmax(scores))
    h = Exact.of(x)
    for weight, bias, table in zip(weights, biases, tables, strict=False):
        h = h.affine(weight, bias).polynomial(table)
    h = h.affine(weights[-1], biases[-1])
    ours = _oriented(model, h.whole)[0]
    unit = 1 << original.shift
    size = max(unit, *(abs(int(score)) for score in scores))
    tie, tie_shift = float(document.tie).as_integer_ratio()
    asked, asked_bottom = float(document.margin).as_integer_ratio()
    for other, score in enumerate(scores):
        if other == chosen or (scores[chosen] - score) * tie_shift <= tie * size * 2:
            continue
        if (int(ours[chosen]) - int(ours[other])) * asked_bottom < asked << h.shift:
            return False
    return True


# Infeasible


def _check_infeasible(document: _Infeasible, model: Mlp, x: Any) -> Checked:
    multipliers = [_natural(text) for text in document.multipliers]
    pairs = list(zip(document.row, document.other, strict=True)) if len(document.row) == len(document.other) else []
    if not pairs or len(pairs) != len(multipliers) or len(set(pairs)) != len(pairs):
        raise CertificateRejected("its rows, classes and multipliers do not go together")
    if not any(multipliers):
        raise CertificateRejected("its multipliers are all zero")
    classes = 2 if model.decision.rule == "sign" else model.n_out
    if not all(0 <= row < len(x) and 0 <= other < classes for row, other in pairs):
        raise CertificateRejected("a row or class is out of range")
    hidden = len(model.activations)
    biases = hidden if hidden > 1 else 0
    if (
        hidden < 1
        or (len(document.before), len(document.before_biases)) != (hidden - 1, biases)
        or document.degree < 1
    ):
        raise CertificateRejected("its layers or degree do not fit the model")
    used = sorted({row for row, _ in pairs})
    scores = _oriented(model, _exact_original(model, x[used]).whole)
    chosen = {row: int(np.argmax(line)) for row, line in zip(used, scores, strict=True)}
    lines = dict(zip(used, scores, strict=True))
    for row, other in pairs:
        if not lines[row][chosen[row]] > lines[row][other]:
            raise CertificateRejected(f"row {row} does not prefer its decision to class {other}")
    z = _last_hidden(document, model, x[used])
    weight = _oriented_weight(model)
    place = {row: index for index, row in enumerate(used)}
    totals: dict[int, Any] = {}
    constants = [0] * classes
    for (row, other), factor in zip(pairs, multipliers, strict=True):
        constants[chosen[row]] += factor
        constants[other] -= factor
        difference = (weight[chosen[row]] - weight[other]) * factor
        power_of_z = z[place[row]]
        term = difference
        for power in range(1, document.degree + 1):
            term = term * power_of_z
            totals[power] = term if power not in totals else totals[power] + term
    if any(constants) or any(any(total) for total in totals.values()):
        raise CertificateRejected(
            "the combination of constraints is not zero", remedy="the certificate proves nothing"
        )
    return Checked(
        "infeasible",
        f"no polynomials of degree {document.degree} in place of the last hidden layer's units, with any constants, "
        f"keep the decisions of these {len(used)} of {len(x)} rows",
        len(used),
    )


def _natural(text: str) -> int:
    try:
        value = int(text, 16)
    except ValueError:
        raise CertificateRejected("a multiplier is not a hexadecimal integer") from None
    if value < 0:
        raise CertificateRejected("a multiplier is negative")
    return value


def _last_hidden(document: _Infeasible, model: Mlp, x: Any) -> Any:
    """Exact integers proportional to the last hidden pre-activations: one common scale, which no zero sum sees."""
    h = Exact.of(x)
    for layer, table, bias in zip(model.affines, document.before, document.before_biases, strict=False):
        h = h.affine(layer.weight, np.array(bias)).polynomial(np.array(table))
    last = model.affines[-2]
    return h.affine(last.weight, np.array(document.before_biases[-1]) if document.before else last.bias).whole


def _oriented_weight(model: Mlp) -> Any:
    weight = Exact.of(model.affines[-1].weight).whole
    if model.decision.rule == "argmin":
        return -weight
    if model.decision.rule == "sign":
        return np.concatenate([np.zeros_like(weight), weight])
    return weight
