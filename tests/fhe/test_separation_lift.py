"""Bases, lifts and losses: the calculus that every fit rests on."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.model import Affine, Decision, Mlp
from fhe.options import CkksOptions
from fhe.separation import Problem
from fhe.separation.basis import UnitBasis
from fhe.separation.lift import HeadLift, ReducedLift, UnitLift, sum_curvature
from fhe.separation.losses import Divergence, SquaredHinge
from fhe.separation.newton import minimise_anchored
from fhe.separation.targets import Targets


def prepare(model, x, degree=2) -> Problem:
    return Problem.prepare(model, x, Targets.of(model.decision, model.logits(x)), degree=degree)


def random_mlp(rng, widths=(4, 6, 3), rule="argmax") -> Mlp:
    affines = tuple(
        Affine(rng.normal(size=(n, m)) / np.sqrt(m), rng.normal(size=n) / 3) for m, n in pairwise(widths)
    )
    return Mlp(affines, ("relu",) * (len(widths) - 2), Decision(rule))


@given(st.integers(0, 1000), st.sampled_from([1, 2, 4, 6]))
@settings(max_examples=25, deadline=None)
def test_basis_is_orthonormal_and_equals_its_monomials(seed, degree):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(60, 3)) * rng.uniform(0.1, 30, 3) + rng.normal(size=3) * 5
    basis = UnitBasis.over(z, degree)
    values = basis.values(z)
    gram = np.einsum("pbu,qbu->upq", values, values) / len(z)
    # Stieltjes loses orthogonality slowly: a dozen digits remain at degree 6 over 60 rows
    np.testing.assert_allclose(gram, np.broadcast_to(np.eye(degree), gram.shape), atol=1e-8)
    np.testing.assert_allclose(values.mean(axis=1), 0, atol=1e-8)
    table = basis.monomials()
    by_powers = np.stack([sum(table[p, :, k] * z**k for k in range(degree + 1)) for p in range(degree)])
    scale = np.abs(table[..., None] * 0 + 1).max() + np.abs(values).max()
    np.testing.assert_allclose(by_powers, values, atol=1e-6 * scale)


def test_slopes_of_the_basis_match_finite_differences(rng):
    z = rng.normal(size=(50, 4)) * 3 + 1
    basis = UnitBasis.over(z, 6)
    step = 1e-6
    _, slopes = basis.values_and_slopes(z)
    finite = (basis.values(z + step) - basis.values(z - step)) / (2 * step)
    # central difference: error step² times a third derivative of some thousands, and 1e-16 / step
    np.testing.assert_allclose(slopes, finite, rtol=1e-5, atol=1e-5)


def test_a_unit_with_too_few_values_has_no_high_powers():
    z = np.array([[0.0], [1.0], [1.0], [0.0]])
    basis = UnitBasis.over(z, 4)
    assert basis.scale[0, 0] > 0
    assert not basis.scale[1:].any()
    assert np.isfinite(basis.values(z)).all()


def lifts(rng):
    for widths in ((4, 6, 3), (4, 5, 4, 3), (4, 4, 3, 4, 3)):
        problem = prepare(random_mlp(rng, widths), rng.normal(size=(30, 4)), degree=2)
        yield problem.lift, problem.targets, problem.anchor
    features = rng.normal(size=(30, 5))
    targets = Targets.of(Decision("argmax"), rng.normal(size=(30, 3)))
    head = HeadLift(features, 3, rng.normal(size=(30, 3)))
    yield head, targets, rng.normal(size=head.size)
    unit = UnitLift(rng.normal(size=(30, 8)), rng.normal(size=(3, 4)), rng.normal(size=3))
    reduced = ReducedLift(unit, rng.normal(size=(unit.size, 4)), rng.normal(size=unit.size))
    yield reduced, targets, rng.normal(size=4)


def test_rows_and_gradients_match_finite_differences(rng):
    for lift, targets, anchor in lifts(rng):
        theta = anchor + rng.normal(size=lift.size) * 0.05
        point = lift.at(theta)
        row = np.arange(10)
        plus, minus = targets.chosen[:10], (targets.chosen[:10] + 1) % 3
        rows = point.rows(row, plus, minus)
        weights = rng.normal(size=point.scores.shape)
        gradient = point.gradient(weights)
        step = 1e-6
        for k in range(lift.size):
            moved = np.zeros(lift.size)
            moved[k] = step
            change = (lift.at(theta + moved).scores - lift.at(theta - moved).scores) / (2 * step)
            # central differences of polynomials of degree <= 16 near 1: 1e-16 / step and step² third derivatives
            np.testing.assert_allclose(rows[:, k], change[row, plus] - change[row, minus], atol=2e-6, rtol=2e-6)
            np.testing.assert_allclose(gradient[k], np.vdot(weights, change), atol=2e-5, rtol=2e-6)


def test_rows_match_automatic_differentiation(rng):
    torch = pytest.importorskip("torch")
    problem = prepare(random_mlp(rng, (4, 5, 4, 3)), rng.normal(size=(20, 4)), degree=2)
    network = problem.network(problem.anchor)
    first, second = (torch.tensor(table, requires_grad=True) for table in network.coefficients)
    h = torch.tensor(rng.normal(size=(1, 4)))
    z = h
    for layer, table in zip(network.affines, (first, second), strict=False):
        z = z @ torch.tensor(layer.weight).T + torch.tensor(layer.bias)
        z = table[:, 0] + table[:, 1] * z + table[:, 2] * z**2
    last = network.affines[-1]
    scores = z @ torch.tensor(last.weight).T + torch.tensor(last.bias)
    (scores[0, 0] - scores[0, 2]).backward()
    row = problem.lift.take(np.array([0])).__class__(
        problem.lift.layers,
        network.affines[0](h.numpy()),
        problem.lift.layers[0].features(network.affines[0](h.numpy())),
    )
    derivative = row.at(problem.anchor).rows(np.array([0]), np.array([0]), np.array([2]))[0]
    place = 0
    for layer, table in zip(problem.layers, (first, second), strict=True):
        to_raw = layer.basis.monomials()[:, :, 1:]
        wanted = np.einsum("pfd,fd->pf", to_raw, table.grad.numpy()[layer.free][:, 1:])
        wanted += layer.basis.monomials()[:, :, 0] * table.grad.numpy()[layer.free][:, 0]
        count = layer.anchor.size
        # both sides differentiate exactly; they sum a few dozen terms in different orders
        np.testing.assert_allclose(derivative[place : place + count], wanted.ravel(), rtol=1e-9, atol=1e-9)
        place += count + layer.after.n_out


def test_curvature_sums_the_outer_products(rng):
    for lift, targets, anchor in lifts(rng):
        point = lift.at(anchor)
        row, plus, minus, weight = SquaredHinge(targets, 1.0).pairs(point.scores)
        rows = point.rows(row, plus, minus)
        np.testing.assert_allclose(
            sum_curvature(point, lift.size, row, plus, minus, weight), rows.T @ (rows * weight[:, None]), atol=1e-9
        )


def test_losses_match_finite_differences(rng):
    targets = Targets.of(Decision("argmax"), rng.normal(size=(12, 4)))
    scores = rng.normal(size=(12, 4))
    for loss in (SquaredHinge(targets, 0.7), Divergence.of(targets)):
        slopes = loss.slopes(scores)
        for index in np.ndindex(scores.shape):
            moved = np.zeros_like(scores)
            moved[index] = 1e-6
            finite = (loss.value(scores + moved) - loss.value(scores - moved)) / 2e-6
            np.testing.assert_allclose(slopes[index], finite, atol=1e-7)


def test_divergence_curvature_bounds_that_of_the_softmax(rng):
    targets = Targets.of(Decision("argmax"), rng.normal(size=(3, 4)))
    scores = rng.normal(size=(3, 4))
    row, plus, minus, weight = Divergence.of(targets).pairs(scores)
    for n in range(3):
        total = np.zeros((4, 4))
        for r, p, m, w in zip(row, plus, minus, weight, strict=True):
            if r == n:
                e = np.zeros(4)
                e[p], e[m] = 1.0, -1.0
                total += w * np.outer(e, e)
        q = np.exp(scores[n]) / np.exp(scores[n]).sum()
        assert np.linalg.eigvalsh(total - (np.diag(q) - np.outer(q, q))).min() >= -1e-12


@given(st.integers(0, 500), st.sampled_from([0.1, 1.0]), st.sampled_from([0.1, 10.0]))
@settings(max_examples=20, deadline=None)
def test_the_minimum_is_stationary_and_beats_its_neighbours(seed, gamma, strength):
    rng = np.random.default_rng(seed)
    problem = prepare(random_mlp(rng), rng.normal(size=(40, 4)), degree=2)
    loss = SquaredHinge(problem.targets, gamma)
    fit = minimise_anchored(problem.lift, loss, anchor=problem.anchor, strength=strength, tolerance=1e-9)
    assert fit.converged
    for _ in range(5):
        near = fit.parameters + rng.normal(size=problem.lift.size) * 1e-3
        away = near - problem.anchor
        assert 0.5 * away @ away + strength * loss.value(problem.lift.at(near).scores) >= fit.objective - 1e-12


def test_the_parameters_reproduce_the_network(rng):
    for widths in ((4, 6, 3), (4, 5, 6, 3)):
        for degree in (2, 4, 6):
            x = rng.normal(size=(80, 4))
            problem = prepare(random_mlp(rng, widths), x, degree=degree)
            theta = problem.anchor + rng.normal(size=problem.lift.size) * 0.02
            # basis against raw powers of z: conditioning of a degree-6 basis over 80 rows, two layers deep
            np.testing.assert_allclose(
                problem.network(theta).logits(x), problem.lift.at(theta).scores, rtol=1e-6, atol=1e-6
            )


def test_options_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match="degree"):
        CkksOptions(degree=3)
