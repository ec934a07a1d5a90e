"""The corners of the problem: one output or a hundred, one row, the same row many times, units in another order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from deploy.model import Affine, Decision, Mlp
from fhe.options import CkksOptions
from fhe.separation import Problem, separate
from fhe.separation.coordinates import Coordinates
from fhe.separation.distill import training_scores
from fhe.separation.hulls import reduced_hulls
from fhe.separation.targets import Targets, orient_logits


def make_mlp(rng, widths, rule="argmax") -> Mlp:
    affines = tuple(
        Affine(rng.normal(size=(n, m)) / np.sqrt(m), rng.normal(size=n) / 3) for m, n in pairwise(widths)
    )
    return Mlp(affines, ("relu",) * (len(widths) - 2), Decision(rule))


def run(model, x, **options):
    return separate(model, x, CkksOptions(**options), rng=np.random.default_rng(0))


def share(model, network, x) -> float:
    return float(model.decision.agree(model.logits(x), network.logits(x)).mean())


FITS = ["least-squares", "anchored", "kl", "soft", "rch", "nu", "exact", "auto"]


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("rule,n_out", [("sign", 1), ("argmax", 2), ("argmin", 2), ("argmax", 100)])
def test_every_fit_takes_one_two_and_a_hundred_outputs(rng, fit, rule, n_out):
    model = make_mlp(rng, (4, 6, n_out), rule)
    x = rng.normal(size=(40, 4))
    found = run(model, x, fit=fit)
    assert np.isfinite(found.network.logits(x)).all()
    least = run(model, x, fit="least-squares")
    if fit in ("anchored", "exact", "auto"):
        assert share(model, found.network, x) >= share(model, least.network, x)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("widths", [(4, 6, 3), (4, 5, 6, 3)])
@pytest.mark.parametrize("copies", [1, 7])
def test_one_row_once_or_many_times_is_kept_by_every_fit(rng, fit, widths, copies):
    model = make_mlp(rng, widths)
    x = np.tile(rng.normal(size=(1, 4)), (copies, 1))
    assert share(model, run(model, x, fit=fit).network, x) == 1.0


@pytest.mark.parametrize("degree", [2, 4, 6])
@pytest.mark.parametrize("family", ["shared", "per-unit", "head"])
def test_every_family_takes_fewer_rows_than_powers(rng, family, degree):
    model = make_mlp(rng, (4, 6, 3))
    x = rng.normal(size=(3, 4))
    found = run(model, x, family=family, degree=degree)
    assert np.isfinite(found.network.logits(rng.normal(size=(20, 4)))).all()
    # degree 2 takes three values exactly; higher powers of three values add nothing
    assert share(model, found.network, x) == 1.0 or family == "shared"


def test_duplicated_rows_change_no_exact_fit(rng):
    model = make_mlp(rng, (4, 30, 3))
    x = rng.normal(size=(25, 4))
    once, twice = (run(model, rows, fit="exact").network.logits(x) for rows in (x, np.vstack([x, x])))
    # constraints that are there twice describe the same set; both programs are polished to 1e-10
    np.testing.assert_allclose(twice, once, atol=1e-6 * np.abs(once).max())


@pytest.mark.parametrize("fit", ["least-squares", "anchored", "kl", "exact"])
def test_the_order_of_hidden_units_does_not_matter(rng, fit):
    model = make_mlp(rng, (4, 12, 3))
    x = rng.normal(size=(30, 4))
    order = rng.permutation(12)
    first, last = model.affines
    turned = Mlp(
        (Affine(first.weight[order], first.bias[order]), Affine(last.weight[:, order], last.bias)),
        ("relu",),
        model.decision,
    )
    ours, theirs = (run(m, x, fit=fit, strength=1.0).network.logits(x) for m in (model, turned))
    # Newton stops at a relative gradient of 1e-6
    np.testing.assert_allclose(theirs, ours, atol=1e-4 * np.abs(ours).max())


def test_a_cap_of_one_is_the_hard_margin(rng):
    """The nearest point of one hull to the origin is the largest margin's normal: θ_hard = θ / |θ|²."""
    cvxpy = pytest.importorskip("cvxpy")
    rows = rng.normal(size=(60, 5)) + 3
    hulls = reduced_hulls(rows, np.zeros(60, dtype=int), np.ones(1))
    theta = cvxpy.Variable(5)
    cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.sum_squares(theta)), [rows @ theta >= 1]).solve(
        solver=cvxpy.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11
    )
    # two interior-point runs to a gap of 1e-11 in the objective; the point follows as its root
    np.testing.assert_allclose(hulls.theta / (hulls.theta @ hulls.theta), theta.value, atol=1e-5)
    assert abs(hulls.gap) <= 1e-7


