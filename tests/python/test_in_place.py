"""Goal: files of other kinds are read where they are, exactly as the record files packed from them.

Method: a table of kinds, each with files that another writer made and the record file that
`ffrecord-pack` makes of them, crossed with every reader; then every change that a file may see
after it was indexed, damage of an index at every place, and what cannot be indexed.
"""

import io
import os
import pickle
import shutil
import struct
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import ffrecord
from cli import ok, run
from ffrecord.torch import DataLoader, Dataset, Sampler
from loading import ENGINES
from packing import records
from test_pack_formats import MDS_SAMPLES, mds_shard, write_mds
from test_pack_tfrecord import frame

pytestmark = pytest.mark.wrong_data


class Indexed(NamedTuple):
    """Files that were indexed, and the record file that has the same records."""

    source: Path
    files: list[Path]
    packed: Path


def write_tar(path: Path, files: Mapping[str, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mtime = 1.5 if form == tarfile.PAX_FORMAT else 1
            tar.addfile(info, io.BytesIO(content))
    return path


def captioned(first: int, count: int) -> dict[str, bytes]:
    """Samples of up to four files, with names of every length, folders between and hidden files."""
    files: dict[str, bytes] = {}
    for i in range(first, first + count):
        key = f"{'long' * (40 * (i % 3))}/shard/{i:04}"
        files[f"{key}.jpg"] = b"\xff\xd8" + bytes([i % 251]) * (i * 97 % 1500)
        files[f"{key.replace('shard', '.hidden')}.jpg"] = b"hidden"
        if i % 4:
            files[f"{key}.TXT"] = f"grün {i}".encode()
        if i % 5:
            files[f"{key}.cls"] = b" %d\n" % (i - 7)
    return files


def packed(folder: Path, *sources: Path, options: tuple[str, ...] = ()) -> Path:
    ok("ffrecord-pack", *options, *sources, folder / "packed.ffr")
    return folder / "packed.ffr"


def in_folder(folder: Path) -> Path:
    (folder / "in").mkdir()
    return folder / "in"


def samples_of_tar(folder: Path, form: int = tarfile.PAX_FORMAT) -> Indexed:
    source = in_folder(folder)
    files = [write_tar(source / f"{n}.tar", captioned(30 * n, 30), form) for n in range(3)]
    return Indexed(source, files, packed(folder, *files))


def samples_of_gnu_tar(folder: Path) -> Indexed:
    return samples_of_tar(folder, tarfile.GNU_FORMAT)


def files_of_tar(folder: Path) -> Indexed:
    source = in_folder(folder)
    members: dict[str, bytes] = {}
    for i in range(50):
        members |= {f"{i:03}.jpg": bytes([i]) * (i * 31), f"{i:03}.cls": b"%d" % i}
    path = write_tar(source / "files.tar", members)
    return Indexed(path, [path], packed(folder, path))


def tfrecords(folder: Path) -> Indexed:
    source = in_folder(folder)
    files = [source / f"{n}.tfrecord" for n in range(2)]
    for n, path in enumerate(files):
        path.write_bytes(b"".join(frame(bytes([n]) * (i * 37 % 900)) for i in range(60)))
    return Indexed(source, files, packed(folder, *files, options=("--raw",)))


def json_lines(folder: Path) -> Indexed:
    path = in_folder(folder) / "a.jsonl"
    lines = [b'{"i": %d, "text": "%s"}' % (i, b"x" * (i * 13 % 300)) for i in range(80)]
    lines[20:20] = [b"", b"  ", b"\r", b'\t{"indented": 1} ', b'{"windows": 1}\r']
    path.write_bytes(b"\n".join(lines))  # The last line does not end.
    return Indexed(path, [path], packed(folder, path, options=("--raw",)))


def mds(folder: Path) -> Indexed:
    found = [MDS_SAMPLES[:20], MDS_SAMPLES[20:]]
    source = write_mds(folder / "in", [mds_shard(found), mds_shard(found[::-1])], [2, 2])
    return Indexed(source, sorted(source.glob("*.mds")), packed(folder, source))


def megatron(folder: Path) -> Indexed:
    path = in_folder(folder) / "tokens.bin"
    texts = [np.arange(i * 7 % 40, dtype="<u2") + i for i in range(70)]
    sizes = np.array(list(map(len, texts)), "<i4")
    begins = np.concatenate(([0], np.cumsum(sizes[:-1] * 2))).astype("<i8")
    path.write_bytes(b"".join(text.tobytes() for text in texts))
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(texts), 1) + sizes.tobytes()
        + begins.tobytes() + np.array([0], "<i8").tobytes()
    )  # fmt: skip
    import pyarrow as pa

    item = pa.field("item", pa.uint16(), nullable=False)
    schema = pa.schema([pa.field("tokens", pa.list_(item), nullable=False)])
    table = pa.table([pa.array(texts, schema.field(0).type)], schema=schema)
    ffrecord.write_table(table, folder / "packed.ffr")
    return Indexed(path, [path], folder / "packed.ffr")


