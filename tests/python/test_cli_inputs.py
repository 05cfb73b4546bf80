"""Goal: a wrong argument, a strange name or a signal is answered in a sentence, and in time.

Method: the commands run as processes, on a terminal where that matters; `cli.run` fails on
tracebacks. What click does in older versions is imitated in the interpreter that runs the command.
"""

import os
import pty
import re
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import ffrecord
from cli import ok, run
from ffrecord._cli import console

# The module that starts the commands; installed, it lies beside the package.
COMMANDS = Path(__file__).resolve().parents[2] / "python" / "ffrecord_commands.py"
# click 8.1 to 8.3: no type of theirs takes parameters.
OLD_CLICK = """
import sys, click
for name in ("ParamType", "Choice", "Option", "Parameter"):
    getattr(click, name).__class_getitem__ = None
"""


@pytest.mark.parametrize("module", ["main", "pack"])
def test_the_oldest_click_will_do(module: str) -> None:
    code = f"{OLD_CLICK}\nfrom ffrecord._cli.{module} import main\nsys.exit(main())"

    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: ")


NUMBERS = [
    ("topology simulate --ranks 8", "--storage-gbit", ["nan", "inf", "-1"]),
    ("topology simulate --ranks 8", "--gbit", ["nan", "0"]),
    ("topology simulate --ranks 8", "--size", ["nan", "inf", "-1", "0", "9999999999TiB"]),
    ("topology simulate --ranks 8", "--buckets", ["0", "-1"]),
    ("topology simulate --ranks 8", "--start-up-us", ["nan"]),
    ("topology simulate --ranks 8", "--compute-ms", ["nan"]),
    ("topology plan --bigraph 2,2,1", "--ranks", ["0", "-3"]),
    ("list", "--timeout", ["nan", "inf", "0", "-1", "1e300"]),
    ("top", "--interval", ["nan"]),
    ("token /etc/hostname", "--hours", ["nan", "0"]),
]


@pytest.mark.parametrize(("command", "option", "values"), NUMBERS)
def test_numbers_that_are_none_are_refused_by_option(
    command: str, option: str, values: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    from ffrecord._cli.main import cli

    for value in values:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["ffrecord", *command.split(), f"{option}={value}"])
            assert console.run(cli) == console.EXIT_USAGE
        message = capsys.readouterr().err
        assert option in message
        whys = ("not a finite number", "is not in the range", "is not a size", "is out of range")
        assert any(why in message for why in whys)


def test_a_flow_without_a_rate_is_refused() -> None:
    from ffrecord.topology import Cable, Flow, Network

    for rate in (float("nan"), -1.0):
        with pytest.raises(ValueError, match="it must be 0 bytes/s or more"):
            Flow(0, 1, rate)
    for rate in (float("nan"), float("inf"), 0.0):
        with pytest.raises(ValueError, match="above 0, and finite"):
            Network.of(["a", "b"], [Cable("a", "b", 1, rate)])


