"""Goal: a DTensor of any mesh is saved as it is and loaded into any other mesh, bit for bit.

Method: every pair of a table of meshes and placements; FSDP2, HSDP, tensor parallel layers and
their optimizers; what each rank writes and reads; what has no bytes of its own is refused.
"""

import copy
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard

import ffrecord.checkpoint as ckpt
from ffrecord.checkpoint._saving import Order, flatten
from ffrecord.torch import TrainingState
from ffrecord.torch.checkpoint import Group
from object_store import Store
from ranks import run_ranks

pytestmark = pytest.mark.wrong_data

SHAPES = [(8, 6), (7, 5), (13,), (3, 2, 5), (1, 3), (0, 3), (300, 1100)]


def meshes() -> dict[str, tuple[Any, list[Any]]]:
    """Mesh and placements by name, for four ranks."""
    line = init_device_mesh("cpu", (4,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    three = DeviceMesh("cpu", [0, 1, 2])
    turned = DeviceMesh("cpu", [[3, 1], [2, 0]])
    return {
        "rows of 4": (line, [Shard(0)]),
        "rows of 3": (three, [Shard(0)]),
        "columns of 4": (line, [Shard(-1)]),
        "replicas": (line, [Replicate()]),
        "one rank": (DeviceMesh("cpu", [2]), [Shard(0)]),
        "replicas of rows": (square, [Replicate(), Shard(0)]),
        "replicas of columns": (square, [Replicate(), Shard(-1)]),
        "rows and columns": (square, [Shard(0), Shard(-1)]),
        "rows twice": (square, [Shard(0), Shard(0)]),
        "tensor parallel first": (square, [_StridedShard(0, split_factor=2), Shard(0)]),
        "scattered rows": (line, [_StridedShard(0, split_factor=3)]),
        "another order of ranks": (turned, [Shard(0), Replicate()]),
    }


def whole(shape: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)


def placed(tensor: torch.Tensor, mesh: Any, placements: list[Any]) -> Any:  # noqa: ANN401
    """As a DTensor, each rank taking its own part."""
    local = tensor
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return DTensor.from_local(
            torch.empty(0), mesh, placements, run_check=False, shape=tensor.shape,
            stride=tensor.stride(),
        )  # fmt: skip
    for at, placement in enumerate(placements):
        if not placement.is_replicate():
            dimension = placement.dim % tensor.dim()
            kind = type(placement)
            again = kind(dimension, **(
                {"split_factor": placement.split_factor} if kind is _StridedShard else {}
            ))  # fmt: skip
            parts, _ = again._split_tensor(local, mesh.size(at), with_padding=False)
            local = parts[coordinate[at]]
    named = [
        type(each)(each.dim % tensor.dim()) if type(each) is Shard else each for each in placements
    ]
    return DTensor.from_local(
        local.clone(), mesh, named, run_check=False, shape=tensor.shape, stride=tensor.stride()
    )


def state_on(mesh: Any, placements: list[Any], fill: bool = True) -> dict[str, Any]:  # noqa: ANN401
    return {
        str(shape): placed(whole(shape) if fill else torch.full(shape, -1.0), mesh, placements)
        for shape in SHAPES
    }


def is_filled(into: dict[str, Any], mesh: Any, placements: list[Any]) -> bool:  # noqa: ANN401
    if mesh.get_coordinate() is None:
        return True
    expected = state_on(mesh, placements)
    return all(torch.equal(into[key].to_local(), expected[key].to_local()) for key in expected)


def from_any_to_any(rank: int, world: int, folder: str) -> object:
    del rank, world
    known = meshes()
    plain = {str(shape): whole(shape) for shape in SHAPES}
    ckpt.save(f"{folder}/plain", 1, {"w": plain, "step": 3})
    for name, (mesh, placements) in known.items():
        commit = ckpt.save(f"{folder}/{name}", 1, {"w": state_on(mesh, placements), "step": 3})
        assert commit.size_bytes == sum(each.nbytes for each in plain.values()), name
    for name in ("plain", *known):
        # Each rank reads for itself: what it needs is a matter of its own placements.
        found: Any = ckpt.load(f"{folder}/{name}", group="alone", as_torch=True)
        assert all(torch.equal(found["w"][key], plain[key]) for key in plain), name
        into: Any = {"w": {key: torch.zeros_like(each) for key, each in plain.items()}, "step": 0}
        ckpt.load(f"{folder}/{name}", into, group="alone")
        assert all(torch.equal(into["w"][key], plain[key]) for key in plain), name
        for other, (mesh, placements) in known.items():
            into = {"w": state_on(mesh, placements, fill=False), "step": 0}
            memory = [each.to_local().data_ptr() for each in into["w"].values()]
            ckpt.load(f"{folder}/{name}", into, group="alone")
            assert is_filled(into["w"], mesh, placements), (name, other)
            assert [each.to_local().data_ptr() for each in into["w"].values()] == memory
    return True


def test_what_one_mesh_saved_any_other_loads_bit_for_bit(tmp_path: Path) -> None:
    assert run_ranks(from_any_to_any, 4, str(tmp_path)) == [True] * 4


def what_ranks_write(rank: int, world: int) -> list[int]:
    """The bytes that this rank writes of small and of large tensors that have replicas."""
    del world
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    small = {str(i): placed(whole((64, 64)), square, [Replicate(), Shard(0)]) for i in range(8)}
    large = {"large": placed(whole((2048, 512)), square, [Replicate(), Shard(1)])}
    everywhere = {"all": placed(whole((1024, 512)), square, [Replicate(), Replicate()])}
    order = Order("x", 1, "rank0", True, 30.0)
    return [
        sum(leaf.size_bytes for leaf in flatten(order, state, rank, 4, range(4)).shares)
        for state in (small, large, everywhere)
    ]


def test_replicas_share_the_writing_evenly_and_each_byte_is_written_once() -> None:
    assert run_ranks(what_ranks_write, 4) == [[8 * 64 * 64, 2048 * 512, 512 * 1024]] * 4


# --- Training ------------------------------------------------------------------------------------


class Block(nn.Module):
    """Two layers; the sizes of some rows are such that no mesh divides them."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 7, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through both."""
        out: torch.Tensor = self.down(torch.relu(self.up(x)))
        return out


Model = tuple[nn.Module, torch.optim.Optimizer]


def on_mesh(kind: str) -> Model:
    """The same model on a mesh, and its optimizer."""
    torch.manual_seed(7)
    model = nn.Sequential(Block(), Block())
    model[1].up = nn.Linear(7, 8)
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    if kind in ("tp", "fsdp of tp"):
        plan = {f"{i}.up": ColwiseParallel() for i in (0, 1)}
        plan |= {f"{i}.down": RowwiseParallel() for i in (0, 1)}
        mesh = square["tp"] if kind == "fsdp of tp" else init_device_mesh("cpu", (4,))
        parallelize_module(model, mesh, plan)
    shards = {"fsdp": init_device_mesh("cpu", (4,)), "hsdp": square, "fsdp of tp": square["dp"]}
    if kind in shards:
        for layer in model:
            fully_shard(layer, mesh=shards[kind])
        fully_shard(model, mesh=shards[kind])
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer, turn: int) -> None:
    torch.manual_seed(turn)
    model(torch.randn(5, 6)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def content(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Every tensor, whole."""
    found = list(model.state_dict().values())
    for state in optimizer.state_dict()["state"].values():
        found += state.values()
    return [(each.full_tensor() if isinstance(each, DTensor) else each).clone() for each in found]


def train_here_and_there(rank: int, world: int, folder: str) -> object:
    del rank, world
    kinds = ["fsdp", "hsdp", "tp", "fsdp of tp"]
    saved = {}
    for kind in kinds:
        model, optimizer = on_mesh(kind)
        for turn in range(2):
            step(model, optimizer, turn)
        saved[kind] = content(model, optimizer)
        TrainingState(model, optimizer).save(f"{folder}/{kind}", 2)
        for other in kinds:
            into, its_optimizer = on_mesh(other)
            if other == "tp":
                step(into, its_optimizer, 5)  # Its state exists already, unlike the others'.
            training = TrainingState(into, its_optimizer)
            assert training.load(f"{folder}/{kind}") == 2
            for a, b in zip(saved[kind], content(into, its_optimizer), strict=True):
                assert torch.equal(a, b), (kind, other)
            step(into, its_optimizer, 2)
            if other == kind:
                step(model, optimizer, 2)
                for a, b in zip(
                    content(model, optimizer), content(into, its_optimizer), strict=True
                ):
                    assert torch.equal(a, b), kind
    return True


def test_models_and_optimizers_go_on_on_another_mesh(tmp_path: Path) -> None:
    assert run_ranks(train_here_and_there, 4, str(tmp_path)) == [True] * 4


def by_name(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The state of an optimizer under the names of its parameters."""
    return {name: optimizer.state[each] for name, each in model.named_parameters()}


def pipeline(rank: int, world: int, folder: str) -> object:
    """Two stages of two sharded ranks each, and the same model sharded over all four."""
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    line = init_device_mesh("cpu", (world,))
    place = rank // 2
    torch.manual_seed(3)
    blocks = {"0": Block(), "1": nn.Sequential(nn.Linear(7, 6), Block())}

    def sharded(names: list[str], mesh: DeviceMesh) -> Model:
        model = nn.ModuleDict({name: copy.deepcopy(blocks[name]) for name in names})
        for each in model.values():
            fully_shard(each, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step()
        return model, optimizer

    def state(model: nn.Module, optimizer: torch.optim.Optimizer, ranks: tuple[int, ...]) -> Any:  # noqa: ANN401
        return {"model": model, "optim": ckpt.OnRanks(by_name(model, optimizer), ranks), "n": 1}

    everyone = tuple(range(world))
    ranks = (2 * place, 2 * place + 1)
    stage, its_optimizer = sharded([str(place)], square["dp"])
    ckpt.save(f"{folder}/stages", 1, state(stage, its_optimizer, ranks))
    model, optimizer = sharded(["0", "1"], line)
    ckpt.save(f"{folder}/whole", 1, state(model, optimizer, everyone))
    assert not ckpt.diff((f"{folder}/stages", 1), (f"{folder}/whole", 1))
    before = content(model, optimizer), content(stage, its_optimizer)
    with torch.no_grad():
        states = [*optimizer.state.values(), *its_optimizer.state.values()]
        kept = [tensor for each in states for tensor in each.values()]
        for each in [*model.parameters(), *stage.parameters(), *kept]:
            each.zero_()
    ckpt.load(f"{folder}/stages", state(model, optimizer, everyone))
    ckpt.load(f"{folder}/whole", state(stage, its_optimizer, ranks))
    after = content(model, optimizer), content(stage, its_optimizer)
    for expected, found in zip(before, after, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
    return True


def test_a_pipeline_and_a_sharded_model_load_what_the_other_saved(tmp_path: Path) -> None:
    assert run_ranks(pipeline, 4, str(tmp_path)) == [True] * 4


# --- What is read --------------------------------------------------------------------------------

# From here to there, of one tensor of 32 MiB.
RESHARDS = [
    ("rows of 4", "rows of 3"),
    ("columns of 4", "replicas of columns"),
    ("replicas of rows", "rows of 4"),
]


def reshard(rank: int, world: int, run: str, there: str, variables: dict[str, str]) -> list[int]:
    """Save on one mesh, load on another; the bytes that this rank needs."""
    del world
    os.environ |= variables
    known = meshes()
    tensor = whole((2048, 4096))
    if there == "":
        for name in {name for name, _ in RESHARDS}:
            ckpt.save(f"{run}/{name}", 1, {"w": placed(tensor, *known[name])})
        return [rank]
    here, there = there.split(" -> ")
    into = placed(torch.zeros_like(tensor), *known[there])
    ckpt.load(f"{run}/{here}", {"w": into})
    mesh, placements = known[there]
    needed = 0
    if mesh.get_coordinate() is not None:
        assert torch.equal(into.to_local(), placed(tensor, mesh, placements).to_local())
        needed = into.to_local().nbytes
    return [needed]


def test_a_load_on_another_mesh_reads_what_it_needs_and_no_more(store: Store) -> None:
    variables = {name: os.environ[name] for name in os.environ if name.startswith("AWS_")}
    variables["no_proxy"] = "*"
    run_ranks(reshard, 4, "s3://bucket/reshards", "", variables)
    for here, there in RESHARDS:
        store.serve_all()
        wanted = f"{here} -> {there}"
        needed = run_ranks(reshard, 4, "s3://bucket/reshards", wanted, variables)
        read = sum(size for request, size in store.sent if "GET" in request and "/seg-" in request)
        assert sum(each for (each,) in needed) <= read, wanted
        assert read <= 1.02 * sum(each for (each,) in needed), wanted


# --- Groups, and other tensors that ranks hold together ------------------------------------------


def by_some_ranks(rank: int, world: int, folder: str) -> object:
    """Each replica saves by itself, and a rank alone what it has all of."""
    del world
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    large = whole((1024, 512))
    state = {
        "rows": placed(large, square, [Replicate(), Shard(0)]),
        "all": placed(large, square, [Replicate(), Replicate()]),
    }
    group = Group(square["tp"].get_group())
    ckpt.save(f"{folder}/{rank // 2}", 1, state, group=group)
    found: Any = ckpt.load(f"{folder}/{rank // 2}", group="alone", as_torch=True)
    assert torch.equal(found["rows"], large) and torch.equal(found["all"], large)
    ckpt.save(f"{folder}/alone{rank}", 1, {"all": state["all"]}, group="alone")
    found = ckpt.load(f"{folder}/alone{rank}", group="alone", as_torch=True)
    assert torch.equal(found["all"], large)
    with pytest.raises(ValueError, match="rows: the ranks' slices cover"):
        ckpt.save(f"{folder}/part{rank}", 1, state, group="alone")
    return True


def in_the_background(rank: int, world: int, folder: str) -> object:
    """What is saved is what was there when the call returned, also of slices with gaps."""
    del rank, world
    known = meshes()
    names = ["rows of 3", "columns of 4", "scattered rows", "replicas of rows"]
    for number, room in enumerate((512 << 20, 0)):
        for incremental in (False, True):
            state = {name: placed(whole((90, 4000)), *known[name]) for name in names}
            step = 2 * number + incremental
            pending = ckpt.async_save(
                f"{folder}/run", step, state, stage_bytes_max=room, incremental=incremental
            )
            for each in state.values():
                each.to_local().zero_()
            commit = pending.result(300)
            assert commit.size_bytes == len(names) * 90 * 4000 * 4
            found: Any = ckpt.load(f"{folder}/run", step=step, group="alone", as_torch=True)
            assert all(torch.equal(each, whole((90, 4000))) for each in found.values())
    ckpt.close()
    return True


def replicas_that_differ(rank: int, world: int, folder: str) -> object:
    """With "split" they are compared, whatever mesh says that they are equal."""
    del world
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    forms = (square, [Replicate(), Shard(0)]), (square, [Shard(0), Replicate()])
    rows, small = placed(whole((1024, 512)), *forms[0]), placed(whole((8, 6)), *forms[1])
    first = rank // 2 * 2
    stage: Any = ckpt.OnRanks({f"s{rank // 2}": torch.full((3,), rank // 2)}, (first, first + 1))
    state = {"deep": {"rows": rows}, "small": small, "stage": stage}
    ckpt.save(f"{folder}/equal", 1, state, replicated="split")
    found: Any = ckpt.load(f"{folder}/equal", group="alone", as_torch=True)
    assert torch.equal(found["deep"]["rows"], whole((1024, 512)))
    for change, named in [
        (lambda: rows.to_local()[-1, -1].add_(rank == 2), r"deep/rows at \(0, 0\) .rank 2"),
        (lambda: small.to_local()[0].add_(rank == 1), r"small at \(0, 0\) .rank 1"),
        (lambda: stage.value["s1"].add_(1) if rank == 3 else None, r"stage/s1 at \(0,\) .rank 3"),
    ]:
        with torch.no_grad():
            change()  # type: ignore[no-untyped-call]
        with pytest.raises(ValueError, match=f"needs equal replicas.*{named}.*1 in all"):
            ckpt.save(f"{folder}/differ", 1, state, replicated="split")
        rows.to_local().copy_(placed(whole((1024, 512)), *forms[0]).to_local())  # As they were.
        small.to_local().copy_(placed(whole((8, 6)), *forms[1]).to_local())
    return True


def sharded_as_by_fsdp1(rank: int, world: int, folder: str) -> object:
    """ShardedTensor: two shards on each of the first ranks, none on the last."""
    tensor = whole((world * 4, 3))

    def made(fill: bool) -> Any:  # noqa: ANN401
        rows = [] if rank == world - 1 else [2 * rank, 2 * rank + 1]
        pieces = [tensor[i : i + 1] if fill else torch.zeros(1, 3) for i in rows]
        if rank == 0:
            rows, pieces = [*rows, 2 * world - 2], [*pieces, tensor[2 * world - 2 :] * int(fill)]
        return sharded_tensor.init_from_local_shards(
            [
                sharded_tensor.Shard(
                    piece.clone(),
                    sharded_tensor.ShardMetadata([row, 0], list(piece.shape), f"rank:{rank}/cpu"),
                )
                for row, piece in zip(rows, pieces, strict=True)
            ],
            *tensor.shape,
        )

    ckpt.save(f"{folder}/fsdp1", 1, {"w": made(True)})
    into = made(False)
    ckpt.load(f"{folder}/fsdp1", {"w": into})
    for here, there in zip(into.local_shards(), made(True).local_shards(), strict=True):
        assert torch.equal(here.tensor, there.tensor)
    rows = placed(torch.zeros_like(tensor), init_device_mesh("cpu", (world,)), [Shard(0)])
    ckpt.load(f"{folder}/fsdp1", {"w": rows})
    assert torch.equal(rows.to_local(), tensor[4 * rank : 4 * rank + 4])
    return True


def tied_and_refused(rank: int, world: int, folder: str) -> object:
    mesh = init_device_mesh("cpu", (world,))
    model = nn.Sequential(nn.Linear(5, 3, bias=False), nn.Linear(5, 3, bias=False))
    model[1].weight = model[0].weight
    fully_shard(model, mesh=mesh)
    commit = ckpt.save(f"{folder}/tied", 1, {"model": model})
    assert commit.size_bytes == 5 * 3 * 4
    found: Any = ckpt.load(f"{folder}/tied")
    assert found["model"]["0.weight"] is found["model"]["1.weight"]

    rows = placed(whole((8, 6)), mesh, [Shard(0)])
    terms = DTensor.from_local(torch.ones(8, 6), mesh, [Partial()])
    odd = DTensor.from_local(
        torch.ones(5, 6), mesh, [Shard(0)], run_check=False, shape=(8, 6), stride=(6, 1)
    )
    for state, why in [
        ({"a": {"w": terms}}, "a/w: its placement Partial"),
        ({"a": {"w": odd}}, "a/w: its placements .* but it has"),
        ({"a": {"w": ckpt.PerRank(rows)}}, "a/w/@rank.: a DTensor is one tensor of all ranks"),
        ({"a": {"w": ckpt.Shard(rows, (8, 6), (0, 0))}}, "a/w: DTensor is distributed: pass it"),
    ]:
        with pytest.raises(TypeError, match=f"state: {why}"):
            ckpt.save(f"{folder}/refused", 1, state, group="alone")
    ckpt.save(f"{folder}/rows", 1, {"w": rows, "x": 1})
    for into, why in [
        (terms, "w .its placement Partial"),
        (placed(whole((8, 5)), mesh, [Shard(0)]), r"w .float32 \(8, 6\) is stored"),
        (placed(whole((8, 6)).double(), mesh, [Shard(0)]), "w .float32 .* has float64"),
    ]:
        with pytest.raises(ckpt.MismatchError, match=why):
            ckpt.load(f"{folder}/rows", {"w": into, "x": 0})
    return True


BODIES = (
    by_some_ranks,
    in_the_background,
    replicas_that_differ,
    sharded_as_by_fsdp1,
    tied_and_refused,
)


def one_after_the_other(rank: int, world: int, folder: str) -> object:
    for body in BODIES:
        body(rank, world, folder)
    return True


def test_groups_older_shards_ties_and_what_cannot_be_kept(tmp_path: Path) -> None:
    assert run_ranks(one_after_the_other, 4, str(tmp_path)) == [True] * 4
