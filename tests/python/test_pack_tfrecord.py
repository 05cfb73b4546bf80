"""Goal: TFRecords become record files with nothing lost, changed or made up.

Method: a file of another writer is kept as bytes; more are made by a small encoder. What a
`tf.train.Example` may hold and record files do not, and damage at every byte, must be a clear error
that leaves nothing behind.
"""

import gzip
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

import cuttable
import ffrecord
from cli import ok
from ffrecord.pack import open_source, pack
from ffrecord.pack._example import parse_example
from packing import TFRECORDS, records, refused, schema

pytestmark = pytest.mark.wrong_data


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    digits = []
    while value > 0x7F:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def feature(values: Sequence[bytes | int | float], packed: bool = True) -> bytes:
    if all(isinstance(value, bytes) for value in values):
        return field(1, b"".join(field(1, value) for value in values))  # type: ignore[arg-type]
    if all(isinstance(value, int) for value in values):
        numbers = [varint(value) for value in values]  # type: ignore[arg-type]
        body = field(1, b"".join(numbers)) if packed else b"".join(b"\x08" + n for n in numbers)
        return field(3, body)
    floats = [struct.pack("<f", value) for value in values]
    return field(2, field(1, b"".join(floats)) if packed else b"".join(b"\x0d" + n for n in floats))


def example(features: Mapping[str, Sequence[Any]], packed: bool = True) -> bytes:
    entries = (
        field(1, field(1, name.encode()) + field(2, feature(values, packed)))
        for name, values in features.items()
    )
    return field(1, b"".join(entries))


def frame(payload: bytes) -> bytes:
    def masked(data: bytes) -> bytes:
        crc = google_crc32c.value(data)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(payload))
    return length + masked(length) + payload + masked(payload)


def write_tfrecords(path: Path, samples: Sequence[Mapping[str, Sequence[Any]]]) -> Path:
    path.write_bytes(b"".join(frame(example(sample)) for sample in samples))
    return path


def rows_of(sources: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - one or several
    """All rows, as a source gives them."""
    tables = [sample.table for sample, _ in open_source(sources).samples()]  # type: ignore[union-attr]
    return [row for table in tables for row in table.to_pylist()]


@pytest.mark.parametrize("name", ["a.tfrecord", "train-00000-of-00001", "a.tfrecord.gz"])
def test_a_tfrecord_of_another_writer_is_read(tmp_path: Path, name: str) -> None:
    content = gzip.compress(TFRECORDS) if name.endswith(".gz") else TFRECORDS
    (tmp_path / name).write_bytes(content)

    ok("ffrecord-pack", tmp_path / name, tmp_path / "x.ffr")

    assert schema(tmp_path / "x.ffr") == {"box": "f32[2]", "image": "bytes", "label": "i64"}
    assert records(tmp_path / "x.ffr") == [
        {"box": [0.5, 0.0], "image": b"\xff\x00", "label": -1},
        {"box": [0.5, 1.0], "image": b"\xff\x01", "label": 0},
    ]


@pytest.mark.parametrize("packed", [True, False])
def test_features_are_what_was_encoded(packed: bool) -> None:
    features = {
        "few": [1],
        "many": [0, 1, 127, 128, 300, 2**31, 2**63 - 1, -1, -(2**63)],
        "floats": [0.0, 1.5, float("inf")],
        "strings": [b"", b"abc", bytes(300)],
    }

    found = parse_example(example(features, packed))

    assert {name: list(values) for name, values in found.items()} == features


def test_a_cut_or_forged_example_is_an_error_or_less() -> None:
    data = example({"a": [1, 300], "b": [b"xyz"], "c": [0.5]})
    for end in range(len(data)):
        for forged in (data[:end], data[:end] + b"\xff" + data[end + 1 :]):
            try:
                parse_example(forged)
            except ValueError as error:
                assert "tf.train.Example" in str(error)


def test_what_stands_twice_is_merged_as_protocol_buffers_do() -> None:
    """By protobuf's rules: messages and lists are joined, of names and of kinds the last counts."""

    def entry(name: bytes, *features: bytes) -> bytes:
        return field(1, field(1, name) + b"".join(field(2, each) for each in features))

    ints, strings = feature([1, 2]), feature([b"x"])

    def found(*features: bytes) -> list[Any]:
        return list(parse_example(field(1, entry(b"a", *features)))["a"])

    assert found(ints, feature([3])) == [1, 2, 3]
    assert found(ints + feature([3])) == [1, 2, 3]
    assert found(ints, strings) == [b"x"]
    assert found(strings + ints) == [1, 2]
    assert found(ints, strings, ints) == [1, 2]
    assert found() == []
    assert found(feature([0.5]) + feature([1.5], packed=False)) == [0.5, 1.5]
    twice = field(1, entry(b"a", ints) + entry(b"b", ints)) + field(1, entry(b"a", strings))
    assert {name: list(values) for name, values in parse_example(twice).items()} == {
        "a": [b"x"],
        "b": [1, 2],
    }
    renamed = field(1, field(1, field(1, b"a") + field(2, ints) + field(1, b"z")))
    assert list(parse_example(renamed)) == ["z"]
    assert list(parse_example(field(1, field(1, field(2, ints))))) == [""]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (field(1, b"") + field(2, b""), "SequenceExample"),
        (field(1, field(2, b"")), "Features has a field 2"),
        (field(1, field(1, field(3, b""))), "entry has a field 3"),
        (field(1, field(1, field(2, field(4, b"")))), "Feature has a field 4"),
        (field(1, field(1, field(2, field(1, field(2, b""))))), "BytesList has a field 2"),
        (field(1, field(1, field(2, field(2, b"\x09" + bytes(8))))), "FloatList has a field 1"),
        (field(1, field(1, field(2, field(2, b"\x08\x01")))), "FloatList has a field 1"),
        (field(1, field(1, field(2, field(3, b"\x0d" + bytes(4))))), "Int64List has a field 1"),
        (field(1, field(1, field(2, field(2, field(1, b"abc"))))), "truncated"),
        (b"\x08\x01", "Example has a field 1 of wire type 0"),
    ],
)
def test_what_is_not_of_an_example_is_refused_not_left_out(message: bytes, expected: str) -> None:
    with pytest.raises(ValueError, match=f"no tf.train.Example: .*{expected}"):
        parse_example(message)


