"""Goal: what is packed from a bucket or a server is what is packed from the same local files.

Method: a file or folder of each kind is packed from a disk, from moto's S3, and from a server of
ranges, whole and in parts, by one process and by two; columns, keys, metadata and every record are
compared. The server then throttles, cuts off, lies and replaces files.
"""

import functools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import cuttable
import ffrecord
from cli import ok, run
from ffrecord import ConflictError
from ffrecord.pack import SourceOptions, _plan, open_source, pack
from ffrecord.pack import _places as places
from files_at_a_store import skip_without_http
from object_store import Store
from packing import records, write_classes
from range_server import RangeServer
from range_server import serve as serve_ranges
from test_pack_formats import GOLDEN, mds_shard, write_mds

pytestmark = pytest.mark.wrong_data

pytest.importorskip("pyarrow")

PART_BYTES = 8000
PARTS_MAX = 20
Made = tuple[Path, SourceOptions]


def _arrow(folder: Path) -> Path:
    import pyarrow as pa

    table = pa.table({"i": list(range(3000)), "t": ["x" * (i % 9) for i in range(3000)]})
    with pa.ipc.new_file(folder / "a.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    return folder / "a.arrow"


def _stream(folder: Path) -> Path:
    import pyarrow as pa

    table = pa.table({"i": list(range(3000))})
    with pa.ipc.new_stream(folder / "b.arrow", table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    return folder / "b.arrow"


def _npy(folder: Path) -> Path:
    np.save(folder / "a.npy", np.arange(6000, dtype="<i4").reshape(2000, 3))
    return folder / "a.npy"


def _npz(folder: Path) -> Path:
    np.savez_compressed(folder / "a.npz", i=np.arange(900), f=np.linspace(0, 1, 900))
    return folder / "a.npz"


def _classes(folder: Path) -> Path:
    return write_classes(_made(folder / "classes"))


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _mds(folder: Path) -> Path:
    return write_mds(folder / "mds", [mds_shard(GOLDEN), mds_shard(GOLDEN[::-1])], [2, 2], "gz")


def _hub(folder: Path) -> Path:
    (folder / "hub" / "data").mkdir(parents=True)
    for number in range(2):
        rows = "".join(json.dumps({"n": number, "i": i}) + "\n" for i in range(300))
        (folder / "hub" / "data" / f"train-0000{number}-of-00002.jsonl").write_text(rows)
    return folder / "hub"


def _record_file(folder: Path) -> Path:
    with ffrecord.Writer(folder / "a.ffr", schema={"i": "i64", "t": "utf8"}, key=True) as writer:
        for i in range(2000):
            writer.write({"i": i, "t": f"t{i}"}, key=f"k{i}")
    return folder / "a.ffr"


def _record_files(folder: Path) -> Path:
    _record_file(_made(folder / "records"))
    shutil.copy(folder / "records" / "a.ffr", folder / "records" / "b.ffr")
    return folder / "records"


def _yolo(folder: Path) -> Path:
    root = folder / "yolo"
    for inner in ("images", "labels"):
        (root / inner).mkdir(parents=True)
    for i in range(30):
        (root / "images" / f"{i}.jpg").write_bytes(bytes([i]) * (900 + i))
        (root / "labels" / f"{i}.txt").write_text(f"{i % 2} 0.5 0.5 0.1 0.{i + 1}\n")
    (root / "classes.txt").write_text("cat\ndog\n")
    return root


def _coco(folder: Path) -> Path:
    root = _made(folder / "coco")
    _made(root / "images")
    images = [{"id": i, "file_name": f"{i}.jpg", "width": i} for i in range(20)]
    notes = [{"id": i, "image_id": i % 20, "category_id": 7, "area": i / 4} for i in range(50)]
    for image in images:
        (root / "images" / str(image["file_name"])).write_bytes(b"jpg" * (50 + int(image["id"])))
    text = {"images": images, "annotations": notes, "categories": [{"id": 7, "name": "cat"}]}
    (root / "instances.json").write_text(json.dumps(text))
    return root / "instances.json"


MAKERS: dict[str, tuple[Callable[[Path], Path], SourceOptions]] = {
    **{name: (maker, options) for name, (maker, options, _) in cuttable.KINDS.items()},
    **{
        name: (maker, SourceOptions())
        for name, maker in {
            "Arrow file": _arrow,
            "Arrow stream": _stream,
            "npy": _npy,
            "npz": _npz,
            "classes": _classes,
            "MDS": _mds,
            "hub": _hub,
            "record file": _record_file,
            "folder of record files": _record_files,
            "YOLO": _yolo,
            "COCO": _coco,
        }.items()
    },
}
# What a server has no listing for.
FOLDERS = ("classes", "MDS", "hub", "folder of record files", "YOLO", "COCO")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, store: Store) -> dict[str, Made]:
    """A source of each kind on the disk, and in the bucket in a folder of the kind's name."""
    found = {}
    for name, (maker, options) in MAKERS.items():
        folder = tmp_path_factory.mktemp("kind")
        found[name] = maker(folder), options
        upload(folder, name)
    return found


def upload(folder: Path, name: str) -> None:
    import boto3

    client = boto3.client("s3", region_name="us-east-1")
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            key = f"{name}/{path.relative_to(folder)}"
            client.put_object(Bucket="bucket", Key=key, Body=path.read_bytes())


def address_of(name: str, path: Path) -> str:
    return (
        f"s3://bucket/{name}/{path.name}"
        if name != "COCO"
        else (f"s3://bucket/COCO/coco/{path.name}")
    )


def packed(source: object, made: Made, folder: Path, workers: int = 1) -> Path:
    """The packed source, in about PARTS_MAX parts, each of which costs requests."""
    path, options = made
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    size_bytes = sum(each.stat().st_size for each in files)
    pack(
        open_source(source, options),  # type: ignore[arg-type]
        folder,
        part_size_bytes=max(PART_BYTES, size_bytes // PARTS_MAX),
        workers=workers,
    )
    return folder


def assert_same(here: Path, there: Path) -> None:
    """All that a reader says of both is the same, and so is each byte."""
    assert [p.name for p in sorted(here.glob("*.ffr"))] == [
        p.name for p in sorted(there.glob("*.ffr"))
    ]
    ours, theirs = ffrecord.open(here), ffrecord.open(there)
    assert len(ours) > 0
    assert ours.fingerprint == theirs.fingerprint
    assert ours.metadata() == theirs.metadata()
    assert [str(c) for c in ours.columns] == [str(c) for c in theirs.columns]
    assert records(here) == records(there)
    for part in sorted(here.glob("*.ffr")):
        assert part.read_bytes() == (there / part.name).read_bytes(), part.name


@pytest.fixture
def one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files have an id that follows from their plan, which names the inputs."""
    monkeypatch.setattr(_plan.Plan, "id", "0" * 64)


@pytest.fixture(scope="module")
def from_disk(
    made: dict[str, Made], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """Packs a kind from the disk, once; to be called with `one_plan`."""

    @functools.cache
    def found(name: str) -> Path:
        return packed(str(made[name][0]), made[name], tmp_path_factory.mktemp("disk") / "packed")

    return found


@pytest.mark.parametrize("name", MAKERS)
def test_a_bucket_is_packed_as_the_disk_is(
    made: dict[str, Made],
    from_disk: Callable[[str], Path],
    name: str,
    tmp_path: Path,
    one_plan: None,
) -> None:
    address = address_of(name, made[name][0])
    stored = packed(address, made[name], tmp_path / "stored")
    assert_same(from_disk(name), stored)


@pytest.mark.parametrize("name", [name for name in MAKERS if name not in FOLDERS])
def test_a_server_is_packed_as_the_disk_is(
    made: dict[str, Made],
    from_disk: Callable[[str], Path],
    name: str,
    tmp_path: Path,
    one_plan: None,
) -> None:
    path, _ = made[name]
    skip_without_http()
    files = {f"/{each.name}": each.read_bytes() for each in path.parent.iterdir()}
    with serve_ranges(files) as served:
        stored = packed(served.url(f"/{path.name}"), made[name], tmp_path / "stored")
    assert_same(from_disk(name), stored)


@pytest.mark.parametrize("name", ["JSON lines", "WebDataset", "Parquet", "classes", "MDS"])
def test_workers_pack_a_bucket_as_one_process_does(
    made: dict[str, Made], name: str, tmp_path: Path, store: Store
) -> None:
    address = address_of(name, made[name][0])
    one = packed(address, made[name], tmp_path / "one")
    two = packed(address, made[name], tmp_path / "two", workers=2)
    for part in sorted(one.iterdir()):
        assert part.read_bytes() == (two / part.name).read_bytes(), part.name


def test_a_pattern_stands_for_objects_in_their_order_and_a_list_is_a_text(
    store: Store, tmp_path: Path
) -> None:
    for number in (2, 0, 1):
        (tmp_path / f"part-{number}.jsonl").write_text(f'{{"n": {number}}}\n' * 3)
    upload(tmp_path, "pattern")
    ok("ffrecord-pack", "s3://bucket/pattern/part-?.jsonl", tmp_path / "a")
    assert [row["n"] for row in records(tmp_path / "a")] == [0, 0, 0, 1, 1, 1, 2, 2, 2]

    names = [
        "# of one test",
        "s3://bucket/pattern/part-2.jsonl",
        "",
        str(tmp_path / "part-0.jsonl"),
    ]
    (tmp_path / "names.txt").write_text("\n".join(names))
    ok("ffrecord-pack", "--from", tmp_path / "names.txt", tmp_path / "b")
    assert [row["n"] for row in records(tmp_path / "b")] == [2, 2, 2, 0, 0, 0]

    done = run("ffrecord-pack", "s3://bucket/pattern/none-*.jsonl", tmp_path / "c")
    assert done.returncode != 0
    assert "no object matches" in done.stderr
    done = run("ffrecord-pack", "s3://bucket/pattern/none.jsonl", tmp_path / "c")
    assert "there is no such object" in done.stderr


def test_an_object_that_was_replaced_is_refused_by_name(store: Store, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {i}}}\n' for i in range(2000)))
    upload(tmp_path, "replaced")
    source = open_source("s3://bucket/replaced/a.jsonl")
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {i}}}\n' for i in range(2000, 4000)))
    upload(tmp_path, "replaced")
    with pytest.raises(ConflictError, match=r"s3://bucket/replaced/a\.jsonl: .* was replaced"):
        pack(source, tmp_path / "x", part_size_bytes=PART_BYTES)
    assert not (tmp_path / "x").exists()


def test_a_packing_of_an_object_that_was_replaced_is_not_continued(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ffrecord.pack import _work

    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {i}}}\n' for i in range(2000)))
    upload(tmp_path, "continued")

    done = []
    commit = _work.Job.commit

    def stops(self: _work.Job, *arguments: object) -> bool:
        if done:
            raise KeyboardInterrupt
        done.append(1)
        return commit(self, *arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_work.Job, "commit", stops)
        pack("s3://bucket/continued/a.jsonl", tmp_path / "x", part_size_bytes=PART_BYTES)
    (tmp_path / "a.jsonl").write_text("".join(f'{{"n": {i}}}\n' for i in range(2000, 4000)))
    upload(tmp_path, "continued")
    with pytest.raises(ConflictError, match=r"s3://bucket/continued/a\.jsonl has changed"):
        pack("s3://bucket/continued/a.jsonl", tmp_path / "x", part_size_bytes=PART_BYTES)


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    draws = np.random.default_rng(4)
    rows = [json.dumps({"i": i, "t": draws.bytes(20).hex()}) for i in range(60_000)]
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def fingerprint(lines: Path) -> str:
    """Of the lines, packed from the disk."""
    pack(lines, lines.parent / "local.ffr")
    return ffrecord.open(lines.parent / "local.ffr").fingerprint


@pytest.fixture
def served(lines: Path) -> Iterator[RangeServer]:
    skip_without_http()
    with serve_ranges({"/a.jsonl": lines.read_bytes()}) as served:
        yield served


@pytest.mark.parametrize("fault", [429, 500, 503, "cut", "reset"])
def test_faults_that_pass_cost_time_alone(
    served: RangeServer, fingerprint: str, tmp_path: Path, fault: str | int
) -> None:
    served.fault = lambda number, path: fault if number % 3 == 1 else None
    stored = pack(served.url("/a.jsonl"), tmp_path / "stored.ffr")
    assert stored.record_count == 60_000
    assert ffrecord.open(tmp_path / "stored.ffr").fingerprint == fingerprint


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("whole", "does not support range requests"),
        ("shifted", "answered with bytes"),
        (403, "access denied"),
        (404, "no such file"),
    ],
)
def test_a_server_that_lies_or_refuses_is_told_and_nothing_is_left(
    served: RangeServer, tmp_path: Path, fault: str | int, said: str
) -> None:
    served.fault = lambda number, path: fault if number > 4 else None
    before = sorted(tmp_path.iterdir())
    done = run("ffrecord-pack", served.url("/a.jsonl?signature=secret"), tmp_path / "x.ffr")
    assert done.returncode != 0
    assert said in done.stderr
    assert "secret" not in done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_a_file_that_changes_while_it_is_read_is_refused(
    served: RangeServer, tmp_path: Path
) -> None:
    data = served.files["/a.jsonl"]

    def replaced(number: int, path: str) -> None:
        if number == 6:
            served.files["/a.jsonl"] = data[::-1]

    served.fault = replaced
    with pytest.raises(ConflictError, match="was replaced"):
        pack(served.url("/a.jsonl"), tmp_path / "x.ffr")
    assert not (tmp_path / "x.ffr").exists()


def test_a_server_that_names_no_version_is_refused(served: RangeServer, tmp_path: Path) -> None:
    served.fault = lambda number, path: "untagged"
    with pytest.raises(ValueError, match="neither ETag nor Last-Modified"):
        pack(served.url("/a.jsonl"), tmp_path / "x.ffr")


@pytest.mark.parametrize("from_number", range(2, 8))
def test_a_server_that_names_the_version_no_more_is_refused(
    served: RangeServer, tmp_path: Path, from_number: int
) -> None:
    served.fault = lambda number, path: "untagged" if number >= from_number else None
    with pytest.raises((ConflictError, ValueError), match=r"a\.jsonl.*ETag"):
        pack(served.url("/a.jsonl"), tmp_path / "x.ffr")
    assert not (tmp_path / "x.ffr").exists()


def test_a_query_may_be_a_secret_and_is_written_nowhere(
    served: RangeServer, lines: Path, tmp_path: Path
) -> None:
    address = served.url("/a.jsonl?X-Signature=hidden").replace("http://", "http://me:word@")
    pack(address, tmp_path / "x", workers=2, part_size_bytes=1 << 20)
    assert len(ffrecord.open(tmp_path / "x")) == 60_000
    for path in (tmp_path / "x").iterdir():
        assert b"hidden" not in path.read_bytes()
        assert b"word@" not in path.read_bytes()
    # With a newer signature it is the same file: what is done is not done again.
    again = served.url("/a.jsonl?X-Signature=newer")
    assert pack(again, tmp_path / "x", part_size_bytes=1 << 20).record_count == 60_000
    with pytest.raises(ValueError, match="with different queries"):
        pack([address, again], tmp_path / "y")


def test_a_file_is_read_in_little_memory_and_few_requests(served: RangeServer, lines: Path) -> None:
    (path,) = places.from_root(served.url("/a.jsonl"))
    places.forget()
    with places.open_input(path) as file:
        largest = 0
        found = b""
        while data := file.read(1 << 16):
            found += data
            raw = file.raw
            ahead = raw._next[1] if raw._next else 0  # type: ignore[attr-defined]
            largest = max(largest, len(raw._piece.data) + ahead)  # type: ignore[attr-defined]
    assert found == lines.read_bytes()
    assert largest <= 16 << 20
    assert len(served.seen) < 40


def test_an_address_of_another_kind_is_refused(tmp_path: Path) -> None:
    for name in ("gs://bucket/a.jsonl", "ffrecord://host/x", "s3://", "s3:///x"):
        with pytest.raises(ValueError, match=r"inputs are local, or at|no bucket|s3://BUCKET/KEY"):
            pack(name, tmp_path / "x.ffr")
