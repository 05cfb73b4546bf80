"""Goal: what the writer reads itself, from folders and tars, is what Python would have given it.

Method: folders and tars are packed in both ways, by one process and by two, and compared byte by
byte: empty and large files, parts that end anywhere, compression, keys, tars that `tarfile` has to
take over in their middle.
"""

import io
import os
import random
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from ffrecord.errors import CorruptionError
from ffrecord.pack import SourceOptions, open_source, pack
from ffrecord.pack._folder import FolderSource
from ffrecord.pack._source import InFiles
from ffrecord.pack._tar import TarSource
from ffrecord.pack._tar_members import TarMembers
from ffrecord.pack._tar_rows import TarRows
from packing import contents, records

pytestmark = pytest.mark.wrong_data


def compared(
    source: Any,  # noqa: ANN401 - as of `pack`
    work: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: SourceOptions | None = None,
    **packing: Any,  # noqa: ANN401
) -> None:
    """Pack a source in both ways, and demand the same bytes."""
    for workers in (1, 2):
        given = source if options is None else open_source(source, options)
        pack(given, work / f"files{workers}", workers=workers, **packing)
    with monkeypatch.context() as changed:
        for kind in (FolderSource, TarSource):
            changed.setattr(kind, "give_files", lambda _: None)
        given = source if options is None else open_source(source, options)
        pack(given, work / "python", **packing)

    wanted = contents(work / "python")
    assert wanted == contents(work / "files1") == contents(work / "files2")
    assert len(wanted) > 3


def write_folder(folder: Path) -> Path:
    draws = random.Random(1)
    for name in ("a", "ü/deep"):
        (folder / name).mkdir(parents=True)
        for number in range(60):
            size = draws.choice((0, 1, 100, 30_000))
            (folder / name / f"{number:03}.bin").write_bytes(draws.randbytes(size))
    (folder / "a" / "large").write_bytes(draws.randbytes(3_000_000))
    return folder


@pytest.mark.parametrize(
    "packing",
    [{}, {"compress": True}, {"key": "name", "dictionary_bytes": 1024}, {"part_size_bytes": 7}],
)
def test_a_folder_gives_the_same_bytes(
    packing: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_folder(tmp_path / "source")
    options = SourceOptions(nested=True)

    compared(source, tmp_path, monkeypatch, options, **{"part_size_bytes": 100_000, **packing})

    found = records(tmp_path / "files1")
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    assert sorted(row["name"] for row in found) == [str(path.relative_to(source)) for path in paths]
    for row in found:
        assert row["payload"] == (source / row["name"]).read_bytes()


def test_contents_may_be_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "source" / "a").mkdir(parents=True)
    for number in range(10):
        (tmp_path / "source" / "a" / f"{number}").write_bytes(b"content %d" % number)

    compared(tmp_path / "source", tmp_path, monkeypatch, key="payload", part_size_bytes=20)

    assert ffrecord.open(tmp_path / "files1").find(b"content 7") == 7
    (tmp_path / "source" / "a" / "5").write_bytes(b"")
    with pytest.raises(ValueError, match=r"row 5: column 'payload': the value is empty"):
        pack(tmp_path / "source", tmp_path / "x.ffr", key="payload")


def write_tar(path: Path, names: list[str], **form: Any) -> Path:  # noqa: ANN401
    draws = random.Random(2)
    with tarfile.open(path, "w", **form) as tar:
        folder = tarfile.TarInfo("./a")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            content = (
                b"%d" % number if name.endswith("cls") else draws.randbytes(number * 97 % 4000)
            )
            if name.endswith((".txt", ".json")):
                content = content.hex().encode()
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


SINGLE = [f"./a/{number:04}.jpg" for number in range(300)]
SAMPLES = [
    f"{number:04}.{extension}"
    for number in range(200)
    for extension in ("jpg", "cls", "txt", "png")
    if number % 7 or extension != "png"
]


