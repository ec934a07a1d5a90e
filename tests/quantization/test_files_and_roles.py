"""A network survives its files; damaged files and bad requests are refused."""

import json

import numpy as np
import pytest
from networks import random_mlp

from deploy.dataset import Calibration
from deploy.errors import BundleError, WireError
from deploy.interface import INTERFACE_FILE, Interface
from deploy.progress import SILENT
from deploy.ranges import calibration_guard
from quantization import target
from quantization.files import BIASES, CODES, NETWORK, SCALES, read_network


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(5).normal(size=(80, 6))


@pytest.fixture(scope="module")
def deployment(rows):
    model = random_mlp(np.random.default_rng(4), (6, 9, 4))
    return target.convert(model, Calibration(rows), target.options(), rng=np.random.default_rng(0), progress=SILENT)


def test_files_read_back_to_the_same_bytes_and_logits(deployment, rows):
    files = deployment.files()
    again = target.load(files, model=deployment.model)
    assert again.files() == files
    assert np.array_equal(again.logits(rows), deployment.logits(rows))


def test_converting_twice_gives_the_same_bytes(deployment, rows):
    again = target.convert(
        deployment.model, Calibration(rows), target.options(), rng=np.random.default_rng(0), progress=SILENT
    )
    assert again.files() == deployment.files()


@pytest.mark.parametrize("name", [CODES, SCALES, BIASES])
def test_a_file_of_another_length_is_refused(deployment, name):
    files = dict(deployment.files())
    files[name] += b"\x00"
    with pytest.raises(BundleError, match=name):
        read_network(files)


def test_a_missing_file_and_an_unknown_schema_are_refused(deployment):
    files = dict(deployment.files())
    document = json.loads(files[NETWORK])
    for change in ({"schema_version": 2}, {"layers": []}, {"extra": 1}):
        with pytest.raises(BundleError, match=NETWORK):
            read_network({**files, NETWORK: json.dumps({**document, **change}).encode()})
    del files[SCALES]
    with pytest.raises(BundleError, match="missing"):
        read_network(files)


def test_scales_that_are_no_numbers_are_refused(deployment):
    files = dict(deployment.files())
    for bad in (np.nan, np.inf, -1.0):
        scales = np.frombuffer(files[SCALES], "<f4").copy()
        scales[0] = bad
        with pytest.raises(BundleError):
            read_network({**files, SCALES: scales.tobytes()})


def test_both_roles_together_give_the_reference(deployment, rows):
    archives = deployment.archives()
    model = deployment.model
    interface = Interface(model.decision, None, model.n_out, model.input_shape, "none", calibration_guard(rows))
    client = target.client({**archives.client, INTERFACE_FILE: interface.to_bytes()})
    server = target.server({**archives.server, INTERFACE_FILE: interface.to_bytes()})
    assert client.generate_keys() is None and server.limits.key_bytes == 0
    answer = server.infer(client.encrypt(rows, None), None)
    assert np.array_equal(client.decrypt(answer, None), deployment.logits(rows))


def test_the_client_archive_holds_no_weight(deployment):
    assert not deployment.archives().client


@pytest.mark.parametrize(
    "request_bytes, code",
    [(b"", "bad_tensor"), (bytes(47), "bad_tensor"), (bytes(48 * 1025), "body_too_large")],
)
def test_requests_of_a_wrong_size_are_refused(deployment, request_bytes, code):
    server = target.server(deployment.archives().server)
    with pytest.raises(WireError) as caught:
        server.infer(request_bytes, None)
    assert caught.value.code == code


def test_a_row_that_is_not_finite_is_refused_by_its_index(deployment):
    rows = np.zeros((3, 6))
    rows[1, 2] = np.nan
    with pytest.raises(WireError, match="row 1"):
        target.server(deployment.archives().server).infer(rows.tobytes(), None)


def test_answers_that_hold_no_rows_are_refused(deployment, rows):
    model = deployment.model
    interface = Interface(model.decision, None, model.n_out, model.input_shape, "none", calibration_guard(rows))
    client = target.client({INTERFACE_FILE: interface.to_bytes()})
    with pytest.raises(WireError):
        client.decrypt(b"1234567", None)
