"""HDF5 files read in a process of their own: a damaged file can make the HDF5 library loop or crash.

The child reads a file into plain arrays and writes them to its output as a npz; the parent gives it a bounded amount
of processor time and takes nothing else from it.
"""

from __future__ import annotations

import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

from deploy.arrays import Array
from deploy.errors import LoadError
from deploy.loaders.keras.file import KerasFile, Layer, read_h5, read_keras
from deploy.requirement import require

__all__ = ["read_isolated"]

_CPU_SECONDS = 3
_BYTES_PER_SECOND = 50 << 20
_DOCUMENT = "document"


def read_isolated(path: Path, limit: int, *, is_archive: bool) -> KerasFile:
    """Read a .keras archive or a .h5 file, no weight of more than `limit` entries.

    Raises
    ------
    LoadError : what the child refused, or that it did not come to an end.
    """
    require("h5py", extra="keras")
    command = [sys.executable, "-m", __name__, str(path.resolve()), str(limit), "archive" if is_archive else "hdf5"]
    seconds = _CPU_SECONDS + path.stat().st_size // _BYTES_PER_SECOND
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([*command, str(seconds)], capture_output=True, check=False, env=environment)
    if done.returncode != 0:
        raise LoadError(
            f"the HDF5 library did not come to an end (code {done.returncode}); the file is damaged",
            remedy="save the model again; check that the copy is complete",
        )
    with np.load(io.BytesIO(done.stdout), allow_pickle=False) as arrays:
        document = json.loads(str(arrays[_DOCUMENT]))
        if "cause" in document:
            raise LoadError(document["cause"], remedy=document["remedy"], place=document["place"])
        layers = tuple(
            Layer(kind, name, config, [arrays[f"{index}.{weight}"] for weight in range(count)])
            for index, (kind, name, config, count) in enumerate(document["layers"])
        )
    shape = document["input_shape"]
    return KerasFile(layers, None if shape is None else tuple(shape))


def _main(path: Path, limit: int, kind: str, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    arrays: dict[str, Array] = {}
    from deploy.loaders.damage import DAMAGE, one_line

    try:
        file = (read_keras if kind == "archive" else read_h5)(path, limit)
        layers = []
        for index, layer in enumerate(file.layers):
            layers.append([layer.kind, layer.name, layer.config, len(layer.weights)])
            arrays |= {f"{index}.{number}": weight for number, weight in enumerate(layer.weights)}
        document: dict[str, object] = {"layers": layers, "input_shape": file.input_shape}
        json.dumps(document)
    except LoadError as error:
        arrays, document = {}, {"cause": error.cause, "remedy": error.remedy, "place": error.place}
    except DAMAGE as error:
        remedy = "save the model again; check that the copy is complete"
        arrays, document = {}, {"cause": f"damaged ({one_line(error)})", "remedy": remedy, "place": ""}
    arrays[_DOCUMENT] = np.array(json.dumps(document))
    np.savez(sys.stdout.buffer, allow_pickle=False, **arrays)


if __name__ == "__main__":
    _main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
