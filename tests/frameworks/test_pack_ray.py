"""Goal: tasks of Ray pack what one process packs, whichever of them is killed, and say what failed.

Method: folders of small files, in parts of a few, packed by a cluster of two workers on this
machine; functions of packing_functions.py. Results are compared byte by byte.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname, socket
from typing import Any

import pytest
from tutorial import framework

import packing_functions
from eventually import eventually
from ffrecord.pack import FailedSamplesError, WorkerDiedError, pack
from ffrecord.pack._holder import has_ended
from packing import PART, begun, contents, records, write_classes

# Nothing is reported to anybody, and no token is left in the home folder.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
# A busy machine is no failure; Ray would let its workers wait for all others.
PATIENT = {"RAY_agent_register_timeout_ms": "300000", "RAY_worker_niceness": "0"}
os.environ.update(QUIET | PATIENT)
ray = framework("ray")

PARTS = ("--part-size", f"{PART}B")


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a cluster with two processors, whose workers leave marks; this process is in it, too."""
    nodes = tmp_path_factory.mktemp("nodes")
    (nodes / "own_code.py").write_text("def same(sample):\n    return sample\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FFRECORD_TEST_MARKS", str(tmp_path_factory.mktemp("marks")))
        patch.setenv("PYTHONPATH", str(nodes), prepend=os.pathsep)
        found = ray.init(
            num_cpus=2,
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            log_to_driver=False,
            object_store_memory=100 << 20,
        )
        yield found.address_info["gcs_address"]
        ray.shutdown()


@pytest.fixture
def marks(address: str) -> Iterator[Path]:
    """Where functions leave marks, and look for them."""
    folder = Path(os.environ["FFRECORD_TEST_MARKS"])
    yield folder
    for mark in folder.iterdir():
        mark.unlink()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("workers", [None, 1, 3])
@pytest.mark.parametrize("options", [{"map": packing_functions.letters}, {"shuffle": 7}])
def test_tasks_of_ray_give_the_bytes_of_one_process(
    files: Path, tmp_path: Path, address: str, workers: int | None, options: dict[str, Any]
) -> None:
    alone = pack(files, tmp_path / "alone", part_size_bytes=PART, **options)
    seen: list[int] = []

    summary = pack(
        files,
        tmp_path / "x",
        workers=workers,
        ray=address,
        part_size_bytes=PART,
        progress=seen.append,
        **options,
    )

    assert contents(tmp_path / "x") == contents(tmp_path / "alone")
    assert summary == alone
    assert seen == sorted(seen)
    assert seen[-1] == sum(path.stat().st_size for path in files.glob("*/*"))
    assert sorted(os.listdir(tmp_path)) == ["alone", "x"]


def test_a_command_packs_with_all_processors_of_a_cluster(
    files: Path, tmp_path: Path, address: str, marks: Path
) -> None:
    """Two processes draw a number each, and wait for each other."""
    map_ = ("--map", "packing_functions:drawn_in_two_processes")

    process = begun("--ray", address, *map_, *PARTS, files, tmp_path / "x")
    _, said = process.communicate()

    assert process.returncode == 0, said
    assert all(line.startswith(b"packing: ") for line in said.splitlines()), said
    assert len(records(tmp_path / "x")) == 300


def test_the_parts_of_a_killed_worker_are_packed_by_others_and_once(
    files: Path, tmp_path: Path, address: str, marks: Path
) -> None:
    map_ = packing_functions.dies_once_at_95

    pack(files, tmp_path / "x", map=map_, workers=2, ray=address, part_size_bytes=PART)

    assert (marks / "died").exists()
    pack(files, tmp_path / "alone", map=map_, part_size_bytes=PART)
    assert contents(tmp_path / "x") == contents(tmp_path / "alone")


def test_an_input_that_kills_its_workers_is_named(
    files: Path, tmp_path: Path, address: str
) -> None:
    with pytest.raises(WorkerDiedError, match=f"3 processes that packed {files} ended"):
        pack(
            files,
            tmp_path / "x",
            map=packing_functions.dies_at_95,
            workers=2,
            ray=address,
            part_size_bytes=PART,
        )

    assert not (tmp_path / "x").exists()


def test_the_error_of_a_worker_names_the_sample_and_the_node(
    files: Path, tmp_path: Path, address: str
) -> None:
    with pytest.raises(FailedSamplesError, match=r"sample .*KeyError: 'five'") as failed:
        pack(
            files,
            tmp_path / "x",
            map=packing_functions.fails_at_5,
            schema={"name": "utf8", "label": "i64", "payload": "bytes"},
            ray=address,
            part_size_bytes=PART,
        )

    assert any(f"the node {gethostname()} (" in note for note in failed.value.__notes__)


