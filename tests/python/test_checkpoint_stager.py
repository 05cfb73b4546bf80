"""Goal: a staged state is the state as it was, in no more memory than was given.

Method: the same states through torch's own stager and ours, with torch's writer and ours; states
beyond the limit, with and without a folder for the rest; saves that overlap, and that fail.
"""

import copy
import dataclasses
import pickle
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import AsyncStager, BlockingAsyncStager
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import ffrecord.checkpoint as ckpt
from ffrecord.checkpoint._staging import TornStageError
from ffrecord.checkpoint._tensors import ITEM_SIZES
from ffrecord.torch import CheckpointReader, CheckpointWriter, Stager
from ranks import run_ranks
from virtual_clock import virtual_time

pytestmark = pytest.mark.wrong_data

DTYPES = sorted(name for name in ITEM_SIZES if hasattr(torch, name))
MIB = 1 << 20


@pytest.fixture
def alone(tmp_path: Path) -> Any:  # noqa: ANN401 - a fixture
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def state(seed: int = 0) -> dict[str, Any]:
    made = torch.Generator().manual_seed(seed)
    weight = torch.randn(600, 400, generator=made)
    return {
        "model": OrderedDict(
            weight=weight,
            tied=weight,
            strided=torch.randn(40, 30, generator=made).T,
            half=torch.randn(9, generator=made).bfloat16(),
            conjugate=torch.randn(4, dtype=torch.complex64, generator=made).conj(),
            scalar=torch.tensor(seed),
            empty=torch.empty(0, 3),
            parameter=torch.nn.Parameter(torch.randn(5, generator=made)),
        ),
        "optim": [{"lr": 0.5, "betas": (0.9, 0.95)}, torch.randn(3, 3, generator=made)],
        "pair": (1, torch.ones(2)),
        "step": seed,
    }


def same(a: Any, b: Any) -> bool:  # noqa: ANN401
    if isinstance(a, torch.Tensor):
        kinds = type(a) is type(b) and a.dtype == b.dtype and a.requires_grad == b.requires_grad
        return bool(kinds and torch.equal(a, b))
    if isinstance(a, dict):
        return type(a) is type(b) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def spoil(value: Any) -> None:  # noqa: ANN401
    """As the next step of training does."""
    if isinstance(value, torch.Tensor):
        value.detach().zero_()
    elif isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            spoil(each)


def test_it_is_a_stager_of_torch() -> None:
    stager = Stager()
    assert isinstance(stager, AsyncStager) and not stager.should_synchronize_after_execute
    again = pickle.loads(pickle.dumps(Stager(5 * MIB)))
    assert again.stage_bytes_max == 5 * MIB and same(again.stage(state()), state())
    with pytest.raises(ValueError, match="must not be negative"):
        Stager(-1)


def test_what_is_staged_is_what_was_there(tmp_path: Path) -> None:
    for stager in (Stager(2 * MIB), Stager(1 * MIB, spill=tmp_path), Stager(0, spill=tmp_path)):
        for seed in (1, 2):
            live = state(seed)
            staged = stager.stage(live)
            spoil(live)
            live["optim"][0]["lr"] = -1
            assert same(staged, state(seed))
            assert staged["model"]["tied"] is staged["model"]["weight"]
            del staged
        stager.close()
    assert [path.name for path in tmp_path.iterdir()] == []


@pytest.mark.parametrize("dtype", DTYPES)
def test_elements_of_every_type_are_staged_bit_for_bit(dtype: str) -> None:
    size = 6 * 5 * ITEM_SIZES[dtype]
    raw = torch.randint(0, 2 if dtype == "bool" else 256, (size,), dtype=torch.uint8)
    tensor = raw.clone().view(getattr(torch, dtype)).view(6, 5)
    staged = Stager().stage({"x": tensor})["x"]
    assert staged.dtype == tensor.dtype and staged.shape == (6, 5)
    assert staged.data_ptr() != tensor.data_ptr()
    assert torch.equal(staged.view(torch.uint8).flatten(), raw)


def test_a_state_beyond_the_limit_is_refused_before_anything_is_copied() -> None:
    stager = Stager(MIB)
    with pytest.raises(MemoryError, match=r"stage_bytes_max=1048576: raise it, or set spill"):
        stager.stage({"x": torch.zeros(MIB, dtype=torch.uint8), "y": torch.zeros(1)})
    assert same(stager.stage(state(1)), state(1))


def test_what_cannot_be_copied_is_named() -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(TypeError, match=r"state: model/w: a torch\.sparse_coo"):
        Stager().stage({"model": {"w": sparse}})


@dataclasses.dataclass
class Plain:
    """Values of a program."""

    words: list[str]


def test_other_values_are_copied_too() -> None:
    live = {"plain": Plain(["a"]), "numbers": [1], "shape": torch.Size([2, 3])}
    staged = Stager().stage(live)
    live["plain"].words.append("b")  # type: ignore[attr-defined]
    assert staged == {"plain": Plain(["a"]), "numbers": [1], "shape": torch.Size([2, 3])}
    assert type(staged["shape"]) is torch.Size


