"""Goal: batches come to an accelerator in order and whole, however late its streams are.

Method: a device in host memory whose streams lag, whose memory is used again as early as may be,
and which shows what was read too early or freed too soon; and a real one where there is one.
"""

import collections
import dataclasses
import itertools
import math
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ffrecord.torch import DataLoader, Dataset, Sampler, _placing
from ffrecord.torch._placing import accelerator, on_device
from late_device import LateStreams, ReusedMemory
from loading import every_engine, expected, written

CPU = torch.device("cpu")
ACCELERATOR = _placing.current_accelerator()
on_accelerator = pytest.mark.skipif(ACCELERATOR is None, reason="PyTorch finds no accelerator here")


@pytest.fixture
def streams() -> Iterator[LateStreams]:
    made = LateStreams(CPU)
    yield made
    made.end()


class Kernels:
    """What the consumer's stream has read of each batch."""

    def __init__(self, streams: LateStreams) -> None:
        self.streams = streams
        self.seen: dict[int, list[int]] = {}

    def read(self, place: int, values: torch.Tensor) -> None:
        """Read the batch once the stream has come so far; holds its bytes, not the tensor."""
        address = values.detach().numpy()
        self.streams.consumer.give(lambda: self._note(place, address))

    def _note(self, place: int, values: Any) -> None:  # noqa: ANN401 - an array
        self.seen[place] = sorted(set(values.tolist()))

    def result(self) -> dict[int, list[int]]:
        """What it was, by batch, once all is read."""
        self.streams.consumer.record_event().synchronize()
        return self.seen


def consumed(streams: LateStreams, count: int) -> dict[int, list[int]]:
    kernels = Kernels(streams)
    for place, batch in on_device(iter_of(ReusedMemory(count)), CPU, streams):
        assert batch["name"] == f"batch {place}"
        kernels.read(place, batch["x"])
        del batch
    return kernels.result()


def iter_of(batches: ReusedMemory) -> Iterator[tuple[Any, Any]]:
    yield from batches


def test_kernels_see_each_batch_whole_and_in_order(streams: LateStreams) -> None:
    seen = consumed(streams, 60)
    assert list(seen) == list(range(60))
    assert seen == {i: [i] for i in range(60)}


def test_the_late_device_shows_a_consumer_that_does_not_wait(streams: LateStreams) -> None:
    streams.waits = False
    assert consumed(streams, 60) != {i: [i] for i in range(60)}


def test_one_batch_is_copied_ahead(streams: LateStreams) -> None:
    batches = on_device(iter_of(ReusedMemory(5)), CPU, streams)
    counts = [streams.copy_count for _ in batches]
    assert counts == [2, 3, 4, 5, 5]


def test_batches_that_come_before_a_failure_are_handed_over(streams: LateStreams) -> None:
    def failing() -> Iterator[tuple[int, Any]]:
        yield from itertools.islice(ReusedMemory(9), 3)
        raise ValueError("a damaged record")

    kernels = Kernels(streams)
    with pytest.raises(ValueError, match="a damaged record"):
        for place, batch in on_device(failing(), CPU, streams):
            kernels.read(place, batch["x"])
    assert kernels.result() == {i: [i] for i in range(3)}


def test_a_loop_that_is_left_waits_for_its_copies_and_closes_its_loader(
    streams: LateStreams,
) -> None:
    closed = []

    def watched() -> Iterator[tuple[Any, Any]]:
        try:
            yield from ReusedMemory(9)
        finally:
            closed.append(streams.mark().query())

    batches = on_device(watched(), CPU, streams)
    assert next(batches)[0] == 0
    assert closed == []
    batches.close()  # type: ignore[attr-defined]
    assert len(closed) == 1


def test_every_structure_of_a_batch_is_copied(streams: LateStreams) -> None:
    batch = {"a": [torch.ones(3), (torch.zeros(2), "text")], "b": 7, "c": None}
    ((place, copied),) = on_device(iter([("place", batch)]), CPU, streams)
    streams.consumer.record_event().synchronize()
    assert place == "place"
    assert copied["a"][0].tolist() == [1, 1, 1]
    assert copied["a"][1][0].tolist() == [0, 0]
    assert (copied["a"][1][1], copied["b"], copied["c"]) == ("text", 7, None)
    assert streams.copy_count == 2


