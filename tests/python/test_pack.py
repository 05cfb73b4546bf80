"""Goal: what was packed reads back as it was, and a failed packing leaves nothing behind.

Method: folders of real PNG images, tars and JSON lines made here go through the command; then
each thing that can be wrong with source or destination is tried.
"""

import gzip
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ffrecord
from cli import ok, run
from ffrecord._cli.units import show_size
from packing import refused

pytestmark = pytest.mark.wrong_data

CLASSES = ["birds", "cats", "dogs"]


def png(number: int) -> bytes:
    pixels = np.random.default_rng(number).integers(0, 255, (9, 7, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three classes of five images, one of them in a subfolder."""
    root = tmp_path / "images"
    for number in range(15):
        folder = root / CLASSES[number % 3] / ("deep" if number > 12 else "")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:02}.png").write_bytes(png(number))
    return root


def contents(root: Path) -> list[tuple[int, str, bytes]]:
    """Label, name and payload in the order in which they must be packed."""
    return [
        (label, str(file.relative_to(root)), file.read_bytes())
        for label, name in enumerate(CLASSES)
        for file in sorted((p for p in (root / name).rglob("*") if p.is_file()), key=str)
    ]


def packed(where: Path) -> list[tuple[int, str, bytes]]:
    batch = ffrecord.open(where).read(range(len(ffrecord.open(where))))
    rows = zip(batch["label"], batch["name"], batch["payload"], strict=True)
    return [(int(label), str(name), bytes(payload)) for label, name, payload in rows]


def make_tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_a_folder_of_classes_round_trips(images: Path, tmp_path: Path) -> None:
    line = ok("ffrecord-pack", images, tmp_path / "x.ffr")

    assert packed(tmp_path / "x.ffr") == contents(images)
    assert line.startswith("packed 15 records, ")
    assert "3 classes: 0 birds, 1 cats, 2 dogs" in line
    assert line.count("\n") == 1
    image = Image.open(io.BytesIO(packed(tmp_path / "x.ffr")[4][2]))
    assert image.size == (7, 9)


def test_compressed_and_in_parts_the_records_are_the_same(images: Path, tmp_path: Path) -> None:
    for number in range(15):
        (images / "cats" / f"z{number}.txt").write_text("compress me " * 200)

    ok("ffrecord-pack", images, tmp_path / "x.ffr")
    ok("ffrecord-pack", images, tmp_path / "z.ffr", "--compress")
    ok("ffrecord-pack", images, tmp_path / "parts", "--part-size", "4KiB")

    wanted = contents(images)
    for where in ("x.ffr", "z.ffr", "parts"):
        assert packed(tmp_path / where) == wanted
    assert (tmp_path / "z.ffr").stat().st_size < (tmp_path / "x.ffr").stat().st_size
    parts = sorted(p.name for p in (tmp_path / "parts").glob("*.ffr"))
    assert len(parts) > 5
    assert parts[:2] == ["PART_00000.ffr", "PART_00001.ffr"]
    assert sorted(os.listdir(tmp_path)) == ["images", "parts", "x.ffr", "z.ffr"]


def test_links_are_skipped_and_counted_unless_asked_for(images: Path, tmp_path: Path) -> None:
    (images / "cats" / "link.png").symlink_to(images / "dogs" / "02.png")
    (images / "cats" / "folder").symlink_to(images / "dogs")
    (images / "zebras").symlink_to(images / "dogs")
    (images / "readme.txt").write_text("no class")

    summary = json.loads(ok("ffrecord-pack", images, tmp_path / "x.ffr", "--json"))
    followed = json.loads(
        ok("ffrecord-pack", images, tmp_path / "y.ffr", "--json", "--follow-links")
    )

    assert summary["skipped"] == {"symbolic links": 3, "files outside of classes": 1}
    assert summary["record_count"] == 15
    assert followed["classes"] == [*CLASSES, "zebras"]
    assert followed["record_count"] == 15 + 1 + 5 + 5


@pytest.mark.parametrize("links", [["cats/up"], ["cats/dogs", "dogs/cats"], ["cats/self"]])
def test_links_that_go_round_are_refused(images: Path, tmp_path: Path, links: list[str]) -> None:
    for link in links:
        target = {"up": "..", "self": "."}.get(Path(link).name, f"../{Path(link).name}")
        (images / link).symlink_to(target)
    message = refused(2, "--follow-links", images, tmp_path / "x.ffr")
    assert f"{images}/cats/" in message
    assert "the loop has no end" in message


def test_a_folder_that_two_links_lead_to_is_packed_twice(images: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (images / "cats" / name).symlink_to("../dogs")
    ok("ffrecord-pack", "--follow-links", images, tmp_path / "x.ffr")
    assert len(ffrecord.open(tmp_path / "x.ffr")) == 15 + 2 * 5


def test_only_names_that_match_are_packed(images: Path, tmp_path: Path) -> None:
    (images / "cats" / "notes.txt").write_text("x")

    summary = json.loads(
        ok("ffrecord-pack", images, tmp_path / "x.ffr", "--include", "*.png", "--json")
    )

    assert (summary["record_count"], summary["skipped"]) == (15, {"other names": 1})


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz"])
def test_a_tar_round_trips(tmp_path: Path, mode: str) -> None:
    files = {f"train/{i}.png": png(i) for i in range(40)}
    tar = make_tar(tmp_path / "images.tar", files, mode)

    ok("ffrecord-pack", tar, tmp_path / "x.ffr")

    reader = ffrecord.open(tmp_path / "x.ffr")
    assert reader.schema == {"name": "utf8", "payload": "bytes"}
    batch = reader.read(range(40))
    assert batch["name"] == list(files)
    assert [bytes(payload) for payload in batch["payload"]] == list(files.values())


def test_webdatasets_groups_give_labels(tmp_path: Path) -> None:
    files: dict[str, bytes] = {}
    for i in range(5):
        files |= {f"a/{i}.cls": b"%d\n" % (i + 10), f"a/{i}.seg.png": png(i), f"a/{i}.json": b"{}"}
    tar = make_tar(tmp_path / "shard.tar", files)

    ok("ffrecord-pack", tar, tmp_path / "x.ffr")

    batch = ffrecord.open(tmp_path / "x.ffr").read(range(5))
    assert batch.columns == ("label", "name", "seg.png", "json")
    assert [int(label) for label in batch["label"]] == [10, 11, 12, 13, 14]
    assert list(batch["name"]) == [f"a/{i}" for i in range(5)]
    assert bytes(batch["seg.png"][4]) == png(4)
    assert list(batch["json"]) == ["{}"] * 5


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
def test_json_lines_round_trip(tmp_path: Path, suffix: str) -> None:
    lines = [json.dumps({"text": f"grüße {i}", "y": i * i}).encode() for i in range(100)]
    path = tmp_path / f"rows{suffix}"
    content = b"\n".join([*lines[:50], b"", *lines[50:]])
    path.write_bytes(gzip.compress(content) if suffix.endswith("gz") else content)

    ok("ffrecord-pack", path, tmp_path / "x.ffr", "--raw")
    line = ok("ffrecord-pack", path, tmp_path / "y.ffr", "--label-field", "y")

    batch = ffrecord.open(tmp_path / "x.ffr").read(range(100))
    assert [bytes(payload) for payload in batch["payload"]] == lines
    labels = ffrecord.open(tmp_path / "y.ffr").read(range(100))["label"]
    assert list(labels) == [i * i for i in range(100)]
    assert "skipped 1 blank lines" in line


def bad_sources(tmp_path: Path) -> dict[str, tuple[Path, int, str]]:
    """What is wrong: the source, the exit code and what the message must say."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "classless").mkdir()
    (tmp_path / "classless" / "a.png").write_bytes(png(0))
    (tmp_path / "shards").mkdir()
    for shard in ("0.tar", "1.TAR.gz", "README.md"):
        (tmp_path / "shards" / shard).touch()
    (tmp_path / "hollow" / "cats").mkdir(parents=True)
    (tmp_path / "text.dat").write_text("neither tar nor JSON lines")
    (tmp_path / "nothing.tar").write_bytes(b"")
    (tmp_path / "blank.jsonl").write_text("\n\n")
    (tmp_path / "broken.jsonl").write_text('{"a": 1}\n{"a": \n')
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"a": 1}\n' * 1000)[:-10])
    make_tar(tmp_path / "hollow.tar", {})
    whole = make_tar(tmp_path / "whole.tar", {f"{i}": png(i) for i in range(20)}).read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: 512 * 9 + 100])
    (tmp_path / "cut_header.tar").write_bytes(whole[: 512 * 6 + 100])
    (tmp_path / "cut_between.tar").write_bytes(whole[: 512 * 6])
    make_tar(tmp_path / "unlabelled.tar", {"0.cls": b"1", "0.png": b"x", "1.png": b"y"})
    make_tar(tmp_path / "worded.tar", {"0.cls": b"cat", "0.png": b"x"})
    os.mkfifo(tmp_path / "pipe.jsonl")
    latin = Path(os.fsdecode(os.fsencode(tmp_path) + b"/latin/cats"))
    latin.mkdir(parents=True)
    Path(os.fsdecode(os.fsencode(latin) + b"/gr\xfcn.png")).write_bytes(b"x")
    return {
        "missing": (tmp_path / "no", 4, "No such file or directory: "),
        "empty folder": (tmp_path / "empty", 2, "has no subfolders"),
        "no classes": (tmp_path / "classless", 2, "has no subfolders: one for each class"),
        "shards": (tmp_path / "shards", 2, "is a folder of datasets: pack them by their names"),
        "no files": (tmp_path / "hollow", 2, "1 subfolders but no files"),
        "foreign file": (tmp_path / "text.dat", 2, "text.dat is not a source: give a folder"),
        "empty file": (tmp_path / "nothing.tar", 2, "nothing.tar is empty"),
        "a pipe": (tmp_path / "pipe.jsonl", 2, "is neither a file nor a folder: "),
        "a device": (Path("/dev/zero"), 2, "/dev/zero is neither a file nor a folder: "),
        "no lines": (tmp_path / "blank.jsonl", 2, "no samples"),
        "no JSON": (tmp_path / "broken.jsonl", 2, "broken.jsonl, line 2: not JSON"),
        "cut gzip": (tmp_path / "cut.jsonl.gz", 3, "cut.jsonl.gz is damaged or truncated"),
        "empty tar": (tmp_path / "hollow.tar", 2, "has no files in it"),
        "cut tar": (tmp_path / "cut.tar", 3, "cut.tar"),
        "cut in a header": (tmp_path / "cut_header.tar", 3, "truncated"),
        "cut between": (tmp_path / "cut_between.tar", 3, "the end of the tar is missing"),
        "no label": (tmp_path / "unlabelled.tar", 2, "1.png has 0 labels"),
        "label of words": (tmp_path / "worded.tar", 2, "0.cls is b'cat', not a 64-bit integer"),
        "name of bytes": (tmp_path / "latin", 2, "is not UTF-8; rename it"),
    }


