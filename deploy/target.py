"""The protocol between the trunk and a target.

The trunk knows models, rows, bundles, bytes and numbers with a kind. A target knows its own technology. They meet
here, and a target's module must be light to import: heavy imports (numpy too) belong inside its functions, so that
``relu-deploy --help`` stays instant.

Axes: ``batch``, ``n_in``, ``n_out``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from pydantic import BaseModel

if TYPE_CHECKING:
    import numpy as np

    from deploy.arrays import Array
    from deploy.cost import Kind, Quantity
    from deploy.dataset import Calibration
    from deploy.interface import Feature, InputGuard
    from deploy.model import Decision, Model
    from deploy.progress import Progress
    from deploy.requirement import Requirement
    from deploy.study import Study

__all__ = [
    "Archives",
    "Bound",
    "ClientRole",
    "Command",
    "Deployment",
    "Engine",
    "EngineRun",
    "Json",
    "KeyPair",
    "Limits",
    "Panel",
    "Refusal",
    "ServerRole",
    "Signature",
    "Target",
    "Tensor",
]

Json = None | bool | int | float | str | list[Any] | dict[str, Any]
"""A value that ``json.dumps(value, allow_nan=False)`` writes."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a target cannot take a model: the cause with its place, and what would help."""

    cause: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Bound:
    """|reference - original| <= abs_logit (batch, n_out), elementwise, in logits; `kind` says how sure that is."""

    abs_logit: Array
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What a real run gave.

    Parameters
    ----------
    logits : (batch, n_out); a row that failed is NaN.
    seconds : wall time over the whole batch, {"client": s, "server": s}; an engine without a client says 0.
    failures : index of each row that failed, and why.
    diagnostics : anything worth showing, JSON only.
    """

    logits: Array
    seconds: Mapping[Literal["client", "server"], float]
    failures: Mapping[int, str] = field(default_factory=dict)
    diagnostics: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Archives:
    """Files that go to the client (no weight) and to the server (no key), without ``interface.json``."""

    client: Mapping[str, bytes]
    server: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Panel:
    """A figure of the report, as data.

    `form` is "line", "bar", "scatter", "histogram", "image" or "table"; `data` holds its series as JSON:
    line, scatter: {"x": [...], "series": {name: [...]}}; bar: {"labels": [...], "series": {name: [...]}};
    histogram: {"edges": [...], "counts": [...]}; image: {"values": [[...]]}; table: {"columns", "rows"}.
    """

    title: str
    form: Literal["line", "bar", "scatter", "histogram", "image", "table"]
    data: Mapping[str, Json]
    x_label: str = ""
    y_label: str = ""
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Command:
    """A verb that a target adds to the command.

    `run` is a function annotated the way typer reads it, with names that resolve at run time (not only under
    ``TYPE_CHECKING``). It returns a JSON document (None prints nothing); `text` draws that document for people.
    A parameter ``progress`` (:class:`deploy.progress.Progress`) is no option: the command gives it. ``--json``,
    ``--quiet``, ``--debug`` and an environment variable for each option are added. Errors are raised as
    :class:`deploy.errors.DeployError`.
    """

    help: str
    run: Callable[..., Json]
    text: Callable[[Json], str] = str


class Engine(Protocol):
    """A real run of a deployment: ciphertexts, integer kernels, SPICE. A context manager; entering sets it up."""

    requires: Requirement | None

    def __enter__(self) -> Engine: ...
    def __exit__(self, *exc: object) -> None: ...
    def run(self, x: Array) -> EngineRun:
        """Run rows (batch, n_in); a row's failure is a result, never an exception."""
        ...


