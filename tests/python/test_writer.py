"""Goal: a file appears whole or not at all, and holds exactly the bytes and values given.

Method: round trips of all types and buffers, and every way to leave a writer.
"""

import array
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ffrecord
from ffrecord._ffrecord import V1Writer

pytestmark = pytest.mark.wrong_data


def leftovers(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_leaving_the_block_publishes_and_an_exception_discards(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "a.ffr") as writer:
        writer.write(b"x")
        assert leftovers(tmp_path) == []
    assert leftovers(tmp_path) == ["a.ffr"]

    with pytest.raises(KeyboardInterrupt), ffrecord.Writer(tmp_path / "b.ffr") as writer:
        writer.write(b"x")
        raise KeyboardInterrupt
    assert leftovers(tmp_path) == ["a.ffr"]


def test_close_tells_what_the_file_holds(tmp_path: Path) -> None:
    writer = ffrecord.Writer(tmp_path / "a.ffr", compress="zstd")
    for _ in range(10):
        writer.write(b"again " * 100)

    summary = writer.close()

    assert (summary.record_count, summary.raw_size_bytes) == (10, 6000)
    assert summary.file_size_bytes == (tmp_path / "a.ffr").stat().st_size
    assert summary.fingerprint == ffrecord.open(tmp_path / "a.ffr").files[0].fingerprint
    assert writer.close() == summary
    with pytest.raises(ValueError, match="closed"):
        writer.write(b"x")


def test_a_file_of_no_records_is_one(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "none.ffr"):
        pass

    reader = ffrecord.open(tmp_path / "none.ffr")
    assert (len(reader), list(reader), len(reader.read([]))) == (0, [], 0)
    with pytest.raises(IndexError, match="0 records"):
        reader[0]


def test_an_existing_file_is_kept_unless_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    path.write_bytes(b"precious")

    with pytest.raises(ffrecord.ConflictError, match=r"a\.ffr"):
        ffrecord.Writer(path)
    assert path.read_bytes() == b"precious"
    with pytest.raises(FileExistsError):
        ffrecord.Writer(path)

    with ffrecord.Writer(path, replace=True) as writer:
        writer.write(b"new")
        assert path.read_bytes() == b"precious"
    assert bytes(ffrecord.open(path)[0]) == b"new"


BUFFERS = {
    "bytes": b"abcdef",
    "bytearray": bytearray(b"abcdef"),
    "memoryview": memoryview(b"abcdef"),
    "strided memoryview": memoryview(b"abcdef")[::2],
    "array.array": array.array("i", [1, 2, 3]),
    "float32": np.arange(10, dtype=np.float32),
    "2-D": np.arange(12, dtype=np.int16).reshape(3, 4),
    "strided": np.arange(20, dtype=np.float64)[::3],
    "transposed": np.arange(12, dtype=np.int32).reshape(3, 4).T,
    "scalar": np.array(7, np.int64),
    "empty": np.empty((0, 3)),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_all_bytes_of_a_buffer_are_stored_in_c_order(tmp_path: Path, name: str) -> None:
    value = BUFFERS[name]
    with ffrecord.Writer(tmp_path / "a.ffr") as writer:
        writer.write(value)  # type: ignore[arg-type]

    wanted = value.tobytes() if hasattr(value, "tobytes") else bytes(value)
    assert bytes(ffrecord.open(tmp_path / "a.ffr")[0]) == wanted


def test_a_tensor_is_stored_as_its_bytes(tmp_path: Path) -> None:
    import torch

    with ffrecord.Writer(tmp_path / "a.ffr") as writer:
        writer.write(torch.arange(5))  # type: ignore[arg-type]

    assert ffrecord.open(tmp_path / "a.ffr")[0].view(np.int64).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("value", ["text", 5, None, np.array([object()])])
def test_what_has_no_bytes_is_refused(tmp_path: Path, value: object) -> None:
    with ffrecord.Writer(tmp_path / "a.ffr") as writer:
        with pytest.raises(TypeError):
            writer.write(value)  # type: ignore[arg-type]
        writer.write(b"still usable")

    assert len(ffrecord.open(tmp_path / "a.ffr")) == 1


NUMBERS = {
    "bool": np.bool_,
    "u8": np.uint8,
    "i8": np.int8,
    "u16": np.uint16,
    "i16": np.int16,
    "u32": np.uint32,
    "i32": np.int32,
    "u64": np.uint64,
    "i64": np.int64,
    "f16": np.float16,
    "f32": np.float32,
    "f64": np.float64,
}


@pytest.mark.parametrize("name", NUMBERS)
def test_every_type_keeps_its_values(tmp_path: Path, name: str) -> None:
    dtype = np.dtype(NUMBERS[name])
    random = np.random.default_rng(1)
    values = random.integers(0, 2, (5, 3), np.int64).astype(dtype)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        values[0] = [limits.min, limits.max, 0]
    with ffrecord.Writer(tmp_path / "a.ffr", {"x": f"{name}[3]", "y": name}) as writer:
        for row in values:
            writer.write({"x": row, "y": row[0]})

    batch = ffrecord.open(tmp_path / "a.ffr").read(range(5))

    x, y = batch["x"], batch["y"]
    assert isinstance(x, np.ndarray)
    assert isinstance(y, np.ndarray)
    assert x.dtype == y.dtype == dtype
    np.testing.assert_array_equal(x, values)
    np.testing.assert_array_equal(y, values[:, 0])


@given(st.lists(st.floats(width=32), min_size=1, max_size=20))
def test_bf16_rounds_as_torch_does_and_refuses_what_would_be_infinite(values: list[float]) -> None:
    import torch

    from ffrecord._tables.values import exact

    array = np.array(values, np.float32)
    wanted = torch.from_numpy(array).to(torch.bfloat16)
    if bool((wanted.isinf() & torch.from_numpy(array).isfinite()).any()):
        with pytest.raises(ValueError, match="does not fit bf16"):
            exact(array, "bf16", "column 'x'")
        return

    got = torch.from_numpy(exact(array, "bf16", "column 'x'")).view(torch.bfloat16)

    assert torch.equal(got.isnan(), wanted.isnan())
    keep = ~wanted.isnan()
    assert torch.equal(got[keep], wanted[keep])


def test_bf16_bits_are_stored_as_they_are(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "a.ffr", {"x": "bf16[2]"}) as writer:
        writer.write({"x": np.array([0x3F80, 0x7FC1], np.uint16)})

    x = ffrecord.open(tmp_path / "a.ffr").read([0])["x"]
    assert isinstance(x, np.ndarray)
    assert (x.dtype, x.tolist()) == (np.uint16, [[0x3F80, 0x7FC1]])


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ({"x": 300, "t": "a"}, ValueError, "'x': 300 does not fit u8"),
        ({"x": -1, "t": "a"}, ValueError, "does not fit"),
        ({"x": 1.5, "t": "a"}, TypeError, "u8, the value is float64"),
        ({"x": [1, 2], "t": "a"}, ValueError, "shape"),
        ({"x": 1, "t": b"a"}, TypeError, "'t' is utf8"),
        ({"x": 1}, ValueError, "missing: t"),
        ({"x": 1, "t": "a", "z": 1}, ValueError, "unknown: z"),
        ({"x": 1, "z": "a"}, ValueError, "missing: t; unknown: z"),
        (b"bytes", TypeError, "is a dict, not bytes"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_by_name(
    tmp_path: Path, value: object, error: type[Exception], message: str
) -> None:
    with ffrecord.Writer(tmp_path / "a.ffr", {"x": "u8", "t": "utf8"}) as writer:
        with pytest.raises(error, match=message):
            writer.write(value)  # type: ignore[arg-type]
        writer.write({"x": 255, "t": "ü"})

    assert ffrecord.open(tmp_path / "a.ffr")[0] == {"x": 255, "t": "ü"}


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"x": "i65"}, "unknown type 'i65'; known are bool"),
        ({"x": "i64[3"}, "'i64\\[3' is no type"),
        ({"x": "i64[0]"}, "x"),
        ({"x": "bytes[3]"}, "x"),
        ({"": "i64"}, "name"),
    ],
)
def test_a_wrong_schema_is_refused(tmp_path: Path, schema: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ffrecord.Writer(tmp_path / "a.ffr", schema)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "options", [{"align": 3}, {"level": 0, "compress": "zstd"}, {"compress": "gzip"}]
)
def test_a_wrong_option_is_refused(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        ffrecord.Writer(tmp_path / "a.ffr", **options)  # type: ignore[arg-type]
    assert leftovers(tmp_path) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        ffrecord.Writer(tmp_path / "nowhere" / "a.ffr")


def test_a_killed_writer_leaves_nothing(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys, ffrecord\n"
        "w = ffrecord.Writer(sys.argv[1])\n"
        "for _ in range(200): w.write(os.urandom(100_000))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )

    done = subprocess.run([sys.executable, "-c", code, str(tmp_path / "a.ffr")], check=False)

    assert done.returncode == -signal.SIGKILL
    assert leftovers(tmp_path) == []


def test_a_version_1_file_is_upstreams_byte_for_byte(tmp_path: Path) -> None:
    """The 39 bytes of format.md."""
    writer = V1Writer.create(bytes(tmp_path / "a.ffr"), 2)
    writer.write(b"")
    writer.write(b"abc")
    writer.close()

    assert (tmp_path / "a.ffr").read_bytes().hex() == (
        "15d1620a020000000000000000000000c241243524000000000000002400000000000000616263"
    )
    assert [bytes(r) for r in ffrecord.open(tmp_path / "a.ffr")] == [b"", b"abc"]


def test_a_version_1_file_with_too_few_records_is_not_published(tmp_path: Path) -> None:
    writer = V1Writer.create(bytes(tmp_path / "a.ffr"), 2)
    writer.write(b"one")

    with pytest.raises(ValueError, match=r"a\.ffr"):
        writer.close()
    assert leftovers(tmp_path) == []


def test_an_append_goes_on_where_the_file_ended(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    with ffrecord.Writer(path, {"x": "i32", "text": "utf8"}, metadata={"by": b"me"}) as writer:
        writer.write({"x": 0, "text": "zero"})
    before = ffrecord.open(path)
    assert len(before) == 1

    with ffrecord.Writer(path, append=True) as writer:
        writer.write({"x": 1, "text": "one"})
        writer.commit()
        assert len(ffrecord.open(path)) == 2
        with pytest.raises(ffrecord.ConflictError):
            ffrecord.Writer(path, append=True)
    with ffrecord.Writer(path, {"x": "i32", "text": "utf8"}, append=True) as writer:
        writer.write({"x": 2, "text": "two"})

    with ffrecord.open(path) as reader:
        assert [sample["text"] for sample in reader] == ["zero", "one", "two"]
        assert reader.metadata() == {"by": b"me"}
        assert len(before) == 1
        with pytest.raises(IndexError):
            reader.metadata(1)
    assert ffrecord.verify(path)[0].problem_count == 0


def test_an_append_that_is_left_by_an_exception_stays_at_its_last_commit(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    with ffrecord.Writer(path) as writer:
        writer.write(b"zero")
        with pytest.raises(ValueError, match="closed"):
            writer.commit()
    with pytest.raises(ZeroDivisionError), ffrecord.Writer(path, append=True) as writer:
        writer.write(b"one")
        writer.commit()
        writer.write(b"two")
        raise ZeroDivisionError
    assert [bytes(record) for record in ffrecord.open(path)] == [b"zero", b"one"]


def test_what_an_append_cannot_do_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ffr"
    with ffrecord.Writer(path, {"x": "i32"}, metadata={"by": b"me"}) as writer:
        writer.write({"x": 0})
    for options in ({"replace": True}, {"align": 512}, {"compress": "zstd"}):
        with pytest.raises(ValueError):
            ffrecord.Writer(path, append=True, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the schema differs"):
        ffrecord.Writer(path, {"y": "i32"}, append=True)
    with pytest.raises(FileNotFoundError):
        ffrecord.Writer(tmp_path / "missing.ffr", append=True)
    with ffrecord.Writer(path, append=True, metadata={"other": b""}):
        pass  # And none of these kept the lock.
    assert ffrecord.open(path).metadata() == {"other": b""}