@pytest.mark.parametrize("target", ["x.ffr", "x"])
def test_a_bad_source_is_refused_by_name_and_leaves_nothing(tmp_path: Path, target: str) -> None:
    for what, (source, code, message) in bad_sources(tmp_path).items():
        before = sorted(os.listdir(tmp_path))

        done = run("ffrecord-pack", source, tmp_path / target)

        assert (done.returncode, done.stdout) == (code, ""), (what, done.stderr)
        assert message in done.stderr, (what, done.stderr)
        assert sorted(os.listdir(tmp_path)) == before, what


def test_a_name_that_is_empty_is_not_this_folder(images: Path, tmp_path: Path) -> None:
    for arguments in (["", str(tmp_path / "x")], [str(images), ""], [str(images), "", "x"]):
        done = run("ffrecord-pack", *arguments)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert "is empty: is a variable of the shell not set?" in done.stderr


@pytest.mark.parametrize("label", ['"two"', "true", "1.0", "9223372036854775808", "1" * 400])
def test_a_label_that_is_no_integer_is_refused_by_line(tmp_path: Path, label: str) -> None:
    (tmp_path / "x.jsonl").write_text(f'{{"y": 1}}\n{{"y": {label}}}\n')

    done = run("ffrecord-pack", tmp_path / "x.jsonl", tmp_path / "x.ffr", "--label-field", "y")

    assert done.returncode == 2
    assert "line 2: the field 'y' is not a 64-bit integer, but " in done.stderr
    assert len(done.stderr) < 400
    assert os.listdir(tmp_path) == ["x.jsonl"]


