"""The demo, from pictures to report. tools/demo starts it.

(a) packs the Debian package openclipart-png, (b) verifies the file, (c) trains two ranks for an
epoch from the file and one from a daemon, (d) does it again, killed in the middle and resumed, and
compares, (e) profiles a short run that saves to the daemon beside its collectives, (f) measures
random batches against the same pictures read one by one, (g) writes report.json and report.html.
Everything is kept in build/demo.
"""

import contextlib
import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import measure
import report

import ffrecord

HERE = pathlib.Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build" / "demo"
PACKAGE = "openclipart-png"
DATASET = "openclipart"
WORLD_SIZE = 2
CHECKPOINT_EVERY = 20
KILL_AFTER_STEP = 52  # Between two checkpoints, in the middle of the first epoch.
PIXELS_MAX = 8_000_000  # 18 pictures have more, up to 600 million: not for a thumbnail's sake.
WAIT_S = 600.0
# Few steps, and all the same enough that one of them has a save beside it.
PROFILED_STEPS, PROFILED_CHECKPOINT_EVERY = 30, 8
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
LAUNCHER += [f"--nproc-per-node={WORLD_SIZE}"]


class Failure(Exception):
    """The demo cannot go on; the message says why."""


def say(text: str) -> None:
    """Tell progress, apart from results."""
    print(text, file=sys.stderr, flush=True)


def run(*command: str | pathlib.Path, cwd: pathlib.Path | None = None) -> str:
    """Run a program to its end; return what it printed."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise Failure(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout.strip()}")
    return done.stdout


def pictures() -> pathlib.Path:
    """Get the pictures: download the package with apt-get, unpack it, install nothing."""
    unpacked = BUILD / "openclipart"
    folder = unpacked / "usr" / "share" / "openclipart" / "png"
    if folder.is_dir():
        return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise Failure(f"the pictures are the Debian package {PACKAGE}: apt-get and dpkg get them")
    say(f"downloading {PACKAGE} (130 MB)")
    download = BUILD / "download"
    shutil.rmtree(download, ignore_errors=True)
    download.mkdir(parents=True)
    try:
        run("apt-get", "download", PACKAGE, cwd=download)
    except Failure:
        root = [] if os.geteuid() == 0 else ["sudo"]
        run(*root, "apt-get", "update")  # The machine has no list of packages yet, or an old one.
        run("apt-get", "download", PACKAGE, cwd=download)
    archive = next(download.glob("*.deb"))
    partial = BUILD / "openclipart.partial"
    shutil.rmtree(partial, ignore_errors=True)
    run("dpkg", "-x", archive, partial)
    partial.rename(unpacked)
    shutil.rmtree(download)
    os.sync()  # Else nothing of it could leave the page cache for the cold measurements.
    return folder


def pack(folder: pathlib.Path) -> pathlib.Path:
    """Pack the folder of topics, if the last run has not; verify every record."""
    packed = BUILD / "clipart.ffr"
    if not packed.exists():
        say("packing")
        run("ffrecord-pack", "--nested", folder, packed)
    say("verifying")
    run("ffrecord", "verify", packed)
    return packed


def picture_pixels(png: bytes) -> int:
    """Width times height, from a PNG's header."""
    width, height = struct.unpack_from(">II", png, 16)
    return int(width * height)


def training_set(packed: pathlib.Path) -> tuple[pathlib.Path, int]:
    """Copy the pictures that a thumbnail can be made of in reasonable time; count the others."""
    path = BUILD / "train.ffr"
    reader = ffrecord.open(packed)
    image, label = report.columns_of(reader)
    if not path.exists():
        schema = {"image": "bytes", "label": "i64", "id": "i64"}
        with ffrecord.Writer(path, schema=schema) as writer:
            for batch in reader.batches(256):
                for at, picture, topic in zip(
                    batch.indices.tolist(), batch[image], batch[label], strict=True
                ):
                    if picture_pixels(bytes(picture[:32])) <= PIXELS_MAX:
                        writer.write({"image": picture, "label": int(topic), "id": at})
    return path, len(reader) - len(ffrecord.open(path))


