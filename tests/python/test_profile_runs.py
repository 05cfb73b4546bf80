"""Goal: `ffrecord prof` names what holds a program up that really trains, without a change to it.

Method: run a program with a cause put in that takes many times what its steps take, and read what
the commands say. Nothing here depends on how fast the machine is.
"""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import ffrecord
from cli import MODULES, PYTHON, run
from eventually import eventually
from ffrecord._base import recording
from ffrecord._profile import files

pytest.importorskip("torch")

import profiled_training

PROGRAM = str(Path(profiled_training.__file__))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Records to train with."""
    path = tmp_path_factory.mktemp("data") / "train.ffr"
    profiled_training.make_file(path)
    return path


def profiled(folder: Path, data: Path, cause: str, world: int) -> dict[str, object]:
    """Train under `ffrecord prof`; what `ffrecord why` says about it."""
    mine = folder / data.name  # With a rendezvous beside it.
    mine.symlink_to(data)
    ranks = [
        subprocess.Popen(
            [
                *(PYTHON, "-m", MODULES["ffrecord"], "prof", "--out", str(folder / "run"), "--"),
                *(sys.executable, PROGRAM, str(mine), cause),
            ],
            env={
                **os.environ,
                **{"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)},
            },
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    told = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, told
    assert "profile in " in told[-1]
    done = run("ffrecord", "why", folder / "run", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    ("cause", "world", "kind", "stage", "rank"),
    [
        ("transform", 1, "data", "decode", None),
        ("storage", 1, "data", "storage", None),
        ("save", 1, "checkpoint", "write", None),
        ("rank", 2, "compute", "", 1),
    ],
)
def test_the_verdict_names_what_was_put_in(
    cause: str, world: int, kind: str, stage: str, rank: int | None, data: Path, tmp_path: Path
) -> None:
    found = profiled(tmp_path, data, cause, world)
    first = found["causes"][0]  # type: ignore[index]
    assert (first["kind"], first["stage"], first["rank"]) == (kind, stage, rank), found
    assert first["level"] == "critical"
    assert first["without_s"] < found["step_s"] / 2  # type: ignore[operator]
    assert len(found["ranks"]) == world  # type: ignore[arg-type]
    if rank is not None:
        came = [each["came_last"] for each in found["ranks"]]  # type: ignore[attr-defined]
        assert came[rank] == max(came) > 0
        assert "rank 1" in str(found["verdict"])


def test_the_page_the_trace_and_the_figures_are_written(data: Path, tmp_path: Path) -> None:
    profiled(tmp_path, data, "transform", 1)
    page, trace, figures = (tmp_path / name for name in ("a.html", "a.json", "a.prom"))
    done = run(
        *("ffrecord", "why", tmp_path / "run", "--html", page, "--trace", trace),
        *("--prometheus", figures),
    )
    assert done.returncode == 0, done.stderr
    assert "effective training time: " in done.stdout
    text = page.read_text()
    assert "decoding and transforms" in text
    assert "<script" not in text
    assert not re.search(r"""(?:src|href)=["']""", text)
    told = json.loads(trace.read_text())
    assert told["distributedInfo"]["world_size"] == 1
    names = {row["name"] for row in told["traceEvents"]}
    assert names >= {"wait for a batch", "backward", "optimizer", "decode", "read", "step 1"}
    assert 'ffrecord_step_seconds{rank="0",phase="data"}' in figures.read_text()


def test_the_exit_status_of_the_program_is_kept(tmp_path: Path) -> None:
    for code, text in ((7, "import sys; sys.exit(7)"), (137, "import os; os.kill(os.getpid(), 9)")):
        done = run("ffrecord", "prof", "--out", tmp_path / "run", "--", sys.executable, "-c", text)
        assert done.returncode == code
        assert "no profile: " in done.stderr


