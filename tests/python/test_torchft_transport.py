"""Goal: a replica group of torchft that is behind gets the state of another, whole, or an error.

Method: the calls that torchft's manager makes, in its order, with the package's own base class if
it is installed and else with one of the same methods.
"""

# ruff: noqa: D102 - methods of torchft's base class

import datetime
import importlib
import sys
import threading
import types
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

import pytest
import torch

import ffrecord.checkpoint as ckpt
from daemon import Daemon
from eventually import eventually
from virtual_clock import virtual_time

pytestmark = pytest.mark.wrong_data

T = TypeVar("T")
MINUTE = datetime.timedelta(minutes=1)


class Transport(ABC, Generic[T]):
    """As torchft has it."""

    @abstractmethod
    def metadata(self) -> str: ...

    @abstractmethod
    def send_checkpoint(
        self, dst_ranks: list[int], step: int, state_dict: T, timeout: datetime.timedelta
    ) -> None: ...

    def disallow_checkpoint(self) -> None: ...

    @abstractmethod
    def recv_checkpoint(
        self, src_rank: int, metadata: str, step: int, timeout: datetime.timedelta
    ) -> T: ...

    def shutdown(self, wait: bool = True) -> None: ...


@pytest.fixture
def kind() -> Iterator[Any]:
    """Our transport."""
    name = "torchft.checkpointing.transport"
    with pytest.MonkeyPatch.context() as patch:
        try:
            importlib.import_module(name)
        except ImportError:
            for part in ("torchft", "torchft.checkpointing", name):
                module: Any = types.ModuleType(part)
                module.__path__ = []
                patch.setitem(sys.modules, part, module)
            module.CheckpointTransport = Transport
        yield importlib.import_module("ffrecord.torch.torchft").CheckpointTransport
        sys.modules.pop("ffrecord.torch.torchft", None)


@pytest.fixture(params=["folder", "daemon"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "heal")
    else:
        with Daemon(tmp_path) as daemon:
            yield daemon.address("heal/x")


def state(step: int) -> dict[str, Any]:
    return {
        "user": {
            "default": {"w": torch.full((300, 70), float(step)), "half": torch.ones(3).half()}
        },
        "torchft": {"step": step, "batches_committed": 2 * step},
    }


def same(a: Any, b: Any) -> bool:  # noqa: ANN401
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return bool(a == b)


def test_a_group_that_is_behind_gets_the_state(kind: Any, target: str) -> None:  # noqa: ANN401
    source, behind = kind(target), kind(target)
    for step in (3, 4):
        live = state(step)
        source.send_checkpoint([1, 2], step, live, MINUTE)
        source.disallow_checkpoint()
        live["user"]["default"]["w"].zero_()  # Training goes on.
        for _ in range(2):
            found = behind.recv_checkpoint(0, source.metadata(), step, MINUTE)
            assert same(found, state(step))
        assert [commit.step for commit in ckpt.list(source.metadata())] == [step]
    assert source.metadata() != behind.metadata()
    source.shutdown()
    assert ckpt.list(source.metadata()) == []


def test_a_state_is_filled_in_place_if_there_is_one(kind: Any, tmp_path: Path) -> None:  # noqa: ANN401
    source = kind(tmp_path)
    source.send_checkpoint([1], 7, state(7), MINUTE)
    live = state(0)
    weight = live["user"]["default"]["w"]
    behind = kind(tmp_path, state_dict=lambda: live)
    found = behind.recv_checkpoint(0, source.metadata(), 7, MINUTE)
    assert same(found, state(7)) and found["user"]["default"]["w"] is weight


def test_a_step_is_sent_again(kind: Any, tmp_path: Path) -> None:  # noqa: ANN401
    source = kind(tmp_path)
    source.send_checkpoint([1], 5, state(5), MINUTE)
    source.send_checkpoint([2], 5, state(6), MINUTE)
    assert same(kind(tmp_path).recv_checkpoint(0, source.metadata(), 5, MINUTE), state(6))


def test_a_receiver_waits_for_the_sender(kind: Any, tmp_path: Path) -> None:  # noqa: ANN401
    source, found = kind(tmp_path), []
    thread = threading.Thread(
        target=lambda: found.append(kind(tmp_path).recv_checkpoint(0, source.metadata(), 2, MINUTE))
    )
    thread.start()
    source.send_checkpoint([1], 2, state(2), MINUTE)
    eventually(lambda: found)
    thread.join()
    assert same(found[0], state(2))


def test_a_sender_that_never_comes_is_named(kind: Any, tmp_path: Path) -> None:  # noqa: ANN401
    with (
        virtual_time(),
        pytest.raises(TimeoutError, match=r"step 2 of rank 3 did not come .* 60 s"),
    ):
        kind(tmp_path).recv_checkpoint(3, str(tmp_path / "nobody"), 2, MINUTE)
