"""Goal: arrays in records come out as they were saved, without a copy, or are corrupt records.

Method: NumPy and a writer of our own make the files; bytes of their headers are changed.
"""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import ffrecord
from ffrecord.decode import Npy, Safetensors

pytestmark = pytest.mark.wrong_data


def npy(array: npt.NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def reader_of(folder: Path, records: list[bytes]) -> ffrecord.Reader:
    with ffrecord.Writer(folder / "a.ffr", replace=True) as writer:
        for record in records:
            writer.write(record)
    return ffrecord.open(folder / "a.ffr")


def test_npy_files_are_views_of_the_batch(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    arrays = [
        np.arange(5, dtype="<i4"),
        np.array(3.5),
        np.zeros((0, 7), "<f2"),
        np.asfortranarray(generator.normal(size=(3, 4, 5))),
        generator.normal(size=(2, 3)).astype(">f4"),
        np.array([True, False]),
        generator.normal(size=4).astype("c8"),
    ]
    batch = reader_of(tmp_path, list(map(npy, arrays))).read(range(len(arrays)), decode=Npy())

    for array, found in zip(arrays, batch.whole, strict=True):
        assert found.dtype == array.dtype and found.shape == array.shape
        np.testing.assert_array_equal(found, array)
        assert not found.size or np.shares_memory(found, batch.slab)


def test_npy_files_of_one_shape_are_one_array(tmp_path: Path) -> None:
    arrays = [np.full((2, 3), i, "<f4") for i in range(4)]
    reader = reader_of(tmp_path, [*map(npy, arrays), npy(np.zeros((3, 2), "<f4"))])

    batch = reader.read([2, 0], decode=Npy("f4", (2, 3)))

    np.testing.assert_array_equal(batch.whole, [arrays[2], arrays[0]])
    with pytest.raises(ffrecord.CorruptionError, match=r"record 4 .*\(3,2,\).*wanted.*\(2,3,\)"):
        reader.read([1, 4], decode=Npy("f4", (2, 3)))
    kept = reader.read([1, 4], decode=Npy("f4", (2, 3)), on_corrupt="keep")
    assert kept.status.tolist() == [0, 3] and not kept.whole[1].any()
    with pytest.raises(ValueError, match="or neither"):
        Npy("f4")


GOOD = npy(np.arange(6, dtype="<i4").reshape(2, 3))


@pytest.mark.parametrize(
    "record",
    [
        b"",
        GOOD[:-1],
        GOOD + b"\0",
        GOOD[:9],
        GOOD.replace(b"(2, 3)", b"(2, 4)"),
        GOOD.replace(b"(2, 3)", b"(-2,3"),
        GOOD.replace(b"(2, 3), }       ", b"(9223372036854775807,3)}"[:16]),
        GOOD.replace(b"<i4", b"|O8"),
        GOOD.replace(b"'descr'", b"'desc2'"),
        GOOD[:6] + b"\x09" + GOOD[7:],
        GOOD[:8] + b"\xff\xff" + GOOD[10:],
        npy(np.zeros(2, [("a", "<i4"), ("b", "<f4")])),
        npy(np.array(["text"])),
        GOOD.replace(b"<i4", b"\xff\xfe4"),
        GOOD[:-24].replace(b"(2, 3), }                  ", b"(0, 4611686018427387904), }"),
    ],
)
def test_a_damaged_npy_file_is_a_corrupt_record(tmp_path: Path, record: bytes) -> None:
    reader = reader_of(tmp_path, [record])
    with pytest.raises(ffrecord.CorruptionError, match=r"not a \.npy file"):
        reader.read([0], decode=Npy())
    assert len(reader.read([0], decode=Npy(), on_corrupt="skip")) == 0


def test_safetensors_are_views_by_name(tmp_path: Path) -> None:
    weights = np.arange(12, dtype="<f4").reshape(4, 3)
    header = {
        "__metadata__": {"made": 'by "hand"\n'},
        "ä\U0001f600": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]},
        "bits": {"data_offsets": [48, 52], "shape": [2], "dtype": "BF16"},
        "none": {"dtype": "I64", "shape": [0, 5], "data_offsets": [52, 52]},
    }
    data = weights.tobytes() + b"\1\2\3\4"
    reader = reader_of(tmp_path, [safetensors(header, data), safetensors({}, b"")])

    batch = reader.read([0], decode=Safetensors())
    (found,) = batch.whole

    assert list(found) == ["ä\U0001f600", "bits", "none"]
    np.testing.assert_array_equal(found["ä\U0001f600"][1:3], weights[1:3])
    assert found["bits"].tolist() == [0x201, 0x403] and found["none"].shape == (0, 5)
    assert np.shares_memory(found["bits"], batch.slab)
    assert list(reader.read([0], decode=Safetensors("bits")).whole[0]) == ["bits"]
    assert reader.read([1], decode=Safetensors()).whole == [{}]
    with pytest.raises(ffrecord.CorruptionError, match=r"record 1 .*no tensor 'bits'"):
        reader.read([1], decode=Safetensors("bits"))


ENTRY = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


@pytest.mark.parametrize(
    "record",
    [
        b"",
        safetensors({"a": ENTRY}, b"123"),
        safetensors({"a": {**ENTRY, "shape": [5]}}, b"1234"),
        safetensors({"a": {**ENTRY, "shape": [1 << 62, 1 << 62]}}, b"1234"),
        safetensors({"a": {**ENTRY, "shape": [-4]}}, b"1234"),
        safetensors({"a": {**ENTRY, "dtype": "OBJECT"}}, b"1234"),
        safetensors({"a": {**ENTRY, "data_offsets": [4, 0]}}, b"1234"),
        safetensors({"a": {**ENTRY, "more": 1}}, b"1234"),
        safetensors({"a": {"dtype": "U8", "shape": [4]}}, b"1234"),
        safetensors(b'{"a":%b,"a":%b}' % ((json.dumps(ENTRY).encode(),) * 2), b"1234"),
        safetensors(b'{"\xff":%b}' % json.dumps(ENTRY).encode(), b"1234"),
        safetensors({"\u00e4" * 99: {**ENTRY, "dtype": "\u00e4" * 99}}, b"1234"),
        safetensors(
            {"a": {"dtype": "I64", "shape": [0, 1 << 62], "data_offsets": [0, 0]}}, b"1234"
        ),
        safetensors(b"[]"),
        safetensors(b"{" * 1000),
        (1 << 62).to_bytes(8, "little") + b"{}",
    ],
)
def test_a_damaged_safetensors_file_is_a_corrupt_record(tmp_path: Path, record: bytes) -> None:
    reader = reader_of(tmp_path, [record])
    with pytest.raises(ffrecord.CorruptionError, match="not a safetensors file"):
        reader.read([0], decode=Safetensors())
    assert len(reader.read([0], decode=Safetensors(), on_corrupt="skip")) == 0