@pytest.mark.parametrize(
    ("option", "size", "expected"),
    [
        ("--dictionary", "8GiB", "out of range: 1.0 KiB to 16 MiB"),
        ("--dictionary", "1000", "out of range"),
        ("--part-size", "9" * 400, "out of range"),
        ("--part-size", "9999999PiB", "out of range"),
    ],
)
def test_sizes_out_of_range_are_refused_with_the_range(
    tmp_path: Path, option: str, size: str, expected: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')

    done = run("ffrecord-pack", option, size, tmp_path / "a.jsonl", tmp_path / "x.ffr")

    assert done.returncode == 2
    assert expected in done.stderr
    assert option in done.stderr
    assert os.listdir(tmp_path) == ["a.jsonl"]


def test_sizes_from_python_are_checked_too(tmp_path: Path) -> None:
    from ffrecord.pack import open_source, pack

    (tmp_path / "a.jsonl").write_text('{"x": 1}\n')
    for options in ({"dictionary_bytes": 8 << 30}, {"dictionary_bytes": 1}, {"part_size_bytes": 0}):
        with pytest.raises(ValueError, match=r"a (dictionary|part) has"):
            pack(open_source(tmp_path / "a.jsonl"), tmp_path / "x", **options)  # type: ignore[arg-type]


def test_a_run_without_checkpoints_is_no_empty_table(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for target in (tmp_path / "typo", tmp_path / "empty"):
        for arguments in (
            ["list", target],
            ["list", target, "--json"],
            ["verify", target],
            ["push", target, tmp_path / "there"],
            ["pull", target, tmp_path / "there"],
            ["diff", target, "1", "2"],
            ["prune", target, "--keep-last", "1", "--yes"],
        ):
            done = run("ffrecord", "checkpoint", *arguments)
            assert (done.returncode, done.stdout) == (4, ""), (arguments, done.stderr)
            assert str(target) in done.stderr, arguments
    assert os.listdir(tmp_path) == ["empty"]


def test_nobody_to_ask_is_told_of_yes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ffrecord._cli.main", "remove", "ffrecord://localhost:1/x"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "add --yes" in done.stderr


def test_without_standard_input_nobody_is_asked() -> None:
    """Closed, it is no empty pipe: Python has no sys.stdin then."""
    command = f"{sys.executable} -m ffrecord._cli.main remove ffrecord://localhost:1/x <&-"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "add --yes" in done.stderr


@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full"])
def test_the_exit_code_tells_where_messages_cannot_be_shown(tmp_path: Path, stderr: str) -> None:
    for arguments, code in (("inspect nothing.ffr", 4), ("checkpoint list ''", 2)):
        command = f"{sys.executable} -m ffrecord._cli.main {arguments} {stderr}"
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False)
        assert done.returncode == code


def test_a_closed_pipe_does_not_promise_that_nothing_was_changed() -> None:
    reads, writes = os.pipe()
    os.close(reads)
    command = [sys.executable, "-m", "ffrecord._cli.main", "topology", "simulate", "--ranks", "8"]
    with os.fdopen(writes, "wb") as nobody:
        done = subprocess.run(
            command, stdout=nobody, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (4, "")


def test_a_name_that_is_empty_is_refused() -> None:
    for command in ("inspect", "verify"):
        done = run("ffrecord", command, "")
        assert (done.returncode, "the name of a file is empty" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "run", "--step"],
        ["diff", "run", "1"],
        ["export", "run", "x", "--step"],
        ["push", "run", "there", "--step"],
        ["pull", "run", "there", "--step"],
        ["prune", "run", "--keep-last"],
        ["prune", "run", "--keep-last", "1", "--keep-every"],
    ],
)
def test_steps_that_cannot_be_are_refused(arguments: list[str]) -> None:
    done = run("ffrecord", "checkpoint", *arguments, str(1 << 64))
    assert done.returncode == 2
    assert f"{1 << 64} is not in the range" in done.stderr


def test_too_little_memory_is_said(tmp_path: Path) -> None:
    name = tmp_path / "big.tar"
    with name.open("wb") as file:
        info = tarfile.TarInfo("big")
        info.size = 2 << 30
        file.write(info.tobuf())
        file.truncate(info.size + 3 * 512)  # Takes no room on the disk.
    code = (
        "import resource, sys; from ffrecord._cli.pack import main\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)); sys.exit(main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, name, tmp_path / "x.ffr"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 4
    assert "big.tar: no memory for a record of" in done.stderr
    assert os.listdir(tmp_path) == ["big.tar"]


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("y\n", 4)])
def test_an_answer_may_come_through_a_pipe(answer: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ffrecord._cli.main", "remove", "ffrecord://localhost:1/x"],
        input=answer,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code
    assert ("nothing was removed" in done.stderr) == (code == 1)


def test_an_interrupt_promises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    import click

    @click.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["x"])
        assert console.run(interrupted) == console.EXIT_INTERRUPTED
    assert capsys.readouterr().err.strip() == "interrupted"


