"""Saving and loading a training state, against fio, torch.save and torch.distributed.checkpoint.

The state is that of a GPT-2 with AdamW: parameters and two moments, float32, all on the CPU. Every
save is durable when it counts as done, for everybody; loads fill tensors that are there, with what
was saved out of the page cache. fio writes and reads as many bytes, directly, before and after the
arms of each round; its rate is the mean of the two. `--table` measures one of save, load, beside
(training), export and shapes alone.
"""

# ruff: noqa: ANN401 - tensors of torch, and modules, that are imported late

import argparse
import contextlib
import importlib.util
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "arms"))
from exports import exports_of

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLES = ("save", "load", "export", "beside", "shapes")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Which tables."""
    parser.add_argument("--table", choices=TABLES, help="Run only this table; all by default.")


def _import_ffrecord() -> Any:
    """The package of this tree if it is built, else the installed one."""
    built = sorted((ROOT / "build" / "python" / "src").glob("_ffrecord.*.so"))
    if built:
        stage = ROOT / "build" / "bench" / "stage" / "ffrecord"
        shutil.rmtree(stage.parent, ignore_errors=True)
        stage.mkdir(parents=True)
        for source in [*(ROOT / "python" / "ffrecord").iterdir(), *built]:
            (stage / source.name).symlink_to(source)
        sys.path.insert(0, str(stage.parent))
    try:
        import ffrecord.checkpoint

        return ffrecord.checkpoint
    except ImportError as error:
        raise harness.Unable(f"{error}: build it (meson setup build; ninja -C build)") from None


def model_state(layers: int) -> dict[str, Any]:
    """Parameters of a GPT-2 of width 1,024, and the moments that AdamW keeps of each."""
    import torch

    width = 1024
    shapes = {"wte": (50257, width), "wpe": (1024, width), "ln_f.w": (width,), "ln_f.b": (width,)}
    for layer in range(layers):
        for name, shape in {
            "ln_1.w": (width,), "ln_1.b": (width,), "attn.qkv.w": (3 * width, width),
            "attn.qkv.b": (3 * width,), "attn.out.w": (width, width), "attn.out.b": (width,),
            "ln_2.w": (width,), "ln_2.b": (width,), "mlp.in.w": (4 * width, width),
            "mlp.in.b": (4 * width,), "mlp.out.w": (width, 4 * width), "mlp.out.b": (width,),
        }.items():  # fmt: skip
            shapes[f"h.{layer}.{name}"] = shape
    generator = torch.Generator().manual_seed(7)
    return {
        part: {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}
        for part in ("model", "exp_avg", "exp_avg_sq")
    }


def tensors_of(state: Any) -> list[Any]:
    """All leaves."""
    if isinstance(state, dict):
        return [leaf for child in state.values() for leaf in tensors_of(child)]
    return [state]


def flat_of(state: Any, path: str = "") -> dict[str, Any]:
    """All leaves by their paths."""
    if not isinstance(state, dict):
        return {path: state}
    return {
        k: v for key, child in state.items() for k, v in flat_of(child, f"{path}/{key}").items()
    }


def size_of(state: Any) -> int:
    """In bytes."""
    return sum(tensor.nbytes for tensor in tensors_of(state))


def thread_ranks(count: int) -> Any:
    """Ranks that are threads, as the tests have them; call it when the package can be imported."""
    folder = str(ROOT / "tests" / "python")
    if folder not in sys.path:
        sys.path.append(folder)
    from thread_ranks import ThreadRanks

    return ThreadRanks(count)


def drop_cache(folder: pathlib.Path) -> None:
    """Put all files below out of the page cache."""
    for path in [folder] if folder.is_file() else folder.rglob("*"):
        if path.is_file() and path.stat().st_size > 1 << 20:
            harness.make_cold(path)


class Arms:
    """How each arm runs; all give bytes/s."""

    def __init__(self, settings: harness.Settings, ckpt: Any, state: Any) -> None:
        """Save and load `state` below the scratch folder."""
        self.ckpt, self.state = ckpt, state
        self.size = size_of(state)
        self.folder = settings.scratch / "checkpoint"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.fio_file = self.folder / "fio"

    def fresh(self, name: str) -> pathlib.Path:
        """A path of that name with nothing there."""
        path = self.folder / name
        if path.is_file():
            path.unlink()
        shutil.rmtree(path, ignore_errors=True)
        return path

    def cold(self, folder: pathlib.Path) -> None:
        """Put all files below out of the page cache."""
        drop_cache(folder)

    def timed(self, work: Callable[[], object]) -> float:
        """The state's bytes by the time of `work`."""
        began = time.perf_counter()
        work()
        return self.size / (time.perf_counter() - began)

    def fio(self, kind: str) -> float:
        """One sequential pass, direct, 4 MiB at a depth of 8; a write ends with fsync."""
        if kind == "write":
            self.fio_file.unlink(missing_ok=True)
        options = {
            "name": kind, "filename": self.fio_file, "rw": kind, "bs": "4m", "iodepth": 8,
            "ioengine": "io_uring", "direct": 1, "size": self.size // 4096 * 4096,
            "end_fsync": int(kind == "write"), "output-format": "json",
        }  # fmt: skip
        words = (f"--{key}={value}" for key, value in options.items())
        job = harness.run_json(harness.foreign("fio", "fio"), *words)["jobs"][0]
        sync_s = job.get("sync", {}).get("lat_ns", {}).get("mean", 0) / 1e9
        return float(self.size / (job[kind]["runtime"] / 1000 + sync_s))

    # --- Save ------------------------------------------------------------------------------------

    def save_ours(self) -> float:
        """One rank."""
        run = self.fresh("ours")
        return self.timed(lambda: self.ckpt.save(run, 1, self.state))

    def save_ours_2_ranks(self) -> float:
        """Two ranks that are threads, each with half of what both have."""
        run = self.fresh("ours-2")
        ranks = thread_ranks(2)

        def save(rank: Any) -> None:
            self.ckpt.save(run, 1, self.state, group=rank, replicated="split")

        rate = self.timed(lambda: ranks.must(save))
        shutil.rmtree(run)
        return rate

    def save_torch(self) -> float:
        """torch.save to a file, and fsync."""
        import torch

        path = self.fresh("torch")

        def save() -> None:
            with path.open("wb") as file:
                torch.save(self.state, file)
                file.flush()
                os.fsync(file.fileno())

        return self.timed(save)

    def save_safetensors(self) -> float:
        """Safetensors' save_file, and fsync."""
        from safetensors.torch import save_file

        path = self.fresh("safetensors")

        def save() -> None:
            save_file(flat_of(self.state), path)
            with path.open("rb") as file:
                os.fsync(file.fileno())

        return self.timed(save)

    def save_dcp(self, threads: int) -> Callable[[], float]:
        """FileSystemWriter with so many threads."""
        import torch.distributed.checkpoint as dcp

        def save() -> float:
            path = self.fresh("dcp")
            writer = dcp.FileSystemWriter(path, thread_count=threads, sync_files=True)
            return self.timed(lambda: dcp.save(self.state, storage_writer=writer))

        return save

    # --- Load ------------------------------------------------------------------------------------

    def load_ours(self) -> float:
        """Into the state's own tensors."""
        drop_cache(self.folder / "ours")
        return self.timed(lambda: self.ckpt.load(self.folder / "ours", self.state))

    def load_torch(self) -> float:
        """To new tensors, as torch.load does."""
        import torch

        drop_cache(self.folder / "torch")
        return self.timed(lambda: torch.load(self.folder / "torch", weights_only=True))

    def load_safetensors(self) -> float:
        """To new tensors, which map the file: every byte is looked at."""
        from safetensors.torch import load_file

        drop_cache(self.folder / "safetensors")

        def load() -> None:
            for tensor in load_file(self.folder / "safetensors").values():
                tensor.clone()

        return self.timed(load)

    def load_dcp(self) -> float:
        """Into the state's own tensors."""
        import torch.distributed.checkpoint as dcp

        drop_cache(self.folder / "dcp")
        reader = dcp.FileSystemReader(self.folder / "dcp")
        return self.timed(lambda: dcp.load(self.state, storage_reader=reader))

    # --- Beside training -------------------------------------------------------------------------

    def memcpy(self) -> float:
        """One copy of the state to memory that was used before."""
        if not hasattr(self, "copies"):
            import torch

            self.copies = [torch.zeros_like(tensor) for tensor in tensors_of(self.state)]

        def copy() -> None:
            for to, tensor in zip(self.copies, tensors_of(self.state), strict=True):
                to.copy_(tensor)

        return self.timed(copy)

    def save_rest(self) -> float:
        """A save of half of the state, in bytes of the whole state per second."""
        rest, size = {}, 0
        for key, tensor in flat_of(self.state).items():
            if size < self.size // 2:
                rest[key], size = tensor, size + tensor.nbytes
        run = self.fresh("rest")
        rate = self.timed(lambda: self.ckpt.save(run, 1, rest))
        shutil.rmtree(run)
        return rate

    def stall(self, **options: int) -> float:
        """How long async_save keeps its caller; the save ends uncounted.

        A save before, of the same cap, makes the arena, which stays for a run's later saves.
        """
        run = self.fresh("async")
        self.ckpt.async_save(run, 0, self.state, **options).result()
        pending: list[Any] = []

        def save() -> None:
            pending.append(self.ckpt.async_save(run, 1, self.state, **options))

        rate = self.timed(save)
        pending[0].result()
        return rate

    def step_cost(self) -> float:
        """Time of a step while a save goes on, over the time of one alone; see `figures`."""
        import torch

        matrix = torch.rand(1024, 1024)

        def step() -> float:
            began = time.perf_counter()
            torch.mm(matrix, matrix)
            return time.perf_counter() - began

        alone = [step() for _ in range(100)]
        run = self.fresh("async")
        pending = self.ckpt.async_save(run, 1, self.state)
        during = []
        while not pending.done() or len(during) < 10:
            during.append(step())
        pending.result()
        return statistics.median(during) / statistics.median(alone)


