"""Goal: `ffrecord doctor` measures what it is asked about, and says in sentences what to do.

Method: the command on small files, folders and a daemon; verdicts on made-up findings.
"""

import json
import os
import re
import shutil
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

import ffrecord
from cli import ok, run
from daemon import Daemon
from ffrecord._cli import doctor
from ffrecord._cli import verdicts as said
from ffrecord._cli.measure import _instead_of_device, in_time, verdicts
from ffrecord.errors import DeadlineExceeded
from virtual_clock import virtual_time

KiB, MiB = 1 << 10, 1 << 20
SHORT = ("--seconds", "0.6")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("files") / "a.ffr"
    with ffrecord.Writer(path) as writer:
        for _ in range(300):
            writer.write(os.urandom(10_000))
    return path


# What is said in any case, last.
OF_HOST = ["memory", "processors", "RDMA"]


def subjects(facts: dict[str, Any]) -> list[str]:
    """What each verdict is about."""
    return [line.split(":")[0] for line in facts["verdicts"]]


def measured(*words: str | Path) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(ok("ffrecord", "doctor", *words, *SHORT, "--json"))
    return facts


def test_a_file_is_read_in_each_way_and_not_changed(file: Path) -> None:
    before = file.read_bytes(), file.stat().st_mtime_ns
    facts = measured(file)

    assert (facts["measured"], facts["size_bytes"]) == (str(file), file.stat().st_size)
    ways = {(one["direct"], one["random"], one["block_bytes"]) for one in facts["rates"]}
    kinds = {(True, 4 * KiB), (True, 128 * KiB), (False, MiB)}
    assert {way[1:] for way in ways} == kinds
    assert (facts["why_not_direct"] == "") == ((True, True, 4 * KiB) in ways)
    for rate in facts["rates"]:
        assert rate["read_bytes_per_s"] > 0 and rate["reads_per_s"] > 0
        assert 0 < rate["latency_median_us"] <= rate["latency_p99_us"]
    assert 0 <= facts["resident_share"] <= 1
    assert facts["record_read_bytes_per_s"] > 0
    assert subjects(facts) == ["device", "direct I/O", "page cache", *OF_HOST]
    assert before == (file.read_bytes(), file.stat().st_mtime_ns)


def test_people_read_rates_and_verdicts(file: Path) -> None:
    shown = ok("ffrecord", "doctor", file, *SHORT)
    assert "buffered random, 4.0 KiB, 32 at a time: " in shown
    assert "buffered in order, 1.0 MiB, 8 at a time: " in shown
    assert "page cache: it held" in shown


def test_a_folder_is_measured_by_its_largest_record_file(file: Path, tmp_path: Path) -> None:
    shutil.copy(file, tmp_path / "large.ffr")
    (tmp_path / "small.ffr").write_bytes(file.read_bytes()[:5000])
    (tmp_path / "other").write_bytes(bytes(2 * file.stat().st_size))
    before = tmp_path.stat().st_mtime_ns
    assert measured(tmp_path)["measured"] == str(tmp_path / "large.ffr")
    assert tmp_path.stat().st_mtime_ns == before


