"""Goal: records of any file can be looked at, safely, and without reading all of a large one.

Method: the commands run as processes over small files: of both versions, damaged, hostile.
"""

import base64
import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ffrecord
from cli import ok, run
from ffrecord._cli.data import records, statistics
from files_at_a_store import addresses, at_a_server
from reading import plain_file, raw, sample, typed_file


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


def damaged(folder: Path) -> Path:
    """Ten records, of which number 4 is damaged."""
    path = folder / "damaged.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(10):
            writer.write(b"record %d " % i * 30)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"record 4 ", b"record X ", 1))
    return path


def labelled(folder: Path) -> Path:
    """Sixty records with keys and labels."""
    path = folder / "labelled.ffr"
    with ffrecord.Writer(path, {"name": "utf8", "label": "i64"}, key="name") as writer:
        for i in range(60):
            writer.write({"name": f"n{i}", "label": i % 7})
    return path


def test_head_shows_the_first_records(tmp_path: Path) -> None:
    path = typed_file(tmp_path)

    shown = lines(ok("ffrecord", "head", path, "--count", "3", "--start", "2", "--json"))

    assert [each["index"] for each in shown] == [2, 3, 4]
    assert shown[0]["record"] == {
        "image": "\x02" * 74,
        "label": -3,
        "name": "é2",
        "box": [[1.0, 1.0], [1.0, 1.0]],
        "flag": False,
    }
    text = ok("ffrecord", "head", path, "--count", "3", "--start", "98")
    assert len(text.splitlines()) == 2
    assert 'name="é98"' in text
    assert ok("ffrecord", "head", path, "--count", "0") == ""


def test_head_of_both_versions_and_several_files(tmp_path: Path) -> None:
    path = plain_file(tmp_path)
    old = tmp_path / "old.ffr"
    with ffrecord.FileWriter(str(old), 2) as writer:
        writer.write_one(b"\xff\xfe")
        writer.write_one(b"two")

    shown = lines(ok("ffrecord", "head", old, path, "--count", "3", "--json"))

    assert shown[0]["record"] == {"base64": base64.b64encode(b"\xff\xfe").decode()}
    assert [each["record"] for each in shown[1:]] == ["two", raw(0).decode()]


def test_only_what_is_shown_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ffrecord.open(plain_file(tmp_path))
    count = 10**8
    monkeypatch.setattr(ffrecord.Reader, "__len__", lambda _: count)

    taken = next(records.in_order(5, count))
    drawn = list(records.shuffled(count, 3, 10))

    assert taken[0] == 5 and taken.size < 10_000
    assert len(drawn) == 1 and np.unique(drawn[0]).size == 10
    assert reader.stats()["records"] == 0


def test_large_records_are_read_one_by_one(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "large.ffr", compress="zstd") as writer:
        for size in (9 << 20, 9 << 20, 40 << 20, 1, 1, 17 << 20):
            writer.write(bytes(size))
    with ffrecord.open(tmp_path / "large.ffr") as reader:
        cut = [each.tolist() for each in records.steps(reader, records.in_order(0, 6))]
    assert cut == [[0], [1], [2], [3, 4], [5]]


def test_sample_draws_none_twice_and_repeats_with_a_seed(tmp_path: Path) -> None:
    path = plain_file(tmp_path)

    def drawn(*more: str) -> list[int]:
        printed = ok("ffrecord", "sample", path, "--json", "--count", "250", *more)
        return [each["index"] for each in lines(printed)]

    first = drawn("--seed", "1")
    assert len(set(first)) == 250
    assert first == drawn("--seed", "1") != drawn("--seed", "2")
    assert sorted(drawn("--count", "1000")) == list(range(300))


def test_damaged_records_are_shown_as_such(tmp_path: Path) -> None:
    path = damaged(tmp_path)

    done = run("ffrecord", "head", path, "--json")

    assert done.returncode == 3
    found = lines(done.stdout)
    assert "damaged" in found[4] and "record" not in found[4]
    assert found[5]["record"].startswith("record 5 ")
    assert "damaged: " in run("ffrecord", "head", path).stdout.splitlines()[4]
    assert run("ffrecord", "cat", path).returncode == 3
    assert run("ffrecord", "cat", path, "--index", "5").stdout == "record 5 " * 30


