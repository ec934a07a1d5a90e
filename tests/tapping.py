"""Looking for bytes where they must not be: on the wire, on disk, in the memory of other processes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np


@dataclass
class Tap:
    """A recording proxy in front of a server."""

    url: str
    recorded: bytearray = field(default_factory=bytearray)


@contextmanager
def tapped(url: str) -> Iterator[Tap]:
    """Pass every connection on to a server, and keep what goes both ways."""
    parts = urlsplit(url)
    listener = socket.create_server(("127.0.0.1", 0))
    tap = Tap(f"http://127.0.0.1:{listener.getsockname()[1]}")
    threads: list[threading.Thread] = []
    open_sockets: list[socket.socket] = [listener]

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                tap.recorded += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection((parts.hostname, parts.port))
                open_sockets.extend((near, far))
                for pair in ((near, far), (far, near)):
                    threads.append(threading.Thread(target=pump, args=pair))
                    threads[-1].start()

    acceptor = threading.Thread(target=accept)
    acceptor.start()
    try:
        yield tap
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join()
        for each in open_sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        for each in open_sockets:
            each.close()


def traces(row: np.ndarray) -> list[bytes]:
    """Byte strings that betray a row: its first values as float64, as pairs of float32, big-endian, and as text."""
    doubles, singles = row[:4].astype("<f8"), row[:5].astype("<f4")
    found = [value.tobytes() for value in doubles]
    found += [singles[i : i + 2].tobytes() for i in range(4)]
    found += [row[0].astype(">f8").tobytes(), row[:2].astype(">f4").tobytes()]
    return [*found, repr(float(row[0]))[:14].encode()]


def hits(data: bytes | bytearray, needles: Sequence[bytes]) -> int:
    """How many of the needles are in there."""
    return sum(needle in data for needle in needles)


def memory_hits(pid: int, needles: Sequence[bytes]) -> int:
    """Needles in the readable memory of a process of ours."""
    found: set[bytes] = set()
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            span, access = line.split()[:2]
            if "r" not in access or line.rstrip().endswith(("[vvar]", "[vsyscall]", "[vvar_vclock]")):
                continue
            begin, end = (int(part, 16) for part in span.split("-"))
            with contextlib.suppress(OSError, ValueError):
                memory.seek(begin)
                data = memory.read(end - begin)
                found.update(needle for needle in needles if needle in data)
    return len(found)


def disk_hits(folders: Sequence[Path], needles: Sequence[bytes]) -> int:
    """Needles in files below folders."""
    return sum(
        hits(path.read_bytes(), needles) for folder in folders for path in folder.rglob("*") if path.is_file()
    )
