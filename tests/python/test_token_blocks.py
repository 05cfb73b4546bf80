"""Goal: blocks are the documents laid end to end and cut, whichever is asked for first.

Method: the same stream put together and cut with NumPy; documents of all lengths, some empty, some
damaged.
"""

import contextlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ffrecord
from ffrecord import TokenBlocks

pytestmark = pytest.mark.wrong_data

Documents = list[npt.NDArray[Any]]
NAMES = {"u16": "uint16", "u32": "uint32", "i32": "int32", "i64": "int64"}


def documents(dtype: str = "u16", count: int = 60) -> Documents:
    generator = np.random.default_rng(3)
    lengths = generator.choice([0, 0, 1, 2, 5, 16, 17, 100], count)
    limits = np.iinfo(NAMES[dtype])
    return [
        generator.integers(limits.min, limits.max, length, NAMES[dtype], endpoint=True)
        for length in lengths
    ]


def written(path: Path, docs: Documents, schema: dict[str, str] | None = None) -> Path:
    with ffrecord.Writer(path, schema, replace=True) as writer:
        for number, doc in enumerate(docs):
            value = doc.astype(doc.dtype.newbyteorder("<")).tobytes()
            writer.write({"ids": value, "source": number} if schema else value)
    return path


def expect(blocks: TokenBlocks, batch: ffrecord.Batch, docs: Documents, order: list[int]) -> None:
    """That the batch is these blocks of the stream, with the boundaries in them."""
    stream = np.concatenate(docs)
    ends = np.cumsum([len(doc) for doc in docs])
    for row, block in enumerate(order):
        begin = block * (blocks.block - blocks.overlap)
        cut = stream[begin : begin + blocks.block]
        filler = np.full(blocks.block - len(cut), blocks.pad or 0, stream.dtype)
        np.testing.assert_array_equal(batch["tokens"][row], np.concatenate([cut, filler]))
        if blocks.boundaries:
            inside = np.unique(ends[(ends > begin) & (ends < begin + len(cut))]) - begin
            wanted = [0, *inside.tolist(), len(cut)]
            bounds = batch["cu_seqlens"][row].tolist()
            assert bounds == wanted + [len(cut)] * (len(bounds) - len(wanted))


@pytest.mark.parametrize("dtype", list(NAMES))
@pytest.mark.parametrize("size, overlap", [(1, 0), (16, 0), (16, 1), (150, 149), (33, 5)])
def test_blocks_are_the_stream_cut(tmp_path: Path, dtype: str, size: int, overlap: int) -> None:
    docs = documents(dtype)
    schema = {"ids": "bytes", "source": "i64"}
    reader = ffrecord.open(written(tmp_path / "a.ffr", docs, schema))

    blocks = TokenBlocks(
        reader, size, dtype=NAMES[dtype], column="ids", overlap=overlap, boundaries=True
    )

    total = sum(map(len, docs))
    assert blocks.token_count == total
    assert len(blocks) == (total - size) // (size - overlap) + 1
    order = np.random.default_rng(5).permutation(len(blocks)).tolist()
    expect(blocks, blocks.read(order), docs, order)
    plain = TokenBlocks(reader, size, dtype=dtype, column="ids", overlap=overlap)
    expect(plain, plain.read(order), docs, order)
    assert plain.schema == {"tokens": f"{dtype}[{size}]"}
    assert plain.fingerprint != blocks.fingerprint


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=20),
    size=st.integers(1, 30),
    share=st.floats(0, 0.99),
    pad=st.none() | st.integers(0, 65535),
    cut=st.integers(0, 20),
    data=st.data(),
)
def test_any_cut_of_any_documents_is_numpys(
    tmp_path: Path,
    lengths: list[int],
    size: int,
    share: float,
    pad: int | None,
    cut: int,
    data: st.DataObject,
) -> None:
    total = sum(lengths)
    stream = np.arange(total, dtype=np.uint16)
    docs = np.split(stream, np.cumsum(lengths)[:-1])
    reader = ffrecord.open(written(tmp_path / "a.ffr", docs))
    halves = ffrecord.concat([reader.subset(slice(0, cut)), reader.subset(slice(cut, None))])
    overlap = int(share * size)

    blocks = TokenBlocks(halves, size, dtype="u16", overlap=overlap, pad=pad, boundaries=True)

    step = size - overlap
    begins = [b for b in range(0, total, step) if b == 0 or b + overlap < total]
    if pad is None:
        begins = [b for b in begins if b + size <= total]
    assert len(blocks) == len(begins)
    if begins:
        order = data.draw(st.lists(st.integers(0, len(begins) - 1), max_size=8))
        batch = blocks.read(np.array(order, np.int64))
        expect(blocks, batch, docs, order)
        assert blocks.columns[1].shape[0] == 1 + max(
            len(np.unique(np.repeat(np.arange(len(docs)), lengths)[b : b + size])) for b in begins
        )


