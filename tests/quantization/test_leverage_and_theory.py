"""Leverage predicts measured damage; the sign theory's closed forms match Monte Carlo."""

import numpy as np
import pytest
from networks import random_mlp

from deploy.leverage import gauss_newton_leverage
from quantization.evidence import decision_loss
from quantization.sensitivity import flip_loss, measure_sensitivity, spearman
from quantization.sign_theory import (
    arc_cosine_kernel,
    column_leverage_ratio,
    measure_transverse_ratio,
    radial_fraction_of_signs,
    rms_norm,
    rms_norm_derivative,
    split_energy,
    transverse_ratio,
)


@pytest.mark.parametrize("rule, n_out", [("argmax", 4), ("argmin", 4), ("sign", 1), ("value", 3)])
@pytest.mark.parametrize("activation", ["relu", "square"])
def test_gauss_newton_is_the_second_order_loss_of_a_small_change(rng, rule, n_out, activation):
    """Oracle: the loss itself under a change 1e-3 of a sign flip; the next order is that much smaller."""
    model = random_mlp(rng, (5, 6, n_out), rule=rule, activation=activation)
    x = rng.normal(size=(64, 5)) * 0.3
    logits, share = model.logits(x), 1e-3
    scale = np.var(logits) * logits.size / len(x) if rule == "value" else 1.0
    for index, found in enumerate(gauss_newton_leverage(model, x)):
        layer = model.affines[index]
        for j in range(min(4, layer.n_in)):
            for rows in (np.array([1 % layer.n_out]), np.arange(layer.n_out)):
                weight = layer.weight.copy()
                weight[rows, j] *= 1 - 2 * share
                affines = list(model.affines)
                affines[index] = type(layer)(weight, layer.bias)
                loss = scale * decision_loss(model.decision, logits, model.with_(affines=tuple(affines)).logits(x))
                predicted = found.weights[rows[0], j] if len(rows) == 1 < layer.n_out else found.columns[j]
                assert loss == pytest.approx(share**2 * predicted, rel=0.05, abs=1e-12)


def test_a_flip_is_measured_as_the_changed_network_would_be(rng):
    model = random_mlp(rng, (5, 7, 6, 3))
    x = rng.normal(size=(40, 5))
    for index, layer in enumerate(model.affines):
        weight = layer.weight.copy()
        weight[2, 1] *= -1
        affines = list(model.affines)
        affines[index] = type(layer)(weight, layer.bias)
        expected = decision_loss(model.decision, model.logits(x), model.with_(affines=tuple(affines)).logits(x))
        found = flip_loss(model, x, index, np.array([2]), 1, z=model.preactivations(x))
        assert found == pytest.approx(expected, rel=1e-9)


def test_leverage_ranks_measured_flips(rng):
    model = random_mlp(rng, (20, 30, 30, 5))
    x = rng.normal(size=(1500, 20)) * np.linspace(0.1, 2, 20)
    for layer in measure_sensitivity(model, x[:750], x[750:], rng=rng, weights=60, columns=20):
        assert layer.weight_spearman["gauss_newton"] >= 0.9
        assert layer.column_spearman["gauss_newton"] >= 0.7  # 20 columns: a standard error of 0.1
        low, high = layer.weight_ratio[1:]
        assert 0.3 <= low <= high <= 3  # additive and second-order figures hold within this


def test_spearman_is_rank_correlation():
    assert spearman(np.array([1, 2, 3]), np.array([1, 10, 100])) == pytest.approx(1.0)
    assert spearman(np.array([1, 2, 3]), np.array([3, 2, 1])) == pytest.approx(-1.0)
    assert spearman(np.array([1, 1, 1]), np.array([3, 2, 1])) == 0.0


def test_the_arc_cosine_kernel_is_a_gaussian_mean(rng):
    u, w = rng.normal(size=(2, 400_000))
    for s, rho in ((1.0, 0.3), (2.0, -0.5), (0.5, 0.9)):
        v = s * (rho * u + np.sqrt(1 - rho**2) * w)
        mean = np.mean(np.maximum(u, 0) * np.maximum(v, 0))
        error = np.std(np.maximum(u, 0) * np.maximum(v, 0)) / np.sqrt(len(u))
        assert abs(arc_cosine_kernel(s, rho) - mean) <= 4 * error


def test_the_exact_ratio_of_energies_is_measured(rng):
    """The finite-width bias is about -12 / n of c: 0.047 at n = 256; then four standard errors."""
    measured, error = measure_transverse_ratio(rng, n=256, p=0.05, trials=10)
    assert abs(measured + 12 / 256 - transverse_ratio(0.05)) <= 4 * error + 0.02


def test_the_ratio_tends_to_its_limit_and_falls_with_the_rate():
    assert transverse_ratio(1e-8) == pytest.approx(1 / (1 - 2 / np.pi), rel=1e-3)
    assert transverse_ratio(0.01) > transverse_ratio(0.02) > transverse_ratio(0.1)


def test_a_flip_in_an_outlier_column_costs_n_alpha_squared():
    assert column_leverage_ratio(1024, 1 / 32) == pytest.approx(1.0, rel=1e-6)
    assert column_leverage_ratio(1024, 0.05) == pytest.approx(1024 * 0.05**2, rel=0.02)


def test_the_radial_fraction_of_signs_is_measured(rng):
    n, rows = 512, 400
    found = []
    for _ in range(6):
        weight = rng.normal(size=(n, n)) / np.sqrt(n)
        x = rng.normal(size=(rows, n))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        clean = np.maximum(x @ weight.T, 0)
        signs = np.abs(weight).mean(axis=1, keepdims=True) * np.sign(weight)
        split = split_energy(clean, np.maximum(x @ signs.T, 0) - clean)
        found.append(split.radial / (split.radial + split.transverse))
    error = np.std(found, ddof=1) / np.sqrt(len(found))
    assert abs(np.mean(found) - radial_fraction_of_signs()) <= 4 * error + 1 / n


def test_the_norms_derivative_is_its_slope(rng):
    y, change = rng.normal(size=(2, 5, 8))
    h = 1e-6
    slope = (rms_norm(y + h * change) - rms_norm(y - h * change)) / (2 * h)
    assert np.allclose(rms_norm_derivative(y, change), slope, atol=1e-8)
