"""A folder that is packed by many, killed at any time, is the folder that one process packs.

Method: folders of small files, in parts of a few; functions of packing_functions.py; processes that
are killed at random moments (packing_kills.py). Results are compared byte by byte.
"""

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ffrecord
import packing_functions
from cli import run
from eventually import eventually
from ffrecord.errors import ConflictError
from ffrecord.pack import (
    FailedSamplesError,
    PackSummary,
    SourceOptions,
    TableSource,
    WorkerDiedError,
    _destination,
    _job,
    open_source,
    pack,
)
from packing import FUNCTIONS, PART, begun, contents, records, write_classes
from packing_kills import SCENES, kill_packings

pytestmark = pytest.mark.wrong_data


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_classes(tmp_path_factory.mktemp("files"))


def reached(marks: Path, process: "subprocess.Popen[bytes]") -> None:
    """Wait until `waits_at_95` is there."""
    eventually((marks / "reached").exists, process)


@pytest.fixture
def marks(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where functions leave marks, and look for them."""
    folder = tmp_path_factory.mktemp("marks")
    monkeypatch.setenv("FFRECORD_TEST_MARKS", str(folder))
    return folder


@pytest.mark.parametrize("function", [None, "size_of", "letters"])
@pytest.mark.parametrize("options", [{}, {"compress": True, "dictionary_bytes": 1024}])
def test_any_number_of_workers_gives_the_same_bytes(
    files: Path, tmp_path: Path, function: str | None, options: dict[str, Any]
) -> None:
    map_ = None if function is None else getattr(packing_functions, function)
    for workers in (1, 2, 3):
        pack(
            files,
            tmp_path / f"{workers}",
            map=map_,
            workers=workers,
            part_size_bytes=PART,
            **options,
        )

    assert contents(tmp_path / "1") == contents(tmp_path / "2") == contents(tmp_path / "3")
    assert len(contents(tmp_path / "1")) > 10
    assert sorted(os.listdir(tmp_path)) == ["1", "2", "3"]


def test_a_function_gives_no_row_one_or_many(files: Path, tmp_path: Path) -> None:
    summary = pack(files, tmp_path / "sizes", map=packing_functions.size_of, part_size_bytes=PART)
    pack(files, tmp_path / "letters", map=packing_functions.letters, part_size_bytes=PART)

    wanted = [
        {"name": f"{path.parent.name}/{path.name}", "size": path.stat().st_size}
        for path in sorted(files.glob("*/*"))
        if not path.name.endswith("7")
    ]
    assert records(tmp_path / "sizes") == wanted
    assert summary.skipped == {"samples by the function": 30}
    assert records(tmp_path / "letters") == [
        {"name": f"{path.parent.name}/{path.name}.{number}", "byte": byte}
        for path in sorted(files.glob("*/*"))
        for number, byte in enumerate(path.read_bytes()[:3])
    ]
    assert ffrecord.open(tmp_path / "sizes").find("b/011") == wanted.index(
        {"name": "b/011", "size": (files / "b" / "011").stat().st_size}
    )


def test_a_class_is_made_once_in_each_process(files: Path, tmp_path: Path) -> None:
    pack(files, tmp_path / "x", map=packing_functions.Counted, workers=2, part_size_bytes=PART)

    assert {row["made"] for row in records(tmp_path / "x")} == {1}
    assert len(records(tmp_path / "x")) == 300


def test_a_single_file_takes_a_function_too(files: Path, tmp_path: Path) -> None:
    pack(open_source(files), tmp_path / "x.ffr", map="packing_functions:size_of")

    assert len(records(tmp_path / "x.ffr")) == 270
    with pytest.raises(ValueError, match="several workers pack from paths into a folder"):
        pack(files, tmp_path / "y.ffr", workers=2)


@pytest.mark.parametrize("scene", ["files through a function", "files that are shuffled", "files"])
def test_a_run_that_is_killed_again_and_again_gives_the_same_bytes(
    scene: str, tmp_path: Path, seed: int
) -> None:
    """`tests/crash/campaign --of packing` kills more of them, of other sources too."""
    counts = kill_packings(SCENES[scene], tmp_path / "run", 6, random.Random(seed))

    assert counts.kills == 6


def test_commands_that_run_beside_each_other_share_the_work(files: Path, tmp_path: Path) -> None:
    arguments = ["--part-size", "20000B", "--map", "packing_functions:slow", "--workers", "2"]
    pack(files, tmp_path / "whole", map="packing_functions:slow", part_size_bytes=PART)

    both = [begun(files, tmp_path / "x", *arguments) for _ in range(2)]
    said = [process.communicate()[1] for process in both]

    assert [process.returncode for process in both] == [0, 0], said
    assert contents(tmp_path / "x") == contents(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["whole", "x"]


def test_a_worker_that_is_killed_is_replaced(files: Path, tmp_path: Path, marks: Path) -> None:
    pack(
        files,
        tmp_path / "x",
        map=packing_functions.dies_once_at_95,
        workers=2,
        part_size_bytes=PART,
    )

    assert len(records(tmp_path / "x")) == 300
    assert (marks / "died").exists()


def test_an_input_that_kills_its_workers_is_named(files: Path, tmp_path: Path) -> None:
    with pytest.raises(WorkerDiedError, match=f"3 processes that packed {files} .* SIGKILL"):
        pack(
            files, tmp_path / "x", map=packing_functions.dies_at_95, workers=2, part_size_bytes=PART
        )

    assert not (tmp_path / "x").exists()


def test_a_slow_worker_that_was_taken_for_dead_changes_nothing(
    files: Path, tmp_path: Path, marks: Path
) -> None:
    """It is stopped in the middle of a unit, which others do meanwhile; then it goes on."""
    arguments = ["--part-size", "20000B", "--map", "packing_functions:waits_at_95"]
    process = begun(files, tmp_path / "x", *arguments)
    reached(marks, process)
    os.killpg(process.pid, signal.SIGSTOP)
    (marks / "go").touch()
    for lease in (tmp_path / ".x.packing").glob("*/leases/*"):
        os.utime(lease, (0, 0))

    map_ = "packing_functions:waits_at_95"
    pack(files, tmp_path / "x", map=map_, part_size_bytes=PART)
    os.killpg(process.pid, signal.SIGCONT)
    said = process.communicate()[1]
    pack(files, tmp_path / "whole", map=map_, part_size_bytes=PART)

    assert process.returncode == 0, said
    assert contents(tmp_path / "x") == contents(tmp_path / "whole")
    assert sorted(os.listdir(tmp_path)) == ["whole", "x"]


def test_samples_that_fail_are_listed_and_limited(files: Path, tmp_path: Path) -> None:
    with pytest.raises(FailedSamplesError, match=r"sample 5 \(a/005\) failed .*KeyError: 'five'"):
        pack(files, tmp_path / "x", map=packing_functions.fails_at_5)
    assert os.listdir(tmp_path) == []
    with pytest.raises(FailedSamplesError):
        pack(
            files,
            tmp_path / "x",
            map=packing_functions.fails_at_5,
            max_failures=29,
            part_size_bytes=PART,
        )

    summary = pack(
        files,
        tmp_path / "x",
        map=packing_functions.fails_at_5,
        max_failures=30,
        part_size_bytes=PART,
    )

    assert len(records(tmp_path / "x")) == 270
    assert [failure["name"][-1] for failure in summary.failures] == ["5"] * 30
    assert {failure["error"] for failure in summary.failures} == {"KeyError: 'five'"}
    listed = json.loads((tmp_path / "x" / "PACKED.json").read_text())["units"]
    assert sum(unit["samples"] for unit in listed) == 300
    assert sum(unit["used"] + unit["skipped"] + len(unit["failures"]) for unit in listed) == 300


def test_failed_samples_are_tried_again_on_request(
    files: Path, tmp_path: Path, marks: Path
) -> None:
    options = {"map": packing_functions.fails_once, "part_size_bytes": PART}
    with pytest.raises(FailedSamplesError):
        pack(files, tmp_path / "x", max_failures=12, **options)  # type: ignore[arg-type]

    for _ in range(30):
        try:
            pack(files, tmp_path / "x", retry_failed=True, **options)  # type: ignore[arg-type]
            break
        except FailedSamplesError:
            pass

    assert len(records(tmp_path / "x")) == 300


def test_the_rows_of_a_sample_are_written_all_or_none(files: Path, tmp_path: Path) -> None:
    summary = pack(
        files,
        tmp_path / "x",
        map=packing_functions.half_fits,
        max_failures=1,
        part_size_bytes=PART,
    )

    rows = records(tmp_path / "x")
    assert len(rows) == 598
    assert all(row["name"] != "b/005" for row in rows)
    (failure,) = summary.failures
    assert "size" in failure["error"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"compress": True}, "writing is "),
        ({"map": packing_functions.fails_at_5}, "function is packing_functions:fails_at_5, not "),
        ({"part_size_bytes": PART + 1}, "part_size_bytes is 20001, not 20000"),
        ({"input": True}, "files has changed|has changed"),
    ],
)
def test_what_was_begun_otherwise_is_not_continued(
    files: Path, tmp_path: Path, marks: Path, change: dict[str, Any], said: str
) -> None:
    source = tmp_path / "source"
    (source / "a").mkdir(parents=True)
    for path in sorted(files.glob("a/*")):
        (source / "a" / path.name).write_bytes(path.read_bytes())
    arguments = ["--part-size", "20000B", "--map", "packing_functions:waits_at_95"]
    process = begun(source, tmp_path / "x", *arguments)
    reached(marks, process)
    (marks / "go").touch()
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    for lease in (tmp_path / ".x.packing").glob("*/leases/*"):
        os.utime(lease, (0, 0))
    if change.pop("input", False):
        (source / "a" / "new").write_bytes(b"x")
    options = {"map": packing_functions.waits_at_95, "part_size_bytes": PART, **change}

    with pytest.raises(ConflictError, match=said):
        pack(source, tmp_path / "x", max_failures=99, **options)
    pack(source, tmp_path / "x", restart=True, max_failures=99, **options)

    assert ffrecord.open(tmp_path / "x").read([0])[0]["name"] == "a/000"
    assert sorted(os.listdir(tmp_path)) == ["source", "x"]


def test_what_is_done_is_not_done_again(files: Path, tmp_path: Path) -> None:
    first = pack(files, tmp_path / "x", part_size_bytes=PART)
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "x").iterdir()}

    assert pack(files, tmp_path / "x", part_size_bytes=PART) == first

    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "x").iterdir()} == times
    with pytest.raises(ConflictError, match="exists"):
        pack(files, tmp_path / "x", part_size_bytes=PART, compress=True)
    (tmp_path / "x" / "PART_00003.ffr").write_bytes(b"cut")
    with pytest.raises(ConflictError, match="exists"):
        pack(files, tmp_path / "x", part_size_bytes=PART)
    assert pack(files, tmp_path / "x", part_size_bytes=PART, replace=True) == first


def test_record_files_are_packed_by_many_with_their_keys_and_values(
    files: Path, tmp_path: Path
) -> None:
    pack(files, tmp_path / "x", part_size_bytes=PART)
    for workers in (1, 2):
        pack(tmp_path / "x", tmp_path / f"y{workers}", workers=workers, part_size_bytes=50_000)

    assert contents(tmp_path / "y1") == contents(tmp_path / "y2")
    assert records(tmp_path / "y1") == records(tmp_path / "x")
    assert ffrecord.open(tmp_path / "y1").find("c/042") == 242


def test_the_columns_of_a_function_are_inferred_or_said(files: Path, tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")

    def with_nested(sample: dict[str, Any]) -> dict[str, Any]:
        number = int(sample["name"][2:])
        return {"tags": ["x"] * (number % 3), "half": None if number % 2 else number / 2}

    with pytest.raises(TypeError, match="cannot be sent to another process"):
        pack(files, tmp_path / "x.ffr", map=with_nested)
    packing_functions.nested = with_nested  # type: ignore[attr-defined]
    with_nested.__qualname__, with_nested.__module__ = "nested", "packing_functions"
    pack(open_source(files), tmp_path / "x.ffr", map=with_nested)

    table = ffrecord.read_table(tmp_path / "x.ffr")
    assert table.schema.field("tags").type == pa.list_(pa.string())
    assert table.column("half").to_pylist()[:4] == [0.0, None, 1.0, None]


@pytest.mark.parametrize(
    ("map_", "error", "said"),
    [
        ("nothing", ValueError, "must be module:function"),
        ("packing_functions:nothing", ValueError, "packing_functions has no nothing"),
        ("no_such_module:f", ImportError, "no_such_module"),
        (3, TypeError, "cannot be called"),
        (packing_functions.wrong, ValueError, "TypeError: it returned int"),
    ],
)
def test_a_map_that_is_none_is_refused(
    files: Path, tmp_path: Path, map_: object, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        pack(files, tmp_path / "x", map=map_)
    assert os.listdir(tmp_path) == []


def test_columns_without_a_function_are_those_of_the_source(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="schema says what map returns"):
        pack(files, tmp_path / "x", schema={"name": "utf8"})


def test_a_folder_that_packing_did_not_make_is_not_removed(files: Path, tmp_path: Path) -> None:
    folder = tmp_path / ".x.packing"
    folder.mkdir()
    (folder / "plan.json").write_text('{"mine": 1}')
    for restart in (False, True):
        with pytest.raises(ConflictError, match="no packing made it"):
            pack(files, tmp_path / "x", restart=restart)

    assert (folder / "plan.json").read_text() == '{"mine": 1}'
    assert os.listdir(tmp_path) == [".x.packing"]


def test_an_interrupt_says_how_to_go_on(files: Path, tmp_path: Path, marks: Path) -> None:
    arguments = ["--part-size", "20000B", "--map", "packing_functions:waits_at_95"]
    process = begun(files, tmp_path / "x", *arguments)
    reached(marks, process)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=300)[1].decode()

    assert process.returncode == 130
    assert "interrupted; what is done is kept in " in said
    assert "repeat the command to continue" in said


def test_options_of_the_source_reach_workers(files: Path, tmp_path: Path) -> None:
    source = open_source(files, SourceOptions(include=("*5",)))
    pack(source, tmp_path / "x", workers=2, part_size_bytes=2000)

    assert len(records(tmp_path / "x")) == 30
    assert run("ffrecord-pack", files, tmp_path / "x", "--include", "*5").returncode == 4
    assert _job.LEASE_S > 10 * _job.BEAT_S


@pytest.mark.parametrize("destination", ["x", "x.ffr"])
def test_rows_without_bytes_are_rows(files: Path, tmp_path: Path, destination: str) -> None:
    pack(
        files,
        tmp_path / destination,
        map=packing_functions.text_of_first,
        schema={"text": "utf8"},
        part_size_bytes=PART,
    )

    texts = [row["text"] for row in records(tmp_path / destination)]
    assert texts == ["x" * 25_000] + [""] * 299


@pytest.mark.parametrize("destination", ["x", "x.ffr"])
def test_a_generator_may_use_one_dict_for_all_its_rows(
    files: Path, tmp_path: Path, destination: str
) -> None:
    pytest.importorskip("pyarrow")
    pack(files, tmp_path / destination, map=packing_functions.same_dict, part_size_bytes=PART)

    rows = ffrecord.read_table(tmp_path / destination).to_pylist()
    assert rows == [{"number": n, "values": list(range(n + 1))} for n in range(3)] * 300


def test_what_a_method_is_bound_to_is_part_of_the_function(files: Path, tmp_path: Path) -> None:
    pack(files, tmp_path / "x", map=packing_functions.Scale(1).of, part_size_bytes=PART)

    with pytest.raises(ConflictError, match="exists"):
        pack(files, tmp_path / "x", map=packing_functions.Scale(2).of, part_size_bytes=PART)


def test_a_function_whose_code_is_in_no_file_is_never_taken_for_an_earlier_one(
    files: Path, tmp_path: Path
) -> None:
    """In a notebook or an interactive session, a function of the same name may be another."""
    program = """
import sys
from ffrecord.pack import pack
def function(sample):
    return {"size": len(sample["payload"]) * FACTOR}
pack(sys.argv[1], sys.argv[2], map=function, part_size_bytes=20_000)
"""
    ended = []
    for factor in ("1", "2"):
        code = program.replace("FACTOR", factor)
        arguments = [sys.executable, "-c", code, str(files), str(tmp_path / "x")]
        ended.append(subprocess.run(arguments, capture_output=True, text=True, check=False))

    assert [one.returncode for one in ended] == [0, 1]
    assert "exists" in ended[1].stderr


@pytest.mark.parametrize(("destination", "workers"), [("y", 1), ("y", 2), ("y.ffr", 1)])
def test_a_function_gets_the_same_values_on_every_path(
    tmp_path: Path, destination: str, workers: int
) -> None:
    """Nulls and lists of record files, and each sample as it is, however often it is seen."""
    pa = pytest.importorskip("pyarrow")
    columns = {"x": pa.array([1, None, 3] * 100), "tags": [["a"], [], ["b", "c"]] * 100}
    pack(TableSource(pa.table(columns)), tmp_path / "x.ffr")
    options: dict[str, Any] = {"workers": workers, "part_size_bytes": 1000}
    pack(str(tmp_path / "x.ffr"), tmp_path / destination, map=packing_functions.numbers, **options)
    table = ffrecord.read_table(tmp_path / destination)
    assert table.column("y").to_pylist() == [1, None, 3] * 100

    other = f"other{Path(destination).suffix}"
    pack(str(tmp_path / "x.ffr"), tmp_path / other, map=packing_functions.appends, **options)
    table = ffrecord.read_table(tmp_path / other)
    assert table.column("tags").to_pylist() == [["a", "x"], ["x"], ["b", "c", "x"]] * 100


def test_a_process_that_cannot_be_asked_to_end_is_ended(files: Path, tmp_path: Path) -> None:
    map_ = packing_functions.never_ends
    schema = {"label": "i64", "name": "utf8", "payload": "bytes"}  # It is not tried first.
    options: dict[str, Any] = {"schema": schema, "part_size_bytes": PART}
    with pytest.raises(FailedSamplesError):
        pack(files, tmp_path / "x", map=map_, workers=3, **options)


@pytest.mark.parametrize("function", ["leaves_a_thread", "leaves_a_child"])
def test_what_a_function_leaves_behind_does_not_hold_up_the_result(
    files: Path, tmp_path: Path, marks: Path, function: str
) -> None:
    map_ = getattr(packing_functions, function)
    pack(files, tmp_path / "x", map=map_, workers=2, part_size_bytes=PART)

    assert len(records(tmp_path / "x")) == 300
    (marks / "go").touch()  # What was left behind ends now, and did not before.


def test_inputs_may_have_names_that_are_no_text(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff.jsonl"
    with open(path, "wb") as file:
        file.write(b'{"a": 1}\n')
    pack(os.fsdecode(path), tmp_path / "x")

    assert len(records(tmp_path / "x")) == 1


def test_a_schema_that_is_none_is_refused_before_any_sample(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'name': 'u16\[\]' is no type.*a schema of pyarrow"):
        pack(files, tmp_path / "x", map=packing_functions.size_of, schema={"name": "u16[]"})
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("size_mib", "parts"), [(1, 1), (100, 2), (640, 10), (8 << 10, 64), (640 << 10, 640)]
)
def test_the_default_gives_workers_parts_of_small_inputs_too(
    size_mib: int, parts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file with nothing but a size: what is planned is looked at, and nothing is read."""
    (tmp_path / "a.bin").touch()
    os.truncate(tmp_path / "a.bin", size_mib << 20)
    planned: list[Any] = []

    def plan_only(task: Any, *_: Any, **__: Any) -> PackSummary:  # noqa: ANN401
        planned.append(task)
        return PackSummary()

    monkeypatch.setattr(_destination, "pack_resumably", plan_only)
    pytest.importorskip("pyarrow")
    pack(open_source(tmp_path / "a.bin", SourceOptions(tokens="u16")), tmp_path / "x")

    (task,) = planned
    assert abs(len(task.plan.units) - parts) <= 1
    assert task.file_size_bytes == 1 << 30


def test_a_run_that_goes_on_knows_its_columns(files: Path, tmp_path: Path, marks: Path) -> None:
    """The function was tried on the first samples when the run began, and is not again."""
    arguments = ["--part-size", "20000B", "--map", "packing_functions:counted_calls"]
    process = begun(files, tmp_path / "x", *arguments)
    reached(marks, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    first_unit = packing_functions.calls_of("a/000")

    (marks / "go").touch()
    process = begun(files, tmp_path / "x", *arguments)
    said = process.communicate()[1]

    assert process.returncode == 0, said
    assert first_unit == packing_functions.calls_of("a/000") == 1
    assert [row["name"] for row in records(tmp_path / "x")] == sorted(
        f"{path.parent.name}/{path.name}" for path in files.glob("*/*")
    )


@pytest.mark.parametrize("destination", ["x", "y.ffr"])
def test_what_a_function_returned_when_it_was_tried_is_its_own(
    files: Path, tmp_path: Path, destination: str
) -> None:
    """It may return the same object for every sample, with other values in it."""
    for workers in (1, 2) if destination == "x" else (1,):
        path = tmp_path / f"{workers}{destination}"
        pack(files, path, map=packing_functions.one_dict, workers=workers, part_size_bytes=PART)

        assert [row["size"] for row in records(path)] == [
            path.stat().st_size for path in sorted(files.glob("*/*"))
        ]


def test_workers_that_are_forked_draw_their_own_numbers(
    files: Path, marks: Path, tmp_path: Path
) -> None:
    code = "import numpy.random, sys; from ffrecord._cli.pack import main; sys.exit(main())"
    words = ["--map", "packing_functions:drawn_in_two_processes", "--workers", "2"]
    words += ["--part-size", str(PART), str(files), str(tmp_path / "x")]
    subprocess.run([sys.executable, "-c", code, *words], check=True, cwd=FUNCTIONS)

    assert len({row["drawn"] for row in records(tmp_path / "x")}) == 300


def test_without_ray_the_error_says_how_to_install_it(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(ImportError, match=r"needs ray, which is not installed: pip install ray$"):
        pack(files, tmp_path / "x", ray="auto", part_size_bytes=PART)

    assert os.listdir(tmp_path) == []