def test_a_folder_is_written_to_only_where_that_is_asked_for(tmp_path: Path) -> None:
    before = tmp_path.stat().st_mtime_ns
    refused = run("ffrecord", "doctor", tmp_path)
    assert refused.returncode == 2
    assert "has no file to read: name a file, or add --write" in refused.stderr
    assert tmp_path.stat().st_mtime_ns == before

    facts = measured(tmp_path, "--write")

    assert facts["written_bytes"] == facts["size_bytes"] > 0
    assert facts["write_bytes_per_s"] > 0 and facts["rates"]
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_named() -> None:
    refused = run("ffrecord", "doctor", "/proc/self/task", "--write")
    assert refused.returncode == 4
    assert re.search(r"write to /proc/self/task: .*; choose another folder\n", refused.stderr)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["none"], 4, "No such file"),
        ([""], 2, "the ADDRESS is empty"),
        (["/proc/self/environ/x"], 4, "environ/x"),
        (["file", "--write"], 2, "is no folder"),
        (["--write"], 2, "--write needs a local folder"),
        (["ffrecord://localhost", "--write"], 2, "--write needs a local folder"),
        ([".", "--seconds", "0"], 2, "--seconds"),
    ],
)
def test_wrong_places_are_named(
    words: list[str],
    status: int,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    done = run("ffrecord", "doctor", *words)
    assert done.returncode == status
    assert message in done.stderr


def test_an_empty_file_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    verdict = measured(tmp_path / "empty")["verdicts"][0]
    assert verdict == "nothing was read: the file is empty, or the kernel does not tell its size"
    assert measured(Path("/proc/self/maps"))["verdicts"][0] == verdict


def test_holes_say_nothing_of_a_device(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 30)
    verdict = measured(tmp_path / "sparse")["verdicts"][0]
    assert "of 1.0 GiB, only 0 B are stored" in verdict


def test_a_dataset_is_read_and_one_that_is_not_there_is_named(file: Path, tmp_path: Path) -> None:
    with Daemon(tmp_path / "served") as daemon:
        ffrecord.publish([file], daemon.address("x"))
        facts = measured(daemon.address("x"))
        assert facts["dataset_records"] == 300
        assert facts["dataset_read_bytes_per_s"] > 0
        assert subjects(facts) == ["daemon", "dataset", *OF_HOST]
        assert subjects(measured(daemon.address(""))) == ["daemon", *OF_HOST]
        facts = measured(daemon.address("y"))
        assert facts["round_trip_us"] > 0
        assert any("cannot be read" in line and "y" in line for line in facts["advice"])


def test_little_shared_memory_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(64 * MiB, 60 * MiB))
    facts = doctor.examine()
    assert facts["shared_memory_bytes"] == 64 * MiB
    assert any("--shm-size" in line for line in facts["advice"])


# --- Verdicts ---


def rate(per_s: int, *, direct: bool, block: int, cached: float = 0.0) -> dict[str, Any]:
    return {
        "direct": direct,
        "random": True,
        "block_bytes": block,
        "reads_per_s": per_s,
        "read_bytes_per_s": per_s * block,
        "read_bytes": 100 * block,
        "cached_bytes": round(cached * 100 * block),
    }


def findings(
    direct: int = 10_000, buffered: int = 10_000, cached: float = 0.0, **changes: object
) -> dict[str, Any]:
    rates = [
        rate(per_s, direct=is_direct, block=block, cached=0 if is_direct else cached)
        for is_direct, per_s in ((True, direct), (False, buffered))
        for block in (4 * KiB, 128 * KiB)
    ]
    facts = {
        "size_bytes": MiB,
        "stored_bytes": MiB,
        "direct_offset_alignment_bytes": 512,
        "why_not_direct": "",
        "resident_share": 0.25,
        "kept_share": 1.0,
        "rates": rates,
    }
    return facts | changes


def without_direct(**changes: Any) -> dict[str, Any]:  # noqa: ANN401 - of `findings`
    facts = findings(**changes) | {"why_not_direct": "tmpfs"}
    return facts | {"rates": [one for one in facts["rates"] if not one["direct"]]}


