"""scikit-learn estimators and pipelines, against their own predictions."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import deploy
from deploy.errors import LoadError

pytest.importorskip("sklearn")
from sklearn.compose import TransformedTargetRegressor
from sklearn.decomposition import PCA
from sklearn.feature_selection import VarianceThreshold
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, Normalizer, RobustScaler, StandardScaler


def rows(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return rng.normal(size=(60, 5)) * [1, 10, 0.1, 3, 1] + [0, 5, 0, -3, 1]


def fit(estimator: Any, x: Any, y: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return estimator.fit(x, y)


def network(kind: Any = MLPClassifier, **options: Any) -> Any:
    return kind(hidden_layer_sizes=(7, 4), max_iter=30, random_state=0, **options)


@pytest.mark.parametrize("labels", [2, 3, "words"])
@pytest.mark.parametrize(
    "steps",
    [
        [],
        [StandardScaler()],
        [StandardScaler(with_mean=False)],
        [MinMaxScaler()],
        [MinMaxScaler(clip=True)],
        [MaxAbsScaler()],
        [RobustScaler()],
        [PCA(n_components=3, whiten=True)],
        [VarianceThreshold(0.5), StandardScaler()],
        ["passthrough", StandardScaler(), PCA()],
    ],
    ids=str,
)
def test_a_classifier_gives_its_probabilities_and_labels(
    labels: Any, steps: list[Any], rng: np.random.Generator
) -> None:
    x = rows(rng)
    y = (
        rng.integers(labels, size=60)
        if isinstance(labels, int)
        else np.array(["no", "yes"])[rng.integers(2, size=60)]
    )
    pipeline = fit(make_pipeline(*steps, network()), x, y)
    model = deploy.load(pipeline)
    new = rows(rng) * 1.5
    # both in float64
    np.testing.assert_allclose(model.outputs(new), pipeline.predict_proba(new), rtol=1e-9, atol=1e-12)
    assert model.classes is not None
    assert np.array_equal(np.array(model.classes)[model.decide(new)], pipeline.predict(new))


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_regressor_gives_its_predictions(outputs: int, rng: np.random.Generator) -> None:
    x = rows(rng)
    y = rng.normal(size=(60, outputs)) * 5 + 3
    y = y[:, 0] if outputs == 1 else y
    for estimator in (
        make_pipeline(StandardScaler(), network(MLPRegressor)),
        TransformedTargetRegressor(network(MLPRegressor), transformer=StandardScaler()),
        TransformedTargetRegressor(network(MLPRegressor), transformer=MinMaxScaler()),
        LinearRegression(),
    ):
        fitted = fit(estimator, x, y)
        model = deploy.load(fitted, decision="value:0.1")
        np.testing.assert_allclose(model.outputs(x).reshape(y.shape), fitted.predict(x), rtol=1e-9, atol=1e-9)
    assert deploy.load(fit(network(MLPRegressor), x, y)).decision.rule == ("value" if outputs == 1 else "argmax")


@pytest.mark.parametrize("labels", [2, 3])
def test_a_linear_classifier_is_a_model_too(labels: int, rng: np.random.Generator) -> None:
    x, y = rows(rng), rng.integers(labels, size=60)
    fitted = fit(LogisticRegression(), x, y)
    model = deploy.load(fitted)
    np.testing.assert_allclose(model.outputs(x), fitted.predict_proba(x), rtol=1e-9, atol=1e-12)
    assert np.array_equal(model.decide(x), fitted.predict(x))


def test_feature_names_are_kept(rng: np.random.Generator) -> None:
    x, y = rows(rng), rng.integers(2, size=60)
    fitted = fit(network(), x, y)
    fitted.feature_names_in_ = np.array(["a", "b", "c", "d", "e"], dtype=object)
    assert deploy.load(fitted).features == ("a", "b", "c", "d", "e")


def test_what_is_no_chain_is_refused(rng: np.random.Generator) -> None:
    x, y = rows(rng), rng.integers(2, size=60)
    with pytest.raises(LoadError, match="activation 'tanh'"):
        deploy.load(fit(network(activation="tanh"), x, y))
    with pytest.raises(LoadError, match="step normalizer: Normalizer is not supported"):
        deploy.load(fit(make_pipeline(Normalizer(), network()), x, y))
    with pytest.raises(LoadError, match="not fitted"):
        deploy.load(network())


def test_loading_does_not_change_the_estimator(rng: np.random.Generator) -> None:
    fitted = fit(network(), rows(rng), rng.integers(3, size=60))
    deploy.load(fitted)
    assert all(array.flags.writeable for array in (*fitted.coefs_, *fitted.intercepts_))