class Deployment(Protocol):
    """A converted model."""

    def files(self) -> Mapping[str, bytes]:
        """Everything that the bundle keeps under targets/<name>/, byte-identical when made again."""
        ...

    def archives(self) -> Archives | None:
        """Client and server files, or None where the target is not served."""
        ...

    def logits(self, x: Array) -> Array:
        """THE reference: (batch, n_in) -> (batch, n_out), in the model's own units."""
        ...

    def bound(self, x: Array) -> Bound | None:
        """Bound on |logits - the original's| for rows (batch, n_in), or None where nothing is known."""
        ...

    def engines(self) -> Mapping[str, Engine]:
        """Real runs by name; the first is the default of ``--real``."""
        ...

    def studies(self) -> Mapping[str, Study]:
        """What ``simulate`` offers; empty for most."""
        ...

    def cost(self) -> tuple[Quantity, ...]:
        """What one inference costs."""
        ...

    def summary(self) -> Mapping[str, Json]:
        """The target's keys of ``convert --json``; "reference" names what :meth:`logits` computes."""
        ...

    def panels(self, x: Array) -> tuple[Panel, ...]:
        """Figures of the report, from rows (batch, n_in)."""
        ...


@runtime_checkable
class Target(Protocol):
    """A way to deploy. The attributes are class-level facts; the object itself holds no state.

    A target that needs programs or libraries outside its extra may also have
    ``requirements() -> tuple[Requirement, ...]``; ``relu-deploy doctor`` shows them.
    """

    name: str
    guarantee: str
    non_guarantee: str
    options: type[BaseModel]

    def accepts(self, model: Model, options: Any) -> Refusal | None:
        """Say why this model cannot be taken, or None."""
        ...

    def predict_cost(self, model: Model, options: Any, *, calibration: Calibration | None) -> tuple[Quantity, ...]:
        """Foretell the cost before any work (inspect, --dry-run)."""
        ...

    def convert(
        self,
        model: Model,
        calibration: Calibration,
        options: Any,
        *,
        rng: np.random.Generator,
        progress: Progress,
    ) -> Deployment:
        """Convert; deterministic given the same arguments."""
        ...

    def load(self, files: Mapping[str, bytes], *, model: Model) -> Deployment:
        """Read back what :meth:`Deployment.files` gave; `model` is the bundle's float model."""
        ...

    def server(self, files: Mapping[str, bytes]) -> ServerRole | None:
        """The server's side, from the server archive alone (with interface.json), inside a worker."""
        ...

    def client(self, files: Mapping[str, bytes]) -> ClientRole | None:
        """The client's side, from the client archive alone (with interface.json): no model, no weights."""
        ...

    def commands(self) -> Mapping[str, Command]:
        """Verbs of its own, by name."""
        ...


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the V2 protocol: name, datatype ("BYTES", "FP64", …), shape (-1 where free)."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """What goes in and out on the wire, one tensor each."""

    input: Tensor
    output: Tensor


@dataclass(frozen=True, slots=True)
class Limits:
    """Byte caps that are checked before anything is read.

    ``key_bytes == 0`` means keyless. `key_scope` names what keys bind to (parameters and rotation set): two models
    with the same scope share keys.
    """

    request_bytes: int
    answer_bytes: int
    key_bytes: int = 0
    key_scope: str = ""
    rows_per_request: int = 1


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A client's keys: `secret` stays, `evaluation` is uploaded; `scope` equals Limits.key_scope."""

    secret: bytes
    evaluation: bytes
    scope: str


class ServerRole(Protocol):
    """The server's side: never sees an input in the clear unless keyless, never holds a secret key."""

    limits: Limits
    signature: Signature

    def check_key(self, path: Path) -> None:
        """Check an uploaded key file; raises WireError, and nothing reaches a library unparsed."""
        ...

    def load_key(self, path: Path) -> object:
        """Parse a checked key into what :meth:`infer` takes."""
        ...

    def infer(self, request: bytes, key: object | None) -> bytes:
        """Answer one request of up to limits.rows_per_request rows; raises WireError on bad bytes."""
        ...


class ClientRole(Protocol):
    """The client's side: no model, no weights."""

    guard: InputGuard
    decision: Decision
    features: tuple[Feature, ...]

    def generate_keys(self) -> KeyPair | None:
        """Make keys from the operating system's randomness, or None where keyless."""
        ...

    def encrypt(self, x: Array, secret: bytes | None) -> bytes:
        """Turn rows (batch, n_in) into one request."""
        ...

    def decrypt(self, answer: bytes, secret: bytes | None) -> Array:
        """Turn an answer into logits (batch, n_out)."""
        ...
