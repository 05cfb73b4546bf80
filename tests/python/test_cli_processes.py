"""Goal: a command that a test calls in its own process does what the process of the command does.

Method: each command runs once as a process and once as a call, in the same order, in two folders
and at two daemons; statuses and both streams are compared, numbers aside. So each command is also
known to import all that it needs.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import cli
import ffrecord
import ffrecord.checkpoint as ckpt
from daemon import Daemon
from test_cli_flags import commands

# In the order in which they make what the next ones need. HOST is a daemon, BUCKET a folder.
SCRIPT = """
ffrecord-pack a.jsonl packed.ffr
ffrecord-pack a.jsonl packed --part-size 1KiB --dry-run
ffrecord inspect a.ffr
ffrecord verify a.ffr bad.ffr
ffrecord repair bad.ffr good.ffr
ffrecord head a.ffr
ffrecord sample a.ffr --count 2 --seed 1
ffrecord cat a.ffr
ffrecord find a.ffr k1 none
ffrecord stats a.ffr
ffrecord view a.ffr --output page.html
ffrecord export a.ffr a.out.jsonl
ffrecord merge a.ffr a.ffr merged.ffr
ffrecord shuffle a.ffr shuffled.ffr --seed 1
ffrecord split a.ffr parts --parts 2
ffrecord index a.jsonl
ffrecord push a.ffr BUCKET/pushed
ffrecord pull BUCKET/pushed pulled
ffrecord evict pulled BUCKET/pushed --dry-run
ffrecord publish a.ffr HOST/plain
ffrecord publish a.ffr HOST/named --version 1 --tag best
ffrecord publish a.ffr packed.ffr HOST/named --version 2
ffrecord list HOST/
ffrecord ls HOST/
ffrecord show HOST/named@best
ffrecord search named HOST/
ffrecord diff HOST/named@1 HOST/named@2
ffrecord tag HOST/named@2 best
ffrecord remove HOST/plain
ffrecord remove HOST/plain --yes
ffrecord checkpoint list steps
ffrecord checkpoint verify steps
ffrecord checkpoint diff steps 1 2
ffrecord checkpoint export steps step.safetensors
ffrecord checkpoint import step.safetensors imported
ffrecord checkpoint push steps BUCKET/steps
ffrecord checkpoint pull BUCKET/steps steps.pulled
ffrecord checkpoint flush stage:steps>BUCKET/flushed
ffrecord checkpoint prune steps --keep-last 1 --yes
ffrecord token keys
ffrecord config check none.toml
ffrecord doctor --json
ffrecord status http://127.0.0.1:1
ffrecord top http://127.0.0.1:1 --interval 0.1 --count 1
ffrecord why none
ffrecord completion bash
ffrecord man pages
ffrecord topology plan --ranks 8 --bigraph 2,2,2
ffrecord topology simulate --ranks 8
ffrecord topology check none --bigraph 2,2,2
ffrecord topology draw x.svg --ranks 8 --bigraph 2,2,2
ffrecord cluster status http://127.0.0.1:1
ffrecord cluster slots http://127.0.0.1:1
ffrecord cluster lost http://127.0.0.1:1
ffrecord cluster repair http://127.0.0.1:1
ffrecord cluster rebalance http://127.0.0.1:1
ffrecord cluster nodes HOST
ffrecord cluster upgrade HOST --yes
ffrecord cluster approve HOST n1
ffrecord cluster drain HOST n1
ffrecord cluster undrain HOST n1
ffrecord cluster remove HOST n1 --yes
ffrecord cluster backup HOST backup
ffrecord cluster restore HOST a.jsonl --yes
ffrecord cluster rebuild HOST
ffrecord cluster confirm HOST --yes
"""
LINES = [line.split() for line in SCRIPT.strip().splitlines()]


def write_inputs(folder: Path) -> None:
    """What the script begins with."""
    rows = [{"n": n, "text": f"text {n}"} for n in range(9)]
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with ffrecord.Writer(folder / "a.ffr", {"n": "i64", "text": "utf8"}, key=True) as writer:
        for row in rows:
            writer.write(row, key=f"k{row['n']}")
    content = bytearray((folder / "a.ffr").read_bytes())
    content[content.index(b"text 3")] ^= 1
    (folder / "bad.ffr").write_bytes(content)
    for step in (1, 2):
        ckpt.save(folder / "steps", step, {"w": np.arange(3.0) * step})
    (folder / "keys").write_text("11" * 32 + "\n")
    (folder / "keys").chmod(0o600)


def without_numbers(text: str) -> str:
    """Addresses, ids, sizes, rates and times differ from run to run."""
    text = re.sub(r"python -m ffrecord\._cli\.main", "ffrecord", text)
    text = re.sub(r"python -m ffrecord\._cli\.pack", "ffrecord-pack", text)
    # Any test of this process may have chosen one.
    text = re.sub(r'("start_method": )"\w+"', r'\1"#"', text)
    text = re.sub(r"[\w.-]{30,}", "#", text)  # A token.
    text = re.sub(r"\b[0-9a-f]*\d[0-9a-f.:+-]*\b", "#", text)
    return re.sub(r"\s+", " ", re.sub(r"# ?[KMGT]?i?B(/s)?", "#", text))


def played(
    run: Callable[..., cli.Done], folder: Path, patch: pytest.MonkeyPatch
) -> list[tuple[list[str], int, str, str]]:
    """Each line of the script with its status and what it printed."""
    folder.mkdir()
    write_inputs(folder)
    patch.chdir(folder)
    found = []
    with Daemon(folder / "data") as daemon:
        host = daemon.address().rstrip("/")
        for line in LINES:
            words = [
                word.replace("HOST", host).replace("BUCKET", str(folder / "far")) for word in line
            ]
            done = run(*words)
            texts = (
                without_numbers(text.replace(str(folder), "FOLDER").replace(host, "HOST"))
                for text in (done.stdout, done.stderr)
            )
            found.append((line, done.returncode, *texts))
    return found


def test_the_script_has_every_command_that_may_be_called() -> None:
    always_started = {("cluster", "up"), ("cluster", "down"), ("cluster", "local")}
    always_started |= {("net", "check"), ("prof",)}
    paths = {path for path, _ in commands()}
    played_ones = {path for path in paths for line in LINES if line[1 : 1 + len(path)] == [*path]}
    assert paths - played_ones == always_started


def test_a_call_does_what_a_process_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    by_process = played(cli.started, tmp_path / "process", monkeypatch)
    by_call = played(cli.run, tmp_path / "call", monkeypatch)

    assert by_call == by_process
    # Lines that are not about a cluster or an admin port, of which there is none here.
    good = [line for line, code, *_ in by_call if code == 0]
    assert len(good) > 35
