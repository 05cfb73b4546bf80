"""Goal: `ffrecord` tells what a file is, finds damage, and says what to do; exit codes hold.

Method: the commands run as processes on files made here and on the damaged ones of tests/data.
"""

import importlib.metadata
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

import ffrecord
from cli import ok, run
from ffrecord._cli import features
from ffrecord._cli.doctor import advice_on_files, advice_on_threads

V1 = Path(__file__).resolve().parents[1] / "data" / "ffrecord-v1"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.ffr"
    with ffrecord.Writer(path, {"x": "f32[2,3]", "text": "utf8"}) as writer:
        for i in range(50):
            writer.write({"x": [[i] * 3] * 2, "text": f"number {i:02} " * 5})
    return path


def flip(path: Path, wanted: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[content.index(wanted)] ^= 1
    path.write_bytes(content)


def test_inspect_shows_records_size_schema_and_files(file: Path) -> None:
    text = ok("ffrecord", "inspect", file)
    facts = json.loads(ok("ffrecord", "inspect", "--json", file))

    reader = ffrecord.open(file)
    assert "records      50" in text
    assert "x: f32[2,3]" in text
    assert reader.fingerprint in text
    assert str(file) in text
    assert facts["schema"] == {"x": "f32[2,3]", "text": "utf8"}
    assert facts["files"][0]["size_bytes"] == file.stat().st_size
    assert facts["fingerprint"] == reader.fingerprint


def test_inspect_passes_warnings_on(file: Path) -> None:
    assert "warning: " in ok("ffrecord", "inspect", V1 / "old.ffr")


def test_verify_says_that_good_files_are_good(file: Path) -> None:
    line = ok("ffrecord", "verify", file, file)
    (report,) = json.loads(ok("ffrecord", "verify", file, "--json"))

    assert line.count("\n") == 2
    assert line.strip().endswith(": good")
    assert (report["record_count"], report["problem_count"], report["problems"]) == (50, 0, [])


def test_verify_lists_every_damaged_record_and_exits_with_3(file: Path) -> None:
    flip(file, b"number 07")
    flip(file, b"number 31")

    text = run("ffrecord", "verify", file)
    facts = run("ffrecord", "verify", "--json", file)

    assert (text.returncode, facts.returncode) == (3, 3)
    lines = text.stdout.splitlines()
    assert "record 7:" in lines[0]
    assert "record 31:" in lines[1]
    assert "a.ffr" in lines[0]
    assert lines[-1].endswith("2 damaged records")
    assert json.loads(facts.stdout)[0]["bad_record_count"] == 2


def test_verify_goes_on_after_a_file_that_does_not_open(file: Path) -> None:
    done = run("ffrecord", "verify", V1 / "empty.ffr", file)

    assert done.returncode == 3
    assert done.stdout.splitlines()[-1].endswith(": good")


@pytest.mark.parametrize(
    "name", ["bad_sample", "cut_data", "trailing", "cut_table", "huge_n", "empty", "zeros"]
)
def test_verify_finds_the_damage_of_version_1_files(name: str) -> None:
    done = run("ffrecord", "verify", V1 / f"{name}.ffr")

    assert done.returncode == 3
    assert name in done.stdout


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_what_is_not_there_is_named_and_exits_with_4(command: str, tmp_path: Path) -> None:
    done = run("ffrecord", command, tmp_path / "no.ffr")

    assert done.returncode == 4
    assert "no.ffr" in done.stderr


@pytest.mark.parametrize(
    "arguments", [["inspect"], ["frobnicate"], ["verify", "--colour"], ["publish", "x.ffr"]]
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str]) -> None:
    done = run("ffrecord", *arguments)

    assert done.returncode == 2
    assert "Usage" in done.stderr or "Error" in done.stderr


def test_doctor_names_engine_reason_and_limits() -> None:
    facts = json.loads(ok("ffrecord", "doctor", "--json"))

    assert facts["io_engine"] in ("io_uring", "threads")
    assert facts["io_engine_reason"]
    assert facts["open_files_limit"] > 0
    assert "io engine" in ok("ffrecord", "doctor")


