"""Goal: torch.distributed.checkpoint saves to ffrecord and loads from it, at any world size.

Method: dcp.save, async_save and load with plain state, in this process; then processes with Gloo
that save DTensors and replicated tensors at one size and load them at others.
"""

import contextlib
import gc
import io
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch has no distributed package", allow_module_level=True)

import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint import (  # noqa: E402
    DefaultLoadPlanner,
    DefaultSavePlanner,
    LoadPlan,
    SavePlan,
)
from torch.distributed.checkpoint.metadata import (  # noqa: E402
    BytesStorageMetadata,
    Metadata,
)
from torch.distributed.checkpoint.planner import LoadItemType  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Replicate, Shard, distribute_tensor  # noqa: E402

import ffrecord  # noqa: E402
import ffrecord.checkpoint as ckpt  # noqa: E402
from daemon import Daemon  # noqa: E402
from ffrecord import _ffrecord  # noqa: E402
from ffrecord.checkpoint._values import encode  # noqa: E402
from ffrecord.torch import BalancedSavePlanner, CheckpointReader, CheckpointWriter  # noqa: E402
from ranks import run_ranks  # noqa: E402

# DCP wraps what a rank raised, which is then part of the message.
FAILED = (Exception, dcp.api.CheckpointException)


def state_of(seed: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "model": {
            "weight": torch.randn(300, 40, generator=generator),
            "strided": torch.randn(30, 20, generator=generator).T,
            "bf16": torch.randn(7, generator=generator).to(torch.bfloat16),
            "scalar": torch.tensor(seed),
            "empty": torch.empty(0, 3),
        },
        "optim": {"groups": [{"lr": 0.1 * seed, "betas": (0.9, 0.95)}], "name": "adamw"},
        "step": seed,
    }


def blank(state: Any) -> Any:  # noqa: ANN401
    if isinstance(state, torch.Tensor):
        return torch.zeros_like(state)
    if isinstance(state, dict):
        return {key: blank(value) for key, value in state.items()}
    if isinstance(state, list):
        return [blank(value) for value in state]
    return None if not isinstance(state, tuple) else state


def same(a: Any, b: Any) -> bool:  # noqa: ANN401
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def test_a_watch_sees_the_saves_of_a_writer(tmp_path: Path) -> None:
    class Planner(BalancedSavePlanner):
        """Looks while its tensors are written."""

        def resolve_data(self, write_item: Any) -> Any:  # noqa: ANN401
            seen.append(watch.report())
            return super().resolve_data(write_item)

    seen: list[ckpt.Report] = []
    state = {"w": torch.ones(1 << 20)}
    with ckpt.monitor() as watch:
        dcp.save(state, storage_writer=CheckpointWriter(tmp_path, step=4), planner=Planner())
        assert [(one.step, one.done_bytes) for one in seen[0].running] == [(4, 0)]
        report = watch.report()
        assert (report.saves, report.failures, report.running) == (1, 0, ())
        assert 0 < report.stall_s < report.elapsed_s

        with pytest.raises(FAILED):
            dcp.save(state, storage_writer=CheckpointWriter(tmp_path, step=4))
        assert (watch.report().saves, watch.report().failures) == (1, 1)


def test_an_incremental_writer_shares_what_has_not_changed(tmp_path: Path) -> None:
    state = {"frozen": torch.randn(2000, 1000), "head": torch.randn(50, 1000)}
    for step in (1, 2):
        state["head"] += 1
        dcp.save(state, storage_writer=CheckpointWriter(tmp_path, step=step, incremental=True))
    ckpt.remove(tmp_path, 1)

    loaded = blank(state)
    dcp.load(loaded, storage_reader=CheckpointReader(tmp_path))

    assert same(loaded, state)
    segments = sorted(path.stat().st_size for path in tmp_path.glob("step-*/part-*/seg-*"))
    assert segments[0] < 1 << 20 < 8_000_000 < segments[1]