def test_cat_writes_the_bytes(tmp_path: Path) -> None:
    path = plain_file(tmp_path)
    command = [sys.executable, "-m", "ffrecord._cli.main", "cat", path]

    whole = subprocess.run(command, capture_output=True, check=True).stdout
    two = [*command, "--index", "7", "--index", "-1"]

    assert whole == b"".join(map(raw, range(300)))
    assert subprocess.run(two, capture_output=True, check=True).stdout == raw(7) + raw(299)
    columns = typed_file(tmp_path)
    name = ok("ffrecord", "cat", columns, "--index", "3", "--column", "name")
    assert name == sample(3)["name"]
    assert lines(ok("ffrecord", "cat", columns))[99]["record"]["label"] == 94


def test_cat_finds_by_key(tmp_path: Path) -> None:
    path = labelled(tmp_path)
    assert ok("ffrecord", "cat", path, "--key", "n9", "--column", "name") == "n9"
    done = run("ffrecord", "cat", path, "--key", "absent")
    assert (done.returncode, done.stdout) == (4, "")
    assert "no record of" in done.stderr and "'absent'" in done.stderr


def test_a_terminal_gets_no_binary(tmp_path: Path) -> None:
    path = tmp_path / "b.ffr"
    with ffrecord.Writer(path, {"text": "utf8", "data": "bytes"}) as writer:
        writer.write({"text": "\x1b]0;owned\x07", "data": b"\x1b[2J"})

    def on_terminal(*arguments: str) -> tuple[int, bytes]:
        leader, follower = pty.openpty()
        command = [sys.executable, "-m", "ffrecord._cli.main", *arguments]
        done = subprocess.run(command, stdout=follower, stderr=subprocess.PIPE, check=False)
        os.close(follower)
        printed = b""
        try:
            while piece := os.read(leader, 4096):
                printed += piece
        except OSError:
            pass  # Linux's end of a terminal.
        os.close(leader)
        return done.returncode, printed

    assert on_terminal("cat", str(path), "--column", "data") == (2, b"")
    for command in ("head", "sample", "stats"):
        code, printed = on_terminal(command, str(path))
        assert code == 0
        assert b"\x1b" not in printed and b"\x07" not in printed


def test_find_by_keys(tmp_path: Path) -> None:
    path = labelled(tmp_path)

    done = run("ffrecord", "find", path, "n3", "absent", "--json")

    assert done.returncode == 1
    assert lines(done.stdout) == [{"key": "n3", "index": 3}, {"key": "absent", "index": None}]
    assert run("ffrecord", "find", path, "n3").stdout.split() == ["3", "n3"]
    assert run("ffrecord", "find", plain_file(tmp_path), "x").returncode == 2


def test_a_key_that_is_no_text_is_shown_as_in_all_json(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "x.ffr", key=True) as writer:
        writer.write(b"x", key=b"a\xff")
    done = run("ffrecord", "find", tmp_path / "x.ffr", "a\udcff", "b\udcff", "--json")
    assert lines(done.stdout) == [
        {"key": {"base64": "Yf8="}, "index": 0},
        {"key": {"base64": "Yv8="}, "index": None},
    ]
    assert done.returncode == 1


def test_find_by_values(tmp_path: Path) -> None:
    path = labelled(tmp_path)

    def found(*conditions: str) -> list[int]:
        arguments = [word for each in conditions for word in ("--where", each)]
        return [
            each["index"]
            for each in lines(run("ffrecord", "find", path, "--json", *arguments).stdout)
        ]

    assert found("label=3") == [3, 10, 17, 24, 31, 38, 45, 52, 59]
    assert found("label=3", "name=n17") == [17]
    assert found("name=n17", "label=4") == []
    assert run("ffrecord", "find", path, "--where", "label=99").returncode == 1
    only_two = run("ffrecord", "find", path, "--where", "label=3", "--count", "2", "--json")
    assert len(lines(only_two.stdout)) == 2


def test_a_search_goes_on_behind_a_damaged_record(tmp_path: Path) -> None:
    path = tmp_path / "x.ffr"
    with ffrecord.Writer(path, {"label": "i64", "text": "utf8"}) as writer:
        for i in range(9_000):
            writer.write({"label": int(i in (7, 8_888)), "text": f"text {i} " * 9})
    path.write_bytes(path.read_bytes().replace(b"text 7 ", b"text X ", 1))

    by_copy = run("ffrecord", "find", path, "--where", "label=1", "--json")
    by_text = run("ffrecord", "find", path, "--where", f"text={'text 8888 ' * 9}", "--json")
    absent = run("ffrecord", "find", path, "--where", "text=absent")
    before = run("ffrecord", "find", path, "--where", f"text={'text 3 ' * 9}", "--count", "1")

    assert [(each["index"], "damaged" in each) for each in lines(by_copy.stdout)] == [
        (7, True),
        (8_888, False),
    ]
    assert by_copy.returncode == 3
    assert [each["index"] for each in lines(by_text.stdout)] == [8_888]
    for done in (by_text, absent, before):
        assert done.returncode == 3
        assert done.stderr.count("damaged: ") == 1 and "record 7" in done.stderr