@pytest.mark.parametrize(
    ("setting", "reason", "expected"),
    [
        ("0", "set up a ring: Operation not permitted", "seccomp profile"),
        (None, "set up a ring: Function not implemented", "seccomp profile"),
        ("2", "set up a ring: Operation not permitted", "sysctl kernel.io_uring_disabled=0"),
        ("0", "set up a ring: Too many open files", "Too many open files"),
        ("0", "set up a ring: Cannot allocate memory", "Cannot allocate memory"),
        ("2", "this build has no io_uring", "this build has no io_uring"),
    ],
)
def test_doctor_gives_the_remedy_for_the_reason_there_is(
    tmp_path: Path, setting: str | None, reason: str, expected: str
) -> None:
    file = tmp_path / "io_uring_disabled"
    if setting is not None:
        file.write_text(f"{setting}\n")
    advice = advice_on_threads(reason, file)
    assert expected in advice and reason in advice
    assert ("seccomp" in advice, "sysctl" in advice) == (
        "seccomp" in expected,
        "sysctl" in expected,
    )


@pytest.mark.parametrize(
    ("soft", "hard", "expected"),
    [
        (1024, 1 << 20, "run ulimit -n 1048576"),
        (1024, resource.RLIM_INFINITY, "run ulimit -n 4096"),
        (14, 14, "the hard limit is 14: root raises it"),
    ],
)
def test_doctor_does_not_advise_what_changes_nothing(soft: int, hard: int, expected: str) -> None:
    advice = advice_on_files(soft, hard)
    assert advice.startswith(f"at most {soft} files") and expected in advice


# io_uring_setup fails as under a container's seccomp profile; then the command runs.
WITHOUT_IO_URING = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
load, equal, answer, number = 0x20, 0x15, 0x06, 425
refuse, allow = 0x00050000 | 1, 0x7FFF0000
lines = [(load, 0, 0, 0), (equal, 0, 1, number), (answer, 0, 0, refuse), (answer, 0, 0, allow)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in lines))
program = struct.pack("HP", len(lines), ctypes.addressof(code))
set_no_new_privileges, set_seccomp, by_filter = 38, 22, 2
assert libc.prctl(set_no_new_privileges, 1, 0, 0, 0) == 0
assert libc.prctl(set_seccomp, by_filter, program, 0, 0) == 0, os.strerror(ctypes.get_errno())
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


def test_doctor_in_a_container_that_refuses_io_uring() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_IO_URING, "-m", "ffrecord._cli.main", "doctor", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    facts = json.loads(done.stdout)
    assert facts["io_engine"] == "threads"
    assert "Operation not permitted" in facts["io_engine_reason"]
    assert any("seccomp profile" in line for line in facts["advice"])
    assert facts["features"]["io_uring"] == facts["io_engine_reason"]


def test_doctor_lists_each_feature_as_present_or_with_its_remedy() -> None:
    features = json.loads(ok("ffrecord", "doctor", "--json"))["features"]
    expected = {"io_uring", "RDMA", "TLS", "object stores", "JPEG decoder", "daemon"}
    assert expected <= features.keys()
    # tools/packages.txt has what these are built with.
    assert not any(features[name] for name in ("TLS", "object stores", "JPEG decoder"))
    shown = ok("ffrecord", "doctor")
    for name, why in features.items():
        line = next(line for line in shown.splitlines() if line.startswith(f"feature {name}"))
        assert line.endswith(why or "present")


def test_doctor_names_the_remedy_of_a_package_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def nothing(package: str) -> str:
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr(importlib.metadata, "version", nothing)
    monkeypatch.setattr(features, "daemon_program", lambda: None)
    found = features.absences()
    assert found["PyTorch loader"] == "run pip install torch"
    assert "ffrecord[convert]" in found["Parquet, TFRecord"]
    assert "-Dserver=enabled" in found["daemon"]


def test_doctor_names_a_package_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.13.0+cpu", "pillow": "9.5.0", "pyarrow": "15.0", "fsspec": "2024.12.1"}
    declared = ["numpy>=1.24", *(f'{name}; extra == "x"' for name in ("torch>=2.4", "pyarrow>=15"))]
    declared += ["pillow>=10.0.1", "fsspec>=2025.3.2"]
    monkeypatch.setattr(importlib.metadata, "version", versions.__getitem__)
    monkeypatch.setattr(importlib.metadata, "requires", lambda _: declared)

    found = features.absences()

    assert found["PyTorch loader"] == found["Parquet, TFRecord"] == ""
    assert found["Pillow images"] == (
        "pillow 9.5.0 is too old, 10.0.1 or newer is needed: run pip install -U 'ffrecord[images]'"
    )
    assert found["fsspec file systems"].startswith("fsspec 2024.12.1 is too old, 2025.3.2 or newer")


