"""The verbs serve, keygen, encrypt, decrypt and predict --url, as a user calls them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from networks import random_mlp
from standing import N_IN, N_OUT, Running, running, served

import deploy
from deploy.cli.main import run
from deploy.service.trial import served_for_a_moment

TOY = Path(__file__).parents[1] / "contract" / "toy"
Call = Callable[..., tuple[int, Any]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Run the command with --json in this process: exit code and document."""

    def call(*arguments: object) -> tuple[int, Any]:
        code = run([*map(str, arguments), "--json"])
        return code, json.loads(capsys.readouterr().out)

    return call


@pytest.fixture(scope="module")
def server(standin, tmp_path_factory) -> Iterator[Running]:
    with running([served(), served("standin-keyless")], tmp_path_factory.mktemp("server"), workers=1) as server:
        yield server


@pytest.fixture
def rows(tmp_path, rng) -> Path:
    np.savez(tmp_path / "rows.npz", x=rng.random((7, N_IN)))
    return tmp_path / "rows.npz"


def test_serve_carries_a_target_that_no_line_of_the_trunk_names(tmp_path, rng, call) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TOY)
        patch.setenv("PYTHONPATH", str(TOY))
        x = rng.normal(size=(40, 5))
        np.savez(tmp_path / "rows.npz", x=x)
        options = deploy.parse_options({"toy": deploy.targets()["toy"]})
        bundle = tmp_path / "net.bundle"
        deploy.convert(
            random_mlp(rng, (5, 7, 3)), deploy.Calibration.read(f"{tmp_path / 'rows.npz'}[0:30]"), options
        ).write(bundle)
        with served_for_a_moment(bundle, f"net:2={bundle}", "--workers", "1") as url:
            listed = httpx2.get(f"{url}/v2/models").json()
            assert listed == [{"name": "net-toy", "versions": ["1", "2"], "target": "toy", "ready": True}]
            data = f"{tmp_path / 'rows.npz'}[30:40]"
            code, remote = call("predict", "--url", url, "--data", data)
        assert code == 0
        assert remote["decisions"] == call("predict", bundle, "--data", data)[1]["decisions"]
        assert remote["first_row"] == 30


def test_keys_encrypt_send_decrypt_gives_what_predict_gives(server, rows, tmp_path, call) -> None:
    keys, request, answer = tmp_path / "keys", tmp_path / "request.bin", tmp_path / "answer.bin"
    code, made = call("keygen", "--url", server.url, "--model", "toy-standin", "-o", keys)
    assert code == 0
    code, encrypted = call("encrypt", "--data", rows, "--keys", keys, "-o", request)
    assert (code, encrypted["rows"], encrypted["key_id"]) == (0, 7, made["key_id"])
    code, predicted = call(
        "predict",
        "--url",
        server.url,
        "--model",
        "toy-standin",
        "--keys",
        keys,
        "--data",
        rows,
        "-o",
        tmp_path / "a.csv",
    )
    assert (code, predicted["decisions"]) == (0, np.load(rows)["x"][:, :N_OUT].argmax(axis=1).tolist())
    answer.write_bytes(_post(server.url, request.read_bytes(), made["key_id"], elements=7))
    code, decrypted = call("decrypt", answer, "--keys", keys, "--request", request)
    assert (code, decrypted["decisions"]) == (0, predicted["decisions"])
    assert decrypted["logits"] == predicted["logits"]


def test_more_rows_than_one_call_takes_are_said(server, tmp_path, call, rng, capsys) -> None:
    keys, data = tmp_path / "keys", tmp_path / "many.npz"
    np.savez(data, x=rng.random((65, N_IN)))
    call("keygen", "--url", server.url, "--model", "toy-standin", "-o", keys)
    for rows, said in (("[0:64]", False), ("", True)):
        output = str(tmp_path / f"request{rows}")
        assert run(["encrypt", "--data", f"{data}{rows}", "--keys", str(keys), "-o", output]) == 0
        assert ("takes 64 rows: encrypt ranges" in capsys.readouterr().err) is said


def test_an_answer_to_another_request_is_refused(server, rows, tmp_path, call) -> None:
    keys = tmp_path / "keys"
    made = call("keygen", "--url", server.url, "--model", "toy-standin", "-o", keys)[1]
    for name in ("first", "second"):
        call("encrypt", "--data", f"{rows}[0:1]", "--keys", keys, "-o", tmp_path / name)
    call("predict", "--url", server.url, "--model", "toy-standin", "--keys", keys, "--data", rows)
    (tmp_path / "answer").write_bytes(
        _post(server.url, (tmp_path / "first").read_bytes(), made["key_id"], elements=1)
    )
    code, document = call("decrypt", tmp_path / "answer", "--keys", keys, "--request", tmp_path / "second")
    assert (code, document["error"]["code"]) == (4, "bad_answer")


def _post(url: str, content: bytes, key_id: str, *, elements: int) -> bytes:
    head = json.dumps(
        {
            "inputs": [
                {
                    "name": "request",
                    "datatype": "BYTES",
                    "shape": [elements],
                    "parameters": {"binary_data_size": len(content)},
                }
            ],
            "parameters": {"key_id": key_id},
        }
    ).encode()
    found = httpx2.post(
        f"{url}/v2/models/toy-standin/infer",
        content=head + content,
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    assert found.status_code == 200, found.text
    return found.content[int(found.headers["Inference-Header-Content-Length"]) :]


def test_keygen_never_overwrites_and_seals_under_a_passphrase(server, tmp_path, call, monkeypatch) -> None:
    archive = tmp_path / "client.zip"
    archive.write_bytes(httpx2.get(f"{server.url}/v2/models/toy-standin/client").content)
    (tmp_path / "words").write_text("correct horse\n")
    arguments = ["keygen", "--archive", archive, "-o", tmp_path / "keys", "--passphrase-file", tmp_path / "words"]
    assert call(*arguments)[0] == 0
    assert call(*arguments)[1]["error"]["code"] == "output_exists"
    np.savez(tmp_path / "rows.npz", x=np.zeros((1, N_IN)))
    encrypt = ["encrypt", "--data", tmp_path / "rows.npz", "--keys", tmp_path / "keys", "-o", tmp_path / "request"]
    assert call(*encrypt)[0] == 2
    monkeypatch.setenv("RELU_DEPLOY_PASSPHRASE", "correct horse")
    assert call(*encrypt)[0] == 0


def test_keyless_model_needs_no_keys(server, rows, call, tmp_path) -> None:
    code, found = call("predict", "--url", server.url, "--model", "toy-standin-keyless", "--data", rows)
    assert (code, found["logits"]) == (0, np.load(rows)["x"][:, :N_OUT].tolist())
    code, document = call("keygen", "--url", server.url, "--model", "toy-standin-keyless", "-o", tmp_path / "k")
    assert (code, document["error"]["cause"]) == (2, "this model takes no keys")


def test_serve_refuses_the_open_without_tokens(call, tmp_path) -> None:
    code, document = call("serve", tmp_path, "--host", "0.0.0.0")
    assert (code, document["error"]["code"]) == (2, "usage")
    assert "--token-file" in document["error"]["cause"]


def test_predict_wants_a_bundle_or_a_service(call, rows) -> None:
    assert call("predict", "--data", rows)[0] == 2
    assert call("predict", "somewhere", "--url", "http://127.0.0.1:1", "--data", rows)[0] == 2
