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
import math
import os
import pathlib
import shutil
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import harness

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "arms"))
from exports import exports_of
from shapes import odd_shapes
from states import ROOT, drop_cache, flat_of, model_state, size_of, tensors_of, thread_ranks

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
