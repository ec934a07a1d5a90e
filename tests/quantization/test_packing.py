"""Codes survive every packing, and bytes that no codes make are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.errors import BundleError
from quantization.packing import (
    pack_base3,
    pack_codes,
    pack_two_bits,
    packed_bytes,
    unpack_base3,
    unpack_codes,
    unpack_two_bits,
)


@given(st.lists(st.integers(-1, 1), max_size=64))
def test_base3_is_lossless_at_five_trits_a_byte(trits):
    codes = np.array(trits, dtype=np.int8)
    data = pack_base3(codes)
    assert len(data) == -(-len(trits) // 5)
    assert np.array_equal(unpack_base3(data, len(trits)), codes)


def test_base3_bytes_are_as_documented():
    assert pack_base3(np.array([1, 1, 1, 1, 1])) == bytes([242])
    assert pack_base3(np.array([-1, -1, -1, -1, -1])) == bytes([0])
    assert pack_base3(np.array([1, -1, -1, -1, -1, 0])) == bytes([2, 1 + 3 + 9 + 27 + 81])


@pytest.mark.parametrize("data, size", [(b"\xf3", 5), (b"\x00\x00", 5), (b"", 1)])
def test_bytes_that_no_trits_make_are_refused(data, size):
    with pytest.raises(BundleError):
        unpack_base3(data, size)


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_two_bits_are_lossless(rows, n, seed):
    codes = np.random.default_rng(seed).integers(-1, 2, size=(rows, n)).astype(np.int8)
    packed = pack_two_bits(codes)
    assert packed.shape == (rows, -(-n // 4))
    assert np.array_equal(unpack_two_bits(packed, n), codes)


@given(st.sampled_from([1, 3, 7, 127]), st.integers(1, 60), st.integers(0, 2**32 - 1))
def test_every_grid_is_lossless_at_its_stated_size(levels, size, seed):
    codes = np.random.default_rng(seed).integers(-levels, levels + 1, size=size).astype(np.int8)
    data = pack_codes(codes, levels)
    assert len(data) == packed_bytes(size, levels)
    assert np.array_equal(unpack_codes(data, size, levels), codes)


def test_a_code_outside_its_grid_is_refused():
    with pytest.raises(BundleError, match="a code of 8"):
        unpack_codes(b"\x00", 2, 7)
