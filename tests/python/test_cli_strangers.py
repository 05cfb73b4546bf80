"""Goal: names and bytes of strangers steer neither a terminal nor a program that reads JSON.

Method: files with hostile names of columns, files and classes go through each command that prints
such names; errors of the environment are made by small disks, full devices and limits.
"""

import json
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import click
import pytest

import ffrecord
from cli import ok, run
from ffrecord._cli import console
from ffrecord._cli.main import cli
from ffrecord._cli.text import safe_lines, shown
from reading import plain_file
from small_disks import small_disk

STEER = "a\x1b[2J\x9b1mb\u202e\n<b>"


def in_process(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], command: click.Command = cli
) -> int:
    """Run a command in this process; what it prints is not stripped of colours, unlike in a pipe.

    click leaves escapes in, as on a terminal.
    """
    monkeypatch.setattr(sys, "argv", ["ffrecord", *arguments])
    monkeypatch.setattr(click.utils, "should_strip_ansi", lambda *_: False)
    return console.run(command)


def is_tame(text: str) -> bool:
    return not set(text) & set("\x1b\x9b\u202e\r")


def hostile(folder: Path) -> Path:
    path = folder / "hostile\x1b[31m\n.ffr"
    with ffrecord.Writer(path, {STEER: "i64", "text": "utf8"}) as writer:
        for number in range(3):
            writer.write({STEER: number, "text": "x" * 50})
    return path


COMMANDS = [
    ["inspect"],
    ["verify"],
    ["head"],
    ["stats"],
    ["head", "--column", "absent"],
    ["cat", "--index", "9"],
    ["find", "absent"],
    ["export", "out.jsonl", "--dry-run"],
    ["merge", "out.ffr"],
    ["head", "--no-such-option\x1b[2J"],
]


@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda each: " ".join(each)[:20])
def test_names_of_strangers_do_not_steer_a_terminal(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    path = hostile(tmp_path)

    in_process(monkeypatch, [arguments[0], str(path), *arguments[1:]])

    said = capsys.readouterr()
    assert is_tame(said.out + said.err), said
    assert said.out + said.err
    # Nor can a name pretend to be a line of the output.
    assert not any(line.startswith("<b>") for line in (said.out + said.err).splitlines())


def test_damage_in_a_file_of_a_hostile_name_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = hostile(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"x" * 50, b"y" * 50, 1))

    assert in_process(monkeypatch, ["verify", str(path)]) == console.EXIT_DAMAGE
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and is_tame("".join(lines))
    # The problem names the file itself: once is enough.
    assert lines[0].count("hostile") == 1

    assert in_process(monkeypatch, ["repair", str(path), str(tmp_path / "new.ffr")]) == 3
    assert is_tame(capsys.readouterr().out)


def test_names_of_classes_do_not_steer_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from ffrecord._cli.pack import command

    (tmp_path / "in" / STEER.replace("/", "")).mkdir(parents=True)
    (tmp_path / "in" / STEER / "x").write_text("x")

    code = in_process(monkeypatch, [str(tmp_path / "in"), str(tmp_path / "x.ffr")], command)

    said = capsys.readouterr()
    assert code == 0 and said.out.count("\n") == 1
    assert is_tame(said.out + said.err)


def test_text_is_made_safe_line_by_line() -> None:
    assert safe_lines("a\x1bb\nc\x07") == "a\\x1bb\nc\\x07"
    assert safe_lines("x" * 5000) == "x" * 5000
    assert shown("a\nb\u2028\udcff", 9) == "a\\nb\\u2028\\udcff"
    assert shown("x" * 300) == "x" * 200 + "..."


def test_warnings_are_messages_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def warns() -> None:
        warnings.warn("the last 7 bytes\x1b[2J are no record", stacklevel=1)

    assert in_process(monkeypatch, [], warns) == 0
    assert capsys.readouterr().err == "warning: the last 7 bytes\\x1b[2J are no record\n"


def test_a_thread_that_cannot_start_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def starts() -> None:
        raise RuntimeError("can't start new thread")

    assert in_process(monkeypatch, [], starts) == console.EXIT_ENVIRONMENT
    assert capsys.readouterr().err == "failed: can't start new thread\n"


