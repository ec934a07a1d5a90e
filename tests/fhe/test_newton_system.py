"""The three ways to solve a Newton step agree with each other and with the dense system."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from deploy.model import Affine, Decision, Mlp
from fhe.separation import Problem, newton_system
from fhe.separation.exact import in_row_space
from fhe.separation.families import HeadFamily, SharedFamily
from fhe.separation.losses import Divergence, SquaredHinge
from fhe.separation.newton import minimise_anchored
from fhe.separation.targets import Targets


def make_mlp(rng, widths) -> Mlp:
    affines = tuple(
        Affine(rng.normal(size=(n, m)) / np.sqrt(m), rng.normal(size=n) / 3) for m, n in pairwise(widths)
    )
    return Mlp(affines, ("relu",) * (len(widths) - 2), Decision("argmax"))


def cases(rng):
    """Lift, point, pairs and gradient of each family, one and several hidden layers."""
    x = rng.normal(size=(40, 5))
    for widths in ((5, 9, 3), (5, 8, 7, 3)):
        model = make_mlp(rng, widths)
        problem = Problem.prepare(model, x, Targets.of(model.decision, model.logits(x)), degree=2)
        families = [problem]
        if len(widths) == 3:
            families += [HeadFamily.of(model, x, degree=2), SharedFamily.of(model, x, degree=4)]
        for family in families:
            point = family.lift.at(family.anchor + rng.normal(size=family.lift.size) * 0.1)
            for loss in (SquaredHinge(problem.targets, 1.0), Divergence.of(problem.targets)):
                row, plus, minus, weight = loss.pairs(point.scores)
                yield (
                    family.lift,
                    point,
                    (row, plus, minus, 3.0 * weight),
                    point.gradient(loss.slopes(point.scores)),
                )


@pytest.mark.parametrize("damping", [0.0, 0.7])
def test_the_three_ways_give_the_step_of_the_dense_system(rng, damping, monkeypatch):
    monkeypatch.setattr(newton_system, "_SMALL", 1e-12)
    tried = set()
    for lift, point, pairs, gradient in cases(rng):
        row, plus, minus, weight = pairs
        rows = point.rows(row, plus, minus) * np.sqrt(weight)[:, None]
        curvature = rows.T @ rows
        wanted = np.linalg.solve(curvature + (1 + damping) * np.eye(lift.size), -gradient)
        chosen = newton_system._factorised(lift, point, pairs)
        tried.add(type(chosen).__name__)
        for system in (
            chosen,
            newton_system._Primal(curvature),
            newton_system._Dual(rows, rows @ rows.T),
            newton_system._Products(lift, point, pairs, 1000),
        ):
            # condition at most 1e4 here; conjugate gradients stop at a residual of 1e-12
            np.testing.assert_allclose(system.step(gradient, damping), wanted, atol=1e-8 * np.abs(wanted).max())
            if len(row) <= 256:  # beyond, products sample the trace
                assert system.mean_curvature == pytest.approx(np.trace(curvature) / lift.size, rel=1e-9)
    assert tried == {"_Primal", "_Dual"}


def test_conjugate_gradients_that_do_not_arrive_hand_over_to_a_factorisation(rng):
    for lift, point, pairs, gradient in cases(rng):
        exact = newton_system._factorised(lift, point, pairs).step(gradient)
        # one step does not reach the residual asked, so the answer is the factorisation's
        np.testing.assert_array_equal(newton_system._Products(lift, point, pairs, 1).step(gradient), exact)


def test_the_dual_keeps_its_digits_at_large_strengths(rng):
    """Woodbury's difference cancels where the curvature is large: 1e8 here, so some eight of sixteen digits may go."""
    rows = rng.normal(size=(20, 60)) * 1e4
    gradient = rows.T @ rng.normal(size=20) + rng.normal(size=60)
    found = newton_system._Dual(rows, rows @ rows.T).step(gradient)
    _, values, directions = np.linalg.svd(rows)
    wanted = -directions.T @ ((directions @ gradient) / (1 + np.append(values, np.zeros(40)) ** 2))
    # gradients of 1e5 are split by directions known to 1e-16, so the reference itself has eleven digits
    np.testing.assert_allclose(found, wanted, atol=1e-9 * np.abs(wanted).max())


def test_a_loss_without_pairs_leaves_the_gradient(rng):
    lift, point, _, gradient = next(cases(rng))
    none = np.zeros(0, dtype=np.int64)
    system = newton_system.newton_system(lift, point, (none, none, none, np.zeros(0)))
    np.testing.assert_array_equal(system.step(gradient, 1.0), -gradient / 2)


def test_a_layer_wider_than_its_rows_takes_products_and_finds_the_same_minimum(rng, monkeypatch):
    model = make_mlp(rng, (5, 300, 3))
    x = rng.normal(size=(30, 5))
    problem = Problem.prepare(model, x, Targets.of(model.decision, model.logits(x)), degree=2)
    loss = Divergence.of(problem.targets)

    def fit():
        return minimise_anchored(
            problem.lift, loss, anchor=problem.anchor, strength=1.0, tolerance=1e-10, max_steps=200
        )

    monkeypatch.setattr(newton_system, "_FEWEST_STEPS", 1)
    point = problem.lift.at(problem.anchor)
    assert type(newton_system.newton_system(problem.lift, point, loss.pairs(point.scores))).__name__ == "_Products"
    products = fit()
    monkeypatch.setattr(newton_system, "_FEWEST_STEPS", 10**9)
    factorised = fit()
    # strongly convex with modulus 1: the distance to the minimum is at most the gradient
    assert max(products.gradient_norm, factorised.gradient_norm) <= 1e-6
    np.testing.assert_allclose(products.parameters, factorised.parameters, atol=2e-6)


def test_derivatives_match_finite_differences(rng):
    for lift, _, _, _ in cases(rng):
        theta, direction = rng.normal(size=(2, lift.size)) * 0.1
        step = 1e-6
        finite = (lift.at(theta + step * direction).scores - lift.at(theta - step * direction).scores) / (2 * step)
        found = lift.at(theta).derivative(direction)
        # central differences of polynomials near 1: 1e-16 / step and step² third derivatives
        np.testing.assert_allclose(found, finite, atol=1e-7 * max(1.0, np.abs(finite).max()))


def test_rows_are_written_in_what_they_span(rng):
    for shape in ((4, 9), (9, 4)):
        matrix = rng.normal(size=shape)
        compact, back = in_row_space(matrix)
        assert compact.shape == (shape[0], min(shape))
        np.testing.assert_allclose(compact @ back.T, matrix, atol=1e-12)
        np.testing.assert_allclose(back.T @ back, np.eye(min(shape)), atol=1e-12)
