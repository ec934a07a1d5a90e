"""Files of rows."""

from __future__ import annotations

import gzip
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deploy.dataset import Calibration, HeldOut, check_disjoint, row_hashes
from deploy.errors import DataError, OverlapError
from deploy.rows import read_rows


def _idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def test_every_format_gives_the_same_rows(tmp_path: Path) -> None:
    x = np.arange(24, dtype=np.uint8).reshape(4, 2, 3)
    y = np.array([3, 1, 2, 0], dtype=np.uint8)
    np.savez(tmp_path / "a.npz", x=x, y=y)
    np.save(tmp_path / "a.npy", x)
    (tmp_path / "a-images-idx3-ubyte").write_bytes(_idx(x))
    (tmp_path / "a-labels-idx1-ubyte.gz").write_bytes(gzip.compress(_idx(y)))
    lines = [
        "a,b,c,d,e,f,kind",
        *(",".join(map(str, [*row.ravel(), label])) for row, label in zip(x, y, strict=True)),
    ]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    flat = (x.reshape(4, 6) / 255).tolist()
    labels = tmp_path / "a-labels-idx1-ubyte.gz"
    for name, options in [
        ("a.npz", {}),
        ("a.npy", {"labels": labels}),
        ("a-images-idx3-ubyte", {"labels": labels}),
        ("a.csv", {"label_column": "kind"}),
    ]:
        for part, rows in [
            ("", slice(None)),
            ("[1:3]", slice(1, 3)),
            ("[:2]", slice(0, 2)),
            ("[3:]", slice(3, None)),
        ]:
            table = read_rows(f"{tmp_path / name}{part}", divide_by=255, **options)
            assert table.x.tolist() == flat[rows], name
            assert table.y.tolist() == y[rows].tolist(), name
            assert table.first_row == (rows.start or 0)
    assert read_rows(tmp_path / "a.csv", label_column="kind").features == tuple("abcdef")
    assert read_rows(tmp_path / "a.npz").x.dtype == np.float64


def test_a_csv_without_header_and_with_other_delimiters(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n3,4.5\n")
    (tmp_path / "b.csv").write_text("1;2\n3;4.5\n\n")
    (tmp_path / "c.tsv").write_bytes(b"\xef\xbb\xbf1\t2\r\n3\t4.5\r\n")
    for name in ("a.csv", "b.csv", "c.tsv"):
        assert read_rows(tmp_path / name).x.tolist() == [[1, 2], [3, 4.5]]
    (tmp_path / "d.csv").write_text("a,y\n1,cat\n2,dog\n")
    assert read_rows(tmp_path / "d.csv", label_column="y").y.tolist() == ["cat", "dog"]


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("a.csv", b"", "has no rows"),
        ("a.csv", b"a,b\n", "a header and no rows"),
        ("a.csv", b"1,2\n3\n", "line 2: 1 cells, 2 expected"),
        ("a.csv", b"a,b\n1,red\n", "line 2, column 2: 'red' is not a number"),
        ("a.csv", b"\xff\xfe\x00", "is no UTF-8; save the file as UTF-8"),
        ("a.csv", b"a,b\n1,nan\n", "1 values are NaN or infinite, the first at row 0, column 1"),
        ("a.npz", b"PK\x03\x04 broken", "cannot be read"),
        ("a.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr'", "cannot be read"),
        ("a.idx", b"\x00\x00\x08\x01\x00\x00\x00\x05abc", "3 bytes of data, shape .5,. needs 5"),
        ("a.idx", b"\x00\x00\x08\x02" + b"\xff" * 8, "bytes, the limit is"),
        ("a.idx", b"hello", "no IDX header"),
        ("a.gz", b"\x1f\x8b broken", "cannot be read"),
        ("a.bin", b"x", "unknown format '.bin'"),
    ],
)
def test_damage_is_named(tmp_path: Path, name: str, content: bytes, match: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=match) as caught:
        Calibration.read(path)
    assert str(path) in str(caught.value)


def test_objects_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read"):
        read_rows(tmp_path / "a.npy")