@pytest.mark.parametrize("command", ["head", "cat", "inspect"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_standard_output_is_named(tmp_path: Path, command: str, unbuffered: str) -> None:
    """Python itself would try again at the end, say so in two lines, and exit with 120."""
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ffrecord._cli.main", command, plain_file(tmp_path)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )
    assert done.stderr == "failed: standard output: No space left on device\n"
    assert done.returncode == 4


def keyed(folder: Path, count: int, *, is_column: bool = True) -> Path:
    path, key = folder / "keyed.ffr", "name" if is_column else True
    with ffrecord.Writer(path, {"name": "utf8", "text": "utf8"}, key=key) as writer:
        for number in range(count):
            name = f"n{number}"
            writer.write({"name": name, "text": "x" * 100}, key=None if is_column else name)
    return path


@pytest.mark.parametrize("target", ["x", "x.tar", "x.jsonl", "x.html", "x.ffr", "parts"])
def test_a_full_disk_is_named_and_nothing_stays(tmp_path: Path, target: str) -> None:
    path = keyed(tmp_path, 20_000)
    with small_disk(tmp_path / "small", "512k") as small:
        place = small / target
        commands = {
            "x.html": ["view", path, "--output", place, "--count", "20000"],
            "x.ffr": ["merge", path, place],
            "parts": ["split", path, place, "--part-size", "100KiB"],
        }

        done = run("ffrecord", *commands.get(target, ["export", path, place]))

        assert done.returncode == 4, done.stderr
        assert "No space left on device" in done.stderr
        assert str(place) in done.stderr or f".{target}.partial-" in done.stderr, done.stderr
        assert os.listdir(small) == []


def test_a_full_folder_for_temporary_files_is_an_error(tmp_path: Path) -> None:
    """A file that was mapped, and is sparse, would end the process with SIGBUS."""
    path = keyed(tmp_path, 20_000, is_column=False)  # Keys beside the records are held there.
    with small_disk(tmp_path / "small", "128k") as small:
        for command in (["merge", path, tmp_path / "x.ffr"], ["export", path, tmp_path / "x.tar"]):
            done = run("ffrecord", *command, env={"TMPDIR": str(small)})
            assert done.returncode == 4, (done.returncode, done.stderr)
            assert f"{small}: No space left on device" in done.stderr
            assert "TMPDIR" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["keyed.ffr", "small"]


class _Daemon(BaseHTTPRequestHandler):
    """The admin port of a daemon, and a proxy that would get the token."""

    def do_GET(self) -> None:
        self.server.seen.append((self.path, self.headers.get("Authorization")))  # type: ignore[attr-defined]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'ffrecord_build_info{version="1"} 1\nffrecord_state{state="ready"} 1\n')

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def http_server() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), _Daemon)
    server.seen = []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_an_admin_port_is_asked_directly_whatever_the_proxy(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    with http_server() as daemon, http_server() as proxy:
        address = f"http://127.0.0.1:{daemon.server_port}"
        through = f"http://127.0.0.1:{proxy.server_port}"

        done = run(
            "ffrecord",
            *("status", address, "--token-file", tmp_path / "token", "--json"),
            env={"http_proxy": through, "HTTP_PROXY": through, "no_proxy": ""},
        )

        assert json.loads(done.stdout)["state"] == "ready"
        assert proxy.seen == []  # type: ignore[attr-defined]
        assert daemon.seen == [("/metrics", "Bearer secret")]  # type: ignore[attr-defined]


@pytest.mark.parametrize("address", ["ffrecord://localhost", "file:///etc", "ftp://localhost"])
@pytest.mark.parametrize("command", ["status", "top"])
def test_an_address_of_another_kind_is_no_admin_port(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str, command: str
) -> None:
    assert in_process(monkeypatch, [command, address]) == console.EXIT_USAGE
    assert f"{address} is no address of an admin port" in capsys.readouterr().err


def _facts_of_a_net_check(slow: list[str]) -> Callable[..., object]:
    from ffrecord.distributed import net_check

    return lambda **_: net_check.Report(2, 8, [], [], slow, [])


@pytest.mark.parametrize("slow", [[], ["ranks 0 and 1 are slow"]])
def test_a_slow_link_exits_with_3_on_every_rank(
    monkeypatch: pytest.MonkeyPatch, slow: list[str]
) -> None:
    dist = pytest.importorskip("torch.distributed")
    from ffrecord.distributed import net_check

    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(dist, "destroy_process_group", lambda: None)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(net_check, "check", _facts_of_a_net_check(slow))

    assert in_process(monkeypatch, ["net", "check"]) == (console.EXIT_DAMAGE if slow else 0)


def test_json_is_one_document_without_anything_else(tmp_path: Path) -> None:
    path = plain_file(tmp_path)
    for arguments in (
        ["inspect", path],
        ["verify", path],
        ["stats", path],
        ["view", path, "--output", tmp_path / "p.html"],
        ["export", path, tmp_path / "x.jsonl"],
        ["merge", path, tmp_path / "x.ffr"],
        ["split", path, tmp_path / "parts", "--parts", "2"],
        ["shuffle", path, tmp_path / "s.ffr", "--seed", "1"],
        ["repair", path, tmp_path / "r.ffr"],
        ["doctor"],
    ):
        json.loads(ok("ffrecord", *arguments, "--json"), parse_constant=pytest.fail)