@pytest.mark.parametrize("widths,degree", [((4, 5, 3), 2), ((4, 5, 3), 4), ((4, 5, 4, 3), 2), ((4, 4, 3, 4, 3), 6)])
def test_rows_match_automatic_differentiation_at_every_depth_and_degree(rng, widths, degree):
    torch = pytest.importorskip("torch")
    model = make_mlp(rng, widths)
    x = rng.normal(size=(30, 4))
    problem = Problem.prepare(model, x, Targets.of(model.decision, model.logits(x)), degree=degree)
    parameters = torch.tensor(problem.anchor, requires_grad=True)
    z = torch.tensor(x[:1]) @ torch.tensor(model.affines[0].weight).T + torch.tensor(model.affines[0].bias)
    place = 0
    for layer in problem.layers:
        powers = torch.stack([z[0] ** k for k in range(degree + 1)])  # (degree + 1, units)
        table = torch.tensor(layer.exact[:, : degree + 1].T)
        count = layer.anchor.size
        mine = parameters[place : place + count].reshape(layer.anchor.shape)
        fitted = torch.einsum("pf,pfd->df", mine, torch.tensor(layer.basis.monomials()))
        h = (table * powers[: len(table)]).sum(dim=0)
        free = (fitted * powers[:, layer.free]).sum(dim=0) + torch.tensor(layer.constant)
        h = h.index_put((torch.tensor(np.flatnonzero(layer.free)),), free)
        shift = parameters[place + count : place + count + layer.after.n_out]
        z = (torch.tensor(layer.after.weight) @ h + torch.tensor(layer.after.bias) + shift)[None]
        place += count + layer.after.n_out
    point = problem.lift.at(problem.anchor)
    # the monomials of a degree-6 basis over 30 rows cost some eight digits in the layers behind it
    np.testing.assert_allclose(z.detach().numpy()[0], point.scores[0], rtol=1e-6, atol=1e-6)
    (z[0, 0] - z[0, 2]).backward()
    rows = point.rows(np.array([0]), np.array([0]), np.array([2]))[0]
    np.testing.assert_allclose(rows, parameters.grad.numpy(), rtol=1e-5, atol=1e-5 * np.abs(rows).max())


@pytest.mark.parametrize("widths,rule", [((4, 7, 3), "argmax"), ((4, 5, 6, 1), "sign"), ((4, 3), "argmin")])
@pytest.mark.parametrize("degree", [2, 6])
def test_coordinates_of_a_network_lead_back_to_it(rng, widths, rule, degree):
    model = make_mlp(rng, widths, rule)
    x = rng.normal(size=(60, 4)) * [1e-3, 1.0, 50.0, 1.0] + 7
    network = run(model, x, fit="least-squares", degree=degree).network
    coordinates = Coordinates.around(network, x)
    parameters = coordinates.parameters()
    assert len(coordinates.sizes()) == len(parameters)
    back = coordinates.network(parameters).logits(x)
    wanted = network.logits(x)
    # powers of z up to 6 and back: some six digits at this spread of the inputs
    np.testing.assert_allclose(back, wanted, atol=1e-8 * np.abs(wanted).max())
    for hidden, z in zip(coordinates.hidden, network.preactivations(x), strict=False):
        np.testing.assert_allclose(hidden.basis.values(z).mean(axis=1), 0, atol=1e-8)
    inputs = coordinates.inputs(x, np.arange(60))
    np.testing.assert_allclose(inputs.mean(axis=0), 0, atol=1e-5 * inputs.std())
    np.testing.assert_array_equal(coordinates.inputs(x, np.array([7, 3])), inputs[[7, 3]])


@pytest.mark.parametrize("rule,n_out", [("argmax", 3), ("argmin", 3), ("sign", 1)])
def test_training_starts_at_the_scores_of_the_network(rng, rule, n_out):
    torch = pytest.importorskip("torch")
    model = make_mlp(rng, (4, 7, 5, n_out), rule)
    x = rng.normal(size=(60, 4))
    network = run(model, x, fit="least-squares", degree=4).network
    coordinates = Coordinates.around(network, x)
    tensors = [torch.tensor(a, dtype=torch.float32) for a in coordinates.parameters()]
    found = training_scores(
        torch, coordinates, tensors, torch.from_numpy(coordinates.inputs(x, np.arange(60)))
    ).numpy()
    wanted = orient_logits(model.decision, network.logits(x))
    # single precision, two layers deep
    np.testing.assert_allclose(found, wanted, atol=1e-4 * np.abs(wanted).max())