def test_a_decompression_bomb_is_refused_before_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 1000)))
    monkeypatch.setattr("deploy.rows.MAX_BYTES", 1_000_000)
    with pytest.raises(DataError, match="bytes after decompression, the limit is 1000000"):
        read_rows(tmp_path / "a.npz")


@pytest.mark.parametrize("part", ["[0:5]", "[3:3]", "[4:]", "[3:2]"])
def test_rows_outside_the_file_are_refused(tmp_path: Path, part: str) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 2)))
    with pytest.raises(DataError, match=r"stay within \[0:4\]"):
        read_rows(f"{tmp_path / 'a.npy'}{part}")


def test_wrong_calls_are_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "two.npz", a=np.zeros((1, 1)), b=np.zeros((1, 1)))
    np.save(tmp_path / "a.npy", np.zeros((4, 2)))
    np.save(tmp_path / "y.npy", np.zeros(3))
    np.save(tmp_path / "text.npy", np.array(["a"]))
    with pytest.raises(DataError, match="no array x among a, b"):
        read_rows(tmp_path / "two.npz")
    with pytest.raises(DataError, match="no such file"):
        read_rows(tmp_path / "none.npz")
    with pytest.raises(DataError, match="not a file"):
        read_rows(tmp_path)
    with pytest.raises(DataError, match="is no range of rows"):
        read_rows(f"{tmp_path / 'a.npy'}[first]")
    with pytest.raises(DataError, match=r"labels of shape \(3,\) for 4 rows"):
        read_rows(tmp_path / "a.npy", labels=tmp_path / "y.npy")
    with pytest.raises(DataError, match="cannot divide by 0"):
        read_rows(tmp_path / "a.npy", divide_by=0)
    with pytest.raises(DataError, match="only a csv has label columns"):
        read_rows(tmp_path / "a.npy", label_column="y")
    with pytest.raises(DataError, match="array of type <U1"):
        read_rows(tmp_path / "text.npy")
    with pytest.raises(DataError, match=r"labels of shape \(2,\) for 1 rows"):
        Calibration(np.zeros((1, 1)), np.zeros(2))
    with pytest.raises(DataError, match=r"no values: shape \(0, 3\)"):
        HeldOut(np.zeros((0, 3)))


def test_overlap_is_refused_with_the_count_or_dropped() -> None:
    x = np.random.default_rng(0).normal(size=(10, 3))
    hashes = frozenset(row_hashes(x[:8]))
    rows = HeldOut(x[6:], np.arange(4), "file.npz[6:10]", first_row=6)
    with pytest.raises(OverlapError, match="2 of 4 rows were calibrated on, the first is row 6"):
        check_disjoint(rows, hashes)
    left = check_disjoint(rows, hashes, drop=True)
    assert left.x.tolist() == x[8:].tolist()
    assert left.y.tolist() == [2, 3]
    assert left.numbers.tolist() == [8, 9]
    assert check_disjoint(left, frozenset(row_hashes(x[8:9])), drop=True).numbers.tolist() == [9]
    with pytest.raises(OverlapError, match="2 of 2 rows"):
        check_disjoint(HeldOut(x[:2]), hashes, drop=True)
    assert check_disjoint(HeldOut(x[8:]), hashes).x.tolist() == x[8:].tolist()


def test_a_row_keeps_its_hash_through_minus_zero_and_narrow_types() -> None:
    assert row_hashes(np.array([[0.0, 1.5]])) == row_hashes(np.array([[-0.0, 1.5]], dtype=np.float32))
    assert row_hashes(np.array([[0.0, 1.5]])) != row_hashes(np.array([[0.0, np.nextafter(1.5, 2)]]))


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_files_end_in_rows_or_a_named_error(tmp_path: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["a.npz", "a.npy", "a.idx", "a.csv"]))
    path = tmp_path / name
    x = np.arange(12, dtype=np.uint8).reshape(4, 3)
    if name == "a.npz":
        np.savez_compressed(path, x=x)
    elif name == "a.npy":
        np.save(path, x)
    elif name == "a.idx":
        path.write_bytes(_idx(x))
    else:
        path.write_text("a,b\n1,2\n3,4\n")
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(1, len(content)))]))
    try:
        rows = Calibration.read(path)
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert np.isfinite(rows.x).all()


