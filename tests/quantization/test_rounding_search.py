"""Error feedback, beam and descent: near the optimum by brute force, never worse than where they began."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantization.compound import protect_columns, split_nine_levels
from quantization.descent import descend
from quantization.nearest_plane import refit, round_with_feedback, search_beam, search_scales
from quantization.problem import LayerProblem, pose_problem, repair_bias
from quantization.recipe import Recipe, column_factors, quantize_rows


def relu_problem(rng, n_in, rows, *, damping=0.003):
    x = np.maximum(rng.normal(size=(400, n_in)) @ rng.normal(size=(n_in, n_in)), 0)
    return pose_problem(rng.normal(size=(rows, n_in)), x, x, damping=damping)


def full_search(problem, levels=1):
    return descend(
        problem,
        search_beam(
            problem, search_scales(problem, levels), levels, width=32, multipliers=np.linspace(0.8, 1.2, 9)
        ),
        levels,
    )


def optimum(problem, row):
    """Least error of any ternary row at its best scale, by enumeration."""
    codes = np.array(list(product((-1, 0, 1), repeat=problem.weight.shape[1])), dtype=float)
    codes = codes[: len(codes) // 2]
    energy = np.einsum("ij,ij->i", codes @ problem.hessian, codes)
    return problem.energy[row] - ((codes @ problem.pull[:, row]) ** 2 / energy).max()


@pytest.mark.parametrize("n_in", [3, 6, 9])
def test_most_rows_are_globally_optimal_by_brute_force(rng, n_in):
    problem = relu_problem(rng, n_in, 24)
    found = full_search(problem).error
    best = np.array([optimum(problem, row) for row in range(24)])
    ratio = found / best
    assert (ratio >= 1 - 1e-9).all()  # float64 sums of n² products
    assert np.mean(ratio < 1 + 1e-6) >= 0.75
    assert np.median(ratio) <= 1.05


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 40), st.integers(1, 5), st.sampled_from([1, 3, 7]), st.integers(0, 2**32 - 1))
def test_each_stage_never_raises_the_error_of_a_row(n_in, rows, levels, seed):
    problem = relu_problem(np.random.default_rng(seed), n_in, rows)
    first = search_scales(problem, levels, passes=1)
    second = search_scales(problem, levels, start=first)
    beam = search_beam(
        problem,
        refit(problem, second.codes),
        levels,
        width=4,
        multipliers=np.array([0.9, 1.0, 1.1]),
    )
    last = descend(problem, beam, levels)
    slack = 1e-9 * (1 + problem.energy)
    for before, after in ((first, second), (second, beam), (beam, last)):
        assert (after.error <= before.error + slack).all()
        assert np.abs(after.codes).max() <= levels
    assert np.allclose(
        last.error, problem.error(last.scale[:, None] * last.codes), atol=1e-8 * (1 + problem.energy.max())
    )


def test_descent_ends_where_no_single_code_can_move(rng):
    """Oracle: every other code of every row tried in turn, at the scale that was found."""
    problem = relu_problem(rng, 12, 8)
    start = refit(problem, np.sign(problem.weight))
    found = descend(problem, start, 1, sweeps=100)
    assert (found.error < start.error).all()
    for row, column, code in product(range(8), range(12), (-1, 0, 1)):
        moved = found.codes.copy()
        moved[row, column] = code
        error = problem.error(found.scale[:, None] * moved)[row]
        assert error >= found.error[row] - 1e-9 * problem.energy[row]  # float64 sums of n² products


def test_feedback_with_an_uncorrelated_input_is_plain_rounding(rng):
    weight = rng.normal(size=(4, 12))
    problem = LayerProblem(weight, weight, np.eye(12), np.zeros(12, dtype=bool))
    codes = round_with_feedback(problem, np.full((4, 1), 0.7), 1)[:, :, 0].T
    assert np.array_equal(codes, np.clip(np.rint(weight / 0.7), -1, 1))


def test_feedback_makes_up_for_earlier_columns(rng):
    """Two equal inputs: only the sum of their weights counts, and feedback meets it where plain rounding cannot."""
    x = np.repeat(rng.normal(size=(300, 1)), 2, axis=1) + 1e-3 * rng.normal(size=(300, 2))
    problem = pose_problem(np.array([[0.6, 0.6]]), x, x, damping=1e-6)
    codes = round_with_feedback(problem, np.array([[1.2]]), 1)[:, 0, 0]
    assert codes.sum() == 1


def test_the_target_repairs_what_earlier_layers_did_wrong(rng):
    """Oracle: with no grid at all, v = target minimises the real output error over all matrices."""
    exact = rng.normal(size=(500, 6))
    quantized = exact @ (np.eye(6) + 0.2 * rng.normal(size=(6, 6)))
    weight = rng.normal(size=(3, 6))
    problem = pose_problem(weight, exact, quantized, damping=1e-12)
    wanted = (exact - exact.mean(axis=0)) @ weight.T
    fitted, *_ = np.linalg.lstsq(quantized - quantized.mean(axis=0), wanted, rcond=None)
    assert np.allclose(problem.target, fitted.T, atol=1e-8)  # damping of 1e-12


def test_quadratic_error_is_the_weighted_output_error(rng):
    x = rng.normal(size=(200, 5)) + 3
    weight, shares = rng.normal(size=(2, 5)), rng.uniform(size=200)
    problem = pose_problem(weight, x, x, row_weights=shares, damping=0.0)
    other = weight + rng.normal(size=weight.shape)
    bias = repair_bias(weight, np.zeros(2), other, x, x, shares)
    error = shares / shares.sum() @ (x @ other.T + bias - x @ weight.T) ** 2
    assert np.allclose(problem.error(other), error, rtol=1e-9)


def test_columns_that_never_vary_get_code_zero(rng):
    x = rng.normal(size=(100, 6))
    x[:, 2], x[:, 4] = 0.0, 1.5
    planes = quantize_rows(Recipe(beam=4), rng.normal(size=(3, 6)), x, x, row_weights=None)
    assert not planes[0].codes[:, [2, 4]].any()


def test_inputs_that_are_all_constant_are_no_problem(rng):
    x = np.ones((50, 4))
    for recipe in (Recipe(), Recipe(beam=2), Recipe(planes=2), Recipe(protected=0.3)):
        planes = quantize_rows(recipe, rng.normal(size=(3, 4)), x, x, row_weights=None)
        assert not any(plane.codes.any() for plane in planes)


def test_two_planes_hold_nine_levels(rng):
    problem = relu_problem(rng, 20, 6)
    nine = search_scales(problem, 4)
    first, second = split_nine_levels(problem, nine)
    assert np.abs(first.codes).max() <= 1 and np.abs(second.codes).max() <= 1
    error = problem.error(first.weight + second.weight)
    assert (error <= nine.error + 1e-9 * problem.energy).all()
    assert error.sum() < full_search(problem).error.sum()


def test_protected_columns_lower_the_error_and_stay_apart(rng):
    problem = relu_problem(rng, 20, 6)
    coarse, fine = protect_columns(problem, 0.2, search_scales, 1)
    columns = np.flatnonzero(fine.codes.any(axis=0))
    assert len(columns) == 4 and not coarse.codes[:, columns].any()
    assert problem.error(coarse.weight + fine.weight).sum() < search_scales(problem, 1).error.sum()


@given(st.integers(1, 10), st.integers(0, 2**32 - 1))
def test_column_factors_are_powers_of_two_that_even_the_norms(n, seed):
    rng = np.random.default_rng(seed)
    weight = rng.normal(size=(20, n)) * 10.0 ** rng.uniform(-3, 3, size=n)
    factors = column_factors(weight, 1.0)
    norms = np.linalg.norm(weight / factors, axis=0)
    assert np.array_equal(np.exp2(np.rint(np.log2(factors))), factors)
    assert norms.max() / norms.min() <= 2.0 + 1e-9  # each is within a factor sqrt 2 of the mean