@pytest.mark.parametrize("planner", [None, BalancedSavePlanner])
def test_plain_state_comes_back(tmp_path: Path, planner: Any) -> None:  # noqa: ANN401
    state = state_of(3)
    made = None if planner is None else planner()
    dcp.save(state, storage_writer=CheckpointWriter(tmp_path, step=12), planner=made)

    loaded = blank(state)
    dcp.load(loaded, storage_reader=CheckpointReader(tmp_path))

    assert same(loaded, state)
    assert [commit.step for commit in ckpt.list(tmp_path)] == [12]


def test_relative_places_are_those_of_the_folder_they_were_given_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    writer, reader = CheckpointWriter("run"), CheckpointReader("run")
    monkeypatch.chdir(tmp_path / "elsewhere")
    loaded = blank(state_of(3))

    dcp.save(state_of(3), storage_writer=writer)
    dcp.load(loaded, storage_reader=reader)

    assert same(loaded, state_of(3))
    assert not (tmp_path / "elsewhere/run").exists()
    assert len(ckpt.list(tmp_path / "here/run")) == 1


def test_a_checkpoint_id_names_a_run_or_a_step_and_removes_nothing(tmp_path: Path) -> None:
    ckpt.save(tmp_path / "a", 40, {"w": np.ones(3)})  # A run may have steps of other savers.
    for seed in (1, 2):
        dcp.save(state_of(seed), checkpoint_id=tmp_path / "a", storage_writer=CheckpointWriter())
    assert [commit.step for commit in ckpt.list(tmp_path / "a")] == [40, 41, 42]
    loaded = blank(state_of(2))
    dcp.load(loaded, checkpoint_id=str(tmp_path / "a"), storage_reader=CheckpointReader())
    assert same(loaded, state_of(2))

    run = tmp_path / "run"
    for seed in (7, 8):
        dcp.save(
            state_of(seed),
            checkpoint_id=run / f"step-{seed:09}",
            storage_writer=CheckpointWriter(),
        )
    assert [commit.step for commit in ckpt.list(run)] == [7, 8]
    loaded = blank(state_of(7))
    dcp.load(loaded, checkpoint_id=run / "step-000000007", storage_reader=CheckpointReader())
    assert same(loaded, state_of(7))


def test_a_step_is_that_of_the_run_that_a_checkpoint_id_names(tmp_path: Path) -> None:
    writer = CheckpointWriter(step=7)
    dcp.save(state_of(7), checkpoint_id=tmp_path, storage_writer=writer)
    with pytest.raises(FAILED, match="committed already"):
        dcp.save(state_of(8), checkpoint_id=tmp_path, storage_writer=writer)
    dcp.save(state_of(9), checkpoint_id=tmp_path / "step-000000009", storage_writer=writer)
    assert [commit.step for commit in ckpt.list(tmp_path)] == [7, 9]

    loaded = blank(state_of(7))
    dcp.load(loaded, checkpoint_id=tmp_path, storage_reader=CheckpointReader(step=7))
    assert same(loaded, state_of(7))
    dcp.load(
        loaded, checkpoint_id=tmp_path / "step-000000009", storage_reader=CheckpointReader(step=7)
    )
    assert same(loaded, state_of(9))


def test_nothing_is_left_of_a_save_that_failed(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, step=1)
    with pytest.raises(FAILED, match="pickling"):
        dcp.save({"w": torch.ones(9), "bad": object()}, storage_writer=writer)
    assert list(tmp_path.iterdir()) == []
    del writer


def test_a_rank_that_opened_another_step_than_the_coordinator_reads_nothing(tmp_path: Path) -> None:
    dcp.save({"w": torch.ones(9)}, storage_writer=CheckpointWriter(tmp_path, step=1))
    coordinator, reader = CheckpointReader(tmp_path), CheckpointReader(tmp_path)
    coordinator.reset()
    dcp.save({"w": torch.ones(9)}, storage_writer=CheckpointWriter(tmp_path, step=2))
    reader.reset()
    [plan] = coordinator.prepare_global_plan([LoadPlan([])])
    with pytest.raises(RuntimeError, match="loads step 1, this rank opened 2"):
        reader.read_data(plan, DefaultLoadPlanner())


def test_a_forked_child_removes_nothing_of_its_parents_save(tmp_path: Path) -> None:
    parts = [_ffrecord.CheckpointShards(str(tmp_path), 1, None, True, 30.0, False)]
    written, _ = parts[0].write(0, [])
    child = os.fork()
    if child == 0:
        parts.clear()
        os._exit(0)
    os.waitpid(child, 0)
    parts[0].commit([written], encode({"w": 1}))
    assert ckpt.load(tmp_path) == {"w": 1}