@pytest.mark.parametrize(
    ("facts", "number", "sentence"),
    [
        (findings(), 0, "device: fast at random, 10000 reads/s"),
        (findings(direct=150), 0, "device: slow at random, 150 reads/s of 4 KiB: shuffle in bl"),
        (without_direct(buffered=150), 0, "device: slow at random, 150"),
        (
            without_direct(cached=1.0, resident_share=0.9),
            0,
            "device: not measured, because the page cache holds",
        ),
        (without_direct(cached=1.0), 0, "the page cache soon held the file, which is small"),
        (findings(), 1, "direct I/O: supported, aligned to 512 bytes; about as fast"),
        (findings(direct=20_000), 1, "2.0 times as fast as buffered: use direct=True"),
        (findings(direct=5_000), 1, "0.5 times as fast as buffered: leave out direct=True"),
        (
            findings(cached=0.5, resident_share=1.0),
            1,
            "not compared, because the page cache holds the file",
        ),
        (findings(cached=0.5), 1, "not compared, because the page cache soon held the file, which"),
        (without_direct(), 1, "direct I/O: not possible: tmpfs; direct=True changes nothing"),
        (findings(), 2, "page cache: it held 25% of the file; what is read stays there"),
        (findings(kept_share=None), 2, "page cache: it held 25% of the file"),
        (findings(kept_share=0.2), 2, "80% of what was read is gone again after half a second"),
        (findings(resident_share=None), 2, "run as the owner"),
    ],
)
def test_a_verdict_follows_from_the_findings(
    facts: dict[str, Any], number: int, sentence: str
) -> None:
    assert sentence in verdicts(facts)[number]


GiB = 1 << 30
NO_GROUP = {
    "memory_free_bytes": 8 * GiB,
    "batch_memory_max_bytes": 6 * GiB,
    "memory_limit_bytes": None,
    "cpus": 16,
    "cpu_limit": None,
}
PORTS = [{"device": "mlx5_0", "port": 1}]


@pytest.mark.parametrize(
    ("changes", "number", "sentence"),
    [
        ({}, 0, "memory: 8.0 GiB are free, and no control group limits it; batches take at most"),
        ({"memory_free_bytes": GiB}, 0, "batches may take more, up to 6.0 GiB: lower memory_lim"),
        ({"memory_limit_bytes": 12 * GiB}, 0, "8.0 GiB are free; the control group allows 12 GiB;"),
        (
            {"memory_limit_bytes": 12 * GiB, "memory_free_bytes": GiB},
            0,
            "raise the limit, such as --memory of a container",
        ),
        ({}, 1, "processors: 16, all of which may be used"),
        ({"cpu_limit": 16.0}, 1, "processors: 16, all of which may be used"),
        ({"cpu_limit": 1.5}, 1, "the time of 1.5 of 16: more than 2 threads or workers"),
        ({"cpu_limit": 0.1}, 1, "the time of 0.1 of 16: more than 1 threads or workers"),
        ({}, 2, "RDMA: not available (no module); other machines are reached by TCP"),
        ({"ports": PORTS}, 2, "RDMA: none of 1 ports can be used, see ffrecord doctor rdma;"),
        ({"ports": PORTS, "rails": "mlx5_0:1"}, 2, "RDMA: can be used through mlx5_0:1"),
    ],
)
def test_a_verdict_on_the_machine_follows_from_the_facts(
    changes: dict[str, Any], number: int, sentence: str
) -> None:
    rdma = {"why_absent": "no module", "ports": [], "rails": None}
    assert sentence in said.of_host(NO_GROUP | changes, rdma | changes)[number]


def test_a_far_daemon_and_a_failing_store_are_told() -> None:
    daemon = {"round_trip_us": 80, "transport": "tcp", "transport_reason": "of another machine"}
    assert said.of_daemon(daemon).endswith("80 us over tcp, because of another machine")
    assert "that is far: read whole batches" in said.of_daemon(daemon | {"round_trip_us": 9000})
    store = {"store_read_records": 9, "store_read_ms": 2.5, "store_open_ms": 1.5}
    assert "with cache= later epochs" in said.of_store(store)
    assert "7 requests were repeated" in said.of_store(store | {"store_retries": 7})
    assert "no records" in said.of_store({"store_read_records": 0})
    assert "no records" in said.of_dataset({"dataset_read_bytes_per_s": None})