def test_an_unreadable_file_is_named(images: Path, tmp_path: Path) -> None:
    (images / "cats" / "gone.png").symlink_to(images / "nowhere.png")

    done = run("ffrecord-pack", images, tmp_path / "x.ffr", "--follow-links")

    assert done.returncode == 4
    assert "gone.png" in done.stderr
    assert os.listdir(tmp_path) == ["images"]


@pytest.mark.parametrize("target", ["x.ffr", "x"])
def test_an_existing_destination_needs_replace(images: Path, tmp_path: Path, target: str) -> None:
    ok("ffrecord-pack", images, tmp_path / target)
    first = packed(tmp_path / target)
    (images / "cats" / "new.png").write_bytes(png(99))

    refused = run("ffrecord-pack", images, tmp_path / target)

    assert refused.returncode == 4
    assert f"{target} exists; --overwrite replaces it" in refused.stderr
    assert packed(tmp_path / target) == first
    ok("ffrecord-pack", images, tmp_path / target, "--overwrite")
    assert packed(tmp_path / target) == contents(images)
    assert sorted(os.listdir(tmp_path)) == ["images", target]


def test_replace_never_deletes_what_is_no_record_file(images: Path, tmp_path: Path) -> None:
    before = contents(images)

    done = run("ffrecord-pack", images, images, "--overwrite")

    assert done.returncode == 4
    assert "contains other files than *.ffr" in done.stderr
    assert contents(images) == before