def test_a_plan_of_an_earlier_save_is_refused(tmp_path: Path) -> None:
    plans = []
    for step in (1, 2):
        writer = CheckpointWriter(tmp_path, step=step)
        writer.set_up_storage_writer(True)
        plans += writer.prepare_global_plan([SavePlan([])])
    with pytest.raises(RuntimeError, match="of an earlier save"):
        writer.write_data(plans[0], DefaultSavePlanner())
    assert not list(tmp_path.glob("step-*"))


def test_a_value_that_no_rank_wrote_fails_the_save(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, step=1)
    writer.set_up_storage_writer(True)
    [plan] = writer.prepare_global_plan([SavePlan([])])
    results = writer.write_data(plan, DefaultSavePlanner()).wait()
    with pytest.raises(ValueError, match="lr is in the plan of the save, and no rank wrote it"):
        writer.finish(Metadata({"lr": BytesStorageMetadata()}), [results])
    assert ckpt.list(tmp_path) == []


def test_a_committed_step_is_not_replaced(tmp_path: Path) -> None:
    dcp.save(state_of(1), storage_writer=CheckpointWriter(tmp_path, step=1))
    with pytest.raises(FAILED, match="committed already"):
        dcp.save(state_of(2), storage_writer=CheckpointWriter(tmp_path, step=1))
    loaded = blank(state_of(1))
    dcp.load(loaded, storage_reader=CheckpointReader(tmp_path))
    assert same(loaded, state_of(1))
    assert not list(tmp_path.glob(".attempt-*"))


