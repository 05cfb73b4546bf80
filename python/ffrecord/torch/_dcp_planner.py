"""A planner for `torch.distributed.checkpoint` that divides a save evenly among its ranks."""

import dataclasses
import math
import uuid
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

from ffrecord.checkpoint._sharing import SPLIT_SIZE_MIN_BYTES

# Planner data of plans on their way, as [mark, division]: "the items are those that this rank has
# from that division", or "this is your share of that division".
_UNCHANGED = "#ffrecord.unchanged"
_DIVIDED = "#ffrecord.divided"


@dataclasses.dataclass(frozen=True)
class _Share:
    """The part of a division that a rank keeps; all of it is from one save, or it is empty."""

    division: str
    local: SavePlan  # The plan that this rank proposed.
    final: SavePlan


@dataclasses.dataclass(frozen=True)
class _Division:
    """The part that the coordinator keeps."""

    name: str
    proposed: list[SavePlan]
    plans: list[SavePlan]
    metadata: Metadata


class BalancedSavePlanner(DefaultSavePlanner):
    """Divides data that several ranks hold evenly among them, by bytes.

    Tensors that every data-parallel rank has are cut into rows, one share per rank. Smaller
    tensors, and shards that several ranks have, go whole to the rank with the least to write. If
    one planner is used for all saves, ranks do not send plans that have not changed.
    """

    def __init__(self, **options: Any) -> None:  # noqa: ANN401 - those of DefaultSavePlanner
        """Takes the options of `DefaultSavePlanner`, except `enable_plan_caching`."""
        super().__init__(**options)
        self._proposed: SavePlan | None = None  # The plan of a save that has no share yet.
        self._share: _Share | None = None
        self._division: _Division | None = None

    def create_local_plan(self) -> SavePlan:
        """This rank's items, or a note that they are those of the previous save."""
        plan = super().create_local_plan()
        if self._proposed is not None:
            self._share = None  # The previous save failed, perhaps elsewhere on other ranks.
        self._proposed = plan
        if self._share is not None and plan == self._share.local:
            return SavePlan([], planner_data=[_UNCHANGED, self._share.division])
        return plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Divide the items; on the coordinator.

        Raises:
            RuntimeError: a rank has its items from another division. The next save divides again.
        """
        known = self._division
        unchanged = [_division_of(plan, _UNCHANGED) for plan in all_plans]
        if any(unchanged) and (
            known is None
            or len(known.proposed) != len(all_plans)
            or any(name not in (None, known.name) for name in unchanged)
        ):
            raise RuntimeError("the planner was used by other ranks before: make a new one")
        if known is None or not all(unchanged):
            known = self._division = self._divide(all_plans)
            plans = [_told(plan, _DIVIDED, known.name) for plan in known.plans]
        else:
            plans = all_plans
        self.global_plan, self.metadata = known.plans, known.metadata
        return plans, known.metadata

    def _divide(self, all_plans: list[SavePlan]) -> _Division:
        before = all_plans if self._division is None else self._division.proposed
        if len(before) != len(all_plans):
            before = all_plans
        proposed = [
            kept if _division_of(plan, _UNCHANGED) else plan
            for plan, kept in zip(all_plans, before, strict=True)
        ]
        plans, metadata = super().create_global_plan(_divided(proposed))
        return _Division(uuid.uuid4().hex, proposed, plans, metadata)

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """The plan to write: with the items of the previous save, if it is unchanged."""
        if _division_of(new_plan, _UNCHANGED):
            assert self._share is not None
            plan = dataclasses.replace(self._share.final, storage_data=new_plan.storage_data)
        else:
            plan = new_plan
        final = super().finish_plan(plan)
        division = _division_of(new_plan, _DIVIDED)
        if division is not None and self._proposed is not None:
            self._share = _Share(division, self._proposed, final)
        self._proposed = None
        return final

    def resolve_data(self, write_item: WriteItem) -> Any:  # noqa: ANN401 - tensor or bytes
        """The rows of a tensor that this rank writes, or the items of DefaultSavePlanner."""
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


def _told(plan: SavePlan, mark: str, division: str) -> SavePlan:
    return dataclasses.replace(plan, planner_data=[mark, division])


def _division_of(plan: SavePlan, mark: str) -> str | None:
    """The division that a plan names after `mark`; None if it has another mark, or none."""
    about = plan.planner_data
    if isinstance(about, list) and len(about) == 2 and about[0] == mark:
        return str(about[1])
    return None


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
    # The largest first, so that the small ones even out the differences.
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