def test_a_worker_that_is_cancelled_is_named(files: Path, tmp_path: Path, address: str) -> None:
    with pytest.raises(RuntimeError, match=r"a worker was cancelled, by ray\.cancel or by a Keyb"):
        pack(
            files,
            tmp_path / "x",
            map=packing_functions.interrupts_at_5,
            schema={"name": "utf8", "label": "i64", "payload": "bytes"},
            ray=address,
            part_size_bytes=PART,
        )


def test_a_node_that_does_not_see_the_folder_is_named(
    files: Path, tmp_path: Path, address: str
) -> None:
    """A path by a descriptor of this process, which no other process has."""
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=rf"node {gethostname()} .* does not see .*all nodes sh"):
            pack(files, f"/proc/self/fd/{folder}/x", ray=address, part_size_bytes=PART)
    finally:
        os.close(folder)

    assert os.listdir(tmp_path) == []


def test_an_interrupt_ends_the_tasks_and_the_same_command_continues(
    files: Path, tmp_path: Path, address: str, marks: Path
) -> None:
    map_ = ("--map", "packing_functions:waits_at_95")
    process = begun("--ray", address, *map_, *PARTS, files, tmp_path / "x")
    eventually((marks / "reached").exists, process)
    leases = list((tmp_path / ".x.packing").glob("*/leases/*"))
    holders = [lease.read_text().partition(" ")[0].rpartition(".")[0] for lease in leases]
    assert holders

    process.send_signal(signal.SIGINT)
    _, said = process.communicate()

    assert process.returncode == 130, said
    assert b"repeat the command to continue" in said
    eventually(lambda: all(map(has_ended, holders)))
    assert list((tmp_path / ".x.packing").glob("*/leases/*")) == []
    (marks / "go").touch()
    again = begun(*map_, *PARTS, files, tmp_path / "x")
    _, said = again.communicate()
    assert again.returncode == 0, said
    pack(files, tmp_path / "alone", map=packing_functions.waits_at_95, part_size_bytes=PART)
    assert contents(tmp_path / "x") == contents(tmp_path / "alone")


def test_a_function_of_a_script_is_sent_with_its_code(
    files: Path, tmp_path: Path, address: str
) -> None:
    """Workers do not import the script, which packs as soon as it runs."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from ffrecord.pack import pack\n"
        "def sized(sample):\n"
        "    return {'size': len(sample['payload'])}\n"
        f"pack(sys.argv[1], 'x', map=sized, ray=sys.argv[2], part_size_bytes={PART})\n"
    )

    subprocess.run([sys.executable, script, files, address], cwd=tmp_path, check=True)

    sizes = [path.stat().st_size for path in sorted(files.glob("*/*"))]
    assert records(tmp_path / "x") == [{"size": size} for size in sizes]


def test_other_code_on_a_node_is_refused(
    files: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_code.py").write_text("def same(sample):\n    return {**sample}\n")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ValueError, match=r"the module own_code of the function .* is another one"):
        pack(files, tmp_path / "x", map="own_code:same", ray=address, part_size_bytes=PART)


def test_what_cannot_be_shared_is_refused(files: Path, tmp_path: Path, address: str) -> None:
    with pytest.raises(ValueError, match="several workers pack from paths into a folder"):
        pack(files, tmp_path / "x.ffr", workers=1, ray=address)
    with pytest.raises(ValueError, match="several workers pack from paths into a folder"):
        pack([{"a": 1}], tmp_path / "x", ray=address)

    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("from_environment", [False, True])
def test_an_address_without_a_cluster_is_refused_at_once(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, from_environment: bool
) -> None:
    """Ray would go on to try for a quarter of an hour."""
    with socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Nobody listens.
        address = "127.0.0.1:{1}".format(*taken.getsockname())
        monkeypatch.setenv("RAY_ADDRESS", address)

        process = begun("--ray", "auto" if from_environment else address, files, tmp_path / "x")
        _, said = process.communicate()

    assert process.returncode == 4, said
    named = "auto" if from_environment else address
    assert f"cannot connect to a Ray cluster at {named}: ".encode() in said
    assert b"refused" in said
    assert os.listdir(tmp_path) == []


def test_a_cluster_for_which_there_is_no_token_is_named(
    files: Path, tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")

    process = begun("--ray", address, files, tmp_path / "x")
    _, said = process.communicate()

    assert process.returncode == 4, said
    assert f"failed: cannot connect to a Ray cluster at {address}: ".encode() in said
    assert b"no authentication token was found" in said


def test_ray_tries_once_to_reach_what_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a cluster that was killed, of which `auto` still knows."""
    tries = "RAY_gcs_server_port_wait_time_s"
    seen: list[str | None] = []

    def init(address: str, **_: object) -> None:
        seen.append(os.environ.get(tries))
        raise RuntimeError("it does not answer")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    for said in (None, "7"):
        if said is not None:
            monkeypatch.setenv(tries, said)
        with pytest.raises(ConnectionError, match="at auto: it does not answer"):
            pack("x", "y", ray="auto")
        assert os.environ.get(tries) == said

    assert seen == ["1", "7"]