def peak_growth(work: Callable[[], object]) -> int:
    """By how much the process's memory grows at most, in bytes."""

    def status(field: str) -> int:
        for line in pathlib.Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field):
                return int(line.split()[1]) << 10
        raise harness.Unable(f"/proc/self/status has no {field}")

    pathlib.Path("/proc/self/clear_refs").write_text("5")  # The peak is now what is in use.
    before = status("VmRSS")
    work()
    return status("VmHWM") - before


def read_bytes() -> int:
    """Bytes that this process has had read from disks."""
    for line in pathlib.Path("/proc/self/io").read_text().splitlines():
        if line.startswith("read_bytes"):
            return int(line.split()[1])
    raise harness.Unable("/proc/self/io has no read_bytes")


def reshard_read_cost(arms: Arms) -> float:
    """Bytes read by three ranks of what four saved, over those that they need."""
    import torch

    rows = 48_000
    whole = torch.rand(rows, 4096)
    run = arms.fresh("reshard")

    def save(rank: Any) -> None:
        begin, end = rows * rank.rank // 4, rows * (rank.rank + 1) // 4
        shard = arms.ckpt.Shard(whole[begin:end], (rows, 4096), (begin, 0))
        arms.ckpt.save(run, 1, {"w": shard}, group=rank)

    thread_ranks(4).must(save)
    drop_cache(run)
    before = read_bytes()
    for rank in range(3):
        begin, end = rows * rank // 3, rows * (rank + 1) // 3
        mine = torch.empty(end - begin, 4096)
        arms.ckpt.load(run, {"w": arms.ckpt.Shard(mine, (rows, 4096), (begin, 0))})
        if not torch.equal(mine, whole[begin:end]):
            raise harness.Unable("a reshard gave other bytes")
    cost = (read_bytes() - before) / whole.nbytes
    shutil.rmtree(run)
    return cost


