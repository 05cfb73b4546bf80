"""Goal: files of tokens become documents of exactly these tokens, whatever says where they end.

Method: files and indices as Megatron, llm.c and nanoGPT write them, of each type of number; and
indices that are damaged, of another version, or do not fit their file. Cuts are in test_pack_cuts.
"""

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ffrecord
from cli import ok
from cuttable import megatron
from ffrecord.errors import CorruptionError
from ffrecord.pack import SourceOptions, open_source, pack
from packing import refused

pytestmark = pytest.mark.wrong_data

pa = pytest.importorskip("pyarrow")

DOCUMENTS = [[[1, 2, 3]], [[]], [[4]], [[5, 6]]]
SENTENCES = [[[1, 2], [3]], [], [[4]], [[], [5, 6]]]


@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "i8", "f8", "f4", "u2"])
@pytest.mark.parametrize("documents", [DOCUMENTS, SENTENCES])
def test_the_index_says_type_and_documents(
    dtype: str, documents: list[list[list[int]]], tmp_path: Path
) -> None:
    ok("ffrecord-pack", megatron(tmp_path, documents, dtype), tmp_path / "x.ffr")

    table = ffrecord.read_table(tmp_path / "x.ffr")
    nested = documents is SENTENCES
    wanted = documents if nested else [document[0] for document in documents]
    assert table["tokens"].to_pylist() == wanted
    kind = table.schema.field("tokens").type
    assert (kind.value_type.value_type if nested else kind.value_type) == pa.from_numpy_dtype(
        np.dtype(dtype)
    )


def test_a_token_ends_documents_of_a_file_without_an_index(tmp_path: Path) -> None:
    np.array([1, 2, 9, 9, 3, 70_000], "<u4").tofile(tmp_path / "a.bin")
    ok("ffrecord-pack", tmp_path / "a.bin", tmp_path / "x.ffr", "--tokens", "u32:9")
    found = ffrecord.read_table(tmp_path / "x.ffr")["tokens"].to_pylist()
    assert found == [[1, 2, 9], [9], [3, 70_000]]


@pytest.mark.parametrize(("magic", "dtype"), [(20240520, "<u2"), (20240801, "<u4")])
def test_the_head_of_a_file_says_its_type(magic: int, dtype: str, tmp_path: Path) -> None:
    head = np.zeros(256, "<i4")
    head[:3] = magic, 1, 100_000
    values = np.arange(100_000).astype(dtype)
    path = tmp_path / "a.bin"
    path.write_bytes(head.tobytes() + values.tobytes())
    pack(path, tmp_path / "x.ffr")
    found = ffrecord.read_table(tmp_path / "x.ffr")["tokens"].to_pylist()
    assert [each for block in found for each in block] == values.tolist()
    assert [len(block) for block in found] == [65536, 34464]

    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CorruptionError, match=r"a\.bin has .* its head says 100000"):
        pack(path, tmp_path / "y.ffr")


def test_a_file_that_says_nothing_of_its_tokens_is_refused(tmp_path: Path) -> None:
    np.arange(99, dtype="u2").tofile(tmp_path / "a.bin")
    assert "give --tokens u16" in refused(2, tmp_path / "a.bin", tmp_path / "x.ffr")
    for asked in ("u8", "u16:", "u16:x", "9"):
        with pytest.raises(ValueError, match="give --tokens u16"):
            open_source(tmp_path / "a.bin", SourceOptions(tokens=asked))
    with pytest.raises(CorruptionError, match="no whole tokens"):
        pack(open_source(tmp_path / "a.bin", SourceOptions(tokens="u32")), tmp_path / "x.ffr")
    path = megatron(tmp_path, DOCUMENTS)
    with pytest.raises(ValueError, match="--tokens does not apply"):
        open_source(path, SourceOptions(tokens="u16"))


def _put(at: int, code: str, value: int) -> Callable[[bytearray], None]:
    return lambda data: struct.pack_into(code, data, at, value)