def free_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def daemon() -> Iterator[str]:
    """Start ffrecordd on a folder of its own; yield its address; stop it by SIGTERM."""
    data = BUILD / "daemon"
    shutil.rmtree(data, ignore_errors=True)
    port = free_port()
    with (BUILD / "logs" / "ffrecordd.log").open("w") as log:
        server = subprocess.Popen(
            ["ffrecordd", "--data", str(data), "--listen", f"127.0.0.1:{port}"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            wait_for(lambda: can_connect(port), lambda: server.poll() is None, "ffrecordd")
            yield f"ffrecord://127.0.0.1:{port}"
        finally:
            server.terminate()
            code = server.wait(timeout=30)
    if code:
        raise Failure(f"ffrecordd ended with exit code {code}: see {log.name}")


def can_connect(port: int) -> bool:
    """Tell whether somebody listens."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(done: Callable[[], bool], alive: Callable[[], bool], what: str) -> None:
    """Wait until `done`; give up when it is no longer alive, or after a long time."""
    deadline = time.monotonic() + WAIT_S
    while not done():
        if not alive():
            raise Failure(f"{what} ended too early: see {BUILD / 'logs'}")
        if time.monotonic() > deadline:
            raise Failure(f"{what}: nothing happened for {WAIT_S:.0f} s: see {BUILD / 'logs'}")
        time.sleep(0.02)


@dataclasses.dataclass
class Run:
    """One training run, as its ranks logged it."""

    name: str
    ranks: list[list[dict[str, Any]]]

    def events(self, kind: str, rank: int = 0) -> list[dict[str, Any]]:
        """All events of one kind."""
        return [event for event in self.ranks[rank] if event["event"] == kind]

    def losses(self) -> dict[int, float]:
        """Mean loss over all ranks, by step."""
        return {event["step"]: event["loss"] for event in self.events("step")}

    def samples(self) -> dict[int, list[int]]:
        """Which pictures a step learned from, in order, over all ranks."""
        merged: dict[int, list[int]] = {}
        for rank in range(len(self.ranks)):
            for event in self.events("step", rank):
                merged.setdefault(event["step"], []).extend(event["ids"])
        return merged

    def images_per_s(self, epoch: int) -> float:
        """Pictures learned each second in one epoch, once it was under way."""
        begin = next(e["step"] for e in self.events("epoch") if e["epoch"] == epoch)
        later = [e["step"] for e in self.events("epoch") if e["epoch"] > epoch]
        end = later[0] if later else self.events("end")[0]["step"]
        times = {event["step"]: event["time"] for event in self.events("step")}
        count = sum(len(ids) for step, ids in self.samples().items() if begin + 1 < step <= end)
        return count / (times[end] - times[begin + 1])


def read_log(path: pathlib.Path) -> list[dict[str, Any]]:
    """Every whole line of a log; a killed writer may leave half of one."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines]


def train(
    name: str,
    sources: list[str],
    classes: int,
    checkpoints: pathlib.Path | str,
    *,
    resume: bool = False,
    kill_after: int | None = None,
    meanwhile: tuple[int, Callable[[], None]] | None = None,
) -> Run:
    """Run two ranks to the end, or kill them with SIGKILL once they passed a step.

    `meanwhile`: what happens beside them, once they passed an earlier step.
    """
    logs = [BUILD / "logs" / f"{name}-rank{rank}.jsonl" for rank in range(WORLD_SIZE)]
    for log in logs:
        log.unlink(missing_ok=True)
    command = [*LAUNCHER, str(HERE / "train.py"), *sources]
    command += ["--classes", str(classes), "--checkpoints", str(checkpoints)]
    command += ["--every", str(CHECKPOINT_EVERY)]
    command += ["--events", str(BUILD / "logs" / f"{name}-rankRANK.jsonl")]
    command += ["--resume"] if resume else []
    with (BUILD / "logs" / f"{name}.log").open("w") as output:
        ranks = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        )

        def wait_for_step(step: int) -> None:
            wait_for(
                lambda: any(
                    event["event"] == "step" and event["step"] >= step
                    for event in read_log(logs[0])
                ),
                lambda: ranks.poll() is None,
                name,
            )

        try:
            if meanwhile is not None:
                wait_for_step(meanwhile[0])
                meanwhile[1]()
            if kill_after is not None:
                wait_for_step(kill_after)
                for log in logs:
                    os.kill(read_log(log)[0]["pid"], signal.SIGKILL)
            code = ranks.wait(timeout=WAIT_S)
        finally:
            if ranks.poll() is None:
                ranks.terminate()
                ranks.wait(timeout=60)
    if (code == 0) != (kill_after is None):
        raise Failure(f"training run {name} ended with exit code {code}: see {output.name}")
    return Run(name, [read_log(log) for log in logs])


def profile(source: str, classes: int, checkpoints: str) -> str:
    """Profile a short run; return what held it up, and a step with a save in its gaps."""
    folder = BUILD / "profile"
    shutil.rmtree(folder, ignore_errors=True)
    command = [*LAUNCHER, str(HERE / "profiled_train.py"), source]
    command += ["--classes", str(classes), "--checkpoints", checkpoints]
    command += ["--steps", str(PROFILED_STEPS), "--every", str(PROFILED_CHECKPOINT_EVERY)]
    # Its signal reaches the launcher, which ends the ranks.
    bounded = ["timeout", f"{WAIT_S:.0f}", "env", "OMP_NUM_THREADS=1", "PYTHONWARNINGS=ignore"]
    run(*bounded, "ffrecord", "prof", "--out", folder, "--", *command)
    page = ["--html", str(BUILD / "profile.html"), "--overwrite"]
    return run("ffrecord", "why", folder, "--timeline", *page)


def compare(whole: Run, killed: Run, resumed: Run) -> dict[str, Any]:
    """Check that the killed and resumed run did what the uninterrupted one did, to the bit."""
    at = resumed.events("resume")[0]["step"]
    before = {step: ids for step, ids in killed.samples().items() if step <= at}
    pieced = before | resumed.samples()
    losses = {step: loss for step, loss in killed.losses().items() if step <= at}
    losses |= resumed.losses()
    ends = (whole.events("end")[0], resumed.events("end")[0])
    checks = {
        "same_samples": pieced == whole.samples(),
        "same_losses": losses == whole.losses(),
        "same_parameters": ends[0]["digest"] == ends[1]["digest"],
        "samples_each_once_an_epoch": each_once(whole),
    }
    steps = ends[0]["step"]
    return {
        "killed_after_step": max(killed.losses()),
        "resumed_from_step": at,
        "steps": steps,
        "final_loss_uninterrupted": whole.losses()[steps],
        "final_loss_resumed": resumed.losses().get(steps),
        "parameters_sha256": ends[0]["digest"],
        **checks,
        "exact": all(checks.values()),
    }


def each_once(whole: Run) -> bool:
    """Tell whether no picture came twice in an epoch."""
    bounds = [event["step"] for event in whole.events("epoch")]
    bounds.append(whole.events("end")[0]["step"])
    for begin, end in itertools.pairwise(bounds):
        seen = [i for step, ids in whole.samples().items() if begin < step <= end for i in ids]
        if len(seen) != len(set(seen)):
            return False
    return True


def source_files(folder: pathlib.Path) -> tuple[list[pathlib.Path], int]:
    """Every picture of the folder, links left out, and their size."""
    files = [p for p in sorted(folder.rglob("*.png")) if not p.is_symlink()]
    return files, sum(path.stat().st_size for path in files)


def main() -> int:
    """Run the demo; return the exit code."""
    begin = time.monotonic()
    (BUILD / "logs").mkdir(parents=True, exist_ok=True)
    times: dict[str, float] = {}

    @contextlib.contextmanager
    def timed(what: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        times[what] = time.monotonic() - start
        say(f"  {what}: {times[what]:.1f} s")

    with timed("pictures"):
        folder = pictures()
        files, size_bytes = source_files(folder)
    with timed("pack and verify"):
        packed = pack(folder)
        count = len(ffrecord.open(packed))
        if count != len(files):
            raise Failure(f"{packed} has {count} records, the folder {len(files)} pictures")
    with timed("training set"):
        path, left_out = training_set(packed)
    topics = sorted(entry.name for entry in folder.iterdir() if entry.is_dir())

    runs = BUILD / "checkpoints"
    shutil.rmtree(runs, ignore_errors=True)
    with daemon() as address:
        with timed("publish"):
            remote = f"{address}/{DATASET}"
            run("ffrecord", "publish", path, remote)
        sources = [str(path), remote]
        with timed("uninterrupted run"):
            whole = train("whole", sources, len(topics), runs / "whole")
        with timed("killed run"):
            killed = train(
                "killed", sources, len(topics), runs / "killed", kill_after=KILL_AFTER_STEP
            )
        with timed("resumed run"):
            resumed = train("resumed", sources, len(topics), runs / "killed", resume=True)
        with timed("profiled run"):
            # Over TCP, as between machines: within one, saves go through shared memory.
            saves = f"{address}/runs/profiled?transport=tcp"
            profiled = profile(f"{remote}?transport=tcp", len(topics), saves)
        with timed("measurements"):
            run("ffrecord", "publish", packed, f"{address}/all")
            throughput = measure.compare(packed, folder, f"{address}/all")

    found: dict[str, Any] = {
        "pictures": count,
        "pictures_bytes": size_bytes,
        "packed_bytes": packed.stat().st_size,
        "packed_sha256": hashlib.sha256(packed.read_bytes()).hexdigest(),
        "topics": topics,
        "left_out_of_training": left_out,
        "world_size": WORLD_SIZE,
        "throughput": throughput,
        "training_images_per_s": {
            "embedded": whole.images_per_s(0),
            "daemon": whole.images_per_s(1),
        },
        "resume": compare(whole, killed, resumed),
        "loss": [[step, loss] for step, loss in whole.losses().items()],
        "timeline": report.timeline(whole, killed, resumed),
        "stalls": report.stalls(whole),
        "overlap": report.overlap(whole, WORLD_SIZE),
        "profile": profiled.splitlines(),
        "seconds": times | {"all": time.monotonic() - begin},
    }
    (BUILD / "report.json").write_text(json.dumps(found, indent=2) + "\n")
    (BUILD / "report.html").write_text(report.html(found, packed))
    print(report.summary(found, BUILD))
    return 0 if found["resume"]["exact"] and throughput["same_bytes"] else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failure, OSError, ffrecord.CorruptionError) as error:
        print(f"demo: {error}", file=sys.stderr)
        sys.exit(4)
    except KeyboardInterrupt:
        sys.exit(130)
