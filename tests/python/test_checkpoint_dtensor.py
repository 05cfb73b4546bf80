"""Goal: a DTensor of any mesh is saved as it is and loaded into any other mesh, bit for bit.

Method: every pair of a table of meshes and placements; FSDP2, HSDP, tensor parallel layers and their
optimizers; what each rank writes, and what it reads; whatever has no bytes of its own is refused.
"""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.placement_types import _StridedShard

import ffrecord.checkpoint as ckpt
from ffrecord.checkpoint._layouts import Layouts
from ffrecord.checkpoint._saving import Order, flatten
from ffrecord.torch import TrainingState
from ffrecord.torch.checkpoint import Group
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


def from_any_to_any(rank: int, world: int, folder: str) -> object:
    del rank, world
    known = meshes()
    for name, (mesh, placements) in known.items():
        commit = ckpt.save(f"{folder}/{name}", 1, {"w": state_on(mesh, placements), "step": 3})
        # Nothing twice.
        assert commit.size_bytes == 4 * sum(math.prod(shape) for shape in SHAPES), name
    for name in known:
        plain: Any = ckpt.load(f"{folder}/{name}")
        for shape in SHAPES:
            assert torch.equal(torch.from_numpy(plain["w"][str(shape)]), whole(shape)), name
        for other, (mesh, placements) in known.items():
            into: Any = {"w": state_on(mesh, placements, fill=False), "step": 0}
            locals_before = {key: each.to_local().data_ptr() for key, each in into["w"].items()}
            ckpt.load(f"{folder}/{name}", into)
            if mesh.get_coordinate() is not None:
                for key, expected in state_on(mesh, placements).items():
                    found = into["w"][key].to_local()
                    assert torch.equal(found, expected.to_local()), (name, other, key)
                    assert found.data_ptr() == locals_before[key]
            plain_into = {"w": {str(shape): torch.zeros(shape) for shape in SHAPES}, "step": 0}
        ckpt.load(f"{folder}/{name}", plain_into)
        assert all(torch.equal(plain_into["w"][str(s)], whole(s)) for s in SHAPES)
    # And a tensor that no mesh knew is loaded into one.
    ckpt.save(f"{folder}/plain", 1, {"w": {str(shape): whole(shape) for shape in SHAPES}})
    for mesh, placements in known.values():
        into = {"w": state_on(mesh, placements, fill=False)}
        ckpt.load(f"{folder}/plain", into)
        if mesh.get_coordinate() is not None:
            for key, expected in state_on(mesh, placements).items():
                assert torch.equal(into["w"][key].to_local(), expected.to_local())
    return True


def test_what_one_mesh_saved_any_other_loads_bit_for_bit(tmp_path: Any) -> None:
    assert run_ranks(from_any_to_any, 4, str(tmp_path)) == [True] * 4