def test_a_search_for_nan_finds_it(tmp_path: Path) -> None:
    path = tmp_path / "x.ffr"
    with ffrecord.Writer(path, {"loss": "f32", "half": "f16"}) as writer:
        for i in range(20):
            value = float("nan") if i % 7 == 3 else i
            writer.write({"loss": value, "half": value})
    for column in ("loss", "half"):
        found = lines(ok("ffrecord", "find", path, "--where", f"{column}=nan", "--json"))
        assert [each["index"] for each in found] == [3, 10, 17]
        assert found[0]["record"][column] == "nan"
    found = lines(ok("ffrecord", "find", path, "--where", "loss=5", "--json"))
    assert [each["index"] for each in found] == [5]


def test_names_of_columns_may_have_equals_signs(tmp_path: Path) -> None:
    path = tmp_path / "x.ffr"
    with ffrecord.Writer(path, {"a=b": "utf8", "c": "i64", "c=1": "i64"}) as writer:
        for i in range(3):
            writer.write({"a=b": f"={i}", "c": i, "c=1": i})
    found = lines(ok("ffrecord", "find", path, "--where", "a=b==1", "--where", "c=1", "--json"))
    assert [each["index"] for each in found] == [1]
    done = run("ffrecord", "find", path, "--where", "c=1=2")
    assert (done.returncode, "may be about each of" in done.stderr) == (2, True)


def test_the_histogram_of_sizes_is_by_powers_of_two(tmp_path: Path) -> None:
    with ffrecord.Writer(tmp_path / "x.ffr") as writer:
        for size in (0, 1, 2, 3, 4, 7, 8, 8, 63):
            writer.write(bytes(size))
    facts = json.loads(ok("ffrecord", "stats", tmp_path / "x.ffr", "--json"))
    assert facts["size_histogram"] == [
        *([0, 0, 1], [1, 1, 1], [2, 3, 2], [4, 7, 2]),
        *([8, 15, 2], [16, 31, 0], [32, 63, 1]),
    ]
    assert facts["raw_size_bytes"] == 96


def test_a_table_of_values_is_of_integers_only(tmp_path: Path) -> None:
    schema = {"i": "i8", "b": "bool", "h": "bf16", "f": "f32", "v": "i8[2]"}
    with ffrecord.Writer(tmp_path / "x.ffr", schema) as writer:
        writer.write({"i": 1, "b": True, "h": 1.5, "f": 2.0, "v": [1, 2]})
    facts = json.loads(ok("ffrecord", "stats", tmp_path / "x.ffr", "--json"))
    tables = {column["name"]: column.get("values") for column in facts["columns"]}
    assert tables == {"i": [[1, 1]], "b": [[True, 1]], "h": None, "f": None, "v": None}
    assert "values" not in facts["columns"][2]


WRONG = [
    (["cat", "EMPTY", "--index", "0"], "there are no records\n"),
    (["head", "FILE", "--count", "-1"], "--count"),
    (["head", "FILE", "--count", "many"], "--count"),
    (["head", "FILE", "--start", str(1 << 70)], "--start"),
    (["head", "FILE", "--column", "weiß"], "no column 'weiß'; columns: name, label"),
    (["head", "FILE", "--timeout", "nan"], "--timeout"),
    (["head", "3", "FILE"], "/3: No such file"),
    (["head", ""], "name of a file is empty"),
    (["cat", "FILE", "--index", "60"], "there are 60 records, 0 to 59"),
    (["cat", "FILE", "--key", ""], "the key is empty"),
    (["find", "FILE"], "give one KEY or more, or --where"),
    (["find", "FILE", "n1", "--where", "label=1"], "not both"),
    (["find", "FILE", ""], "the key is empty"),
    (["find", "FILE", "--where", "label"], "write COLUMN=VALUE"),
    (["find", "FILE", "--where", "label=x"], "the column is i64"),
    (["find", "FILE", "--where", "label=1e400"], "the column is i64"),
    (["find", "FILE", "--where", "other=1"], "no column 'other'"),
    (["sample", "FILE", "--seed", "-1"], "--seed"),
    (["stats", "FILE", "--count", "x"], "--count"),
]


@pytest.mark.parametrize(("arguments", "expected"), WRONG, ids=lambda each: str(each)[:40])
def test_wrong_arguments_are_answered(tmp_path: Path, arguments: list[str], expected: str) -> None:
    path = labelled(tmp_path)
    with ffrecord.Writer(tmp_path / "empty.ffr"):
        pass
    names = {"FILE": str(path), "EMPTY": str(tmp_path / "empty.ffr")}

    done = run("ffrecord", *[names.get(word, word) for word in arguments])

    assert done.returncode in (2, 4)
    assert done.stdout == ""
    assert expected in done.stderr


