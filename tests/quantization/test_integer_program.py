"""The integer program gives the same bits wherever it runs, and its overflow proof holds."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ternary_networks import extreme_rows, random_network

from deploy.errors import PlanError
from quantization.engines import (
    open_evaluator,
    open_jit,
    open_numpy,
    open_onnxruntime,
    open_torch,
)
from quantization.integer import Grids, calibrate_grids, compile_integer, run_int64, split_bytes
from quantization.jit import JitRun, TwoBitKernel, available_forms, compile_kernel
from quantization.kernel_codes import pack_codes
from quantization.network import Plane, QuantizedLayer, QuantizedMlp

FIVE = {
    "numpy": open_numpy,
    "jit": open_jit,
    "torch": open_torch,
    "onnxruntime": open_onnxruntime,
    "onnx reference": open_evaluator,
}
MODULES = {"jit": "llvmlite", "torch": "torch", "onnxruntime": "onnxruntime"}


def program_of(network, bits, rng):
    return compile_integer(network, calibrate_grids(network, rng.normal(size=(50, network.n_in)), bits=bits))


def hostile_rows(program, rng, count):
    """Random activations, extremes, and for some units the input that drives the accumulator furthest."""
    low, high = program.low, program.high
    codes = program.layers[0].terms[0]
    worst = np.zeros((2 * len(codes.codes), program.n_in))
    worst[:, codes.begin : codes.end] = np.concatenate(
        [np.where(codes.codes > 0, high, low), np.where(codes.codes > 0, low, high)]
    )
    dtype = np.int8 if program.bits == 8 else np.int16
    random = rng.integers(low, high + 1, size=(count, program.n_in))
    return np.concatenate([extreme_rows(program.n_in, low, high), worst, random]).astype(dtype)


def assert_five_ways_agree(program, q):
    expected = run_int64(program, q)
    for name, open_runner in FIVE.items():
        if name in MODULES:
            pytest.importorskip(MODULES[name])
        runner, _ = open_runner(program)
        assert np.array_equal(runner(q), expected), name


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(
    "form",
    [
        {},
        {"columns": True},
        {"group": 5},
        {"planes": 2},
        {"levels": 3},
        {"levels": 127},
        {"levels": 7, "planes": 2, "group": 16, "columns": True},
    ],
    ids=str,
)
def test_every_form_of_network_gives_the_same_bits_five_ways(rng, bits, form):
    program = program_of(random_network(rng, (33, 20, 7), **form), bits, rng)
    assert_five_ways_agree(program, hostile_rows(program, rng, 50))


@pytest.mark.parametrize("bits", [8, 16])
def test_ten_thousand_inputs_give_the_same_bits_five_ways(rng, bits):
    program = program_of(random_network(rng, (40, 24, 24, 10)), bits, rng)
    assert_five_ways_agree(program, hostile_rows(program, rng, 10_000))


@pytest.mark.long
@pytest.mark.parametrize("bits", [8, 16])
def test_a_hundred_thousand_inputs_give_the_same_bits_five_ways(rng, bits):
    program = program_of(random_network(rng, (300, 64, 24, 10)), bits, rng)
    assert_five_ways_agree(program, hostile_rows(program, rng, 100_000))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.sampled_from([8, 16]), st.integers(0, 2**32 - 1))
def test_small_networks_give_the_same_bits_in_numpy_and_on_the_kernel(widths, bits, seed):
    rng = np.random.default_rng(seed)
    program = program_of(random_network(rng, tuple(widths)), bits, rng)
    q = hostile_rows(program, rng, 5)
    expected = run_int64(program, q)
    assert np.array_equal(open_numpy(program)[0](q), expected)
    pytest.importorskip("llvmlite")
    assert np.array_equal(JitRun(program)(q), expected)


@pytest.fixture(scope="module", params=["avx512vnni", "avx2", "portable"])
def kernel(request) -> TwoBitKernel:
    pytest.importorskip("llvmlite")
    if request.param not in available_forms():
        pytest.skip(f"this processor has no {request.param}")
    return compile_kernel(request.param)


@pytest.mark.parametrize("shape", [(1, 1), (3, 255), (4, 256), (5, 257), (130, 784), (7, 1300)])
@pytest.mark.parametrize("batch", [1, 3, 4, 9])
def test_every_form_of_the_kernel_is_exact(kernel, rng, shape, batch):
    codes = rng.integers(-1, 2, size=shape).astype(np.int8)
    q = np.concatenate([extreme_rows(shape[1], -128, 127), rng.integers(-128, 128, size=(batch, shape[1]))])
    for rows in (q[:batch], q[-batch:], q):
        rows = rows.astype(np.int8)
        exact = rows.astype(np.int64) @ codes.T.astype(np.int64)
        assert np.array_equal(kernel.accumulate(pack_codes(codes), rows), exact)


def test_every_form_runs_whole_programs(kernel, rng):
    for bits in (8, 16):
        program = program_of(random_network(rng, (300, 40, 9)), bits, rng)
        q = hostile_rows(program, rng, 11)
        assert np.array_equal(JitRun(program, kernel.form)(q), run_int64(program, q))


@given(st.integers(-32768, 32639))
def test_two_signed_bytes_make_every_activation(value):
    high, low = split_bytes(np.array([value], dtype=np.int16))
    assert 256 * int(high[0]) + int(low[0]) == value


@pytest.mark.parametrize("bits", [8, 16])
def test_no_input_exceeds_the_proved_accumulators_and_products(rng, bits):
    program = program_of(random_network(rng, (31, 12, 5)), bits, rng)
    layer = program.layers[0]
    q = hostile_rows(program, rng, 0).astype(object)
    accumulators = q @ layer.terms[0].codes.T.astype(object)
    totals = accumulators * layer.terms[0].multiplier.astype(object) + layer.offset.astype(object)
    assert max(abs(int(v)) for v in accumulators.ravel()) < 2**layer.accumulator_bits
    assert max(abs(int(v)) for v in totals.ravel()) < 2**layer.product_bits <= 2**62


def test_a_layer_whose_accumulators_could_overflow_is_refused():
    n_in = 2**31 // (127 * 128) + 1
    plane = Plane(np.full((1, n_in), 127), np.ones((1, 1)), 127)
    network = QuantizedMlp.of([QuantizedLayer((plane,), np.zeros(1))])
    with pytest.raises(PlanError, match="accumulators"):
        compile_integer(network, Grids(8, np.zeros(n_in), 1.0, ()))


@pytest.mark.parametrize("bits", [8, 16])
def test_the_fixed_point_layer_rounds_the_real_one(rng, bits):
    """Oracle: exact rationals. The rescale is off by half a step, and by 2^-23 of the sum for its multipliers."""
    network = random_network(rng, (9, 6, 3), columns=True)
    grids = calibrate_grids(network, rng.normal(size=(50, 9)), bits=bits)
    program = compile_integer(network, grids)
    q = program.quantize_input(rng.normal(size=(20, 9)))
    layer, plane, step = program.layers[0], network.layers[0].planes[0], grids.reach / program.high
    totals = q.astype(np.int64) @ plane.codes.T.astype(np.int64) * layer.terms[0].multiplier + layer.offset
    found = np.clip(totals >> layer.shift, program.low, program.high)
    for row in range(len(q)):
        inputs = [
            Fraction(step) * int(v) + Fraction(o) * Fraction(c)
            for v, o, c in zip(q[row], grids.origin, network.layers[0].columns, strict=True)
        ]
        for unit in range(6):
            z = Fraction(network.layers[0].bias[unit]) + Fraction(plane.scales[unit, 0]) * sum(
                int(code) * value for code, value in zip(plane.codes[unit], inputs, strict=True)
            )
            wanted = max(z, 0) / Fraction(grids.steps[0]) + program.low
            tolerance = 0.5 + 1e-3 * (bits == 8) + 0.1 * (bits == 16)
            assert abs(float(min(wanted, program.high)) - found[row, unit]) <= tolerance


def test_sixteen_bits_come_close_to_the_float_network(rng):
    network = random_network(rng, (30, 20, 5))
    x = rng.normal(size=(200, 30))
    program = compile_integer(network, calibrate_grids(network, x, bits=16))
    spread = np.abs(network.logits(x)).max()
    # 14 effective bits (two are headroom) over two roundings of up to 30 terms
    assert np.abs(program.logits(x) - network.logits(x)).max() <= 30 * 2 * 2.0**-14 * spread


def test_inputs_off_the_box_saturate_and_are_counted(rng):
    network = random_network(rng, (4, 3))
    x = rng.uniform(-1, 1, size=(100, 4))
    program = compile_integer(network, calibrate_grids(network, x, bits=8))
    far = np.array([[100.0, 0, 0, 0], [0, 0, 0, 0]])
    assert program.saturated(far).tolist() == [True, False]
    assert np.array_equal(program.logits(far[:1]), program.logits(far[:1] * 2))


def test_constant_inputs_and_dead_layers_make_programs():
    zero = QuantizedLayer((Plane(np.zeros((3, 2)), np.zeros((3, 1))),), np.array([0.0, 1.0, -1.0]))
    network = QuantizedMlp.of([zero, QuantizedLayer((Plane(np.ones((2, 3)), np.ones((2, 1))),), np.zeros(2))])
    x = np.zeros((5, 2))
    for bits in (8, 16):
        program = compile_integer(network, calibrate_grids(network, x, bits=bits))
        assert np.allclose(program.logits(x), 1.0, atol=2.0**-6)  # one grid step of an 8-bit grid to 1