def test_a_late_sequence_example_is_not_packed_without_its_sequences(tmp_path: Path) -> None:
    context = field(1, field(1, field(1, b"id") + field(2, feature([7]))))
    source = tmp_path / "a"
    late = context + field(2, field(1, field(1, b"frames")))
    source.write_bytes(frame(context) * 10 + frame(late))

    message = refused(2, source, tmp_path / "x.ffr")

    assert "record 10 is no tf.train.Example" in message
    assert "SequenceExample" in message
    assert "--raw" in message


@pytest.mark.parametrize("late", [[b"x"], [0.5]])
@pytest.mark.parametrize("apart", [False, True])
def test_numbers_kept_as_bytes_stay_of_one_kind(
    tmp_path: Path, late: list[Any], apart: bool
) -> None:
    first = [{"n": [1]}, {"n": [1, 2]}] * 600
    samples = [first, [{"n": late}]] if apart else [[*first, {"n": late}]]
    sources = [write_tfrecords(tmp_path / f"{i}", each) for i, each in enumerate(samples)]

    with pytest.raises(ValueError, match=r"'n' has values of kind (bytes|f32), not i64"):
        rows_of([str(source) for source in sources])


def test_a_feature_that_was_empty_at_first_is_of_the_kind_seen_first(tmp_path: Path) -> None:
    empty: list[dict[str, Any]] = [{"n": []}] * 1001
    source = write_tfrecords(tmp_path / "a", [*empty, {"n": [1]}, {}])
    mixed = write_tfrecords(tmp_path / "b", [*empty, {"n": [1]}, {"n": [0.5]}])

    assert [row["n"] for row in rows_of(source)] == [[]] * 1001 + [[1], []]
    with pytest.raises(ValueError, match=r"record 1002: the feature 'n' has values of kind f32"):
        rows_of(mixed)


def test_a_feature_may_be_absent_before_it_is_first_seen(tmp_path: Path) -> None:
    """Then a number is a list, for the records before have none."""
    source = write_tfrecords(tmp_path / "a", [{"s": [b"x"]}, {"s": [b"y"], "n": [1], "v": [1, 2]}])

    first, second = rows_of(source)

    assert first == {"n": [], "s": b"x", "v": []}
    assert second == {"n": [1], "s": b"y", "v": [1, 2]}


def test_numbers_of_any_count_are_lists_of_their_type(tmp_path: Path) -> None:
    source = write_tfrecords(
        tmp_path / "a",
        [{"n": list(range(i)), "f": [0.5] * i, "maybe": [b"y"] * (i % 2)} for i in range(1, 5)],
    )

    ok("ffrecord-pack", source, tmp_path / "x.ffr")

    assert schema(tmp_path / "x.ffr") == {"f": "list<f32>", "maybe": "bytes", "n": "list<i64>"}
    found = records(tmp_path / "x.ffr")
    assert [each["n"] for each in found] == [list(range(i)) for i in range(1, 5)]
    assert [each["f"] for each in found] == [[0.5] * i for i in range(1, 5)]
    assert [each["maybe"] for each in found] == [b"y", b"", b"y", b""]