def test_names_that_are_not_utf8_are_shown_with_backslashes(tmp_path: Path) -> None:
    latin = Path(os.fsdecode(os.fsencode(tmp_path) + b"/gr\xfcn"))
    latin.mkdir()
    with ffrecord.Writer(tmp_path / "a.ffr") as writer:
        writer.write(b"x")
    (latin / "a.ffr").write_bytes((tmp_path / "a.ffr").read_bytes())
    (latin / "bad.ffr").write_bytes(b"x" * 5000)
    (latin / "a.jsonl").write_text("{}\nx\n")
    (latin / "b.jsonl").write_text('{"x": 1}\n')
    (latin / "a.tar").write_bytes(b"\0" * 511)

    assert r"gr\udcfcn" in ok("ffrecord-pack", latin / "b.jsonl", latin / "x.ffr")
    assert r"gr\udcfcn" in ok("ffrecord", "inspect", latin / "x.ffr")
    assert r"gr\udcfcn" in ok("ffrecord", "verify", latin / "x.ffr")
    for code, command, *arguments in (
        (2, "ffrecord", "inspect", latin / "bad.ffr"),  # Not a record file at all.
        (4, "ffrecord", "inspect", latin / "none.ffr"),
        (4, "ffrecord", "verify", latin / "none.ffr"),
        (2, "ffrecord-pack", latin / "a.jsonl", latin / "y.ffr"),
        (2, "ffrecord-pack", latin / "a.tar", latin / "y.ffr"),
        (4, "ffrecord-pack", latin / "none", latin / "y"),
        (4, "ffrecord-pack", latin / "b.jsonl", latin / "x.ffr"),
        (4, "ffrecord-pack", latin / "b.jsonl", latin / "none" / "x.ffr"),
        (3, "ffrecord", "repair", latin / "bad.ffr", latin / "z.ffr"),
        (4, "ffrecord", "checkpoint", "list", latin / "none"),
    ):
        done = run(command, *arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert r"gr\udcfcn" in done.stderr, done.stderr


def test_json_of_many_levels_is_refused_by_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n" + "[" * 200_000 + "]" * 200_000 + "\n")
    (tmp_path / "mds").mkdir()
    (tmp_path / "mds" / "index.json").write_text("[" * 200_000)
    (tmp_path / "c.json").write_text("[" * 200_000)

    assert "line 2: JSON is nested" in wrong("ffrecord-pack", tmp_path / "a.jsonl", tmp_path)
    assert "is no index of MDS" in wrong("ffrecord-pack", tmp_path / "mds", tmp_path)
    wrong("ffrecord", "topology", "plan", "--cabling", tmp_path / "c.json")


def wrong(command: str, *arguments: str | Path) -> str:
    """What is said of a wrong argument; of a packing, the last one is the folder to pack into."""
    if command == "ffrecord-pack":
        arguments = (*arguments[:-1], Path(arguments[-1]) / "x.ffr")
    done = run(command, *arguments)
    assert done.returncode == 2, done.stderr
    return done.stderr


@pytest.mark.parametrize("width", [20, 79, 200])
def test_a_panel_stays_in_its_place_at_any_width(width: int) -> None:
    """Lines shown on a terminal that moves its cursor as terminals do stay as many as they are."""
    shown = on_a_terminal(
        width,
        "from ffrecord._cli.console import Panel\n"
        "panel = Panel()\n"
        "for i in range(3):\n"
        "    panel.show('\\n'.join(f'{i} {j} ' + 'x' * 100 for j in range(5)))\n",
    )

    looks = re.split(r"\x1b\[5A", shown)
    assert len(looks) == 3
    for number, look in enumerate(looks):
        lines = look.replace("\x1b[K", "").splitlines()
        assert [line[:4] for line in lines] == [f"{number} {j} " for j in range(5)]
        assert all(len(line) < width for line in lines)


def on_a_terminal(width: int, code: str) -> str:
    """What a program shows on a terminal of that width."""
    terminal, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(width), "TERM": "xterm"}
    child = subprocess.Popen([sys.executable, "-c", code], stdout=theirs, env=environment)
    os.close(theirs)
    shown = b""
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError:  # Linux says so when the other end is closed.
        pass
    os.close(terminal)
    assert child.wait() == 0
    return shown.decode()


@pytest.mark.parametrize("command", ["ffrecord", "ffrecord_pack"])
@pytest.mark.parametrize("ignored", [False, True])
def test_an_interrupt_while_a_command_starts_shows_no_traceback(
    tmp_path: Path, command: str, ignored: bool
) -> None:
    """The package is replaced by one that never finishes its import; `nohup` ignores signals."""
    (tmp_path / "ffrecord").mkdir()
    wait = "import sys, time\nprint('importing', flush=True)\n"
    (tmp_path / "ffrecord" / "__init__.py").write_text(
        wait + ("sys.stdin.read()\nsys.exit(7)" if ignored else "time.sleep(60)")
    )
    disposition = "SIG_IGN" if ignored else "default_int_handler"
    code = (
        f"import signal; signal.signal(signal.SIGINT, signal.{disposition})\n"
        f"import ffrecord_commands; ffrecord_commands.{command}()"
    )
    (tmp_path / COMMANDS.name).symlink_to(COMMANDS)
    child = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "importing\n"

    child.send_signal(signal.SIGINT)

    _, errors = child.communicate()
    assert (child.returncode, errors) == (7 if ignored else -signal.SIGINT, "")


def test_the_commands_are_started_by_their_own_module(tmp_path: Path) -> None:
    code = "import sys, ffrecord_commands; sys.exit(ffrecord_commands.ffrecord_pack())"
    (tmp_path / COMMANDS.name).symlink_to(COMMANDS)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(tmp_path)])
    }
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, env=environment, check=False
    )

    assert done.returncode == 0
    assert done.stdout.startswith(b"Usage: ")