@pytest.mark.parametrize("is_table", [False, True])
@pytest.mark.parametrize(
    ("value", "expected"), [("1.5", [1]), ("-0.1", [2]), ("nan", [3]), ("16320", []), ("inf", [4])]
)
def test_bf16_is_found_by_its_numbers(
    is_table: bool, value: str, expected: list[int], tmp_path: Path
) -> None:
    numbers = [0.25, 1.5, -0.1, float("nan"), float("inf")]
    path = tmp_path / "x.ffr"
    with ffrecord.Writer(path, {"h": "bf16"}) as writer:
        for number in numbers:
            writer.write({"h": number})
    if is_table:  # With a null.
        pa = pytest.importorskip("pyarrow")
        table = ffrecord.read_table(path)
        field = table.schema.field("h").with_nullable(True)
        column = pa.array([*table["h"].to_pylist(), None], pa.float32())
        path = tmp_path / "t.ffr"
        ffrecord.write_table(pa.table([column], schema=pa.schema([field])), path)

    done = run("ffrecord", "find", path, "--where", f"h={value}", "--json")

    assert done.returncode == (0 if expected else 1), done.stderr
    assert [json.loads(line)["index"] for line in done.stdout.splitlines()] == expected


def test_huge_values_to_find_are_no_error(tmp_path: Path) -> None:
    path = labelled(tmp_path)
    assert run("ffrecord", "find", path, "--where", f"label={1 << 80}").returncode == 1
    assert run("ffrecord", "find", path, "é" * 60_000).returncode in (1, 2)