class Encoding(collections.UserDict[str, Any]):
    """A mapping that is no dict, with attributes, as the tokenizers of transformers return."""

    length = 0

    def to(self, device: torch.device) -> None:
        """Would wait for the copies."""
        raise AssertionError(f"moved to {device} as a whole")


@dataclasses.dataclass
class Graph:
    """An object whose tensors nobody else can find."""

    edges: torch.Tensor
    moved_to: torch.device | None = None

    def to(self, device: torch.device) -> "Graph":
        """A copy on the device."""
        return Graph(self.edges + 1, device)


def test_mappings_that_are_no_dicts_are_copied(streams: LateStreams) -> None:
    encoding = Encoding(ids=torch.ones(3), more={"mask": torch.zeros(2)}, text="words")
    encoding.length = 3
    fixed = types.MappingProxyType({"x": torch.ones(1)})

    ((_, copied),) = on_device(iter([("place", [encoding, fixed])]), CPU, streams)
    streams.consumer.record_event().synchronize()

    assert type(copied[0]) is Encoding and copied[0].length == 3
    assert copied[0]["ids"].tolist() == [1, 1, 1] and copied[0]["ids"] is not encoding["ids"]
    assert copied[0]["more"]["mask"].tolist() == [0, 0] and copied[0]["text"] == "words"
    assert copied[1]["x"].tolist() == [1]
    assert streams.copy_count == 3


def copied_by(streams: LateStreams, batch: Any) -> Any:  # noqa: ANN401 - as the batch is built
    """What a consumer gets of it, once all is copied."""
    ((_, copied),) = on_device(iter([("place", batch)]), CPU, streams)
    streams.consumer.record_event().synchronize()
    return copied


class Shares(collections.abc.MutableMapping[str, Any]):
    """A mapping whose copy has the items of the old one."""

    def __init__(self, **items: Any) -> None:  # noqa: ANN401 - any
        self.items_ = items

    def __getitem__(self, key: str) -> Any:  # noqa: ANN401 - any
        return self.items_[key]

    def __setitem__(self, key: str, value: Any) -> None:  # noqa: ANN401 - any
        self.items_[key] = value

    def __delitem__(self, key: str) -> None:
        del self.items_[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_)

    def __len__(self) -> int:
        return len(self.items_)


