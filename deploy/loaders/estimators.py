"""scikit-learn estimators and pipelines, given as Python objects: their fitted arrays become layers.

Nothing of scikit-learn is imported; a class is known by its name and its fitted attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders import activations, linear
from deploy.loaders.chain import Chain
from deploy.loaders.result import Loaded, Settings
from deploy.loaders.signal import Signal
from deploy.loaders.tails import Ending, Tailed, close_tail, end_network, name_classes
from deploy.loaders.weights import check_finite

__all__ = ["is_estimator", "load_estimator"]


def is_estimator(source: object) -> bool:
    """The object's class comes from scikit-learn."""
    return any(kind.__module__.partition(".")[0] == "sklearn" for kind in type(source).__mro__)


def load_estimator(estimator: Any, settings: Settings) -> Loaded:
    """Read a fitted network, linear model, or pipeline of transformers that ends in one.

    Raises
    ------
    LoadError : not fitted, or a step that is no affine map of its input, naming it.
    """
    n_in = _n_features(estimator)
    if n_in is None:
        raise LoadError(f"{_kind(estimator)} is not fitted", remedy="call fit first")
    chain = Chain(limit=settings.max_parameters)
    value = _apply(chain, chain.input((1, int(n_in))), estimator)
    names = getattr(estimator, "feature_names_in_", None)
    features = None if names is None else tuple(str(name) for name in names)
    ending = _close(value)
    chain.finish(ending.logits, _kind(estimator))
    return Loaded(chain, ending, (int(n_in),), features)


def _n_features(estimator: Any) -> int | None:
    """Number of inputs; a pipeline that starts with "passthrough" does not say it itself."""
    try:
        return int(estimator.n_features_in_)
    except AttributeError:
        found = (_n_features(step) for _, step in getattr(estimator, "steps", ()))
        return next((n_in for n_in in found if n_in is not None), None)


def _kind(step: object) -> str:
    return type(step).__name__


def _close(value: Signal | Tailed) -> Ending:
    return close_tail([("predictions", value)])


def _apply(chain: Chain, signal: Signal, step: Any) -> Signal | Tailed:
    if step is None or (isinstance(step, str) and step == "passthrough"):
        return signal
    kind = _kind(step)
    if kind == "Pipeline":
        value: Signal | Tailed = signal
        for name, inner in step.steps:
            if isinstance(value, Tailed):
                raise LoadError("comes after the classifier", place=f"step {name}")
            try:
                value = _apply(chain, value, inner)
            except LoadError as error:
                raise error.at(f"step {name}") from None
        return value
    if kind not in _STEPS:
        raise LoadError(f"{kind} is not supported", remedy=f"supported are {', '.join(sorted(_STEPS))}, Pipeline")
    try:
        return _STEPS[kind](chain, signal, step)
    except AttributeError as error:
        raise LoadError(f"{kind} is not fitted ({error})", remedy="call fit first") from None


def _array(step: Any, name: str) -> Array:
    return np.array(check_finite(np.asarray(getattr(step, name)), f"{_kind(step)}.{name}"), dtype=np.float64)


def _network(chain: Chain, signal: Signal, step: Any) -> Signal | Tailed:
    """MLPClassifier and MLPRegressor."""
    if step.activation not in ("relu", "identity"):
        raise LoadError(f"activation {step.activation!r} is not a ReLU", remedy="train with activation='relu'")
    chain.weighted = True
    last = len(step.coefs_) - 1
    for index in range(last + 1):
        coefficient = check_finite(np.asarray(step.coefs_[index]), f"coefs_[{index}]")
        intercept = check_finite(np.asarray(step.intercepts_[index]), f"intercepts_[{index}]")
        signal = linear.multiply_right(signal, coefficient).shifted(intercept).named(f"coefs_[{index}]")
        if index < last and step.activation == "relu":
            signal = chain.activate(signal, "relu", f"hidden layer {index}")
    return _end(
        signal, step, {"identity": "none", "softmax": "softmax", "logistic": "sigmoid"}[step.out_activation_]
    )


def _linear(chain: Chain, signal: Signal, step: Any) -> Signal | Tailed:
    """Linear regression and classification: no hidden layer."""
    chain.weighted = True
    weight = np.atleast_2d(_array(step, "coef_"))
    result = linear.multiply_right(signal, weight.T).shifted(np.atleast_1d(_array(step, "intercept_")))
    if _kind(step) == "LogisticRegression" and step.solver == "liblinear" and result.size > 1:
        raise LoadError("one-versus-rest probabilities of liblinear", remedy="train with another solver")
    if _kind(step) != "LogisticRegression":
        return _end(result, step, "none")
    return _end(result, step, "softmax" if result.size > 1 else "sigmoid")