# What is done to an index, and what is said. The head has 34 bytes; then sizes, begins, documents.
DAMAGE: dict[str, tuple[Callable[[bytearray], None], str]] = {
    "another mark": (_put(0, "<B", 0), "no index of Megatron's"),
    "another version": (_put(9, "<Q", 2), "version 2"),
    "another type": (_put(17, "<B", 99), "type 99"),
    "many sequences": (_put(18, "<Q", 1 << 60), "and needs"),
    "many documents": (_put(26, "<Q", 1 << 60), "and needs"),
    "a size": (_put(34, "<i", 2), "do not lie one behind the other"),
    "a negative size": (_put(34, "<i", -3), "do not lie one behind the other"),
    "the last size": (_put(34 + 12, "<i", 1), "its index says"),
    "a begin": (_put(34 + 16 + 8, "<q", 1 << 40), "do not lie one behind the other"),
    "a document": (_put(34 + 16 + 32 + 8, "<q", 3), "do not have all sequences"),
    "a document outside": (_put(34 + 16 + 32 + 32, "<q", 9), "do not have all sequences"),
    "an end": (lambda data: data.__delitem__(slice(-9, None)), "and needs"),
    "a head": (lambda data: data.__delitem__(slice(20, None)), "or truncated"),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_an_index_that_does_not_fit_is_refused(what: str, tmp_path: Path) -> None:
    path = megatron(tmp_path, DOCUMENTS)
    damage, said = DAMAGE[what]
    data = bytearray((tmp_path / "tokens.idx").read_bytes())
    damage(data)
    (tmp_path / "tokens.idx").write_bytes(data)

    with pytest.raises((ValueError, CorruptionError), match=said):
        pack(path, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_a_file_that_lacks_tokens_of_its_index_is_refused(tmp_path: Path) -> None:
    path = megatron(tmp_path, DOCUMENTS)
    path.write_bytes(path.read_bytes()[:-2])
    with pytest.raises(CorruptionError, match=r"tokens\.bin has 5 tokens, and its index says 6"):
        pack(path, tmp_path / "x")


@pytest.mark.parametrize("asked", ["u16", "u16:5", "u32"])
def test_a_head_is_never_packed_as_tokens(asked: str, tmp_path: Path) -> None:
    head = np.zeros(256, "<i4")
    head[:3] = 20240520, 1, 100
    path = tmp_path / "a.bin"
    path.write_bytes(head.tobytes() + np.arange(100, dtype="<u2").tobytes())
    if asked == "u32":
        assert "its head says u16" in refused(2, "--tokens", asked, path, tmp_path / "x.ffr")
        return
    ok("ffrecord-pack", "--tokens", asked, path, tmp_path / "x.ffr")
    found = ffrecord.read_table(tmp_path / "x.ffr")["tokens"].to_pylist()
    assert [token for document in found for token in document] == list(range(100))
    assert len(found) == (2 if ":" in asked else 1)


@pytest.mark.parametrize("asked", ["u16:65536", "u32:4294967296", "u16:99999999999999999999"])
def test_an_end_that_is_no_token_of_the_type_is_refused(asked: str, tmp_path: Path) -> None:
    np.arange(100, dtype="<u2").tofile(tmp_path / "a.bin")
    message = refused(2, "--tokens", asked, tmp_path / "a.bin", tmp_path / "x.ffr")
    assert f"is no token of {asked.partition(':')[0]}" in message


def test_tokens_that_begin_like_a_stream_of_arrow_are_tokens(tmp_path: Path) -> None:
    path = megatron(tmp_path, [[[-1, 5, 7]]], "i4")
    pack(path, tmp_path / "x.ffr")
    assert ffrecord.read_table(tmp_path / "x.ffr")["tokens"].to_pylist() == [[-1, 5, 7]]
    np.array([65535, 65535, 1, 0], "<u2").tofile(tmp_path / "plain.bin")
    pack(open_source(tmp_path / "plain.bin", SourceOptions(tokens="u16")), tmp_path / "y.ffr")
    assert ffrecord.read_table(tmp_path / "y.ffr")["tokens"].to_pylist() == [[65535, 65535, 1, 0]]