def test_doctor_rdma_names_each_port_or_says_why_there_is_none() -> None:
    facts = json.loads(ok("ffrecord", "doctor", "rdma", "--json"))

    usable = [port for port in facts["ports"] if not port["skipped"]]
    assert (facts["rails"] is not None) == bool(usable)
    assert all(port["address"] and port["mtu"] >= 256 for port in usable)
    assert usable or facts["advice"]
    assert "rails" in ok("ffrecord", "doctor", "rdma")


def test_help_lists_the_commands() -> None:
    text = ok("ffrecord", "--help")

    for command in ("inspect", "verify", "publish", "list", "remove", "doctor"):
        assert command in text


def test_repair_keeps_what_is_whole_and_names_what_is_not(file: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.ffr"
    flip(file, b"number 07")
    flip(file, b"number 08")
    size = file.stat().st_size
    with file.open("r+b") as stream:
        stream.truncate(size - 4096)  # The footer is gone.

    done = run("ffrecord", "repair", file, new)

    assert done.returncode == 3
    assert "records 7 to 8" in done.stdout
    assert "kept 48 records, lost at least 2" in done.stdout
    assert "footer" in done.stdout
    texts = [sample["text"] for sample in ffrecord.open(new)]
    assert texts == [f"number {i:02} " * 5 for i in range(50) if i not in (7, 8)]
    assert run("ffrecord", "repair", file, new).returncode == 4  # It exists.
    facts = json.loads(run("ffrecord", "repair", "--json", "--overwrite", file, new).stdout)
    assert facts["lost"] == [[7, 9]]


@pytest.mark.parametrize("version", [1, 2])
def test_repair_of_a_cut_file_does_not_say_that_nothing_is_lost(
    version: int, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.ffr"
    records = [b"record %04d" % i for i in range(1000)]
    if version == 1:
        with ffrecord.FileWriter(cut, len(records)) as old:
            for record in records:
                old.write_one(record)
    else:
        with ffrecord.Writer(cut) as writer:
            for record in records:
                writer.write(record)
    with cut.open("r+b") as stream:
        stream.truncate(128 + 15 * 43 if version == 2 else 12 + 12_000 + 15 * 11)

    done = run("ffrecord", "repair", cut, tmp_path / "new.ffr")

    assert done.returncode == 3
    assert "lost 0" not in done.stdout
    # Version 1 counts its records in front; version 2 at its end, which is gone.
    lost = "kept 15 records, lost 985" if version == 1 else "kept 15 records, lost: unknown"
    assert lost in done.stdout


def test_repair_of_a_good_file_makes_another(file: Path, tmp_path: Path) -> None:
    assert "kept 50 records, lost 0" in ok("ffrecord", "repair", file, tmp_path / "new.ffr")
    assert ffrecord.open(tmp_path / "new.ffr").fingerprint == ffrecord.open(file).fingerprint


def test_repair_brings_keys_copies_and_metadata_along_and_says_so(tmp_path: Path) -> None:
    schema = {"label": "i64", "name": "utf8"}
    metadata = {"source": b"here"}
    old, new = tmp_path / "a.ffr", tmp_path / "new.ffr"
    with ffrecord.Writer(
        old, schema, key="name", copy_columns=["label"], metadata=metadata
    ) as writer:
        for i in range(50):
            writer.write({"label": i, "name": f"name {i:02}"})
    content = bytearray(old.read_bytes())
    content[content.index(b"name 07")] ^= 1  # In the record, not in its key.
    old.write_bytes(content)

    done = run("ffrecord", "repair", old, new)

    assert done.returncode == 3
    for line in ("kept: the schema", "kept: the metadata", "rebuilt: the keys: 49"):
        assert line in done.stdout
    assert "rebuilt: the copy of column label" in done.stdout
    assert "kept 49 records, lost 1" in done.stdout
    with ffrecord.open(new) as reader:
        assert [reader.find(f"name {i:02}") for i in (6, 7, 8)] == [6, None, 7]
        assert reader.column("label").tolist() == [i for i in range(50) if i != 7]
        assert reader.metadata() == metadata


def test_repair_of_what_is_no_record_file_makes_nothing(tmp_path: Path) -> None:
    (tmp_path / "text.ffr").write_text("no records in here")
    done = run("ffrecord", "repair", tmp_path / "text.ffr", tmp_path / "new.ffr")
    assert done.returncode == 3
    assert "the file cannot be identified" in done.stderr
    assert not (tmp_path / "new.ffr").exists()