def _end(signal: Signal, step: Any, function: str) -> Signal | Tailed:
    classes = getattr(step, "classes_", None)
    if classes is None:
        return signal
    kinds = {"sigmoid": "sigmoid_pair"} if signal.size == 1 else {}
    is_multilabel = function == "sigmoid" and signal.size > 1
    ending = end_network(signal, kinds.get(function, function), _kind(step))  # type: ignore[arg-type]
    if ending.function == "sigmoid_pair":
        ending = Tailed(signal, "sigmoid_pair", np.arange(2), _kind(step))
    return ending if is_multilabel else name_classes(ending, np.asarray(classes).tolist())


def _scale_standard(chain: Chain, signal: Signal, step: Any) -> Signal:
    if step.with_mean:
        signal = signal.shifted(-_array(step, "mean_"))
    return signal.scaled(1.0 / _array(step, "scale_")) if step.with_std else signal


def _scale_range(chain: Chain, signal: Signal, step: Any) -> Signal:
    signal = signal.scaled(_array(step, "scale_")).shifted(_array(step, "min_"))
    if getattr(step, "clip", False):
        low, high = (float(bound) for bound in step.feature_range)
        return activations.clip(chain, signal, low, high, "MinMaxScaler(clip=True)")
    return signal


def _scale_robust(chain: Chain, signal: Signal, step: Any) -> Signal:
    if step.with_centering:
        signal = signal.shifted(-_array(step, "center_"))
    return signal.scaled(1.0 / _array(step, "scale_")) if step.with_scaling else signal


def _project(chain: Chain, signal: Signal, step: Any) -> Signal:
    """PCA and TruncatedSVD."""
    mean = getattr(step, "mean_", None)
    if mean is not None:
        signal = signal.shifted(-_array(step, "mean_"))
    chain.weighted = True
    signal = linear.multiply_right(signal, _array(step, "components_").T)
    if getattr(step, "whiten", False):
        signal = signal.scaled(1.0 / np.sqrt(_array(step, "explained_variance_")))
    return signal


def _select(chain: Chain, signal: Signal, step: Any) -> Signal:
    kept = np.flatnonzero(step.get_support())
    return signal.selected(kept.reshape(1, -1))


def _function(chain: Chain, signal: Signal, step: Any) -> Signal:
    if step.func is not None:
        raise LoadError("FunctionTransformer with a function", remedy="apply the function to the rows beforehand")
    return signal


def _target(chain: Chain, signal: Signal, step: Any) -> Signal | Tailed:
    """TransformedTargetRegressor: the regressor, then the inverse of a linear scaling of the target."""
    value, transformer = _apply(chain, signal, step.regressor_), step.transformer_
    if isinstance(value, Tailed):
        raise LoadError("a classifier inside TransformedTargetRegressor")
    kind = _kind(transformer)
    if kind == "StandardScaler":
        value = value.scaled(_array(transformer, "scale_")) if transformer.with_std else value
        return value.shifted(_array(transformer, "mean_")) if transformer.with_mean else value
    if kind == "MinMaxScaler":
        scale = _array(transformer, "scale_")
        return value.shifted(-_array(transformer, "min_")).scaled(1.0 / scale)
    raise LoadError(f"a target transformer {kind}", remedy="supported are StandardScaler and MinMaxScaler")


_STEPS: Mapping[str, Callable[[Chain, Signal, Any], Signal | Tailed]] = {
    "MLPClassifier": _network,
    "MLPRegressor": _network,
    "LogisticRegression": _linear,
    "LinearRegression": _linear,
    "Ridge": _linear,
    "Lasso": _linear,
    "LinearSVC": _linear,
    "LinearSVR": _linear,
    "StandardScaler": _scale_standard,
    "MinMaxScaler": _scale_range,
    "MaxAbsScaler": lambda chain, signal, step: signal.scaled(1.0 / _array(step, "scale_")),
    "RobustScaler": _scale_robust,
    "PCA": _project,
    "TruncatedSVD": _project,
    "VarianceThreshold": _select,
    "SelectKBest": _select,
    "FunctionTransformer": _function,
    "TransformedTargetRegressor": _target,
}
