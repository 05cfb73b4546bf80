"""Goal: signals without ranks: torch's own hooks, steps, interfaces, and no torch at all.

Method: stand-ins for a newer torch and for the kernel's counters; a virtual clock.
"""

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from eventually import eventually
from ffrecord import runtime
from ffrecord.runtime import _methods
from recorded_signals import Recorded
from virtual_clock import virtual_time

# --- Hooks of a newer torch ----------------------------------------------------------------------


class Work:
    """An operation that ends when the test says so."""

    def __init__(self) -> None:
        self.is_over = False

    def is_completed(self) -> bool:  # noqa: D102 - that of a Work
        return self.is_over


@pytest.fixture
def hooked(monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    """The default group, of one rank, as a newer torch has it; its hooks by kind and number."""
    hooks: dict[str, dict[int, Any]] = {"pre": {}, "post": {}}
    for kind, there in hooks.items():
        for name, change in (
            ("register", lambda _, number, hook, there=there: there.update({number: hook})),
            ("unregister", lambda _, number, there=there: there.pop(number)),
        ):
            monkeypatch.setattr(dist.ProcessGroup, f"{name}_{kind}_hook", change, raising=False)
    names = SimpleNamespace(SEND="send", RECV="recv", ALLREDUCE="allreduce")
    monkeypatch.setattr(dist, "HookOpName", names, raising=False)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield hooks
    finally:
        dist.destroy_process_group()


def fire(hooks: dict[int, Any], **fields: object) -> None:
    for hook in list(hooks.values()):
        hook(SimpleNamespace(**fields))


def test_torchs_hooks_begin_a_phase_that_ends_with_the_work(hooked: Any) -> None:  # noqa: ANN401
    told, device = Recorded(), torch.empty(1024, device="meta")
    with runtime.attach(dist.group.WORLD, signals=told) as attachment:
        assert attachment.source == "hooks"
        works = [Work(), Work()]
        for number, work in enumerate(works):
            op = {"name": "allreduce", "op_id": number}
            fire(hooked["pre"], **op, input_tensors=[device], output_tensors=[])
            fire(hooked["post"], **op, work=work)
        assert told.names() == ["begin collective"] * 2

        works[1].is_over = True  # Works of two streams end in any order.
        eventually(lambda: told.depths()[-1] == 1)
        works[0].is_over = True
        eventually(lambda: told.depths()[-1] == 0)

        # One that had ended when it returned, and one that moves nothing.
        fire(hooked["pre"], name="allreduce", op_id=2, input_tensors=[device], output_tensors=[])
        fire(hooked["post"], name="allreduce", op_id=2, work=None)
        fire(hooked["pre"], name="barrier", op_id=3, input_tensors=[], output_tensors=[])
        fire(hooked["post"], name="barrier", op_id=3, work=Work())
        eventually(lambda: told.depths()[-1] == 0)
        assert attachment.errors == []
    assert hooked == {"pre": {}, "post": {}}
    assert told.sizes() == [4096] * 3


def test_detach_ends_the_phases_of_works_that_never_end(hooked: Any) -> None:  # noqa: ANN401
    told, device = Recorded(), torch.empty(1024, device="meta")
    with runtime.attach(dist.group.WORLD, signals=told):
        op = {"name": "allreduce", "op_id": 1}
        fire(hooked["pre"], **op, input_tensors=[device], output_tensors=[])
        fire(hooked["post"], **op, work=Work())
    assert told.names() == ["begin collective", "end collective"]


# --- Steps ---------------------------------------------------------------------------------------


def test_of_several_optimizers_the_first_that_steps_ends_steps() -> None:
    told, model = Recorded(), nn.Linear(2, 2)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2))
    with runtime.attach(model, signals=told) as attachment:
        assert attachment.source == "none"
        for optimizer in (first, second, second, first):
            optimizer.step()
        assert told.names() == ["step"] * 2
        del first, optimizer
        second.step()  # The other is gone.
    second.step()
    assert told.names() == ["step"] * 3