class Outputs(collections.OrderedDict[str, Any]):
    """As the outputs of transformers."""

    def update(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - any
        """Refuses."""
        raise RuntimeError("not this way")


class Fixed(dict[str, Any]):
    """A dict that cannot be changed."""

    def __setitem__(self, *_: object) -> None:
        raise TypeError("it cannot be changed")


def test_mappings_keep_their_values_and_the_old_one_its_memory(streams: LateStreams) -> None:
    counts = collections.Counter(cats=2)
    shares = Shares(x=torch.ones(2))
    before = shares["x"]
    defaults = collections.defaultdict(list, x=torch.ones(1))
    batch = [counts, shares, Outputs(x=torch.zeros(3)), Fixed(x=torch.ones(4)), defaults]

    copied = copied_by(streams, batch)

    assert copied[0] == counts == {"cats": 2} and type(copied[0]) is collections.Counter
    assert copied[1]["x"].tolist() == [1, 1] and copied[1]["x"] is not before
    assert shares["x"] is before  # Which the copy reads, until it has ended.
    assert type(copied[2]) is Outputs and copied[2]["x"].tolist() == [0, 0, 0]
    assert copied[3]["x"].tolist() == [1] * 4
    assert copied[4].default_factory is list and copied[4]["x"].tolist() == [1]
    assert streams.copy_count == 4


class Pair(tuple[Any, ...]):
    """Made of other arguments than its items."""

    def __new__(cls, first: Any, second: Any) -> "Pair":  # noqa: ANN401 - any
        """Two."""
        return super().__new__(cls, (first, second))


class Point(collections.namedtuple("Point", "x y")):
    """Likewise, with names."""

    def __new__(cls, x: Any) -> "Point":  # noqa: ANN401 - any
        """One."""
        return super().__new__(cls, x, 7)


class Named(list[Any]):
    """A list with an attribute."""

    name = ""


def test_sequences_of_any_kind_are_copied_and_keep_their_kind(streams: LateStreams) -> None:
    named = Named([torch.ones(1)])
    named.name = "first"
    batch = (
        Pair(torch.ones(2), "text"),
        Point(torch.zeros(1)),
        torch.ones(3, 2).max(0),
        collections.deque([torch.ones(5)], maxlen=9),
        collections.UserList([torch.ones(6)]),
        named,
        torch.Size([1, 2]),
        bytearray(b"ab"),
    )

    copied = copied_by(streams, batch)

    assert [type(each) for each in copied] == [type(each) for each in batch]
    assert copied[0][0].tolist() == [1, 1] and copied[0][1] == "text"
    assert copied[1].x.tolist() == [0] and copied[1].y == 7
    assert copied[2].values.tolist() == [1, 1]
    assert copied[3].maxlen == 9 and copied[3][0].tolist() == [1] * 5
    assert copied[4][0].tolist() == [1] * 6 and copied[5].name == "first"
    assert copied[6:] == batch[6:]
    assert streams.copy_count == 7


@dataclasses.dataclass(frozen=True)
class Sample:
    """An object without a method `to`."""

    image: torch.Tensor
    more: dict[str, Any]
    name: str = "text"


def test_dataclasses_are_copied(streams: LateStreams) -> None:
    sample, plain = Sample(torch.ones(2), {"mask": torch.zeros(3)}), Graph
    bare = dataclasses.make_dataclass("Bare", ["name"])("only text")

    copied = copied_by(streams, [sample, plain, bare])

    assert copied[0].image.tolist() == [1, 1] and copied[0].image is not sample.image
    assert copied[0].more["mask"].tolist() == [0, 0, 0] and copied[0].name == "text"
    assert copied[1] is Graph and copied[2] is bare  # A class is no batch; nothing to copy.
    assert streams.copy_count == 2


@pytest.mark.parametrize("layout", ["coo", "csr", "csc", "bsr", "bsc", "strided"])
def test_the_memory_of_every_tensor_is_kept_for_the_consumer(
    layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch has `record_stream` for tensors that have memory of their own, and no others."""
    kept: list[torch.Tensor] = []

    def record(tensor: torch.Tensor, _: object) -> None:
        if tensor.layout is not torch.strided:
            raise NotImplementedError(f"no aten::record_stream for {tensor.layout}")
        kept.append(tensor)

    class Consumer:
        def wait_event(self, event: str) -> None:
            assert event == "event"

    class Device:
        def current_stream(self, _: torch.device) -> Consumer:
            return Consumer()

    monkeypatch.setattr(torch.Tensor, "record_stream", record)
    made = torch.eye(4) if layout == "strided" else matrix(layout)
    streams = _placing.Streams(CPU)
    streams._module = Device()

    streams.hand_over("event", [made])

    memory = 64 if layout == "strided" else made._nnz() * made.element_size()
    assert memory in [each.nbytes for each in kept] and len(kept) == {"coo": 2, "strided": 1}.get(
        layout, 3
    )


def matrix(layout: str) -> torch.Tensor:
    dense = torch.eye(4)
    match layout:
        case "coo":
            return dense.to_sparse()
        case "csr":
            return dense.to_sparse_csr()
        case "csc":
            return dense.to_sparse_csc()
        case "bsr":
            return dense.to_sparse_bsr((1, 1))
    return dense.to_sparse_bsc((1, 1))


def test_a_copy_that_fails_is_told_after_the_batches_before_it(
    streams: LateStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = streams.copy

    def full(tensor: torch.Tensor) -> torch.Tensor:
        if streams.copy_count == 2:
            raise RuntimeError("no memory on the device")
        return copy(tensor)

    monkeypatch.setattr(streams, "copy", full)
    batches = iter([(0, torch.ones(2)), (1, [torch.zeros(2), torch.zeros(3)])])
    found = on_device(batches, CPU, streams)

    assert next(found)[0] == 0
    with pytest.raises(RuntimeError, match="no memory on the device"):
        next(found)


def test_an_object_that_moves_itself_is_moved_when_it_is_handed_over(streams: LateStreams) -> None:
    batch = {"graph": Graph(torch.zeros(2)), "x": torch.ones(2)}

    ((_, copied),) = on_device(iter([("place", batch)]), CPU, streams)
    streams.consumer.record_event().synchronize()

    assert copied["graph"].moved_to == CPU and copied["graph"].edges.tolist() == [1, 1]
    assert copied["x"].tolist() == [1, 1]
    assert streams.copy_count == 1


def test_a_packed_sequence_moves_itself(streams: LateStreams) -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3, 2), torch.ones(1, 2)])

    ((_, copied),) = on_device(iter([("place", packed)]), CPU, streams)

    assert streams.copy_count == 0  # Its batch sizes stay on the host.
    assert copied.data.tolist() == packed.data.tolist()


@every_engine
def test_a_loader_resumes_as_without_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    made: list[LateStreams] = []

    def late(device: torch.device) -> LateStreams:
        made.append(LateStreams(device))
        return made[-1]

    monkeypatch.setattr(_placing, "Streams", late)
    monkeypatch.setattr(_placing, "_is_there", lambda _: True)
    dataset = Dataset(written(tmp_path))

    def loader() -> DataLoader:
        return DataLoader(dataset, batch_sampler=Sampler(dataset, 20), device="cuda", **options)

    def labels(batches: Any) -> list[list[int]]:  # noqa: ANN401 - any loader
        found = []
        for batch in batches:
            made[-1].consumer.record_event().synchronize()
            found.append(batch["label"].tolist())
        return found

    first = loader()
    assert labels(itertools.islice(first, 2)) == expected()[:2]
    assert first.state_dict()["position"] == 40  # Not what was copied ahead.
    second = loader()
    second.load_state_dict(first.state_dict())
    assert labels(second) == expected()[2:]
    assert labels(second) == expected(1)
    for each in (first, second):
        each.close()
    for streams in made:
        streams.end()


def test_a_device_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert accelerator(None) is None
    assert accelerator("cpu") is None
    for device in ("meta", "cuda:77", "xpu:77"):
        with pytest.raises(ValueError, match=f"device is {device}: .*it finds"):
            accelerator(device)
    monkeypatch.setattr(_placing, "_is_there", lambda device: device.type == "xpu")
    monkeypatch.setattr(_placing, "current_accelerator", lambda: torch.device("xpu"))
    assert accelerator("xpu") == torch.device("xpu")
    with pytest.raises(ValueError, match="finds no such device on this machine; it finds xpu"):
        accelerator("cuda")


@on_accelerator
@every_engine
def test_a_real_accelerator_gets_every_batch(tmp_path: Path, options: dict[str, Any]) -> None:
    assert ACCELERATOR is not None
    dataset = Dataset(written(tmp_path, "numbers"))
    loader = DataLoader(
        dataset,
        batch_sampler=Sampler(dataset, 20),
        device=ACCELERATOR,
        pin_memory=True,
        **options,
    )
    for epoch in range(3):
        sums = []
        labels = []
        for batch in loader:
            assert batch["image"].device.type == ACCELERATOR.type
            sums.append((batch["image"].long().sum(1), batch["label"] * batch["image"].shape[1]))
            labels.append(batch["label"])
        assert [each.tolist() for each in labels] == expected(epoch)
        assert all(torch.equal(found, wanted) for found, wanted in sums)
    loader.close()


@on_accelerator
def test_copies_to_a_real_accelerator_run_beside_kernels() -> None:
    """A trace has copies whose times meet those of kernels."""
    assert ACCELERATOR is not None
    size = 32 << 20
    batches = [(i, torch.full((size,), i, dtype=torch.uint8).pin_memory()) for i in range(8)]
    work = torch.randn(4096, 4096, device=ACCELERATOR)
    with torch.profiler.profile() as profiler:
        for place, batch in on_device(iter(batches), ACCELERATOR):
            for _ in range(8):
                work = torch.nn.functional.normalize(work @ work)
            assert int(batch[0]) == place
    spans = [
        (event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type != torch.profiler.DeviceType.CPU
    ]
    copies = [span for span in spans if "HtoD" in span[0]]
    kernels = [span for span in spans if "Mem" not in span[0]]
    met = [c for c in copies if any(k[1] < c[2] and c[1] < k[2] for k in kernels)]
    assert math.ceil(len(copies) / 2) <= len(met), f"{len(met)} of {len(copies)} copies overlap"