def test_overwriting_replaces_the_one_step_that_is_named(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        dcp.save(state_of(step), storage_writer=CheckpointWriter(tmp_path, step=step))
    before = ckpt.list(tmp_path)
    with pytest.raises(FAILED, match="names none"):
        dcp.save(state_of(4), storage_writer=CheckpointWriter(tmp_path, overwrite=True))
    assert ckpt.list(tmp_path) == before

    writer = CheckpointWriter(overwrite=True)
    for step in (2, 4):
        path = tmp_path / f"step-{step:09}"
        dcp.save(state_of(step + 10), checkpoint_id=path, storage_writer=writer)

    after = ckpt.list(tmp_path)
    assert [commit.step for commit in after] == [1, 2, 3, 4]
    assert (after[0], after[2]) == (before[0], before[2])
    loaded = blank(state_of(12))
    dcp.load(loaded, storage_reader=CheckpointReader(tmp_path, step=2))
    assert same(loaded, state_of(12))


class FailingOnce(CheckpointWriter):
    """Fails in the place that is named, once."""

    where: str = ""

    def _fail(self, where: str) -> None:
        if self.where == where:
            self.where = ""
            raise OSError("the disk is gone")

    def prepare_local_plan(self, plan: Any) -> Any:  # noqa: ANN401
        """On every rank."""
        self._fail("local plan")
        return super().prepare_local_plan(plan)

    def prepare_global_plan(self, plans: Any) -> Any:  # noqa: ANN401
        """On the coordinator."""
        self._fail("global plan")
        return super().prepare_global_plan(plans)

    def write_data(self, plan: Any, planner: Any) -> Any:  # noqa: ANN401
        """On every rank."""
        self._fail("write")
        return super().write_data(plan, planner)


class FailingAtTheEnd(CheckpointWriter):
    """When all is durable."""

    def finish(self, metadata: Any, results: Any) -> None:  # noqa: ANN401
        """On the coordinator."""
        raise OSError("the disk is gone")


@pytest.mark.parametrize("incremental", [False, True])
@pytest.mark.parametrize("kind", ["folder", "daemon"])
def test_a_step_stays_until_what_takes_its_place_is_durable(
    tmp_path: Path, kind: str, incremental: bool
) -> None:
    def overwrite(seed: int, writer: type[CheckpointWriter] = CheckpointWriter) -> None:
        made = writer(target, step=1, overwrite=True, incremental=incremental)
        dcp.save(state_of(seed), storage_writer=made)

    with contextlib.ExitStack() as until_the_end:
        target = str(tmp_path)
        if kind == "daemon":
            target = until_the_end.enter_context(Daemon(tmp_path)).address("run")
        overwrite(1)  # Of nothing.
        before = ckpt.list(target)
        with pytest.raises(FAILED, match="the disk is gone"):
            overwrite(2, FailingAtTheEnd)
        assert ckpt.list(target) == before
        assert ckpt.verify(target) == []

        overwrite(3)

        assert len(ckpt.list(target)) == 1
        assert ckpt.list(target) != before
        loaded = blank(state_of(3))
        dcp.load(loaded, storage_reader=CheckpointReader(target))
        assert same(loaded, state_of(3))
        assert ckpt.verify(target) == []
    gc.collect()  # The writer that failed, by its exception.
    if kind == "folder":
        assert sorted(path.name for path in tmp_path.iterdir()) == ["LATEST", "step-000000001"]


@pytest.mark.parametrize("kind", ["folder", "daemon"])
def test_a_saver_that_begins_to_overwrite_keeps_no_other_from_it(tmp_path: Path, kind: str) -> None:
    with contextlib.ExitStack() as until_the_end:
        target = str(tmp_path)
        if kind == "daemon":
            target = until_the_end.enter_context(Daemon(tmp_path)).address("run")
        ckpt.save(target, 1, {"w": 1})
        late = _ffrecord.CheckpointShards(target, 1, None, True, 30.0, False, None, True)
        written, _ = late.write(0, [])
        dcp.save(state_of(2), storage_writer=CheckpointWriter(target, step=1, overwrite=True))
        second = ckpt.list(target)
        with pytest.raises(FileExistsError):  # Another one was to give way.
            late.commit([written], encode({"w": 3}))
        assert ckpt.list(target) == second
        assert ckpt.verify(target) == []


@pytest.mark.parametrize("where", ["local plan", "global plan", "write"])
def test_a_planner_stores_all_of_the_state_after_a_save_that_failed(
    tmp_path: Path, where: str
) -> None:
    planner = BalancedSavePlanner()
    small, large = {"a": torch.ones(3)}, {"a": torch.ones(3), "b": torch.ones(4), "c": 5}
    dcp.save(small, storage_writer=FailingOnce(tmp_path, step=1), planner=planner)
    failing = FailingOnce(tmp_path, step=2)
    failing.where = where
    with pytest.raises(FAILED, match="the disk is gone"):
        dcp.save(large, storage_writer=failing, planner=planner)

    for step in (3, 4):
        dcp.save(large, storage_writer=FailingOnce(tmp_path, step=step), planner=planner)
        loaded = blank(large)
        dcp.load(loaded, storage_reader=CheckpointReader(tmp_path, step=step))
        assert same(loaded, large)


def test_a_planner_does_not_take_the_plan_of_another_division(tmp_path: Path) -> None:
    def planned(planner: BalancedSavePlanner, state: dict[str, Any]) -> Any:  # noqa: ANN401
        planner.set_up_planner(state, None, True)
        return planner.create_local_plan()

    ours, others = BalancedSavePlanner(), BalancedSavePlanner()
    state = {"a": torch.ones(3)}
    for planner in (ours, others):
        plans, _ = planner.create_global_plan([planned(planner, state)])
        planner.finish_plan(plans[0])

    with pytest.raises(RuntimeError, match="other ranks"):
        others.create_global_plan([planned(ours, state)])
    assert planned(ours, state).items  # It got no share, and so says all again.


def test_async_save_stores_what_was_there(tmp_path: Path) -> None:
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
        )
    try:
        state = state_of(5)
        with ckpt.monitor() as watch:
            began = time.monotonic()
            future: Any = dcp.async_save(state, storage_writer=CheckpointWriter(tmp_path / "run"))
            kept_s = time.monotonic() - began
            state["model"]["weight"].fill_(-1)
            future.result()
            seen = watch.report()
        assert seen.saves == 1
        # The copy kept the caller; what another thread writes keeps nobody.
        assert 0 < seen.stall_s <= kept_s
        loaded = blank(state)
        dcp.load(loaded, storage_reader=CheckpointReader(tmp_path / "run"))
        assert same(loaded, state_of(5))
    finally:
        torch.distributed.destroy_process_group()