@pytest.mark.parametrize("writer", ["ours", "theirs"])
@pytest.mark.parametrize("stager", ["ours", "spilled", "theirs"])
def test_saves_in_the_background_store_what_was_there(
    alone: None, tmp_path: Path, writer: str, stager: str
) -> None:
    stagers = {
        "ours": Stager(4 * MIB),
        "spilled": Stager(900_000, spill=tmp_path),
        "theirs": BlockingAsyncStager(),
    }
    for step in (1, 2, 3):
        path = tmp_path / f"run{step}"
        live = state(step)
        del live["model"]["conjugate"]  # torch's own writer stores other numbers for it.
        del live["pair"]  # A tensor inside of a value, which DCP would pickle.
        expected = copy.deepcopy(live)
        storage: Any = CheckpointWriter(path, step=step) if writer == "ours" else None
        future: Any = dcp.async_save(
            live,
            checkpoint_id=None if writer == "ours" else path,
            storage_writer=storage,
            async_stager=stagers[stager],
        )
        spoil(live)
        future.result()
        into = copy.deepcopy(expected)
        spoil(into)
        reader: Any = CheckpointReader(path) if writer == "ours" else None
        dcp.load(into, checkpoint_id=None if writer == "ours" else path, storage_reader=reader)
        assert same(into, expected), step


def test_the_next_save_waits_for_the_memory_and_says_so_if_it_never_comes() -> None:
    stager = Stager(2 * MIB, wait_s=30)
    staged: Any = stager.stage(state(1))
    kept = staged["model"]["weight"][3:5]  # A view is enough.
    del staged
    with virtual_time(), pytest.raises(ckpt.BusyError, match="still uses the staged copies"):
        stager.stage(state(2))
    assert torch.equal(kept, state(1)["model"]["weight"][3:5])
    found: list[Any] = []
    waiting = threading.Event()

    def work() -> None:
        waiting.set()
        found.append(stager.stage(state(2)))

    thread = threading.Thread(target=work)
    thread.start()
    waiting.wait()
    assert torch.equal(kept, state(1)["model"]["weight"][3:5])
    del kept
    thread.join()
    assert same(found[0], state(2))


class Broken(dcp.FileSystemWriter):
    """A disk that is full for one save."""

    def write_data(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Write nothing."""
        raise OSError("No space left on device")


def test_a_save_that_failed_does_not_keep_the_memory_though_its_error_is_kept(
    alone: None, tmp_path: Path
) -> None:
    stager, live = Stager(4 * MIB), {"a": torch.ones(1000), "deep": {"b": [torch.ones(9)]}}
    writer = Broken(tmp_path / "full")
    future: Any = dcp.async_save(live, storage_writer=writer, async_stager=stager)
    with pytest.raises(CheckpointException, match="No space left") as kept:
        future.result()
    staged = stager.stage(live)
    assert same(staged, live) and kept.value is not None and future.done()


@pytest.mark.parametrize("what", ["spill", "torn"])
def test_a_failed_stage_does_not_keep_the_memory_though_its_error_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    from ffrecord.torch import _dcp_stager

    stager = Stager(900_000, spill=tmp_path)
    with monkeypatch.context() as patch:
        if what == "spill":
            patch.setattr(_dcp_stager, "_spill_file", lambda *_: exec("raise OSError('full')"))
        else:
            versions = iter(range(1000))
            patch.setattr(_dcp_stager, "_version_of", lambda tensor: next(versions))
        with pytest.raises((OSError, TornStageError)) as kept:
            stager.stage(state(1))
    with virtual_time():
        staged = stager.stage(state(2))
    assert same(staged, state(2)) and kept.value is not None


def test_threads_that_share_a_stager_take_turns() -> None:
    stager, wrong = Stager(2 * MIB), []

    def work(number: int) -> None:
        for turn in range(8):
            expected = float(100 * number + turn)
            staged = stager.stage({"x": torch.full((MIB // 4,), expected)})
            if not bool((staged["x"] == expected).all()):
                wrong.append(expected)
            del staged

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, "two threads had the same memory"


def test_a_tensor_that_changes_meanwhile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from ffrecord.torch import _dcp_stager

    live = state(1)
    real = _dcp_stager.Fetcher

    def meddle(value: Any) -> Any:  # noqa: ANN401
        live["model"]["weight"].add_(1)
        return real(value)

    monkeypatch.setattr(_dcp_stager, "Fetcher", meddle)
    with pytest.raises(ckpt.TornStageError, match="model/weight was changed"):
        Stager().stage(live)


def test_the_copy_counts_as_a_stall() -> None:
    with ckpt.monitor() as watch:
        Stager().stage(state())
        assert watch.report().stall_s > 0


def sharded(rank: int, world: int, folder: str) -> bool:
    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(12.0).reshape(6, 2)
    mine = whole.chunk(world)[rank].clone()
    live = {"w": DTensor.from_local(mine, mesh, [Shard(0)], run_check=False), "step": 1}
    stager = Stager(MIB)
    future: Any = dcp.async_save(
        live, storage_writer=CheckpointWriter(folder, step=1), async_stager=stager
    )
    mine.zero_()
    future.result()
    found: Any = ckpt.load(folder, group="alone")
    return bool((found["state"]["w"] == whole.numpy()).all())


def test_shards_of_a_mesh_are_staged_as_shards(tmp_path: Path) -> None:
    assert run_ranks(sharded, 2, str(tmp_path / "run")) == [True, True]