def test_a_program_that_is_killed_leaves_its_profile(data: Path, tmp_path: Path) -> None:
    text = (
        "import os, sys\n"
        "sys.argv[1:] = [sys.argv[1], 'transform']\n"
        f"sys.path.insert(0, {str(Path(PROGRAM).parent)!r})\n"
        "import profiled_training\n"
        "import torch\n"
        "from torch.optim.optimizer import register_optimizer_step_post_hook\n"
        "steps = []\n"
        "def note(*_):\n"
        "    steps.append(1)\n"
        "    len(steps) == 8 and os.kill(os.getpid(), 9)\n"
        "register_optimizer_step_post_hook(note)\n"
        "profiled_training.main(*sys.argv[1:])\n"
    )
    done = subprocess.run(
        [
            *(PYTHON, "-m", MODULES["ffrecord"], "prof", "--out", str(tmp_path / "run"), "--"),
            *(sys.executable, "-c", text, str(data)),
        ],
        env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 137, done.stderr
    (found,) = files.read_run(tmp_path / "run")
    assert not found.has_ended
    assert "decoding and transforms" in done.stderr
    assert "killed, or still running: ranks 0" in done.stderr


def test_a_signal_is_passed_on_to_the_program(tmp_path: Path) -> None:
    text = (
        "import pathlib, signal, sys\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "signal.pause()\n"
    )
    started = subprocess.Popen(
        [
            *(PYTHON, "-m", MODULES["ffrecord"], "prof", "--out", str(tmp_path / "run"), "--"),
            *(sys.executable, "-c", text),
        ],
        stderr=subprocess.DEVNULL,
    )
    eventually((tmp_path / "ready").exists, started)
    started.send_signal(signal.SIGTERM)
    assert started.wait() == 5


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT])
def test_a_signal_that_announces_the_end_reaches_the_program(
    number: signal.Signals, tmp_path: Path
) -> None:
    text = (
        "import pathlib, signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(5))\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "signal.pause()\n"
    )
    started = subprocess.Popen(
        [
            *(PYTHON, "-m", MODULES["ffrecord"], "prof", "--out", str(tmp_path / "run"), "--"),
            *(sys.executable, "-c", text),
        ],
        stderr=subprocess.DEVNULL,
    )
    eventually((tmp_path / "ready").exists, started)
    started.send_signal(number)
    assert started.wait() == 5