def test_a_device_is_told_where_it_is_measured(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    folder = tmp_path / "a b"
    folder.mkdir()
    lines = [f"1 2 1:3 / {tmp_path}/mountinfo rw", f"1 2 1:3 / {tmp_path}/a\\040b rw", "broken"]
    mounts.write_text("\n".join(lines))
    null = Path("/dev/null")  # Of the numbers 1 and 3.
    assert f"doctor '{folder}' --write" in _instead_of_device(null, str(mounts))
    mounts.write_text("")
    assert "doctor FOLDER --write" in _instead_of_device(null, str(mounts))


def test_a_machine_without_an_accelerator_is_told() -> None:
    facts = measured("accelerator")
    if facts["accelerator"] is None:
        assert "finds none; batches stay where they are" in facts["verdicts"][0]
    else:
        assert facts["copy_pinned_bytes_per_s"] > 0 < facts["copy_pageable_bytes_per_s"]
    assert run("ffrecord", "doctor", "accelerator", "--write").returncode == 2


def test_an_accelerator_that_cannot_be_used_is_told_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 0: what is broken is a finding."""
    torch = pytest.importorskip("torch")
    from ffrecord._cli.accelerator import examine_accelerator

    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(
        "raise OSError('libcudart.so.12: no such file')"
    )
    paths = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = run("ffrecord", "doctor", "accelerator", env={"PYTHONPATH": paths})
    assert done.returncode == 0, done.stderr
    assert "torch cannot be imported: libcudart.so.12: no such file" in done.stdout

    def busy() -> None:
        raise RuntimeError("CUDA error: device is busy\nCompile with TORCH_USE_CUDA_DSA")

    monkeypatch.setattr("ffrecord.torch._placing.current_accelerator", busy)
    found = examine_accelerator(0.1)
    assert found["accelerator"] is None
    assert found["verdicts"] == [
        f"accelerator: PyTorch {torch.__version__} cannot use it: CUDA error: device is busy;"
        " batches stay where they are"
    ]


@pytest.mark.parametrize(
    ("pinned", "overlap", "sentence"),
    [
        (50 * GiB, True, "at 50 GiB/s from page-locked memory, at 10 GiB/s from other memory: use"),
        (10 * GiB, True, "pin_memory=True so that copies run beside kernels"),
        (10 * GiB, False, "its copies do not run beside kernels"),
    ],
)
def test_a_verdict_on_an_accelerator(pinned: int, overlap: bool, sentence: str) -> None:
    facts = {"copy_pinned_bytes_per_s": pinned, "copy_pageable_bytes_per_s": 10 * GiB}
    facts |= {"copies_overlap": overlap}
    assert sentence in said.of_accelerator({"accelerator": "xpu:0", **facts})


def test_copies_to_an_accelerator_are_measured() -> None:
    torch = pytest.importorskip("torch")
    from ffrecord._cli.accelerator import copy_rates
    from late_device import LateStreams

    streams = LateStreams(torch.device("cpu"))
    locked = []

    def pin(tensor: Any) -> Any:  # noqa: ANN401 - a tensor
        locked.append(tensor.nbytes)
        return tensor.clone()

    facts = copy_rates(streams, pin, 0.1)
    streams.end()

    assert facts["copies_overlap"] and locked == [64 * MiB]
    # Each copy ends before the next begins, and the pauses of this device are counted.
    assert facts["copy_pinned_bytes_per_s"] > 0 and facts["copy_pageable_bytes_per_s"] > 0


def test_a_device_that_does_not_answer_ends_the_measurement_and_is_named() -> None:
    answers = threading.Event()
    with virtual_time():
        with pytest.raises(DeadlineExceeded, match="/nfs/a: the device has not answered"):
            in_time(answers.wait, 30.0, "/nfs/a: the device has not answered a read")
        answers.set()
    assert in_time(lambda: 5, 30.0, "") == 5
    with pytest.raises(PermissionError):
        in_time(_refuse, 30.0, "")


def _refuse() -> None:
    raise PermissionError