class Odd:
    """Only pickle can store it."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Odd)

    __hash__ = None  # type: ignore[assignment]


def test_what_would_need_pickling_is_refused_by_its_path_unless_allowed(tmp_path: Path) -> None:
    state = {"deep": {"odd": Odd()}, "w": torch.ones(3)}
    with pytest.raises(FAILED, match=r"deep\.odd"):
        dcp.save(state, storage_writer=CheckpointWriter(tmp_path))
    assert ckpt.list(tmp_path) == []

    dcp.save(state, storage_writer=CheckpointWriter(tmp_path, allow_pickle=True))
    loaded: dict[str, Any] = {"deep": {"odd": None}, "w": torch.zeros(3)}
    with pytest.raises(FAILED, match="allow_pickle=True"):
        dcp.load(loaded, storage_reader=CheckpointReader(tmp_path))
    dcp.load(loaded, storage_reader=CheckpointReader(tmp_path, allow_pickle=True))
    assert loaded["deep"]["odd"] == Odd()


def test_values_that_only_a_state_to_fill_could_make_again_are_as_if_they_needed_pickling(
    tmp_path: Path,
) -> None:
    """Torch's planner gives the reader no state to fill."""
    state = {"deep": {"plain": {1, "a"}, "number": 2j, "kind": [LoadItemType.TENSOR]}}
    with pytest.raises(FAILED, match=r"deep\.kind.*is of kind enum .*LoadItemType.*would need"):
        dcp.save(state, storage_writer=CheckpointWriter(tmp_path))
    assert ckpt.list(tmp_path) == []
    dcp.save(state, storage_writer=CheckpointWriter(tmp_path, allow_pickle=True))
    loaded: dict[str, Any] = {"deep": {"plain": None, "number": None, "kind": [None]}}
    dcp.load(loaded, storage_reader=CheckpointReader(tmp_path, allow_pickle=True))
    assert loaded == state
    del state["deep"]["kind"], loaded["deep"]["kind"]
    dcp.save(state, storage_writer=CheckpointWriter(tmp_path / "plain"))
    dcp.load(loaded, storage_reader=CheckpointReader(tmp_path / "plain"))
    assert loaded == state


def test_nothing_stored_is_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = state_of(4)
    dcp.save(state, storage_writer=CheckpointWriter(tmp_path))
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"PK\x03\x04" not in stored  # What torch.save begins with.
    seen: list[bytes] = []
    original = torch.load

    def load(stream: io.BytesIO, **options: Any) -> Any:  # noqa: ANN401
        seen.append(stream.getvalue())
        return original(stream, weights_only=True)

    monkeypatch.setattr(torch, "load", load)
    loaded = blank(state)
    dcp.load(loaded, storage_reader=CheckpointReader(tmp_path))
    assert same(loaded, state)
    assert seen and all(stream not in stored for stream in seen)


def test_missing_keys_and_other_shapes_are_told_by_name(tmp_path: Path) -> None:
    dcp.save({"w": torch.ones(3)}, storage_writer=CheckpointWriter(tmp_path))
    with pytest.raises(FAILED, match="other"):
        dcp.load({"other": torch.ones(3)}, storage_reader=CheckpointReader(tmp_path))
    with pytest.raises(FAILED, match="w"):
        dcp.load({"w": torch.ones(4)}, storage_reader=CheckpointReader(tmp_path))


def test_another_dtype_is_converted_as_dcp_does(tmp_path: Path) -> None:
    dcp.save({"w": torch.arange(5.0)}, storage_writer=CheckpointWriter(tmp_path))
    loaded = {"w": torch.zeros(5, dtype=torch.float64)}
    dcp.load(loaded, storage_reader=CheckpointReader(tmp_path))
    assert torch.equal(loaded["w"], torch.arange(5.0, dtype=torch.float64))


