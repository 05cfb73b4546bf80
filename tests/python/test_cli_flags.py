"""Goal: a flag means the same in every command, and progress and colour suit who looks.

Method: walk over all commands; run some of them on a terminal, on a dumb one, and on none.
"""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import ffrecord
from cli import ok, run
from ffrecord._cli import console
from ffrecord._cli.main import cli
from ffrecord._cli.pack import command as pack_command
from ffrecord._cli.units import Size
from reading import plain_file

# Those that change what is elsewhere, or make what takes long.
CHANGING = (
    *("evict", "export", "merge", "publish", "pull", "push", "remove", "shuffle", "split"),
    *("checkpoint export", "checkpoint import", "checkpoint prune"),
    *("checkpoint pull", "checkpoint push", "cluster down", "cluster up"),
)
# What these have to say they know, or find on this machine.
LOCAL = (
    *("completion", "config check", "index", "man", "repair", "token", "cluster local"),
    *("prof", "why"),
    *("topology check", "topology draw", "topology plan", "topology simulate"),
)
# Whose whole result is text for another program, or what another program prints.
TEXTS = ("completion", "man", "prof")


def commands(
    command: click.Command = cli, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, with its name."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from commands(found, (*path, name))


def options(command: click.Command) -> set[str]:
    return {option for parameter in command.params for option in parameter.opts}


def test_every_command_prints_json() -> None:
    every = [*commands(), (("ffrecord-pack",), pack_command)]
    assert len(every) > 35
    lacking = [path for path, command in every if "--json" not in options(command)]
    assert [path for path in lacking if path[0] not in TEXTS] == []


def test_the_same_thing_has_the_same_name_everywhere() -> None:
    for path, command in [*commands(), (("ffrecord-pack",), pack_command)]:
        names = options(command)
        assert not names & {"--replace", "--force", "--output-file", "-f", "--quiet"}, path
        # `list` shows all that a daemon has, and `ls` the datasets with versions of any place.
        assert ("ls" not in path or path == ("ls",)) and "rm" not in path
        for parameter in command.params:
            if parameter.opts == ["--timeout"]:
                assert parameter.name == "timeout_s"
            # Sizes are written with a unit, not in a unit that the name of the option tells.
            assert not re.search(r"-(gib|mib|kib|bytes)$", parameter.opts[0]), path
        for removes in ("remove", "prune", "evict"):
            assert path[-1] != removes or "--dry-run" in names


def test_every_command_that_asks_somebody_has_a_timeout_and_a_change_can_be_tried() -> None:
    found = {" ".join(path): options(command) for path, command in commands()}
    assert set(CHANGING) <= found.keys() and set(LOCAL) <= found.keys()
    assert [name for name in CHANGING if "--dry-run" not in found[name]] == []
    assert [name for name in found if ("--timeout" in found[name]) == (name in LOCAL)] == []


def test_every_option_is_explained() -> None:
    unexplained = [
        (*path, parameter.opts[0])
        for path, command in commands()
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.help
    ]
    assert unexplained == []


def test_progress_off_a_terminal_is_a_line_each_interval(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(console.clock, "now", lambda: now)
    with console.progress_bar("writing") as show:
        assert show is not None
        for second in range(35):
            now = 100.0 + second
            show(second << 20, 70 << 20)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "writing: 10 MiB of 70 MiB, 14 %, 1.0 MiB/s",
        "writing: 20 MiB of 70 MiB, 28 %, 1.0 MiB/s",
        "writing: 30 MiB of 70 MiB, 42 %, 1.0 MiB/s",
    ]


def on_terminal(arguments: list[str], **variables: str) -> bytes:
    """What a terminal of forty columns gets on stderr."""
    leader, follower = pty.openpty()
    environment = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM", "COLUMNS")}
    child = subprocess.Popen(
        [sys.executable, "-m", "ffrecord._cli.main", *arguments],
        stderr=follower,
        stdout=subprocess.DEVNULL,
        env={**environment, "COLUMNS": "40", **variables},
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            piece = os.read(leader, 4096)
        except OSError:  # Linux says so when the other end is closed.
            break
        if not piece:
            break
        shown += piece
    os.close(leader)
    child.wait()
    return shown


COLOUR = re.compile(rb"\x1b\[[0-9;]*3[0-9]m")


def test_bars_and_colour_are_independent(tmp_path: Path) -> None:
    stats = ["stats", str(plain_file(tmp_path))]
    plain = on_terminal(stats, TERM="xterm", NO_COLOR="1")
    coloured = on_terminal(stats, TERM="xterm")
    assert b"reading" in plain and COLOUR.search(plain) is None
    assert b"reading" in coloured and COLOUR.search(coloured) is not None
    assert COLOUR.search(on_terminal(stats, TERM="xterm", NO_COLOR="")) is not None
    assert on_terminal(stats, TERM="dumb") == b""
    missing = ["stats", str(tmp_path / "none.ffr")]
    assert COLOUR.search(on_terminal(missing, TERM="xterm")) is not None
    assert b"\x1b" not in on_terminal(missing, TERM="xterm", NO_COLOR="1")
    assert b"\x1b" not in on_terminal(missing, TERM="dumb")


def test_sizes_to_keep_have_units(tmp_path: Path) -> None:
    shards, away = tmp_path / "shards", tmp_path / "away"
    shards.mkdir()
    for number in range(3):
        with ffrecord.Writer(shards / f"{number}.ffr") as writer:
            writer.write(os.urandom(100_000))
    ok("ffrecord", "push", *sorted(shards.iterdir()), away)

    facts = json.loads(
        ok("ffrecord", "evict", shards, away, "--keep", "150KiB", "--dry-run", "--json")
    )

    assert facts["dry_run"] is True and len(facts["evicted"]) == 2
    assert len(list(shards.glob("*.ffr"))) == 3
    assert "would evict 3 files" in ok("ffrecord", "evict", shards, away, "--dry-run")
    assert "would evict 0 files" in ok(
        "ffrecord", "evict", shards, away, "--keep", "1GiB", "--dry-run"
    )
    for wrong in ("-1", "nan", "1XiB", ""):
        assert run("ffrecord", "evict", shards, away, "--keep", wrong).returncode == 2
    ok("ffrecord", "evict", shards, away, "--keep", "0")
    assert list(shards.glob("*.ffr")) == []


def test_sizes_are_in_units_of_1024() -> None:
    for text, size in {
        **{"0": 0, "1": 1, "17B": 17, "64KiB": 65536, "64k": 65536, "1.5 MiB": 3 << 19},
        **{"2GB": 2 << 30, "1TiB": 1 << 40, "3P": 3 << 50},
    }.items():
        assert Size(0).convert(text, None, None) == size, text


def test_a_token_as_json(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("ab" * 32 + "\n")
    (tmp_path / "keys").chmod(0o600)
    facts = json.loads(ok("ffrecord", "token", tmp_path / "keys", "--json"))
    assert set(facts) == {"token", "expires_s"}