def test_an_npz_with_a_lying_size_is_damage(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr(
            "x.npy",
            b"\x93NUMPY\x01\x00v\x00{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(
                128
            )
            + b"\n",
        )
    with pytest.raises(DataError, match="cannot be read"):
        read_rows(tmp_path / "a.npz")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_the_label_column_may_stand_anywhere(tmp_path: Path, at: int) -> None:
    names, cells = ["a", "b"], ["1", "2"]
    names.insert(at, "kind")
    cells.insert(at, "cat")
    (tmp_path / "t.csv").write_text(f"{','.join(names)}\n{','.join(cells)}\n")
    table = read_rows(tmp_path / "t.csv", label_column="kind")
    assert table.x.tolist() == [[1.0, 2.0]]
    assert table.features == ("a", "b")
    assert table.y is not None
    assert table.y.tolist() == ["cat"]


class Trap:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("suffix", [".npz", ".npy"])
def test_nothing_is_ever_unpickled(tmp_path: Path, suffix: str) -> None:
    trap = np.array([Trap(tmp_path / "mark")], dtype=object)
    path = tmp_path / f"rows{suffix}"
    if suffix == ".npz":
        np.savez(path, x=trap)
    else:
        np.save(path, trap, allow_pickle=True)
    with pytest.raises(DataError):
        read_rows(path)
    assert not (tmp_path / "mark").exists()


def _npz(path: Path, **arrays: object) -> None:
    np.savez(path, **arrays)  # type: ignore[arg-type]


X = np.arange(8.0).reshape(4, 2)


@pytest.mark.parametrize(
    ("arrays", "part", "match"),
    [
        ({"x": np.float64(3)}, "", r"array of type float64 and shape \(\)"),
        ({"x": X, "y": np.int64(3)}, "", r"labels of shape \(\) for 4 rows"),
        ({"x": X, "y": np.zeros(7, int)}, "", r"labels of shape \(7,\) for 4 rows"),
        ({"x": X, "y": np.zeros(7, int)}, "[0:4]", r"labels of shape \(7,\) for 4 rows"),
        ({"x": X, "y": np.zeros(2, int)}, "[0:2]", r"labels of shape \(2,\) for 4 rows"),
        ({"x": X}, f"[0:{'9' * 5000}]", "is no range of rows"),
        ({"x": X}, "[\u0660:\u0662]", "is no range of rows"),
    ],
)
def test_arrays_of_odd_shapes_are_named(tmp_path: Path, arrays: dict, part: str, match: str) -> None:
    _npz(tmp_path / "a.npz", **arrays)
    with pytest.raises(DataError, match=match):
        HeldOut.read(f"{tmp_path / 'a.npz'}{part}")


@pytest.mark.parametrize("divide_by", [1e-320, 1.0])
def test_what_overflows_is_refused_without_a_warning(tmp_path: Path, divide_by: float) -> None:
    _npz(tmp_path / "a.npz", x=X.astype(np.longdouble) * np.longdouble("1e400"))
    with pytest.raises(DataError, match="values are NaN or infinite"):
        HeldOut.read(tmp_path / "a.npz", divide_by=divide_by)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (f"a,b\n1,{'2' * 140_000}\n", "field larger than field limit"),
        (f'"{"x" * 140_000}",b\n1,2\n', "field larger than field limit"),
        ("a,b\n1_0,2\n", "'1_0' is not a number"),
        ("a,b\n\u0663,2\n", "is not a number"),
        ("1,,3\n4,5,6\n", "line 1: the first line has numbers and empty cells"),
    ],
)
def test_cells_that_are_no_numbers_are_not_read_as_some(tmp_path: Path, text: str, match: str) -> None:
    (tmp_path / "a.csv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=match):
        read_rows(tmp_path / "a.csv")


def test_a_label_column_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("k,k,a\n1,2,3\n")
    with pytest.raises(DataError, match="2 columns are called 'k'"):
        read_rows(tmp_path / "a.csv", label_column="k")