def test_a_closed_standard_output_is_no_traceback(tmp_path: Path) -> None:
    path = plain_file(tmp_path)
    for command in ("cat", "head", "stats"):
        done = subprocess.run(
            ["bash", "-c", f"exec '{sys.executable}' -m ffrecord._cli.main {command} '{path}' >&-"],
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert "Traceback" not in done.stderr
        assert done.returncode == (4 if command == "cat" else 0)


def test_a_closed_pipe_ends_the_command_quietly(tmp_path: Path) -> None:
    path = tmp_path / "many.ffr"
    with ffrecord.Writer(path) as writer:
        for i in range(20_000):
            writer.write(b"%d" % i * 10)
    for command in (["cat"], ["head", "--count", "20000"]):
        process = subprocess.Popen(
            [sys.executable, "-m", "ffrecord._cli.main", *command, str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 4
        process.stderr.close()


def test_stats_agree_with_numpy(tmp_path: Path) -> None:
    path = tmp_path / "numbers.ffr"
    chance = np.random.default_rng(0)
    values = (chance.normal(1e9, 1.0, 9000)).astype(np.float64)
    values[5], values[6] = np.nan, np.inf
    labels = chance.integers(-3, 4, 9000)
    schema = {"value": "f64", "label": "i32", "wide": "i64", "text": "utf8", "half": "bf16[2]"}
    with ffrecord.Writer(path, schema, compress="zstd") as writer:
        for i in range(9000):
            half = np.array([1.5, -2.0], np.float32)
            writer.write(
                {
                    **dict(value=values[i], label=labels[i], wide=i),
                    "text": "x" * (i % 90),
                    "half": half,
                }
            )

    facts = json.loads(ok("ffrecord", "stats", path, "--json"))

    by_name = {column["name"]: column for column in facts["columns"]}
    finite = values[np.isfinite(values)]
    assert by_name["value"]["nan_count"] == by_name["value"]["infinite_count"] == 1
    assert by_name["value"]["count"] == 8998
    assert by_name["value"]["min"] == finite.min()
    assert by_name["value"]["std"] == pytest.approx(finite.std(), rel=1e-6)
    found, counts = np.unique(labels, return_counts=True)
    assert by_name["label"]["values"] == [
        list(pair) for pair in zip(found.tolist(), counts.tolist(), strict=True)
    ]
    assert by_name["wide"]["values"] is None  # More than a thousand.
    assert by_name["text"]["size_bytes"]["max"] == 89
    assert (by_name["half"]["min"], by_name["half"]["max"]) == (-2.0, 1.5)
    assert facts["seen_count"] == facts["record_count"] == 9000
    assert sum(count for _, _, count in facts["size_histogram"]) == 9000
    with ffrecord.open(path) as reader:
        sizes = reader._sizes(np.arange(9000))
    assert facts["raw_size_bytes"] == sizes.sum()
    assert facts["compression"] == pytest.approx(sizes.sum() / path.stat().st_size, abs=1e-3)
    assert "wide: i64: min 0" in ok("ffrecord", "stats", path)


def test_stats_of_a_few_and_of_none(tmp_path: Path) -> None:
    path = labelled(tmp_path)
    few = json.loads(ok("ffrecord", "stats", path, "--count", "5", "--json"))
    assert (few["seen_count"], few["record_count"], few["compression"]) == (5, 60, None)
    with ffrecord.Writer(tmp_path / "empty.ffr", {"label": "i64"}):
        pass
    none = json.loads(ok("ffrecord", "stats", tmp_path / "empty.ffr", "--json"))
    assert (none["record_count"], none["size_bytes"]["mean"]) == (0, None)
    assert "label: i64: none" in ok("ffrecord", "stats", tmp_path / "empty.ffr")
    for command in ("head", "sample", "cat"):
        assert ok("ffrecord", command, tmp_path / "empty.ffr") == ""


def test_stats_count_damage(tmp_path: Path) -> None:
    done = run("ffrecord", "stats", damaged(tmp_path), "--json")
    assert done.returncode == 3
    facts = json.loads(done.stdout)
    assert facts["damaged_count"] == 1
    assert facts["damaged"][0]["index"] == 4
    assert facts["size_bytes"]["count"] == 9


def test_pieces_add_up_to_the_whole() -> None:
    chance = np.random.default_rng(1)
    numbers = chance.normal(1e8, 0.5, 5000)
    spread = statistics.Spread()
    for piece in np.array_split(numbers, 37):
        spread.add(piece)
    facts = spread.facts()
    assert facts["std"] == pytest.approx(numbers.std(), rel=1e-9)
    assert facts["mean"] == pytest.approx(numbers.mean(), rel=1e-14)


def test_head_of_a_store_asks_for_little(tmp_path: Path) -> None:
    path = tmp_path / "large.ffr"
    with ffrecord.Writer(path) as writer:
        for _ in range(400):
            writer.write(os.urandom(20_000))
    for served in at_a_server(tmp_path):
        address = addresses(served)[0]
        shown = lines(ok("ffrecord", "head", address, "--count", "2", "--json"))
        assert [each["size_bytes"] for each in shown] == [20_000, 20_000]
        asked_bytes = 0
        for _, asked in served.seen:
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            asked_bytes += int(end) - int(begin) + 1 if begin else int(end)
        assert 40_000 < asked_bytes < 2 << 20  # Of 8 MB.


PEAK = """
import sys, threading, time
from ffrecord._cli.main import main
peak = 0
def look():
    global peak
    while True:
        for line in open("/proc/self/status"):
            if line.startswith("RssAnon"):
                peak = max(peak, int(line.split()[1]))
        time.sleep(0.01)
threading.Thread(target=look, daemon=True).start()
code = main()
print(peak, file=sys.stderr)
sys.exit(code)
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Memory of its own: pages of the file that are mapped can be taken away at any time."""

    def peak_mib(count: int) -> int:
        path = tmp_path / f"{count}.ffr"
        with ffrecord.Writer(path) as writer:
            for i in range(count):
                writer.write(b"%01000d" % i)
        most = 0
        for command in (["stats"], ["shuffle", "--seed", "1", "--overwrite"], ["cat"]):
            target = [str(tmp_path / "new.ffr")] if command[0] == "shuffle" else []
            done = subprocess.run(
                [sys.executable, "-c", PEAK, *command, str(path), *target],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                check=True,
            )
            most = max(most, int(done.stderr) >> 10)
        return most

    small, large = peak_mib(20_000), peak_mib(300_000)
    assert large < small + 40, (small, large)  # The file has 300 MB.


def test_values_of_other_types_that_are_stored_as_numbers_are_found(tmp_path: Path) -> None:
    """Such as Arrow's booleans of a byte, which `head` shows as numbers."""
    pa = pytest.importorskip("pyarrow")
    if not hasattr(pa, "bool8"):
        pytest.skip("this pyarrow has no such type")
    stored = pa.array([0, None, 1, 0], pa.int8())
    table = pa.table({"x": pa.ExtensionArray.from_storage(pa.bool8(), stored)})
    ffrecord.write_table(table, tmp_path / "a.ffr")

    for value, found in ((0, [0, 3]), (1, [2])):
        out = ok("ffrecord", "find", tmp_path / "a.ffr", "--where", f"x={value}", "--json")
        assert [json.loads(line)["index"] for line in out.splitlines()] == found