def test_each_interrupt_by_the_terminal_reaches_the_program_once(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    text = (
        "import pathlib, signal, sys\n"
        f"seen = pathlib.Path({str(seen)!r})\n"
        "count = 0\n"
        "def note(*_):\n"
        "    global count\n"
        "    count += 1\n"
        "    seen.write_text(str(count))\n"
        "signal.signal(signal.SIGINT, note)\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(40 + count))\n"
        "seen.write_text('0')\n"
        "while True:\n"
        "    signal.pause()\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        command = [PYTHON, "-m", MODULES["ffrecord"], "prof", "--out", str(tmp_path / "run"), "--"]
        os.execv(PYTHON, [*command, sys.executable, "-c", text])
    for count in range(20):
        eventually(lambda count=count: seen.exists() and seen.read_text() == str(count))
        os.write(terminal, b"\x03")
    eventually(lambda: seen.read_text() == "20")
    os.kill(pid, signal.SIGTERM)  # Handled after the interrupts, which have the lower number.
    while True:
        try:
            if not os.read(terminal, 4096):
                break
        except OSError:  # It has no other end any more.
            break
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 60
    os.close(terminal)


def test_an_interrupt_by_the_terminal_is_told_from_one_by_a_process_in_any_thread() -> None:
    text = (
        "import os, signal, threading\n"
        "from ffrecord import _ffrecord\n"
        "reads, writes = os.pipe()\n"
        "other = threading.Thread(target=threading.Event().wait, daemon=True)\n"
        "other.start()\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])\n"  # The other takes it.
        "_ffrecord.note_signals([signal.SIGINT], writes)\n"
        "print('ready', flush=True)\n"
        "print(list(os.read(reads, 2)), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "print(list(os.read(reads, 2)), flush=True)\n"
        "_ffrecord.forget_signals()\n"
        "print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, flush=True)\n"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])\n"
        "try:\n"
        "    signal.raise_signal(signal.SIGINT)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Commands in the background ignore it.
        os.execv(PYTHON, [PYTHON, "-c", text])
    # By default, Ctrl-C drops what the program has printed meanwhile.
    modes = termios.tcgetattr(terminal)
    modes[3] = modes[3] & ~termios.ECHO | termios.NOFLSH
    termios.tcsetattr(terminal, termios.TCSANOW, modes)
    with os.fdopen(terminal, "r+b", buffering=0) as screen:
        shown = b""
        while b"ready" not in shown:
            shown += screen.read(4096)
        screen.write(b"\x03")
        while b"interrupted" not in shown:
            try:
                shown += screen.read(4096)
            except OSError:  # The program has ended.
                pytest.fail(f"{os.waitpid(pid, 0)[1]}: {shown.decode()}")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert shown.split(b"\r\n")[1:5] == [
        *(b"[2, 1]", b"[2, 0]", b"True", b"interrupted"),
    ]


def test_the_program_gets_its_arguments_and_descriptors(tmp_path: Path) -> None:
    options = ["--out", "mine", "--no-watchdog", "--help", "--", "x"]
    text = "import os, sys; os.write(int(sys.argv[1]), repr(sys.argv[2:]).encode())"
    reads, writes = os.pipe()
    subprocess.run(
        [
            *(PYTHON, "-m", MODULES["ffrecord"], "prof", "--out", str(tmp_path / "run")),
            *(sys.executable, "-c", text, str(writes), *options),
        ],
        pass_fds=[writes],
        stderr=subprocess.DEVNULL,
        check=True,
    )
    os.close(writes)
    with open(reads, "rb") as told:
        assert told.read().decode() == repr(options)
    assert (tmp_path / "run").is_dir()


def test_profile_is_a_block_too_and_restores_the_environment(data: Path, tmp_path: Path) -> None:
    from ffrecord.torch import DataLoader, Dataset

    with ffrecord.profile(tmp_path, show=False) as folder:
        assert folder == tmp_path
        with ffrecord.profile(tmp_path / "within"):  # Nothing happens.
            list(DataLoader(Dataset(str(data)), batch_size=8, num_workers=2, mode="workers"))
    assert recording.FOLDER_VARIABLE not in os.environ
    assert not recording.on
    assert not (tmp_path / "within").exists()
    (found,) = files.read_run(tmp_path)
    kinds = set(found.events["kind"].tolist())
    assert kinds >= {recording.WAIT, recording.READ, recording.COLLATE, recording.SOURCE}
    waits = found.events[found.events["kind"] == recording.WAIT]
    collates = found.events[found.events["kind"] == recording.COLLATE]
    assert not set(waits["thread"].tolist()) & set(collates["thread"].tolist())


def test_a_block_that_cannot_begin_leaves_the_environment_alone(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError), ffrecord.profile(tmp_path / "file" / "run"):
        pytest.fail("it has begun")
    assert recording.FOLDER_VARIABLE not in os.environ


@pytest.mark.parametrize("state", ["gone", "foreign"])
def test_a_profile_that_cannot_be_shown_does_not_end_the_program(
    state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    with ffrecord.profile(folder):
        if state == "gone":
            shutil.rmtree(folder)
        else:
            (folder / "foreign.ffrprof").write_bytes(b"something else")
    assert "no profile: " in capsys.readouterr().err


def test_the_exit_status_is_kept_beside_a_foreign_file(tmp_path: Path) -> None:
    (tmp_path / "foreign.ffrprof").write_bytes(b"something else")
    text = "import sys; sys.exit(7)"
    done = run("ffrecord", "prof", "--out", tmp_path, "--", sys.executable, "-c", text)
    assert done.returncode == 7
    assert "foreign.ffrprof" in done.stderr


def test_steps_are_seen_if_torch_is_imported_last_and_no_loader_is_used(tmp_path: Path) -> None:
    text = (
        "import warnings\n"
        "warnings.simplefilter('error')\n"
        "import ffrecord\n"
        "import torch\n"
        "model = torch.nn.Linear(8, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for _ in range(6):\n"
        "    model(torch.ones(4, 8)).sum().backward()\n"
        "    optimizer.step()\n"
        "def fails():\n"
        "    raise KeyError\n"
        "for _ in range(3):\n"
        "    try:\n"
        "        optimizer.step(fails)\n"
        "    except KeyError:\n"
        "        pass\n"
        "optimizer.step()\n"
    )
    done = run("ffrecord", "prof", "--out", tmp_path / "run", "--", sys.executable, "-c", text)
    assert done.returncode == 0, done.stderr
    (found,) = files.read_run(tmp_path / "run")
    kinds = found.events["kind"].tolist()
    assert kinds.count(recording.BACKWARD) == 6
    assert kinds.count(recording.OPTIMIZER) == 7
    assert len(found.unfinished) == 0
