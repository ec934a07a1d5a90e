"""The client against a real server over the stand-in targets."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import warnings
from collections.abc import Iterator

import httpx2
import numpy as np
import pytest
from standing import N_IN, N_OUT, Running, interface, running, served

from deploy import AsyncEncryptedClient, EncryptedClient
from deploy.client import InputGuardWarning, KeyFiles, read_key_files, write_key_files
from deploy.client.session import check_features
from deploy.errors import DataError, InputError, ServiceError, UsageError, WireError
from deploy.interface import Feature, InputGuard

MODELS = ("standin", "standin-keyless")


@pytest.fixture(scope="module")
def server(standin, tmp_path_factory) -> Iterator[Running]:
    models = [
        served(),
        served("standin-keyless"),
        served(version="2", settings={"revision": 2}),
        served(name="other", settings={"scope": "standin-2"}),
    ]
    with running(models, tmp_path_factory.mktemp("server")) as run:
        yield run


@pytest.mark.parametrize("target", MODELS)
@pytest.mark.parametrize("batch", [1, 70])
def test_client_gets_the_models_answers_row_by_row(server, rng, target, batch) -> None:
    rows = rng.random((batch, N_IN))
    with EncryptedClient(server.url, model=f"toy-{target}") as client:
        found = client.predict(rows)
    np.testing.assert_array_equal(found.logits, rows[:, :N_OUT])  # the stand-in is exact
    assert found.labels == tuple(rows[:, :N_OUT].argmax(axis=1))
    assert not found.outside.any()


def test_async_client_answers_many_calls_at_once(server, rng) -> None:
    rows = rng.random((8, N_IN))

    async def ask() -> list[int]:
        async with AsyncEncryptedClient(server.url, model="toy-standin") as client:
            await client.upload_keys()
            found = await asyncio.gather(*(client.predict(row) for row in rows))
            await client.rotate_keys()
            await client.delete_keys()
            return [prediction.labels[0] for prediction in found]

    assert asyncio.run(ask()) == rows[:, :N_OUT].argmax(axis=1).tolist()


def test_model_must_be_named_where_there_are_several(server) -> None:
    with EncryptedClient(server.url) as client, pytest.raises(UsageError, match="3 models; name one: toy-standin"):
        client.predict(np.zeros(N_IN))


def test_keys_are_uploaded_once_and_again_after_the_server_lost_them(server, rng) -> None:
    row = rng.random(N_IN)
    with EncryptedClient(server.url, model="toy-standin") as client, httpx2.Client(base_url=server.url) as raw:
        client.predict(row)
        assert client.keys is not None
        path = f"/v2/keys/{client.keys.key_id}"
        assert raw.head(path).status_code == 200
        assert raw.put(path, content=client.keys.evaluation).status_code == 200
        assert raw.delete(path).status_code == 204
        assert raw.head(path).status_code == 404
        assert client.predict(row).labels == (row[:N_OUT].argmax(),)
        assert raw.head(path).status_code == 200


def test_rotation_replaces_the_keys_and_deletes_the_old_ones(server, rng) -> None:
    with EncryptedClient(server.url, model="toy-standin") as client, httpx2.Client(base_url=server.url) as raw:
        client.predict(rng.random(N_IN))
        old = client.keys
        new = client.rotate_keys()
        assert old is not None and old.key_id != new.key_id
        assert raw.head(f"/v2/keys/{old.key_id}").status_code == 404
        row = rng.random(N_IN)
        assert client.predict(row).labels == (row[:N_OUT].argmax(),)


def test_model_update_of_the_same_scope_needs_no_new_keys(server, rng) -> None:
    row = rng.random(N_IN)
    with EncryptedClient(server.url, model="toy-standin", version="1") as first:
        first.predict(row)
        keys = first.keys
    with EncryptedClient(server.url, model="toy-standin", version="2", keys=keys) as second:
        assert second.predict(row).labels == (row[:N_OUT].argmax(),)
        assert second.keys is keys


def test_keys_of_another_scope_are_refused_before_anything_is_sent(server, rng) -> None:
    with EncryptedClient(server.url, model="toy-standin") as client:
        client.upload_keys()
        keys = client.keys
    with (
        EncryptedClient(server.url, model="other-standin", keys=keys) as other,
        pytest.raises(InputError, match="made for other parameters"),
    ):
        other.predict(rng.random(N_IN))


def test_features_order_and_units_are_checked(server, rng) -> None:
    names = [f"f{i}" for i in range(N_IN)]
    row = rng.random(N_IN)
    with EncryptedClient(server.url, model="toy-standin", features=names, units=["m"] * N_IN) as client:
        client.predict(row)
    for given, message in (
        ({"features": names[::-1]}, "in another order"),
        ({"features": [*names[:-1], "g"]}, "missing: f15; unknown: g"),
        ({"units": ["m"] * 3 + ["ft"] + ["m"] * 12}, "feature f3: in 'ft', the model takes 'm'"),
    ):
        with (
            EncryptedClient(server.url, model="toy-standin", **given) as client,
            pytest.raises(DataError, match=message),
        ):
            client.predict(row)


def test_model_without_names_takes_any() -> None:
    features = tuple(Feature(f"x{i}", 0.0, 1.0) for i in range(3))
    unnamed = dataclasses.replace(interface(), guard=InputGuard(features, "stated"))
    check_features(unnamed, ["age", "height", "weight"], None)
    with pytest.raises(DataError, match="missing: f0"):
        check_features(interface(), ["age"], None)


def test_rows_outside_the_guard_are_warned_about_without_their_values(server) -> None:
    rows = np.full((3, N_IN), 0.5)
    rows[1, 4] = 7.25
    with EncryptedClient(server.url, model="toy-standin") as client:
        with pytest.warns(InputGuardWarning, match=r"1 of 3 rows leave the input guard \(stated\) in f4") as caught:
            found = client.predict(rows)
        assert found.outside.tolist() == [False, True, False]
        assert "7.25" not in str(caught[0].message)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            client.predict(rows[0])


def test_client_pins_the_archive_it_was_given(server, rng) -> None:
    content = httpx2.get(f"{server.url}/v2/models/toy-standin/client").content
    pin = hashlib.sha256(content).hexdigest()
    with EncryptedClient(server.url, model="toy-standin", archive_sha256=pin) as client:
        client.predict(rng.random(N_IN))
    with (
        EncryptedClient(server.url, model="toy-standin", archive_sha256="0" * 64) as client,
        pytest.raises(WireError, match="that you pinned") as error,
    ):
        client.predict(rng.random(N_IN))
    assert error.value.code == "archive_hash"


def test_unreachable_server_is_said_after_the_retries() -> None:
    with (
        EncryptedClient("http://127.0.0.1:9", model="m", retries=1) as client,
        pytest.raises(ServiceError) as error,
    ):
        client.predict([0.0])
    assert error.value.code == "unreachable"


def test_token_never_travels_in_the_clear() -> None:
    with pytest.raises(UsageError, match="in the clear"):
        EncryptedClient("http://example.com", token="x" * 20)


@pytest.mark.parametrize("passphrase", [None, "correct horse"])
def test_key_files_round_trip_and_stay_private(tmp_path, passphrase) -> None:
    keys = KeyFiles(b"secret" * 9, b"evaluation", b"\7" * 32)
    write_key_files(tmp_path / "keys", keys, passphrase=passphrase)
    assert read_key_files(tmp_path / "keys", passphrase=passphrase) == keys
    secret = tmp_path / "keys" / "secret.key"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert (b"secretsecret" in secret.read_bytes()) == (passphrase is None)
    with pytest.raises(InputError, match="never overwritten"):
        write_key_files(tmp_path / "keys", keys)
    if passphrase:
        with pytest.raises(DataError, match="passphrase is wrong"):
            read_key_files(tmp_path / "keys", passphrase="wrong")
        with pytest.raises(UsageError, match="under a passphrase"):
            read_key_files(tmp_path / "keys")


def test_key_files_that_were_touched_are_refused(tmp_path) -> None:
    keys = KeyFiles(b"secret" * 9, b"evaluation", b"\7" * 32)
    write_key_files(tmp_path / "keys", keys, passphrase="correct horse")
    secret, evaluation = tmp_path / "keys" / "secret.key", tmp_path / "keys" / "evaluation.key"
    whole = secret.read_bytes()
    for position in (9, len(whole) - 1):
        secret.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(DataError, match="or the file was changed"):
            read_key_files(tmp_path / "keys", passphrase="correct horse")
    secret.write_bytes(whole)
    evaluation.write_bytes(b"evaluatioN")
    with pytest.raises(InputError, match="other evaluation keys"):
        read_key_files(tmp_path / "keys", passphrase="correct horse")
    secret.chmod(0o644)
    with pytest.raises(InputError, match="chmod 600"):
        read_key_files(tmp_path / "keys")


def test_key_files_never_show_themselves() -> None:
    assert "secret" not in repr(KeyFiles(b"secret", b"e", b"s"))