@pytest.mark.parametrize("target", ["x.ffr", "x"])
def test_a_kill_leaves_nothing_that_reads(images: Path, tmp_path: Path, target: str) -> None:
    """A slowed packer is killed when it has begun to write."""
    for number in range(400):
        (images / "birds" / f"n{number}.bin").write_bytes(os.urandom(20_000))
    code = (
        "import sys, time\n"
        "from ffrecord import Writer\n"
        "write = Writer._write_file_rows\n"
        "def slow(self, rows, first, begin, end):\n"
        "    for row in range(begin, end):\n"
        "        print('record', flush=True)\n"
        "        time.sleep(0.01)\n"
        "        write(self, rows, first, row, row + 1)\n"
        "Writer._write_file_rows = slow\n"
        "from ffrecord._cli.pack import main\n"
        "sys.exit(main())\n"
    )
    parts = ["--part-size", "100KiB"] if target == "x" else []
    arguments = [str(images), str(tmp_path / target), *parts]
    child = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE)
    assert child.stdout is not None
    for _ in range(20):
        child.stdout.readline()

    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()

    assert not (tmp_path / target).exists()
    assert [name for name in os.listdir(tmp_path) if not name.startswith(".")] == ["images"]
    for lease in tmp_path.glob(".x.packing/*/leases/*"):
        os.utime(lease, (0, 0))  # As if a minute had passed.
    ok("ffrecord-pack", images, tmp_path / target, *parts)
    assert sorted(os.listdir(tmp_path)) == ["images", target]


def test_an_interrupt_exits_with_130_and_leaves_nothing(images: Path, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # A shell's & ignores it.
        "from ffrecord import Writer\n"
        "write = Writer._write_file_rows\n"
        "def interrupted(self, *rows):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    write(self, *rows)\n"
        "Writer._write_file_rows = interrupted\n"
        "from ffrecord._cli.pack import main\n"
        "sys.exit(main())\n"
    )

    for target in ("x.ffr", "x"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(images), str(tmp_path / target)],
            capture_output=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 130, done.stderr
        assert os.listdir(tmp_path) == ["images"]


def test_a_full_disk_is_an_error_and_leaves_nothing_but_parts_that_are_done(
    images: Path, tmp_path: Path
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(small)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs may be mounted here: {done.stderr.strip()}")
    try:
        for number in range(40):
            (images / "birds" / f"n{number}.bin").write_bytes(os.urandom(20_000))
        for target in ("x.ffr", "x"):
            parts = ["--part-size", "100KiB"] if target == "x" else []
            full = run("ffrecord-pack", images, small / target, *parts)

            assert full.returncode == 4
            assert "No space left on device" in full.stderr
            assert target in full.stderr
            if target == "x.ffr":
                assert os.listdir(small) == []
            else:
                assert os.listdir(small) == [".x.packing"]
                assert "is kept in " in full.stderr
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_nothing_but_the_result_is_printed_off_a_terminal(images: Path, tmp_path: Path) -> None:
    assert run("ffrecord-pack", images, tmp_path / "x.ffr").stderr == ""


@pytest.mark.parametrize("no_color", [False, True])
def test_a_terminal_gets_a_bar_and_colour_unless_it_wants_none(
    images: Path, tmp_path: Path, no_color: bool
) -> None:
    terminal, theirs = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
    if no_color:
        environment["NO_COLOR"] = "1"
    child = subprocess.Popen(
        [sys.executable, "-m", "ffrecord._cli.pack", str(images), str(tmp_path / "x.ffr")],
        stderr=theirs,
        stdout=subprocess.DEVNULL,
        env={**environment, "TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # Linux says so when the other end is closed.
            break
        if not piece:
            break
        shown += piece
    os.close(terminal)

    assert child.wait() == 0
    assert b"packing" in shown
    assert (re.search(rb"\x1b\[[0-9;]*3[0-9]m", shown) is None) == no_color


def test_reading_and_writing_overlap(tmp_path: Path) -> None:
    """While samples are written slowly, the source is read ahead."""
    from ffrecord.pack import SourceOptions, open_source

    rows = b"".join(b'{"i": %d}\n' % i for i in range(200))
    (tmp_path / "x.jsonl").write_bytes(rows)
    source = open_source(tmp_path / "x.jsonl", SourceOptions(raw=True))
    samples = source.samples()
    next(samples)

    positions = [next(samples)[1] for _ in range(3)]

    assert positions[0] > 0


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (99 << 20, "99 MiB")],
)
def test_sizes_are_shown_as_people_read_them(size: int, text: str) -> None:
    assert show_size(size) == text


@pytest.mark.parametrize("size", ["0", "x", "-1", "12QiB", "1 2"])
def test_a_size_that_is_none_is_a_usage_error(images: Path, tmp_path: Path, size: str) -> None:
    done = run("ffrecord-pack", images, tmp_path / "x", f"--part-size={size}")

    assert done.returncode == 2
    assert "is not a size; write one such as 64MiB" in done.stderr