def small_tensors(arms: Arms) -> dict[str, float]:
    """100,000 tensors of 1,000 floats against the same bytes in 100."""
    import torch

    from ffrecord.checkpoint._saving import Order, flatten

    block = torch.rand(100, 1_000_000)
    few = {str(i): block[i] for i in range(100)}
    many = {str(i): row for i, row in enumerate(block.view(100_000, 1000))}
    seconds = {}
    for name, state in (("few", few), ("many", many)):
        run = arms.fresh("small")
        began = time.perf_counter()
        arms.ckpt.save(run, 1, state)
        seconds[name] = time.perf_counter() - began
    shutil.rmtree(arms.folder / "small")
    began = time.perf_counter()
    flatten(Order("x", 1, "rank0", True, 30.0), many, 0, 1)
    return {
        "small_tensors_plan_ms": (time.perf_counter() - began) * 1000,
        "small_tensors_cost": seconds["many"] / seconds["few"],
    }


def incremental_cost(arms: Arms) -> dict[str, float]:
    """Checkpoints, each with a tenth of its bytes changed: bytes and times by those of the first.

    The second one reads what it shares, which a process does once; the third one does not.
    """
    run = arms.fresh("incremental")
    seconds = []

    def save(step: int) -> None:
        began = time.perf_counter()
        arms.ckpt.save(run, step, arms.state, incremental=True)
        seconds.append(time.perf_counter() - began)

    def change() -> None:
        for tensor in tensors_of(arms.state):
            if tensor.nbytes >= 1 << 20:
                tensor[: max(1, len(tensor) // 10)] += 1

    save(1)
    first = occupied(run)
    change()
    save(2)
    cost = occupied(run) / first - 1
    change()
    save(3)
    shutil.rmtree(run)
    return {
        "incremental_cost": cost,
        "incremental_first_time_cost": seconds[1] / seconds[0],
        "incremental_time_cost": seconds[2] / seconds[0],
    }


def occupied(folder: pathlib.Path) -> int:
    """Bytes on disk, those that have several names once."""
    files = {(path.stat().st_ino, path.stat().st_blocks * 512) for path in folder.rglob("*")}
    return sum(size for _, size in files)


def plan_1024(arms: Arms) -> dict[str, float]:
    """The work of 1,024 ranks around their writing; see arms/plan_1024.py."""
    run = arms.fresh("plan")
    places = [str(ROOT / "tests" / "python"), str(pathlib.Path(__file__).parent), *sys.path]
    done = subprocess.run(
        [sys.executable, pathlib.Path(__file__).parent / "arms" / "plan_1024.py", run],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        stdout=subprocess.PIPE,
        check=True,
    )
    shutil.rmtree(run)
    return {key: float(value) for key, value in json.loads(done.stdout).items()}


def odd_shapes(arms: Arms) -> dict[str, float]:
    """Figures that are not rates."""
    run = arms.fresh("memory")
    ckpt, state = arms.ckpt, arms.state
    peaks = {
        "peak_over_state_bytes": lambda: ckpt.save(run, 1, state),
        "async_peak_over_state_bytes": lambda: ckpt.async_save(run, 2, state).result(),
    }
    grown = {key: float(peak_growth(work)) for key, work in peaks.items()}
    shutil.rmtree(run)
    return {
        **grown,
        "reshard_read_cost": reshard_read_cost(arms),
        **small_tensors(arms),
        **incremental_cost(arms),
        **plan_1024(arms),
    }


def saves_of(arms: Arms) -> list[harness.Arm]:
    """Ours and the peers that are installed."""
    saves = [
        harness.Arm("save_ours", "one rank, direct, hashed", lambda _: arms.save_ours()),
        harness.Arm("save_ours_2_ranks", "two ranks", lambda _: arms.save_ours_2_ranks()),
        harness.Arm("save_torch", "torch.save and fsync", lambda _: arms.save_torch()),
    ]
    for threads in (1, 2, 4):
        save = arms.save_dcp(threads)
        what = f"DCP's FileSystemWriter, {threads} threads, sync_files"
        saves.append(harness.Arm(f"save_dcp_{threads}", what, lambda _, save=save: save()))
    if importlib.util.find_spec("safetensors"):
        what = "safetensors, and fsync"
        saves.append(harness.Arm("save_safetensors", what, lambda _: arms.save_safetensors()))
    return saves


def loads_of(arms: Arms) -> list[harness.Arm]:
    """The same, in the order of the saves."""
    loads = [
        harness.Arm("load_ours", "in place, verified", lambda _: arms.load_ours()),
        harness.Arm("load_torch", "torch.load, weights_only", lambda _: arms.load_torch()),
        harness.Arm("load_dcp", "DCP's FileSystemReader, in place", lambda _: arms.load_dcp()),
    ]
    if importlib.util.find_spec("safetensors"):
        what = "safetensors' load_file, and a copy"
        loads.append(harness.Arm("load_safetensors", what, lambda _: arms.load_safetensors()))
    return loads


def bench(settings: harness.Settings) -> harness.Outcome:
    """Compare saves and loads; measure the stall, the memory, and odd shapes of states."""
    ckpt = _import_ffrecord()
    tables = [settings.options.table] if settings.options.table else list(TABLES)
    layers = 4 if settings.quick else 12
    state = model_state(layers)
    arms = Arms(settings, ckpt, state)
    if harness.free_bytes(settings.scratch) < 6 * arms.size:
        raise harness.Unable(f"{settings.scratch}: {6 * arms.size / 2**30:.1f} GiB do not fit")
    values: dict[str, list[float]] = {}
    figures: dict[str, list[float]] = {}
    measured: list[harness.Arm] = []
    if "save" in tables:
        measured += between_fio(arms, "write", saves_of(arms), settings.rounds, values)
    if "load" in tables:
        if "save" not in tables:
            for arm in saves_of(arms):
                arm.run(0)  # Saves the steps that are to be loaded.
        measured += between_fio(arms, "read", loads_of(arms), settings.rounds, values)
    if "export" in tables:
        if not (arms.folder / "ours").exists():
            arms.save_ours()
        arms_of_export = exports_of(arms)
        for number in range(settings.rounds):
            for name, found in shifted(arms_of_export, number).items():
                values.setdefault(name, []).append(found)
        measured += arms_of_export
    if "beside" in tables:
        beside = [
            harness.Arm("memcpy", "one copy of the state, warm", lambda _: arms.memcpy()),
            harness.Arm("stall", "until async_save returns, default", lambda _: arms.stall()),
            harness.Arm(
                "stall_half",
                "until async_save returns, with room for half of the state",
                lambda _: arms.stall(stage_bytes_max=arms.size // 2),
            ),
            harness.Arm("save_rest", "save of the other half", lambda _: arms.save_rest()),
        ]
        for arm in beside:
            arm.run(0)  # Pages that later rounds reuse.
        for number in range(settings.rounds):
            for name, found in shifted(beside, number).items():
                values.setdefault(name, []).append(found)
            figures.setdefault("step_during_save_cost", []).append(arms.step_cost())
        arms.__dict__.pop("copies", None)
        measured += beside
    if "shapes" in tables:
        for _ in range(3):
            for key, value in odd_shapes(arms).items():
                figures.setdefault(key, []).append(value)
                print(f"{key}: {value:,.3f}", file=sys.stderr)
    shutil.rmtree(arms.folder)
    ratios = {
        "save_vs_fio": ("save_ours", "fio_write"),
        "save_2_ranks_vs_fio": ("save_ours_2_ranks", "fio_write"),
        "save_vs_torch": ("save_ours", "save_torch"),
        "save_vs_dcp": ("save_ours", "save_dcp_1"),
        "save_vs_dcp_2": ("save_ours", "save_dcp_2"),
        "save_vs_dcp_4": ("save_ours", "save_dcp_4"),
        "save_vs_safetensors": ("save_ours", "save_safetensors"),
        "load_vs_fio": ("load_ours", "fio_read"),
        "load_vs_torch": ("load_ours", "load_torch"),
        "load_vs_dcp": ("load_ours", "load_dcp"),
        "load_vs_safetensors": ("load_ours", "load_safetensors"),
        "export_vs_cp": ("export_ours", "cp"),
        "stall_vs_memcpy_cost": ("memcpy", "stall"),
        "stall_half_vs_save_cost": ("save_rest", "stall_half"),
    }
    return harness.Outcome(
        unit="bytes/s",
        arms=measured,
        values=values,
        ratios={key: pair for key, pair in ratios.items() if set(pair) <= values.keys()},
        figures=figures,
        notes=[
            f"GPT-2 of width 1,024 and {layers} layers with AdamW: {arms.size / 2**30:.2f} GiB in "
            f"{len(tensors_of(state))} tensors, {settings.rounds} rounds; costs are times over "
            "times, lower is better"
        ],
    )


def between_fio(
    arms: Arms, kind: str, group: list[harness.Arm], rounds: int, values: dict[str, list[float]]
) -> list[harness.Arm]:
    """All rounds of a group, each between two runs of fio; without fio, of the group alone."""
    limit: list[float] = []
    if kind == "write":
        arms.save_ours()  # The scratch folder's first blocks.
    with contextlib.suppress(harness.Missing):
        if kind == "read" and not arms.fio_file.exists():
            arms.fio("write")
    for number in range(rounds):
        around = []
        with contextlib.suppress(harness.Missing):
            around.append(arms.fio(kind))
        for name, found in shifted(group, number).items():
            values.setdefault(name, []).append(found)
        if around:
            around.append(arms.fio(kind))
            limit.append(statistics.mean(around))
    if limit:
        values[f"fio_{kind}"] = limit
    what = "direct, 4 MiB, depth 8" + (", fsync" if kind == "write" else "")
    return [harness.Arm(f"fio_{kind}", what, lambda _: math.nan), *group]


def shifted(arms: list[harness.Arm], number: int) -> dict[str, float]:
    """The rate of each arm in round `number`; the one that begins is another each time."""
    shift = number % len(arms)
    found = {}
    for arm in [*arms[shift:], *arms[:shift]]:
        found[arm.name] = arm.run(number)
        print(f"round {number + 1} {arm.name}: {found[arm.name]:,.0f}", file=sys.stderr)
    return found