@pytest.mark.parametrize("names", [SINGLE, SAMPLES])
@pytest.mark.parametrize("packing", [{}, {"compress": True, "part_size_bytes": 60_000}])
def test_a_tar_gives_the_same_bytes(
    names: list[str], packing: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tar(tmp_path / "x.tar", names)

    compared(path, tmp_path, monkeypatch, **{"part_size_bytes": 50_000, **packing})


@pytest.mark.parametrize(
    "options", [{"raw": True}, {"columns": ("png", "name")}, {"drop": ("txt",)}]
)
def test_options_of_tars_give_the_same_bytes(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_tar(tmp_path / "x.tar", SAMPLES)

    compared(path, tmp_path, monkeypatch, SourceOptions(**options), part_size_bytes=50_000)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("odd", ["x" * 98 + "/{:04}.jpg", "ü{:04}.jpg", ".hidden{:04}"])
def test_a_header_that_is_not_ordinary_changes_nothing(
    form: int, odd: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tar has such headers after ordinary ones, and ordinary ones after those."""
    names = [odd.format(n) if n % 100 > 90 else f"{n:04}.jpg" for n in range(300)]
    path = write_tar(tmp_path / "x.tar", names, format=form)

    compared(path, tmp_path, monkeypatch, part_size_bytes=50_000)


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_pax_headers_need_no_tarfile(
    form: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As writers of WebDataset make them, whose times have fractions."""

    def given(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.mtime = 1.5
        return info

    names = [f"ü{n}.jpg" if n % 2 else f"{'x' * 99}/{n}.jpg" for n in range(50)]
    for number, name in enumerate(names):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(b"%d" % number)
    with tarfile.open(tmp_path / "x.tar", "w", format=form) as tar:
        for name in names:
            tar.add(tmp_path / "source" / name, name, filter=given)

    monkeypatch.setattr(TarMembers, "_content", None)
    pack(tmp_path / "x.tar", tmp_path / "x.ffr")

    found = [(row["name"], row["payload"]) for row in records(tmp_path / "x.ffr")]
    assert found == [(name, b"%d" % number) for number, name in enumerate(names)]


def test_samples_of_which_one_file_was_read_and_one_was_not_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first header that is not ordinary is in the middle of a sample."""
    names = [f"{n:04}.{e}" for n in range(300) for e in ("jpg", "png")]
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for number, name in enumerate(names):
            info = tarfile.TarInfo(name)
            info.size = number
            info.pax_headers = {"VENDOR.key": "odd"} if number == 301 else {}
            tar.addfile(info, io.BytesIO(b"x" * number))

    compared(path, tmp_path, monkeypatch, part_size_bytes=50_000)

    assert [len(row["png"]) for row in records(tmp_path / "files1")] == list(range(1, 600, 2))


def test_links_and_sparse_files_are_taken_from_tarfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w") as tar:
        for number in range(100):
            info = tarfile.TarInfo(f"{number:03}")
            info.size = 1000
            tar.addfile(info, io.BytesIO(b"%03d" % number * 333 + b"x"))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.LNKTYPE, "050"
        tar.addfile(link)
        info = tarfile.TarInfo("last")
        tar.addfile(info)

    compared(path, tmp_path, monkeypatch, part_size_bytes=10_000)

    by_name = {row["name"]: row["payload"] for row in records(tmp_path / "files1")}
    assert by_name["link"] == by_name["050"] == b"050" * 333 + b"x"
    assert by_name["last"] == b""


def test_a_file_that_changes_before_the_writer_reads_it_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "source" / "a").mkdir(parents=True)
    for number in range(100):
        (tmp_path / "source" / "a" / f"{number:02}").write_bytes(b"before")
    for content, said in ((b"after!", "99 was changed after it was listed"), (b"x", "has 1:")):
        source = open_source(tmp_path / "source")
        (tmp_path / "source" / "a" / "99").write_bytes(content)
        with pytest.raises(ValueError, match=said):
            pack(source, tmp_path / "x.ffr")
        (tmp_path / "source" / "a" / "99").write_bytes(b"before")
    source = open_source(tmp_path / "source")
    (tmp_path / "source" / "a" / "50").unlink()
    with pytest.raises(FileNotFoundError, match="a/50"):
        pack(source, tmp_path / "x")
    assert sorted(os.listdir(tmp_path)) == ["source"]


@pytest.mark.parametrize("destination", ["x.ffr", "x"])
@pytest.mark.parametrize("names", [SINGLE, SAMPLES, [*SINGLE[:50], "x" * 101, *SINGLE[50:]]])
@pytest.mark.parametrize("how", ["another", "changed", "longer"])
def test_a_tar_that_changes_while_it_is_packed_is_an_error(
    how: str,
    names: list[str],
    destination: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its headers were read, and its contents were not; another tar has the same size and time."""
    path = write_tar(tmp_path / "x.tar", names)
    found = path.stat()
    given = TarRows.given

    def after_it_changed(rows: TarRows, *place: int) -> Any:  # noqa: ANN401 - what it yields
        if how == "another":
            shutil.copy(path, tmp_path / "new")
            os.utime(tmp_path / "new", ns=(found.st_atime_ns, found.st_mtime_ns))
            (tmp_path / "new").rename(path)
        else:
            with path.open("r+b") as file:
                file.seek(600 if how == "changed" else 0, 0 if how == "changed" else os.SEEK_END)
                file.write(bytes(512))
        monkeypatch.undo()
        return given(rows, *place)

    monkeypatch.setattr(TarRows, "given", after_it_changed)
    with pytest.raises(ValueError, match=r"x\.tar was changed while it was read"):
        pack(path, tmp_path / destination)
    assert os.listdir(tmp_path) == ["x.tar"]


def test_a_tar_that_ends_in_any_part_of_a_header_is_damaged(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "x.tar", SINGLE[:3])
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1].offset
    whole = path.read_bytes()
    for count in range(0, 512, 7):
        path.write_bytes(whole[: last + count])
        with pytest.raises(CorruptionError, match=r"x\.tar is damaged or truncated"):
            pack(path, tmp_path / "x.ffr")


@pytest.mark.parametrize(
    ("size_bytes", "room", "compress"),
    [(1 << 39, 8 << 30, False), (150_000_000, 250_000_000, True)],
)
def test_a_file_that_there_is_no_memory_for_is_an_error(
    size_bytes: int, room: int, compress: bool, tmp_path: Path
) -> None:
    """No memory to read it; or enough for that, and not for its compressed form, too."""
    (tmp_path / "source" / "a").mkdir(parents=True)
    (tmp_path / "source" / "a" / "sparse").touch()
    os.truncate(tmp_path / "source" / "a" / "sparse", size_bytes)
    code = (
        "import resource, sys; from ffrecord.pack import pack\n"
        "limit = int(open('/proc/self/statm').read().split()[0]) * resource.getpagesize()\n"
        "limit += int(sys.argv[3]); resource.setrlimit(resource.RLIMIT_AS, (limit, limit))\n"
        "pack(sys.argv[1], sys.argv[2], compress=sys.argv[4] == 'True')"
    )
    words = [str(tmp_path / "source"), str(tmp_path / "x.ffr"), str(room), str(compress)]
    words = [sys.executable, "-c", code, *words]
    done = subprocess.run(words, capture_output=True, text=True, check=False)

    assert done.returncode == 1, done.stderr
    assert re.search(r"OSError: \[Errno 12\] .*/a/sparse: no memory for a record of", done.stderr)
    assert os.listdir(tmp_path) == ["source"]


def test_contents_are_no_objects_of_python(tmp_path: Path) -> None:
    """Else the test of equal bytes would compare one way with itself."""
    folder = open_source(write_folder(tmp_path / "source"), SourceOptions(nested=True))
    tar = open_source(write_tar(tmp_path / "x.tar", SAMPLES))
    for source in (folder, tar):
        source.give_files()  # type: ignore[attr-defined]
        assert all(isinstance(sample, InFiles) for sample, _ in source.samples())
