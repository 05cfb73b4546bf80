"""A planner for `torch.distributed.checkpoint` that divides a save evenly among its ranks."""

import dataclasses
import math
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex
from torch.distributed.checkpoint.planner import (
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from ffrecord.checkpoint.ranks import SPLIT_SIZE_MIN_BYTES

_UNCHANGED = "#ffrecord.unchanged"  # Planner data of a plan that is the one of the save before.


class BalancedSavePlanner(DefaultSavePlanner):
    """Divides what several ranks hold evenly among them, by bytes.

    Tensors that every data-parallel rank has are cut into rows, a share for each; smaller ones, and
    shards that several ranks have, go whole to the one with the least to write. Kept from save to
    save, it also saves the ranks from sending plans that have not changed.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of DefaultSavePlanner
        """Takes the options of `DefaultSavePlanner`, but for `enable_plan_caching`."""
        super().__init__(**options)
        self._local: SavePlan | None = None
        self._final: SavePlan | None = None
        self._all: list[SavePlan] = []
        self._global: tuple[list[SavePlan], Metadata] | None = None

    def create_local_plan(self) -> SavePlan:
        """This rank's items, or word that they are those of the save before."""
        plan = super().create_local_plan()
        if self._final is not None and plan == self._local:
            return SavePlan([], planner_data=_UNCHANGED)
        self._local = plan
        return plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Divides; on the coordinator."""
        unchanged = [_is_unchanged(plan) for plan in all_plans]
        if all(unchanged) and self._global is not None and len(self._all) == len(all_plans):
            self.global_plan, self.metadata = self._global
            return all_plans, self.metadata
        if any(unchanged) and len(self._all) != len(all_plans):
            raise RuntimeError("the planner was used by other ranks before: make a new one")
        self._all = [
            before if same else plan
            for plan, before, same in zip(all_plans, self._all or all_plans, unchanged, strict=True)
        ]
        self._global = super().create_global_plan(_divided(self._all))
        return self._global

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """The plan to write by: with the items of the save before, if it is unchanged."""
        if _is_unchanged(new_plan):
            assert self._final is not None
            plan = dataclasses.replace(self._final, storage_data=new_plan.storage_data)
        else:
            plan = new_plan
        self._final = super().finish_plan(plan)
        return self._final

    def resolve_data(self, write_item: WriteItem) -> Any:  # noqa: ANN401 - tensor or bytes
        """The rows of a tensor that fall to this rank, or what DefaultSavePlanner gives."""
        held = self.state_dict.get(write_item.index.fqn)
        about = write_item.tensor_data
        if about is None or not _is_whole(held) or write_item.type is not WriteItemType.SHARD:
            return super().resolve_data(write_item)
        rows: Any = held
        for dimension, (begin, size) in enumerate(
            zip(about.chunk.offsets, about.chunk.sizes, strict=True)
        ):
            rows = rows.narrow(dimension, begin, size)
        return rows.detach()


def _is_unchanged(plan: SavePlan) -> bool:
    return isinstance(plan.planner_data, str) and plan.planner_data == _UNCHANGED


def _is_whole(held: object) -> bool:
    """Whether it is a tensor that is not distributed."""
    marks = ("_local_tensor", "local_shards", "__create_write_items__")
    return isinstance(held, torch.Tensor) and not any(hasattr(held, mark) for mark in marks)


def _size_of(item: WriteItem) -> int:
    about = item.tensor_data
    return 0 if about is None else math.prod(about.chunk.sizes) * about.properties.dtype.itemsize


def _divided(plans: list[SavePlan]) -> list[SavePlan]:
    """The same items, each on one rank."""
    holders: dict[MetadataIndex, list[int]] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            holders.setdefault(item.index, []).append(rank)
    items: list[list[WriteItem]] = [[] for _ in plans]
    load = [0] * len(plans)
    shared: dict[MetadataIndex, WriteItem] = {}
    for rank, plan in enumerate(plans):
        for item in plan.items:
            if len(holders[item.index]) > 1:
                shared[item.index] = item
            else:
                items[rank].append(item)
                load[rank] += _size_of(item)
    # The largest first, so that the small ones even out what is left.
    for index, item in sorted(shared.items(), key=lambda pair: (-_size_of(pair[1]), pair[0].fqn)):
        ranks = holders[index]
        about = item.tensor_data
        rows = about.size[0] if about is not None and len(about.size) else 0
        large = _size_of(item) >= SPLIT_SIZE_MIN_BYTES and rows >= len(ranks)
        if item.type is WriteItemType.TENSOR and about is not None and large:
            for place, rank in enumerate(ranks):
                begin, end = rows * place // len(ranks), rows * (place + 1) // len(ranks)
                items[rank].append(_rows_of(item, about, begin, end))
                load[rank] += _size_of(items[rank][-1])
        else:
            owner = min(ranks, key=lambda rank: (load[rank], rank))
            items[owner].append(item)
            load[owner] += _size_of(item)
    return [dataclasses.replace(plan, items=own) for plan, own in zip(plans, items, strict=True)]


def _rows_of(item: WriteItem, about: TensorWriteData, begin: int, end: int) -> WriteItem:
    rest = list(about.size)[1:]
    chunk = ChunkStorageMetadata(
        torch.Size([begin, *[0] * len(rest)]), torch.Size([end - begin, *rest])
    )
    return WriteItem(
        MetadataIndex(item.index.fqn, chunk.offsets),
        WriteItemType.SHARD,
        tensor_data=TensorWriteData(chunk, about.properties, about.size),
    )