KINDS: dict[str, Callable[[Path], Indexed]] = {
    "tar": samples_of_tar,
    "gnu-tar": samples_of_gnu_tar,
    "tar-files": files_of_tar,
    "tfrecord": tfrecords,
    "jsonl": json_lines,
    "mds": mds,
    "megatron": megatron,
}
every_kind = pytest.mark.parametrize("kind", KINDS)
# The library treats all others as one of these.
each_form = pytest.mark.parametrize("kind", ["tar", "jsonl", "mds"])


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Indexed]:
    """One of each kind, indexed."""
    made = {name: make(tmp_path_factory.mktemp(name)) for name, make in KINDS.items()}
    for each in made.values():
        ffrecord.index(each.source)
    return made


def plain(value: Any) -> Any:  # noqa: ANN401 - of any column
    """What two equal samples have alike: types, shapes, bytes, and what is missing."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, np.ma.MaskedArray):
        return value.dtype.str, value.tolist()
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def copied(original: Indexed, folder: Path) -> Indexed:
    """The same files elsewhere, not indexed."""
    target = folder / "copy"
    target.mkdir()
    for path in original.files[0].parent.iterdir():
        if path.suffix != ".ffindex":
            (target / path.name).write_bytes(path.read_bytes())
    files = [target / path.name for path in original.files]
    is_folder = original.source.is_dir()
    return Indexed(target if is_folder else files[0], files, original.packed)


@every_kind
def test_records_are_those_of_the_packed_file(sources: dict[str, Indexed], kind: str) -> None:
    source, _, packed_file = sources[kind]
    place, file = ffrecord.open(source), ffrecord.open(packed_file)

    assert len(place) == len(file) > 0
    assert plain([place[i] for i in range(len(place))]) == plain(
        [file[i] for i in range(len(file))]
    )
    assert plain(list(place[3:0:-1])) == plain(list(file[3:0:-1]))
    order = np.random.default_rng(0).integers(len(file), size=200)
    for name in file[0]:
        found, wanted = place.read(order)[name], file.read(order)[name]
        is_array = isinstance(wanted, np.ndarray)
        assert plain(found if is_array else list(found)) == plain(
            wanted if is_array else list(wanted)
        )


@every_kind
def test_a_list_of_files_is_what_its_folder_is(sources: dict[str, Indexed], kind: str) -> None:
    source, files, packed_file = sources[kind]
    whole = ffrecord.open(source)

    for where in (files, [f"{path}.ffindex" for path in files], f"{files[0].parent}/*.ffindex"):
        assert ffrecord.open(where).fingerprint == whole.fingerprint
    if len(files) == 1:  # The fingerprint of a list depends on where its files end.
        assert whole.fingerprint == ffrecord.open(packed_file).fingerprint
    mixed = ffrecord.open([*files, packed_file])
    assert plain(mixed[len(whole)]) == plain(whole[0])
    assert pickle.loads(pickle.dumps(whole)).fingerprint == whole.fingerprint


@every_kind
def test_a_queue_and_futures_read_in_place(sources: dict[str, Indexed], kind: str) -> None:
    source, _, packed_file = sources[kind]
    place, file = ffrecord.open(source), ffrecord.open(packed_file)
    batches = [np.random.default_rng(i).integers(len(file), size=20) for i in range(12)]

    futures = [place.submit(batch) for batch in batches]
    for batch, future in zip(batches, futures, strict=True):
        assert plain(list(future.result())) == plain(list(file.read(batch)))


@each_form
@pytest.mark.parametrize("engine", ENGINES)
def test_a_loader_reads_in_place_and_resumes(
    sources: dict[str, Indexed], kind: str, engine: str
) -> None:
    def loader(where: Path) -> Any:  # noqa: ANN401
        dataset = Dataset(where)
        sampler = Sampler(dataset, 4 if len(dataset) > 8 else 2, seed=3)
        return DataLoader(dataset, batch_sampler=sampler, collate_fn=list, **ENGINES[engine])

    expected = [plain(batch) for batch in loader(sources[kind].packed)]
    place = loader(sources[kind].source)
    found = []
    for batch in place:
        found.append(plain(batch))
        if len(found) == 1:
            state = place.state_dict()
    assert found == expected
    again = loader(sources[kind].source)
    again.load_state_dict(state)
    assert [plain(batch) for batch in again] == expected[1:]


def test_names_in_a_tar_are_keys_and_columns_are_read_alone(sources: dict[str, Indexed]) -> None:
    place, file = ffrecord.open(sources["tar"].source), ffrecord.open(sources["tar"].packed)

    names = [sample["name"] for sample in file]
    assert place.find_all(names) == list(range(len(file)))
    assert place.find("missing") is None
    labels, wanted = place.column("label"), file.column("label")
    assert labels.tolist() == wanted.tolist()
    assert None in labels.tolist()


@every_kind
def test_commands_read_in_place(sources: dict[str, Indexed], kind: str) -> None:
    source, _, packed_file = sources[kind]

    assert ok("ffrecord", "head", "--json", source) == ok("ffrecord", "head", "--json", packed_file)
    ok("ffrecord", "inspect", source)


# --- Files that change ----------------------------------------------------------------------------


def appended(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def touched(path: Path) -> None:
    now = path.stat().st_mtime_ns
    os.utime(path, ns=(now, now + 1))


def replaced(path: Path) -> None:
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[::-1])
    touched(path)


CHANGES = {"appended": appended, "truncated": truncated, "touched": touched, "replaced": replaced}


@every_kind
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changed_is_refused_by_name(
    sources: dict[str, Indexed], kind: str, change: str, tmp_path: Path
) -> None:
    source, files, _ = copied(sources[kind], tmp_path)
    ffrecord.index(source)

    CHANGES[change](files[-1])

    for where in (source, f"{files[-1]}.ffindex"):
        with pytest.raises(ffrecord.ConflictError, match="changed after it was indexed") as error:
            ffrecord.open(where)[0]
        assert files[-1].name in str(error.value)
        assert "ffrecord index" in str(error.value)


@every_kind
def test_bytes_that_changed_unseen_are_never_served(
    sources: dict[str, Indexed], kind: str, tmp_path: Path
) -> None:
    source, files, packed_file = copied(sources[kind], tmp_path)
    ffrecord.index(source)
    expected = [plain(sample) for sample in ffrecord.open(packed_file)]
    before = files[0].stat()
    original = files[0].read_bytes()
    damaged = 0

    for at in range(0, len(original), max(1, len(original) // 60)):
        files[0].write_bytes(original[:at] + bytes([original[at] ^ 1]) + original[at + 1 :])
        os.utime(files[0], ns=(before.st_atime_ns, before.st_mtime_ns))
        reader = ffrecord.open(source)
        batch = reader.read(np.arange(len(reader)), on_corrupt="skip")
        indices = batch.indices.tolist()
        assert [plain(sample) for sample in batch] == [expected[i] for i in indices]
        damaged += len(indices) < len(reader)
        reader.close()
    assert damaged


def test_a_file_that_changes_under_a_reader_is_named_with_the_remedy(
    sources: dict[str, Indexed], tmp_path: Path
) -> None:
    source, files, _ = copied(sources["tar"], tmp_path)
    ffrecord.index(source)
    reader = ffrecord.open(source)
    reader[0]

    files[0].write_bytes(bytes(files[0].stat().st_size))

    with pytest.raises(ffrecord.CorruptionError, match="changed after it was indexed"):
        reader[1]
    assert plain(reader[40]) == plain(ffrecord.open(sources["tar"].packed)[40])


@every_kind
def test_shards_that_are_added_are_indexed_alone(
    sources: dict[str, Indexed], kind: str, tmp_path: Path
) -> None:
    source, files, packed_file = copied(sources[kind], tmp_path)
    ffrecord.index(files[:1] if kind != "mds" else source)
    first = files[0].with_name(files[0].name + ".ffindex")
    before = first.stat()

    made = ffrecord.index(source)

    assert first.stat().st_ino == before.st_ino
    assert made.record_count == len(ffrecord.open(packed_file))
    assert set(made.indexed) | set(made.unchanged) == set(map(str, files))
    assert str(files[0]) in made.unchanged
    touched(files[0])
    assert ffrecord.index(source).indexed == (str(files[0]),)
    assert plain(list(ffrecord.open(source))) == plain(list(ffrecord.open(packed_file)))


def as_old(path: Path, content: bytes) -> None:
    """Other bytes in a file that looks as it did."""
    before = path.stat()
    assert len(content) == before.st_size
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("count", [1, 2, 100])
def test_another_shard_as_large_and_as_old_is_named(tmp_path: Path, count: int) -> None:
    """As `cp -p` and tars of one time leave them. It may be damage as well: nothing can tell."""
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'"a {i:03}"\n' for i in range(count)))
    ffrecord.index(path)
    (index,) = set(tmp_path.iterdir()) - {path}
    lines = [f'"{i:03} b"' for i in range(count)]

    as_old(path, "".join(f"{line}\n" for line in lines).encode())

    with pytest.raises(ffrecord.CorruptionError, match=f"a.jsonl: .* remove {index} and index it"):
        ffrecord.index(path)
    index.unlink()
    assert ffrecord.index(path).indexed == (str(path),)
    assert [bytes(each["payload"]).decode() for each in ffrecord.open(path)] == lines


def test_an_index_of_a_file_with_damage_is_kept_since_it_tells_of_that(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'"a {i:03}"\n' for i in range(100)))
    ffrecord.index(path)

    as_old(path, path.read_bytes().replace(b"a 000", b"x 000"))

    assert ffrecord.index(path).unchanged == (str(path),)
    with pytest.raises(ffrecord.CorruptionError):
        ffrecord.open(path)[0]


# --- Indexes --------------------------------------------------------------------------------------


@each_form
@pytest.mark.filterwarnings("ignore:the last:UserWarning", "ignore:the header:UserWarning")
def test_a_damaged_index_is_refused_or_serves_right_records(
    sources: dict[str, Indexed], kind: str, tmp_path: Path
) -> None:
    source, files, packed_file = copied(sources[kind], tmp_path)
    ffrecord.index(source)
    expected = [plain(sample) for sample in ffrecord.open(packed_file)]
    index = files[0].with_name(files[0].name + ".ffindex")
    original = index.read_bytes()
    places = [*range(0, 64), *range(64, len(original), max(1, len(original) // 50))]

    for damage in (
        [original[:at] + bytes([original[at] ^ 16]) + original[at + 1 :] for at in places]
        + [original[:at] for at in places]
        + [b"", bytes(len(original)), original[::-1], original + b"x"]
    ):
        index.write_bytes(damage)
        try:
            reader = ffrecord.open(files[0])
            batch = reader.read(np.arange(len(reader)), on_corrupt="skip")
        except (ffrecord.CorruptionError, ffrecord.ConflictError, ValueError, OSError) as error:
            assert files[0].name in str(error)
        else:
            assert [plain(sample) for sample in batch] == [expected[i] for i in batch.indices]
        if len(damage) % 7 == 0:
            ffrecord.index(source)
            assert [plain(sample) for sample in ffrecord.open(source)] == expected
    ffrecord.index(source)
    assert [plain(sample) for sample in ffrecord.open(source)] == expected


@every_kind
def test_an_index_may_lie_elsewhere(sources: dict[str, Indexed], kind: str, tmp_path: Path) -> None:
    source, files, packed_file = copied(sources[kind], tmp_path)

    line = ok("ffrecord", "index", "--index-dir", tmp_path / "indexes", source)

    assert f"{len(ffrecord.open(packed_file))} records" in line
    assert not list(files[0].parent.glob("*.ffindex"))
    found = ffrecord.open(tmp_path / "indexes")
    assert plain(list(found)) == plain(list(ffrecord.open(packed_file)))
    assert found.files[0].name == str(files[0])


def test_a_copy_of_another_shards_index_is_refused(tmp_path: Path) -> None:
    """It would give that shard twice, and its own not at all."""
    (tmp_path / "data").mkdir()
    for name in "ab":
        (tmp_path / "data" / f"{name}.jsonl").write_text(f'{{"x": "{name}"}}\n')
    ffrecord.index(tmp_path / "data", index_dir=tmp_path / "index")
    shutil.copy2(tmp_path / "index" / "a.jsonl.ffindex", tmp_path / "index" / "b.jsonl.ffindex")

    with pytest.raises(
        ffrecord.ConflictError, match=r"b\.jsonl\.ffindex: the index of .*data/a\.jsonl"
    ):
        ffrecord.open(tmp_path / "index")


def test_one_folder_of_indexes_does_not_mix_two_files_of_one_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.jsonl").write_text(f'"{name}"\n')
    ffrecord.index(tmp_path / "a", index_dir=tmp_path / "indexes")

    with pytest.raises(ffrecord.ConflictError, match="another --index-dir"):
        ffrecord.index(tmp_path / "b", index_dir=tmp_path / "indexes")
    with pytest.raises(ValueError, match="several files"):
        ffrecord.index([tmp_path / "a", tmp_path / "b"], index_dir=tmp_path / "both")


def test_an_index_is_small_and_names_no_record_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"i": 1}\n' * 100_000)

    made = ffrecord.index(path)

    assert made.index_bytes < 32 * made.record_count
    assert len(ffrecord.open(path)) == 100_000


# --- What is refused ------------------------------------------------------------------------------


def a_link(path: Path) -> None:
    with tarfile.open(path, "a") as tar:
        info = tarfile.TarInfo("z.jpg")
        info.type, info.linkname = tarfile.LNKTYPE, "0000.jpg"
        tar.addfile(info)


def a_second_tar(path: Path) -> None:
    path.write_bytes(path.read_bytes() * 2)


def a_name_that_is_not_utf8(path: Path) -> None:
    with tarfile.open(path, "a", format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar:
        tar.addfile(tarfile.TarInfo("\udcff.jpg"))


def another_extension(path: Path) -> None:
    with tarfile.open(path, "a") as tar:
        for i in range(1001):
            tar.addfile(tarfile.TarInfo(f"z{i}.jpg"))
        tar.addfile(tarfile.TarInfo("zz.jpg"))
        tar.addfile(tarfile.TarInfo("zz.png"))


def no_end(path: Path) -> None:
    os.truncate(path, 1536)


@pytest.mark.parametrize(
    "spoil", [a_link, a_second_tar, a_name_that_is_not_utf8, another_extension, no_end]
)
def test_a_tar_that_cannot_be_read_in_place_is_named(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    path = write_tar(tmp_path / "x.tar", captioned(0, 5))
    spoil(path)

    done = run("ffrecord", "index", path)

    assert done.returncode != 0
    assert "x.tar" in done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["x.tar"]


def test_other_files_are_refused_with_what_helps(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    (tmp_path / "x.parquet").write_bytes(b"PAR1" * 20)
    (tmp_path / "empty.tar").write_bytes(b"")
    for name in ("x.jsonl.gz", "x.parquet", "empty.tar"):
        with pytest.raises(ValueError, match=f"{name}.*ffrecord-pack"):
            ffrecord.index(tmp_path / name)
    with pytest.raises(FileNotFoundError, match="missing"):
        ffrecord.index(tmp_path / "missing.tar")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        ffrecord.index(tmp_path / "*.none")
    with pytest.raises(ValueError, match="ffrecord index"):
        ffrecord.open(tmp_path / "x.parquet")[0]


def test_a_file_in_place_is_not_published(sources: dict[str, Indexed]) -> None:
    with pytest.raises(ValueError, match="ffrecord-pack"):
        ffrecord.publish(sources["jsonl"].source, "ffrecord://localhost:1/x")


def test_verify_reads_every_record_in_place(sources: dict[str, Indexed], tmp_path: Path) -> None:
    source, files, packed_file = copied(sources["tar"], tmp_path)
    ffrecord.index(source)
    whole = ok("ffrecord", "verify", source)
    assert all(f"{path}: 30 records" in whole for path in files)
    assert len(records(packed_file)) == 90
    before = files[0].stat()
    original = bytearray(files[0].read_bytes())
    original[1100] ^= 1
    files[0].write_bytes(original)
    os.utime(files[0], ns=(before.st_atime_ns, before.st_mtime_ns))

    done = run("ffrecord", "verify", source)

    assert done.returncode == 3
    assert "0.tar" in done.stdout + done.stderr
