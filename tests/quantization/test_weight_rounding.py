"""Weight-only rules do what their papers say; the exact one is optimal by brute force."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantization.baselines import quantize_absmean, quantize_exact, quantize_sign, quantize_twn, quantize_uniform


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_exact_row_has_the_least_squared_error_of_all_ternaries(n, seed):
    row = np.random.default_rng(seed).normal(size=n)
    all_codes = np.array(list(product((-1, 0, 1), repeat=n)), dtype=float)
    energy = np.maximum((all_codes**2).sum(axis=1), 1)
    least = (row @ row) - ((all_codes @ row) ** 2 / energy).max()
    found = ((quantize_exact(row[None]).weight - row) ** 2).sum()
    assert found == pytest.approx(least, abs=1e-12 * (1 + row @ row))  # two float64 sums of n squares


def test_absmean_follows_its_formula(rng):
    weight = rng.normal(size=(5, 7))
    scale = np.abs(weight).mean()
    plane = quantize_absmean(weight)
    assert np.array_equal(plane.codes, np.clip(np.rint(weight / scale), -1, 1))
    assert np.allclose(plane.scales, scale, rtol=1e-15)  # one division


def test_twn_follows_its_formula(rng):
    weight = rng.normal(size=(5, 7))
    kept = np.abs(weight) > 0.7 * np.abs(weight).mean()
    plane = quantize_twn(weight)
    assert np.array_equal(plane.codes, np.sign(weight) * kept)
    assert np.allclose(plane.scales, np.abs(weight[kept]).mean(), rtol=1e-14)  # a mean of 35 numbers


@pytest.mark.parametrize("rule", [quantize_absmean, quantize_twn, quantize_exact, quantize_sign])
@pytest.mark.parametrize("granularity", ["tensor", "row", 3])
def test_zero_rows_constant_rows_and_outliers_give_finite_scales(rule, granularity):
    weight = np.zeros((4, 7))
    weight[1] = 0.25
    weight[2] = np.array([1e6, 1, 1, 1, -1, 1, 1])
    weight[3, 0] = -1e-300
    plane = rule(weight, granularity)
    assert np.isfinite(plane.scales).all() and np.isfinite(plane.weight).all()
    assert not plane.weight[0].any()


def test_groups_have_scales_of_their_own(rng):
    weight = rng.normal(size=(3, 10)) * np.repeat([1.0, 100.0, 1.0], [4, 4, 2])
    plane = quantize_exact(weight, 4)
    assert plane.scales.shape == (3, 3)
    assert ((plane.weight - weight) ** 2).sum() < ((quantize_exact(weight, "row").weight - weight) ** 2).sum()


@pytest.mark.parametrize("levels", [3, 7, 127])
def test_wider_grids_round_within_half_a_step_where_they_do_not_clip(rng, levels):
    weight = rng.normal(size=(4, 30))
    plane = quantize_uniform(weight, levels)
    inside = np.abs(plane.codes) < levels
    distance = np.abs(plane.weight - weight) / plane.scales
    assert distance[inside].max() <= 0.5 * 1.3  # the refit moves the scale after rounding, by a few percent
