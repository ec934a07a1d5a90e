"""Damaged model files, and a worker that loads them under a limit of memory and time.

``python damaged_files.py FOLDER COUNT SEED [detached]`` loads COUNT mutants of the files in FOLDER and prints one JSON
line for each that ended in anything but a model or a LoadError. The mutant being loaded lies in FOLDER/mutants, so
that a crash of the worker leaves its cause behind. With ``detached`` the ONNX reader treats every weight as a large
one.
"""

from __future__ import annotations

import json
import resource
import signal
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = 5
BYTES = 1 << 30

INTERESTING = (0, 1, -1, 2, 3, 5, 7, 127, 255, 65535, 2**31 - 1, -(2**31), 2**40, 2**62, -(2**63))


def flip_bits(rng: np.random.Generator, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 20))):
        changed[rng.integers(len(changed))] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def cut(rng: np.random.Generator, data: bytes) -> bytes:
    return data[: int(rng.integers(len(data)))]


def splice(rng: np.random.Generator, data: bytes) -> bytes:
    """Overwrite, repeat or drop a stretch."""
    start, stop = sorted(int(n) for n in rng.integers(len(data), size=2))
    stretch = data[start : min(stop, start + 64)]
    at = int(rng.integers(len(data)))
    way = rng.integers(3)
    if way == 0:
        return data[:start] + data[start + len(stretch) :]
    if way == 1:
        return data[:at] + stretch + data[at:]
    return data[:at] + rng.bytes(8) + data[at + 8 :]


def damage_bytes(rng: np.random.Generator, data: bytes) -> bytes:
    return (flip_bits, cut, splice)[rng.integers(3)](rng, data)


def damage_header(rng: np.random.Generator, data: bytes) -> bytes:
    """Flip bits in the first bytes only, where sizes and types stand."""
    head = flip_bits(rng, data[:512])
    return head + data[512:]


def damage_fields(rng: np.random.Generator, data: bytes) -> bytes:
    """Change random fields of an ONNX message: numbers, words, repeated entries."""
    import onnx

    model = onnx.ModelProto()
    model.ParseFromString(data)
    for _ in range(int(rng.integers(1, 5))):
        _damage_message(rng, model)
    return bytes(model.SerializeToString())


def _damage_message(rng: np.random.Generator, message: Any) -> None:
    fields = message.ListFields()
    if not fields:
        return
    descriptor, value = fields[rng.integers(len(fields))]
    is_many = hasattr(value, "append") or hasattr(value, "add")
    if descriptor.message_type is not None:
        inner = value[int(rng.integers(len(value)))] if is_many else value
        if is_many and rng.random() < 0.1:
            del value[int(rng.integers(len(value)))]
        elif is_many and rng.random() < 0.1:
            value.add().CopyFrom(inner)
        else:
            _damage_message(rng, inner)
        return
    replacement = _replacement(rng, value[0] if is_many else value)
    try:
        if is_many and rng.random() < 0.3:
            del value[int(rng.integers(len(value)))]
        elif is_many:
            value[int(rng.integers(len(value)))] = replacement
        else:
            setattr(message, descriptor.name, replacement)
    except (ValueError, TypeError):
        return


def _replacement(rng: np.random.Generator, value: Any) -> Any:
    if isinstance(value, bool | int):
        return INTERESTING[rng.integers(len(INTERESTING))]
    if isinstance(value, float):
        return float(rng.choice([0.0, -1.0, 1e38, np.inf, np.nan]))
    if isinstance(value, bytes):
        return value[: int(rng.integers(len(value) + 1))] + rng.bytes(int(rng.integers(8)))
    words = ["", "x", value, value[:-1], "Relu", "Conv", "Reshape", "Expand", "Tile", "\u2603" * 3]
    return words[rng.integers(len(words))]


def damage_member(rng: np.random.Generator, path: Path, target: Path) -> None:
    """Damage one member of an archive and write a sound archive around it."""
    with zipfile.ZipFile(path) as source, zipfile.ZipFile(target, "w") as sink:
        names = source.namelist()
        chosen = names[rng.integers(len(names))]
        for name in names:
            data = source.read(name)
            sink.writestr(name, damage_bytes(rng, data) if name == chosen and data else data)


def damage_file(rng: np.random.Generator, path: Path, target: Path) -> None:
    data = path.read_bytes()
    way = rng.integers(4)
    if way == 3 and zipfile.is_zipfile(path):
        damage_member(rng, path, target)
    elif path.suffix == ".onnx" and way >= 2:
        target.write_bytes(damage_fields(rng, data))
    elif way == 1:
        target.write_bytes(damage_header(rng, data))
    else:
        target.write_bytes(damage_bytes(rng, data))


def _stop(*_: object) -> None:
    raise TimeoutError(f"more than {SECONDS} s of processor time")


def main(folder: Path, count: int, seed: int, *, detach: bool) -> None:
    import deploy
    from deploy.errors import LoadError
    from deploy.loaders.onnx import lowering  # noqa: F401 (imports count towards no limit)

    if detach:
        from deploy.loaders.onnx import file as onnx_file
        from deploy.loaders.onnx import wire

        onnx_file._DETACHED, wire._LARGE = 0, 16
    warnings.simplefilter("ignore")
    files = sorted(path for path in folder.iterdir() if path.is_file())
    if any(path.suffix in (".pt", ".pt2") for path in files):
        import torch  # noqa: F401
    if any(path.suffix in (".keras", ".h5") for path in files):
        import h5py  # noqa: F401
    for path in files:
        deploy.load(path)
    mutants = folder / "mutants"
    mutants.mkdir(exist_ok=True)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + BYTES, used + BYTES))
    signal.signal(signal.SIGPROF, _stop)
    ends = {"model": 0, "refused": 0}
    for index in range(count):
        rng = np.random.default_rng([seed, index])
        path = files[index % len(files)]
        target = mutants / f"mutant{path.suffix}"
        damage_file(rng, path, target)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        try:
            deploy.load(target)
            ends["model"] += 1
        except LoadError as error:
            ends["refused"] += 1
            if str(target) not in str(error):
                print(
                    json.dumps({"index": index, "file": path.name, "error": f"no file named: {error}"}), flush=True
                )
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is the finding)
            print(json.dumps({"index": index, "file": path.name, "error": repr(error)[:300]}), flush=True)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps({"done": count, **ends}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), detach="detached" in sys.argv)