def test_a_column_of_numbers_tells_the_type_of_its_tokens(tmp_path: Path) -> None:
    rows = np.arange(40, dtype=np.int32).reshape(10, 4)
    with ffrecord.Writer(tmp_path / "a.ffr", {"ids": "i32[4]", "text": "utf8"}) as writer:
        for row in rows:
            writer.write({"ids": row, "text": "x" * int(row[0])})

    blocks = TokenBlocks(ffrecord.open(tmp_path / "a.ffr"), 6, column="ids", pad=-1)

    wanted = np.append(rows.reshape(-1), [-1, -1]).reshape(-1, 6)
    np.testing.assert_array_equal(blocks[:]["tokens"], wanted)
    assert blocks.dtype == "i32"


@pytest.mark.parametrize("mode", ["threads", "workers"])
def test_loaders_deliver_and_resume_blocks_as_any_records(tmp_path: Path, mode: str) -> None:
    torch_side = pytest.importorskip("ffrecord.torch")
    docs = documents()
    blocks = TokenBlocks(
        ffrecord.open(written(tmp_path / "a.ffr", docs)), 16, dtype="u16", boundaries=True
    )
    dataset = torch_side.Dataset(blocks)

    def loader() -> Any:  # noqa: ANN401 - the class is known only where torch is
        sampler = torch_side.Sampler(dataset, 4, seed=1, rank=0, world_size=1)
        return torch_side.DataLoader(
            dataset,
            batch_sampler=sampler,
            num_workers=1,
            collate_fn=torch_side.collate,
            mode=mode,
        )

    with contextlib.closing(loader()) as first:
        found = []
        for batch in first:
            found.append((batch["tokens"], batch["cu_seqlens"]))
            if len(found) == 3:
                state = first.state_dict()
    with contextlib.closing(loader()) as second:
        second.load_state_dict(state)
        rest = [(batch["tokens"], batch["cu_seqlens"]) for batch in second]

    assert len(found) == len(blocks) // 4 and len(rest) == len(found) - 3
    for (tokens, bounds), (others, other_bounds) in zip(found[3:], rest, strict=True):
        np.testing.assert_array_equal(tokens, others)
        np.testing.assert_array_equal(bounds, other_bounds)
    rows = {row.tobytes() for tokens, _ in found for row in np.asarray(tokens, np.uint16)}
    stream = np.concatenate(docs)[: len(blocks) * 16].reshape(-1, 16)
    assert rows <= {row.tobytes() for row in stream} and len(rows) > len(found)


def test_a_pickle_holds_no_index(tmp_path: Path) -> None:
    docs = [np.arange(3, dtype=np.uint16)] * 2000
    blocks = TokenBlocks(ffrecord.open(written(tmp_path / "a.ffr", docs)), 7, dtype="u16")
    assert len(blocks) == 6000 // 7

    pickled = pickle.dumps(blocks)

    assert len(pickled) < 2048
    expect(blocks, pickle.loads(pickled).read([500, 3]), docs, [500, 3])