def test_a_conversion_holds_no_second_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffrecord.checkpoint._pieces.WINDOW_SIZE", 4096)
    values = {name: torch.randn(50, 60) for name in ("a", "b", "c")}
    dcp.save(values, storage_writer=CheckpointWriter(tmp_path, step=1))
    loaded = {name: torch.zeros(60, 50, dtype=torch.float64).T for name in values}
    loaded["c"] = torch.zeros(50, 60, dtype=torch.bfloat16)
    made: list[int] = []
    empty = torch.empty

    def counting(shape: Any, **options: Any) -> torch.Tensor:  # noqa: ANN401
        tensor = empty(shape, **options)
        made.append(tensor.nbytes)
        return tensor

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", counting)
        dcp.load(loaded, storage_reader=CheckpointReader(tmp_path))

    assert max(made) <= 4096
    for name, value in values.items():
        assert torch.equal(loaded[name], value.to(loaded[name].dtype))


def test_a_checkpoint_of_dcp_is_one_of_ours(tmp_path: Path) -> None:
    dcp.save(state_of(2), storage_writer=CheckpointWriter(tmp_path))
    loaded: Any = ckpt.load(tmp_path)
    assert np.array_equal(loaded["state"]["model.weight"], state_of(2)["model"]["weight"].numpy())
    assert loaded["state"]["step"] == 2
    native = tmp_path / "native"
    ckpt.save(native, 1, {"w": torch.ones(3)})
    with pytest.raises(FAILED, match=r"ffrecord\.checkpoint\.load"):
        dcp.load({"w": torch.ones(3)}, storage_reader=CheckpointReader(native))


def test_damage_is_named(tmp_path: Path) -> None:
    dcp.save(state_of(2), storage_writer=CheckpointWriter(tmp_path))
    (segment,) = tmp_path.rglob("seg-0000")
    content = bytearray(segment.read_bytes())
    content[100] ^= 1
    segment.write_bytes(content)
    with pytest.raises(FAILED, match="seg-0000") as raised:
        dcp.load(blank(state_of(2)), storage_reader=CheckpointReader(tmp_path))
    assert "CorruptionError" in repr(raised.value) or isinstance(
        raised.value, ffrecord.CorruptionError
    )


def sharded_state(world: int, kind: str, factor: int) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (world,))
    placements = {"rows": [Shard(0)], "columns": [Shard(1)], "all": [Replicate()]}
    whole = torch.arange(1001 * 303, dtype=torch.float32).reshape(1001, 303)
    return {
        "sharded": distribute_tensor(whole * factor, mesh, placements[kind]),
        "replicated": torch.arange(700_000, dtype=torch.float32).reshape(700, 1000) * factor,
        "small": torch.ones(5) * factor,
        "step": factor,
    }


def save_shards(rank: int, world: int, target: str, kind: str) -> None:
    planner = BalancedSavePlanner()
    for step in (1, 2):
        state = sharded_state(world, kind, step)
        dcp.save(state, storage_writer=CheckpointWriter(target, step=step), planner=planner)
        cached = planner._share is not None
    if rank == 0:
        assert cached
        parts = [p for p in Path(target, "step-000000002").glob("part-*") if p.is_dir()]
        sizes = [sum(f.stat().st_size for f in part.iterdir()) for part in parts]
        assert len(sizes) == world, sizes
        assert max(sizes) <= 1.15 * min(sizes), sizes
    torch.distributed.barrier()


def load_shards(rank: int, world: int, target: str, kind: str) -> None:
    del rank
    state, expected = sharded_state(world, kind, 0), sharded_state(world, kind, 2)
    dcp.load(state, storage_reader=CheckpointReader(target))
    assert torch.equal(state["sharded"].to_local(), expected["sharded"].to_local())
    assert torch.equal(state["replicated"], expected["replicated"])
    assert torch.equal(state["small"], expected["small"])
    assert state["step"] == 2
    torch.distributed.barrier()


def test_processes_save_shards_and_load_them_at_other_sizes(tmp_path: Path) -> None:
    target = str(tmp_path / "run")
    run_ranks(save_shards, 2, target, "rows")
    run_ranks(load_shards, 3, target, "columns")
    run_ranks(load_shards, 1, target, "all")
    loaded: Any = ckpt.load(target)
    whole = np.arange(1001 * 303, dtype=np.float32).reshape(1001, 303) * 2
    assert np.array_equal(loaded["state"]["sharded"], whole)
