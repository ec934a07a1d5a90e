"""Every error that relu-deploy raises on purpose, with its exit code and HTTP status.

::

    DeployError                 1  500  anything we raise on purpose
    ├── UsageError              2  400  the call itself is wrong: unknown option, missing argument
    ├── GateError               3  422  a fidelity gate was missed
    │   └── CertificateRejected 3  422  a certificate does not hold
    ├── InputError              4  422  what the user handed over cannot be used
    │   ├── LoadError           4  422  a model file
    │   ├── DataError           4  422  rows, labels
    │   │   └── OverlapError    4  422  held-out rows that were calibrated on
    │   ├── BundleError         4  422  a bundle or an archive
    │   ├── OutputExists        4  409  an output that would be overwritten
    │   ├── ModelRefused        4  422  a target cannot take this model
    │   └── PlanError           4  422  no parameters satisfy the request
    ├── RequirementMissing      5  503  an optional dependency or program
    ├── StorageError            1  507  the disk is full or cannot be written
    ├── ServiceError            1  503  the service cannot take the request now, or lost it
    ├── ShadowError             1  500  another module hides one of our packages
    └── WireError               4  4xx  bytes from outside, with a code and a hint

The text of an error is the cause, the place, the numbers and the remedy, in that order. Deep code raises the
cause; the boundary that knows the file or the layer adds it with :meth:`DeployError.at`.

>>> try:
...     raise LoadError("Tanh is not a ReLU", remedy="supported activations: Relu")
... except DeployError as error:
...     print(error.at("model.onnx, node Tanh_3"))
model.onnx, node Tanh_3: Tanh is not a ReLU; supported activations: Relu
"""

from __future__ import annotations

from typing import ClassVar, Self

__all__ = [
    "BundleError",
    "CertificateRejected",
    "DataError",
    "DeployError",
    "GateError",
    "InputError",
    "LoadError",
    "ModelRefused",
    "OutputExists",
    "OverlapError",
    "PlanError",
    "RequirementMissing",
    "ServiceError",
    "ShadowError",
    "StorageError",
    "UsageError",
    "WireError",
]


class DeployError(Exception):
    """The root: catch this to catch everything that relu-deploy raises on purpose.

    Parameters
    ----------
    cause : what is wrong, with the numbers.
    remedy : what the user can do about it; may be empty.
    place : file, node, layer, row: where it is wrong; outer places are prepended by :meth:`at`.
    """

    exit_code: ClassVar[int] = 1
    http_status: int = 500
    code: str = "internal"

    def __init__(self, cause: str, *, remedy: str = "", place: str = "") -> None:
        self.cause = cause
        self.remedy = remedy
        self.place = place
        super().__init__(cause)

    def at(self, place: str) -> Self:
        """Prepend an outer place (a file, a layer) and return self, for ``raise error.at(path)``."""
        self.place = f"{place}, {self.place}" if self.place else place
        return self

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place else ""
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{where}{self.cause}{remedy}"

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.cause, self.remedy, self.place, self.__dict__))


def _rebuild(kind: type[DeployError], cause: str, remedy: str, place: str, state: dict[str, object]) -> DeployError:
    error = kind.__new__(kind)
    Exception.__init__(error, cause)
    error.__dict__.update(state)
    error.cause, error.remedy, error.place = cause, remedy, place
    return error


class UsageError(DeployError):
    """The call is wrong: an unknown option, a value outside its range, an argument that is missing."""

    exit_code = 2
    http_status = 400
    code = "usage"


class GateError(DeployError):
    """The work succeeded and a demanded fidelity was not reached."""

    exit_code = 3
    http_status = 422
    code = "gate_missed"


class CertificateRejected(GateError):
    """A certificate was re-checked and does not hold."""

    code = "certificate_rejected"


class InputError(DeployError):
    """Something that the user handed over cannot be used."""

    exit_code = 4
    http_status = 422
    code = "bad_input"


class LoadError(InputError):
    """A model file cannot be read, or is not a ReLU network that can be read exactly."""

    code = "bad_model"


class DataError(InputError):
    """Rows or labels cannot be used: empty, not finite, of the wrong width, of an unknown format."""

    code = "bad_rows"


class OverlapError(DataError):
    """Rows offered as held out were calibrated on."""

    code = "rows_overlap"


class BundleError(InputError):
    """A bundle or archive is damaged, hostile or of an unknown schema."""

    code = "bad_bundle"


class OutputExists(InputError):
    """An output exists and overwriting was not asked for."""

    http_status = 409
    code = "output_exists"


class ModelRefused(InputError):
    """A target cannot take this model; the cause names the layer and what is supported."""

    code = "model_refused"


class PlanError(InputError):
    """No parameters satisfy what was asked (levels, slots, table, rails); the cause carries the numbers."""

    code = "no_plan"


class RequirementMissing(DeployError):
    """An optional dependency or program is missing; the remedy is the line that installs it."""

    exit_code = 5
    http_status = 503
    code = "requirement_missing"


class StorageError(DeployError):
    """The disk is full or the place cannot be written; nothing was left half-written."""

    http_status = 507
    code = "storage"


class ServiceError(DeployError):
    """The service cannot take a request now, or lost it on the way; the request itself may be fine.

    Parameters
    ----------
    code : a stable machine-readable word, for instance ``"overloaded"``.
    http_status : the status that the service answers with.
    retry_after_s : after how many seconds trying again makes sense; None where it does not.
    """

    http_status = 503

    def __init__(
        self, cause: str, *, code: str, http_status: int = 503, hint: str = "", retry_after_s: int | None = None
    ) -> None:
        super().__init__(cause, remedy=hint)
        self.code = code
        self.http_status = http_status
        self.retry_after_s = retry_after_s

    @property
    def hint(self) -> str:
        """The remedy, under the name it has on the wire."""
        return self.remedy


class ShadowError(DeployError):
    """A file outside relu-deploy hides one of its packages."""

    code = "shadowed"


class WireError(InputError):
    """Bytes from outside were refused before anything parsed them.

    Parameters
    ----------
    code : a stable machine-readable word, for instance ``"ciphertext_size"``.
    http_status : the 4xx status that the service answers with.
    hint : what the caller should do.
    """

    def __init__(self, cause: str, *, code: str, http_status: int = 422, hint: str = "") -> None:
        super().__init__(cause, remedy=hint)
        self.code = code
        self.http_status = http_status

    @property
    def hint(self) -> str:
        """The remedy, under the name it has on the wire."""
        return self.remedy
