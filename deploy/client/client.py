"""The clients: one blocking, one asynchronous, over the same flows."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

import numpy.typing as npt

from deploy.client.exchange import Call, Flow, Pause, Response
from deploy.client.keyfile import KeyFiles, read_key_files
from deploy.client.received import Arriving
from deploy.client.session import Prediction, Session
from deploy.errors import UsageError
from deploy.interface import Interface
from deploy.requirement import require

__all__ = ["AsyncEncryptedClient", "EncryptedClient"]

_Result = TypeVar("_Result")


class _Settings:
    """What both clients are made from."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        version: str | None = None,
        keys: KeyFiles | str | Path | None = None,
        passphrase: str | None = None,
        token: str | None = None,
        archive_sha256: str | None = None,
        features: Sequence[str] | None = None,
        units: Sequence[str] | None = None,
        retries: int = 4,
        timeout_s: float = 120.0,
        verify: bool | str | ssl.SSLContext = True,
        transport: Any = None,
    ) -> None:
        """Nothing is sent yet.

        Parameters
        ----------
        url : the server's address, ``http://127.0.0.1:8080``.
        model, version : which; may be left out where the server has one, for the latest.
        keys : a folder that ``keygen`` wrote, or keys; fresh ones that live as long as this client where None.
        passphrase : of the secret key in that folder.
        token : the tenant's bearer token; refused over plain http to anything but this machine.
        archive_sha256 : accept this client archive only.
        features, units : names and units of the rows' columns, checked against the model's, in order.
        retries : how often a call is repeated where the server is busy or cannot be reached.
        timeout_s : longest time for one call; the server is told to stop then.
        verify : TLS: True, a file of certificates, or an SSL context.
        transport : an httpx2 transport, for tests.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{url!r} is no address of a server", remedy="give http://HOST:PORT or https://…")
        if token and parts.scheme == "http" and parts.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise UsageError("a token would travel in the clear", place=url, remedy="use https")
        if isinstance(keys, str | Path):
            keys = read_key_files(Path(keys), passphrase=passphrase)
        self._session = Session(
            model=model,
            version=version,
            token=token,
            keys=keys,
            archive_sha256=archive_sha256,
            features=features,
            units=units,
            retries=retries,
            timeout_ms=int(timeout_s * 1000),
        )
        context = ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify
        self._httpx = require("httpx2", extra="client")
        self._timeout_s = timeout_s
        self._options: dict[str, Any] = {
            "base_url": url,
            "timeout": timeout_s,
            "verify": context,
            "transport": transport,
            "trust_env": False,
            "follow_redirects": False,
            "headers": {"Accept-Encoding": "identity"},
        }

    @property
    def keys(self) -> KeyFiles | None:
        """The keys in use; None before there are any, and for a keyless model."""
        return self._session.keys


class EncryptedClient(_Settings):
    """Predictions by a served model that never sees the rows (or, for a keyless one, by the same calls).

    Use as a context manager. Errors are :class:`deploy.errors.DeployError`: what the server refused comes as
    :class:`~deploy.errors.WireError` with its code and hint, what it could not do now as
    :class:`~deploy.errors.ServiceError`.

    Examples
    --------
    ::

        with EncryptedClient("http://127.0.0.1:8080", keys="keys") as client:
            print(client.predict(rows).labels)
    """

    __doc__ += "\n" + (_Settings.__init__.__doc__ or "")

    def __enter__(self) -> Self:
        self._client = self._httpx.Client(**self._options)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def predict(self, rows: npt.ArrayLike) -> Prediction:
        """Decide rows (batch, n_in) or (n_in,); keys are made and uploaded where need be.

        Warns
        -----
        InputGuardWarning : rows leave the box that the model was calibrated on.

        Raises
        ------
        DataError : rows, features or units do not fit the model.
        WireError, ServiceError : see the class.
        """
        return self._carry_out(self._session.predict(rows))

    def interface(self) -> Interface:
        """What the model takes and decides: features with units and boxes, classes."""
        return self._carry_out(self._session.open()).interface

    def archive(self) -> bytes:
        """The client archive, as fetched and checked."""
        return self._carry_out(self._session.open()).content

    def upload_keys(self) -> KeyFiles | None:
        """Make keys where there are none and upload them where the server lacks them."""
        self._carry_out(self._session.upload_keys())
        return self.keys

    def rotate_keys(self) -> KeyFiles:
        """New keys; the old ones are deleted from the server. Write them down with ``write_key_files``."""
        return self._carry_out(self._session.rotate_keys())

    def delete_keys(self) -> None:
        """Delete the evaluation keys from the server."""
        self._carry_out(self._session.delete_keys())

    def _carry_out(self, flow: Flow[_Result]) -> _Result:
        if not hasattr(self, "_client"):
            raise UsageError("this client is not open", remedy="use it in a with block")
        answer: Any = None
        while True:
            try:
                step = flow.send(answer)
            except StopIteration as end:
                result: _Result = end.value
                return result
            answer = None
            if isinstance(step, Pause):
                time.sleep(step.seconds)
            else:
                answer = self._send(step)

    def _send(self, call: Call) -> Response:
        try:
            with self._client.stream(call.method, call.path, content=call.content, headers=call.headers) as found:
                headers = _lower(found.headers)
                body = Arriving(headers, max_bytes=call.max_bytes, timeout_s=self._timeout_s)
                for piece in found.iter_raw():
                    body.add(piece)
        except self._httpx.RequestError as error:
            return _unreachable(error)
        return Response(found.status_code, headers, bytes(body.content))


class AsyncEncryptedClient(_Settings):
    """:class:`EncryptedClient` for ``async with`` and ``await``; encryption itself runs in a thread."""

    async def __aenter__(self) -> Self:
        self._client = self._httpx.AsyncClient(**self._options)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.aclose()

    async def predict(self, rows: npt.ArrayLike) -> Prediction:
        """As :meth:`EncryptedClient.predict`."""
        return await self._carry_out(self._session.predict(rows))

    async def interface(self) -> Interface:
        """As :meth:`EncryptedClient.interface`."""
        return (await self._carry_out(self._session.open())).interface

    async def archive(self) -> bytes:
        """As :meth:`EncryptedClient.archive`."""
        return (await self._carry_out(self._session.open())).content

    async def upload_keys(self) -> KeyFiles | None:
        """As :meth:`EncryptedClient.upload_keys`."""
        await self._carry_out(self._session.upload_keys())
        return self.keys

    async def rotate_keys(self) -> KeyFiles:
        """As :meth:`EncryptedClient.rotate_keys`."""
        return await self._carry_out(self._session.rotate_keys())

    async def delete_keys(self) -> None:
        """As :meth:`EncryptedClient.delete_keys`."""
        await self._carry_out(self._session.delete_keys())

    async def _carry_out(self, flow: Flow[_Result]) -> _Result:
        if not hasattr(self, "_client"):
            raise UsageError("this client is not open", remedy="use it in an async with block")
        answer: Any = None
        while True:
            step = await asyncio.to_thread(_advance, flow, answer)
            answer = None
            if isinstance(step, _Ended):
                result: _Result = step.value
                return result
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
            else:
                answer = await self._send(step)

    async def _send(self, call: Call) -> Response:
        try:
            async with self._client.stream(
                call.method, call.path, content=call.content, headers=call.headers
            ) as found:
                headers = _lower(found.headers)
                body = Arriving(headers, max_bytes=call.max_bytes, timeout_s=self._timeout_s)
                async for piece in found.aiter_raw():
                    body.add(piece)
        except self._httpx.RequestError as error:
            return _unreachable(error)
        return Response(found.status_code, headers, bytes(body.content))


class _Ended:
    def __init__(self, value: Any) -> None:
        self.value = value


def _advance(flow: Flow[Any], answer: Any) -> Call | Pause | _Ended:
    """One step of a flow, in a thread: a StopIteration cannot cross into a coroutine."""
    try:
        return flow.send(answer)
    except StopIteration as end:
        return _Ended(end.value)


def _unreachable(error: Exception) -> Response:
    return Response(0, {}, f"{type(error).__name__}: {error}".encode())


def _lower(headers: Any) -> Mapping[str, str]:
    return {str(name).lower(): str(value) for name, value in headers.items()}