def test_a_late_record_that_differs_is_refused_with_the_remedies(tmp_path: Path) -> None:
    alike = [{"n": [1], "image": [b"x"]}] * 1001
    source = write_tfrecords(tmp_path / "a", [*alike, {"n": [1, 2], "image": [b"x"]}])
    more = write_tfrecords(tmp_path / "b", [*alike, {"n": [1], "image": [b"x"], "z": [1]}])

    message = refused(2, source, tmp_path / "x.ffr")

    assert "record 1001: the feature 'n' has 2 values, not i64" in message
    assert "'z' is new" in refused(2, more, tmp_path / "x.ffr")
    ok("ffrecord-pack", source, tmp_path / "ragged.ffr", "--ragged", "n")
    assert records(tmp_path / "ragged.ffr")[1001]["n"] == [1, 2]
    ok("ffrecord-pack", source, tmp_path / "image.ffr", "--column", "image")
    assert records(tmp_path / "image.ffr") == [{"image": b"x"}] * 1002
    ok("ffrecord-pack", source, tmp_path / "raw.ffr", "--raw")
    assert records(tmp_path / "raw.ffr")[1001] == {
        "payload": example({"n": [1, 2], "image": [b"x"]})
    }


def test_shards_are_read_as_the_first_one_was(tmp_path: Path) -> None:
    shards = [
        write_tfrecords(tmp_path / "0", [{"n": [1]}, {"n": [1, 2]}]),
        write_tfrecords(tmp_path / "1", [{"n": [7]}, {"n": [8]}]),
    ]

    ok("ffrecord-pack", *shards, tmp_path / "x.ffr")

    found = [each["n"] for each in records(tmp_path / "x.ffr")]
    assert found == [[1], [1, 2], [7], [8]]
    message = refused(2, *reversed(shards), tmp_path / "y.ffr")
    assert f"{shards[0]}: record 1: the feature 'n' has 2 values, not i64" in message


def test_several_byte_strings_are_refused(tmp_path: Path) -> None:
    source = write_tfrecords(tmp_path / "a", [{"s": [b"x", b"y"], "t": [b"z"]}])

    message = refused(2, source, tmp_path / "x.ffr")

    assert "'s' has up to 2 byte strings" in message
    assert "--column" in message
    ok("ffrecord-pack", source, tmp_path / "t.ffr", "--column", "t")


def test_a_tfrecord_damaged_anywhere_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "a.tfrecord"
    begin = 12  # What is damaged before is not taken for a TFRecord.
    for at in range(begin, len(TFRECORDS)):
        damaged = bytearray(TFRECORDS)
        damaged[at] ^= 0x10
        source.write_bytes(damaged)
        with pytest.raises(ffrecord.CorruptionError):
            pack_here(source, tmp_path / "x.ffr")
        source.write_bytes(TFRECORDS[:at])
        if at != 12 + 0x41 + 4:  # Between two records: nothing tells that there was another.
            with pytest.raises(ffrecord.CorruptionError):
                pack_here(source, tmp_path / "x.ffr")
    assert sorted(tmp_path.iterdir()) == [source]


def pack_here(source: Path, destination: Path) -> None:
    pack(open_source([str(source)]), destination)


def test_a_length_that_lies_costs_no_memory(tmp_path: Path) -> None:
    length = struct.pack("<Q", 1 << 60)
    source = tmp_path / "a"
    source.write_bytes(length + frame(length)[12 + 8 :] + b"short")  # Its checksum is right.

    assert "is truncated" in refused(3, source, tmp_path / "x.ffr")


def test_a_sequence_has_its_context_and_a_list_for_each_list_of_features(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pack(cuttable.sequence_example(tmp_path), tmp_path / "x.ffr")

    found = ffrecord.read_table(tmp_path / "x.ffr").to_pylist()
    assert found == [
        {
            "id": number,
            "boxes": [[float(step), 0.5] for step in range(number % 4)],
            "sizes": [list(range(step)) for step in range(number % 4)],
            "words": [b"w%d" % step for step in range(number % 4)],
        }
        for number in range(len(found))
    ]
    assert len(found) == len(cuttable.sequences())
    assert ffrecord.open(tmp_path / "x.ffr").schema["boxes"].startswith("list<")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"\x12\x0a", "record 400 is no tf.train.SequenceExample"),
        (b"\x1a\x00", "a field 3 of wire type 2"),
        # A list in place of the number, a name that is new, a number in place of a text.
        (b"\x12\x08\x0a\x06\x0a\x02id\x12\x00", "the feature 'id' is a list"),
        (b"\x12\x09\x0a\x07\x0a\x03new\x12\x00", "the feature 'new' is new"),
        (
            b"\x12\x12\x0a\x10\x0a\x05words\x12\x07\x0a\x05\x1a\x03\x0a\x01\x07",
            "'words' has values of kind i64, not bytes",
        ),
    ],
)
def test_a_sequence_unlike_the_first_ones_is_refused(
    record: bytes, said: str, tmp_path: Path
) -> None:
    path = cuttable.sequence_example(tmp_path)
    # The first thousand are looked at: what is new among them is a column.
    first, *_ = sequences = cuttable.sequences()
    payloads = [*sequences * 3, first[: 2 + first[1]] + record]
    path.write_bytes(b"".join(map(cuttable.framed, payloads)))
    with pytest.raises(ValueError, match=said.replace("400", "1200")):
        pack(path, tmp_path / "x.ffr")
    assert not (tmp_path / "x.ffr").exists()