def test_a_damaged_document_spoils_its_blocks_and_no_others(tmp_path: Path) -> None:
    docs = [np.full(20, number, "uint16") for number in range(10)]
    path = written(tmp_path / "a.ffr", docs)
    data = bytearray(path.read_bytes())
    data[data.index(docs[3].tobytes()) + 5] ^= 1
    path.write_bytes(data)
    for boundaries in (False, True):
        blocks = TokenBlocks(ffrecord.open(path), 16, dtype="u16", boundaries=boundaries)

        kept = blocks.read(range(len(blocks)), on_corrupt="keep")
        skipped = blocks.read(range(len(blocks)), on_corrupt="skip")

        # Document 3 is the tokens 60 to 80: the blocks 3 (48 to 64) and 4 (64 to 80).
        assert np.flatnonzero(kept.status).tolist() == [3, 4]
        good = np.flatnonzero(kept.status == 0)
        stream = np.concatenate(docs)[: len(blocks) * 16].reshape(-1, 16)
        np.testing.assert_array_equal(kept["tokens"][good], stream[good])
        np.testing.assert_array_equal(skipped["tokens"], stream[good])
        assert not kept["tokens"][3].any()
        assert "token block 3: " in blocks.stats()["damaged"][3]
        assert "a.ffr: record 3" in blocks.stats()["damaged"][3]
        with pytest.raises(ffrecord.CorruptionError, match=r"a\.ffr: record 3"):
            blocks.read([4])


def test_a_document_that_is_shorter_than_its_index_tells_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is made to tell four tokens more of document 2 than it has."""
    docs = [np.full(20, number, "uint16") for number in range(4)]
    reader = ffrecord.open(written(tmp_path / "a.ffr", docs))
    sizes = reader._sizes
    monkeypatch.setattr(reader, "_sizes", lambda wanted: sizes(wanted) + 8 * (wanted == 2))
    blocks = TokenBlocks(reader, 4, dtype="u16")

    kept = blocks.read(range(len(blocks)), on_corrupt="keep")

    assert np.flatnonzero(kept.status).tolist() == [15]  # Tokens 60 to 64, which are not there.
    wanted = [token for number in range(4) for token in [number] * 5]
    wanted.insert(15, 0)
    assert kept["tokens"][:, 0].tolist() == wanted
    with pytest.raises(ffrecord.CorruptionError):
        blocks.read([15])


def test_what_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    schema = {"ids": "bytes", "source": "i64"}
    reader = ffrecord.open(written(tmp_path / "a.ffr", documents(), schema))
    with pytest.raises(ValueError, match="overlap < block"):
        TokenBlocks(reader, 4, overlap=4)
    with pytest.raises(ValueError, match="tokens are u16, u32, i32, i64"):
        TokenBlocks(reader, 4, dtype="f32")
    with pytest.raises(KeyError, match="one of ids, source"):
        len(TokenBlocks(reader, 4))
    with pytest.raises(ValueError, match="are bytes: set dtype="):
        len(TokenBlocks(reader, 4, column="ids"))
    with pytest.raises(ValueError, match="is i64, not tokens of u16"):
        len(TokenBlocks(reader, 4, column="source", dtype="u16"))
    with pytest.raises(ValueError, match="pad is 65536, which is not a valid u16"):
        len(TokenBlocks(reader, 4, column="ids", dtype="u16", pad=65536))
    with pytest.raises(ValueError, match="not a whole number of i64"):
        len(TokenBlocks(reader, 4, column="ids", dtype="i64"))
    assert len(TokenBlocks(reader, 1 << 40, column="ids", dtype="u16")) == 0
    texts = {"ids": "bytes", "text": "utf8"}
    with ffrecord.Writer(tmp_path / "b.ffr", texts) as writer:
        writer.write({"ids": b"1234", "text": "x"})
    with pytest.raises(ValueError, match="is beside 'text', whose size varies"):
        len(TokenBlocks(ffrecord.open(tmp_path / "b.ffr"), 1, column="ids", dtype="u16"))
