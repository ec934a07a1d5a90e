"""Which format a file is in, by its first bytes and, for archives, by its members; the suffix decides nothing else.

=============  ===============================================================================
onnx           a protobuf message (no magic number: what nothing else claims)
torchscript    a zip with code/ and constants.pkl
exported       a zip with archive_format, or with serialized_exported_program.json (torch.export, .pt2)
torch          a zip with data.pkl, or the older pickle that starts with torch's magic number
keras          a zip with config.json and model.weights.h5
hdf5           an HDF5 file (Keras .h5)
npz            a zip of .npy arrays
safetensors    a length, then a JSON header
nnet           text of numbers, .nnet
pickle         any other pickle, plain or compressed; never opened
=============  ===============================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from deploy.errors import LoadError
from deploy.loaders.archive import Archive
from deploy.reading import describe_kind

__all__ = ["Format", "recognise"]

Format = Literal[
    "onnx", "torchscript", "exported", "torch", "keras", "hdf5", "npz", "safetensors", "nnet", "pickle"
]

_TORCH_MAGIC = b"\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"
_PICKLES = (".pkl", ".pickle", ".joblib", ".p", ".dill")


def recognise(path: Path) -> Format:
    """Name the format of a file.

    Raises
    ------
    LoadError : no such file, a folder, an empty file, or an archive that holds no model.
    """
    if path.is_dir():
        raise _folder(path)
    if not path.is_file():
        kind = describe_kind(path.stat().st_mode) if path.exists() else ""
        raise LoadError(f"is {kind}, not a model file" if kind else "no such file")
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        raise LoadError("the file is empty", remedy="copy or export it again")
    if head[:4] == b"PK\x03\x04":
        return _recognise_archive(path)
    if head[:8] == b"\x89HDF\r\n\x1a\n":
        return "hdf5"
    if head[:1] == b"\x80" and _TORCH_MAGIC in head:
        return "torch"
    if (head[:1] == b"\x80" and head[1] <= 5) or path.suffix in _PICKLES:
        return "pickle"
    if path.suffix == ".nnet" or head[:2] == b"//":
        return "nnet"
    if path.suffix == ".safetensors" or (head[8:9] == b"{" and head[5:8] == b"\0\0\0"):
        return "safetensors"
    if path.suffix in (".pb", ".tflite", ".mlmodel", ".pmml", ".gguf", ".csv", ".npy", ".json", ".txt"):
        raise LoadError(
            f"files of kind {path.suffix} are not read",
            remedy="export the model as ONNX (tf2onnx, torch.onnx.export, skl2onnx)",
        )
    return "onnx"


def _recognise_archive(path: Path) -> Format:
    with Archive(path) as archive:
        if archive.find("constants.pkl") and any("/code/" in name for name in archive.names):
            return "torchscript"
        if archive.find("archive_format") or archive.find("serialized_exported_program.json"):
            return "exported"
        if archive.find("data.pkl"):
            return "torch"
        if archive.find("config.json") and archive.find("model.weights.h5"):
            return "keras"
        if archive.names and all(name.endswith(".npy") for name in archive.names):
            return "npz"
    raise LoadError(
        f"a zip archive that holds no model ({', '.join(archive.names[:5])})",
        remedy="supported archives are PyTorch, torch.export, Keras 3 and npz files",
    )


def _folder(path: Path) -> LoadError:
    if (path / "saved_model.pb").exists():
        return LoadError(
            "a TensorFlow SavedModel",
            remedy="convert it: python -m tf2onnx.convert --saved-model DIR --output m.onnx",
        )
    return LoadError("a folder, not a model file")