def test_what_is_attached_in_several_ways_ends_each_step_once() -> None:
    told, models = Recorded(), [nn.Linear(2, 2) for _ in range(2)]
    optimizer = torch.optim.SGD(models[0].parameters(), lr=0.1)
    first, second = (runtime.attach(model, signals=told) for model in models)
    optimizer.step()
    first.detach()
    optimizer.step()
    second.detach()
    optimizer.step()
    assert told.names() == ["step"] * 2


def test_what_is_neither_model_nor_group_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a model or a process group, not a str"):
        runtime.attach("model")


# --- What does not last --------------------------------------------------------------------------


@pytest.fixture
def group() -> Iterator[None]:
    """The default group, of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def test_attaching_again_attaches_groups_that_are_new(group: None) -> None:
    told = Recorded()
    with runtime.attach(signals=told) as attachment:
        later = dist.new_group([0])
        dist.all_reduce(torch.ones(1), group=later)
        assert told.names() == []
        assert runtime.attach(signals=told) is attachment
        dist.all_reduce(torch.ones(1), group=later)
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        runtime.attach(signals=told)
        dist.all_reduce(torch.ones(1))
    assert told.sizes() == [4] * 3


def test_what_is_attached_before_there_is_a_group_signals_once_attached_again() -> None:
    told, model = Recorded(), nn.Linear(2, 2)
    with runtime.attach(model, signals=told) as attachment:
        assert attachment.source == "none"
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        runtime.attach(model, signals=told)
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
        assert attachment.source in ("hooks", "methods")
    assert told.sizes() == [4]


@pytest.mark.parametrize("is_parallel", [False, True])
def test_an_attachment_keeps_no_model_alive(group: None, *, is_parallel: bool) -> None:
    model: nn.Module = nn.Linear(2, 2)
    if is_parallel:
        model = nn.parallel.DistributedDataParallel(model)
    left, weight = weakref.ref(model), weakref.ref(next(iter(model.parameters())))
    runtime.attach(model, signals=Recorded())
    del model
    gc.collect()
    assert left() is None
    assert weight() is None
    watching = phase_threads()
    runtime.attach(nn.Linear(2, 2)).detach()  # The attachment of the other ends.
    assert len(watching - phase_threads()) == 1


def phase_threads() -> set[threading.Thread]:
    """Those of attachments: other tests may have left threads that end meanwhile."""
    return {thread for thread in threading.enumerate() if thread.name == "ffrecord-phases"}


def test_a_group_may_end_where_memory_is_collected_within_attach(group: None) -> None:
    def collect(frame: FrameType, event: str, argument: object) -> Any:  # noqa: ANN401
        del event, argument
        if frame.f_code.co_filename == _methods.__file__:
            gc.collect()
        return collect

    def attach_and_leave() -> Any:  # noqa: ANN401
        cycle = SimpleNamespace(group=Group())
        cycle.itself = cycle
        return _methods.wrap(cycle.group, lambda _: False, lambda *_: None)

    world = dist.group.WORLD
    assert world is not None
    gc.freeze()  # What was there before is not looked at.
    gc.disable()
    left = attach_and_leave()
    sys.settrace(collect)
    try:
        undo = _methods.wrap(world, lambda _: False, lambda *_: None)
    finally:
        sys.settrace(None)
        gc.enable()
        gc.unfreeze()
    assert not left.alive
    undo()


class Group:
    """Ends with the last reference to it."""


class ForgetfulPacer(Recorded):
    """Signals whose first end of a phase fails."""

    def phase_end(self, kind: str) -> None:  # noqa: D102
        super().phase_end(kind)
        if self.count("end collective") == 1:
            raise ValueError("no end")


def test_phases_end_also_after_one_whose_end_has_failed(group: None) -> None:
    told = ForgetfulPacer()
    with runtime.attach(signals=told) as attachment:
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
            eventually(lambda: told.depths()[-1] == 0)
        assert attachment.errors == ["ValueError: no end"]


def test_gradients_that_stay_here_are_no_phase(group: None) -> None:
    told, model = Recorded(), nn.parallel.DistributedDataParallel(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with virtual_time() as time, runtime.attach(model, signals=told) as attachment:
        if attachment.source != "gradients":
            pytest.skip("torch has hooks of collectives, and there are none within no_sync()")
        with model.no_sync():
            model(torch.ones(1, 2)).sum().backward()
        assert told.names() == []
        model(torch.ones(1, 2)).sum().backward()
        time.run_for(0.05)  # An end that comes before the step has come by now.
        assert told.names() == ["begin collective"]
        optimizer.step()
        time.run_for(0.05)
        # Another thread tells the end, while this one tells the step: one of them is the first.
        assert sorted(told.names()) == ["begin collective", "end collective", "step"]


# --- Interfaces ----------------------------------------------------------------------------------


def card(root: Path, name: str, *, state: str = "up", speed: str = "1000") -> Path:
    """A network adapter of a kernel that is a folder."""
    folder = root / "class" / "net" / name
    (folder / "device").mkdir(parents=True)
    (folder / "statistics").mkdir()
    (folder / "operstate").write_text(f"{state}\n")
    (folder / "speed").write_text(f"{speed}\n")
    for way in ("tx", "rx"):
        (folder / "statistics" / f"{way}_bytes").write_text("0\n")
    return folder / "statistics" / "tx_bytes"


def test_an_interface_that_carries_more_than_its_share_is_a_phase(tmp_path: Path) -> None:
    sent, told = card(tmp_path, "eth0"), Recorded()
    with virtual_time() as time, runtime.watch_interfaces(["eth0"], signals=told, root=tmp_path):
        carried = 0
        for rate, phases in (
            (0, 0),
            (20_000_000, 1),  # Bytes per second; 10 % of 1 Gbit/s are 12,500,000.
            (1_000_000, 0),
            (100_000_000, 1),
        ):
            for _ in range(5):
                carried += int(rate * 0.004)
                sent.write_text(f"{carried}\n")
                time.run_for(0.004)
            assert [0, *told.depths()][-1] == phases
    assert told.names() == ["begin collective", "end collective"] * 2


def test_interfaces_are_found_or_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no network interface is up"):
        runtime.watch_interfaces(root=tmp_path)
    card(tmp_path, "eth0", state="down")
    card(tmp_path, "eth1", speed="-1")
    port = tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    (port / "counters").mkdir(parents=True)
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    for name in ("port_xmit_data", "port_rcv_data"):
        (port / "counters" / name).write_text("0\n")
    for wrong in ("eth7", "../net"):
        with pytest.raises(ValueError, match="there are eth0, eth1, mlx5_0"):
            runtime.watch_interfaces([wrong], root=tmp_path)
    for names in (None, ["eth1"], ["mlx5_0"], ["eth0", "eth1"]):
        watch = runtime.watch_interfaces(names, signals=Recorded(), root=tmp_path)
        watch.detach()
        watch.detach()


# --- Without torch -------------------------------------------------------------------------------


def test_without_torch_attach_names_what_needs_none() -> None:
    code = """
import sys
sys.modules["torch"] = None
from ffrecord import runtime
try:
    runtime.attach()
except ImportError as error:
    assert "watch_interfaces" in str(error), error
else:
    raise AssertionError("attached")
runtime.detach()
runtime.start_pacing()
runtime.phase_begin("collective", 10)
runtime.phase_end("collective")
runtime.step_end()
assert runtime.pacing_counters()["phases"] == 1
runtime.stop_pacing()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_room_does_not_bring_torch() -> None:
    code = "import sys, ffrecord.runtime; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
