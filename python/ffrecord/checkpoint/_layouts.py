"""Tensors that ranks hold together: which slices of them this rank has, and who has the same ones.

A DTensor says so by its mesh and its placements, so no rank asks another one. Torch is not imported
here: a program that has not imported it has no such tensors.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ffrecord.checkpoint._tensors import describe, look_at
from ffrecord.checkpoint._values import Kind

# Indices along one dimension of a tensor that a rank has, in the order in which it has them:
# [begin, end) each.
Spans = tuple[tuple[int, int], ...]


class Piece(NamedTuple):
    """A slice of a tensor, and where this rank has it."""

    offset: tuple[int, ...]
    extent: tuple[int, ...]
    data: Any  # A tensor, or a view of one.
    address: int | None = None  # As `look_at` gives it, where it was asked.

    def is_within(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of that shape has it."""
        return len(self.offset) == len(self.extent) == len(shape) and all(
            0 <= begin <= size - count
            for begin, count, size in zip(self.offset, self.extent, shape, strict=True)
        )


class Layout(NamedTuple):
    """This rank's side of a tensor.

    Attributes:
        dtype: the name of the type of its elements.
        shape: of the whole tensor.
        pieces: what this rank has of it.
        holders: the ranks that have the same pieces, this one among them; ranks of the job.
        rank: this one; -1 if it is not in the mesh.
        identity: equal for two tensors that are one, while both exist.
    """

    dtype: str
    shape: tuple[int, ...]
    pieces: list[Piece]
    holders: tuple[int, ...]
    rank: int
    identity: object


def is_dtensor(value: object) -> bool:
    """Whether it is a tensor with a mesh and placements."""
    return hasattr(value, "placements") and hasattr(value, "_local_tensor")


def is_distributed(value: object) -> bool:
    """Whether ranks hold it together: a DTensor, or a ShardedTensor as FSDP1 makes them."""
    return is_dtensor(value) or hasattr(value, "local_shards")


class _Form:
    """The layout of tensors of one shape, mesh and placement: states have few such forms.

    Attributes:
        mesh: kept, for it is known by its address.
        dimensions: the indices that this rank has, in each dimension.
        holders: as in a `Layout`.
        rank: as in a `Layout`.
        held: the shape of what this rank has.
        offset: of it, if it is one slice; else None.
    """

    def __init__(
        self, mesh: object, dimensions: tuple[Spans, ...], holders: tuple[int, ...], rank: int
    ) -> None:
        self.mesh, self.dimensions, self.holders, self.rank = mesh, dimensions, holders, rank
        self.held = tuple(sum(end - begin for begin, end in spans) for spans in dimensions)
        self.offset: tuple[int, ...] | None = None
        if all(len(spans) == 1 for spans in dimensions):
            self.offset = tuple(spans[0][0] for spans in dimensions)

    def pieces(self, local: Any, address: int | None, shape: tuple[int, ...]) -> list[Piece]:  # noqa: ANN401
        """The slices that are one for each choice of spans."""
        if self.offset is not None:
            return [Piece(self.offset, self.held, local, address)]
        if not has_elements(shape):
            return [Piece((0,) * len(shape), self.held, local, address)]
        pieces = []
        for chosen in itertools.product(*map(_placed, self.dimensions)):
            offset = tuple(begin for begin, _, _ in chosen)
            extent = tuple(end - begin for begin, end, _ in chosen)
            index = tuple(slice(at, at + end - begin) for begin, end, at in chosen)
            part = local[index]
            pieces.append(Piece(offset, extent, part, look_at(part, Kind.TORCH)[2]))
        return pieces


class Layouts:
    """Finds layouts."""

    def __init__(self) -> None:
        """Know no forms yet."""
        self._forms: dict[object, _Form] = {}

    def of(self, value: Any) -> Layout:  # noqa: ANN401
        """The layout of a tensor for which `is_distributed` holds.

        Raises:
            TypeError: it holds sums that are not added up yet, or its memory is not what its
                placements say.
        """
        if not is_dtensor(value):
            return _of_shards(value)
        shape = tuple(value.shape)
        mesh, placements = value.device_mesh, tuple(value.placements)
        order = getattr(getattr(value, "_spec", None), "shard_order", None)
        key = id(mesh), placements, shape, order
        form = self._forms.get(key)
        if form is None:
            form = self._forms[key] = _form_of(mesh, placements, shape, order)
        local = _local_of(value)
        if not form.holders:  # This rank is not in the mesh; its tensor says nothing.
            named = str(value.dtype).removeprefix("torch.")
            return Layout(named, shape, [], (), form.rank, id(value))
        dtype, extent, address = look_at(local, Kind.TORCH)
        if extent != form.held:
            raise TypeError(
                f"its placements {placements} give this rank {form.held} of {shape}, but it has "
                f"{extent}"
            )
        memory = (address, dtype) if address else memory_of_tensor(local)
        pieces = form.pieces(local, address, shape)
        return Layout(dtype, shape, pieces, form.holders, form.rank, (id(form), memory))


def _local_of(value: Any) -> Any:  # noqa: ANN401
    local = value._local_tensor  # As to_local() gives it, but for what gradients need.
    return local.wait() if hasattr(local, "trigger_wait") else local


def _of_shards(value: Any) -> Layout:  # noqa: ANN401 (a ShardedTensor)
    pieces = [
        Piece(
            tuple(each.metadata.shard_offsets),
            tuple(each.metadata.shard_sizes),
            each.tensor,
            look_at(each.tensor, Kind.TORCH)[2],
        )
        for each in value.local_shards()
    ]
    about = value.metadata()
    named = str(about.tensor_properties.dtype).removeprefix("torch.")
    for piece in pieces:
        dtype, extent = describe(piece.data)
        if (dtype, extent) != (named, piece.extent):
            raise TypeError(
                f"a shard of it is {dtype} {extent}, but it says {named} {piece.extent}"
            )
    return Layout(named, tuple(about.size), pieces, (0,), 0, id(value))


def memory_of_tensor(tensor: Any) -> object:  # noqa: ANN401 (torch.Tensor)
    """A key that is equal for two plain tensors only if they are the same elements in memory."""
    return (
        tensor.untyped_storage()._cdata,
        tensor.storage_offset(),
        tensor.stride(),
        tuple(tensor.shape),
        tensor.dtype,
        tensor.is_conj(),
        tensor.is_neg(),
    )


def _form_of(
    mesh: Any,  # noqa: ANN401
    placements: Sequence[Any],
    shape: tuple[int, ...],
    order: Any,  # noqa: ANN401
) -> _Form:
    for placement in placements:
        if placement.is_partial():
            raise TypeError(
                f"its placement {placement!r} says that ranks have terms of a sum: redistribute it "
                "to Shard or Replicate first"
            )
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return _Form(mesh, (), (), -1)
    rank = int(mesh.mesh[tuple(coordinate)])
    dimensions: list[Spans] = [((0, size),) for size in shape]
    for at in _order(placements, order):
        placement = placements[at]
        dimension = placement.dim % len(shape)
        dimensions[dimension] = _split(
            dimensions[dimension],
            mesh.size(at),
            coordinate[at],
            int(getattr(placement, "split_factor", 1)),
        )
    alike = tuple(
        slice(None) if placement.is_replicate() else index
        for placement, index in zip(placements, coordinate, strict=True)
    )
    holders = tuple(sorted(mesh.mesh[alike].flatten().tolist()))
    return _Form(mesh, tuple(_joined(spans) for spans in dimensions), holders, rank)


def _order(placements: Sequence[Any], order: Any) -> list[int]:  # noqa: ANN401
    """The dimensions of the mesh that shard, as they do one after the other."""
    sharding = [at for at, placement in enumerate(placements) if not placement.is_replicate()]
    if order is None or any(hasattr(placements[at], "split_factor") for at in sharding):
        return sharding
    told = [at for entry in order for at in entry.mesh_dims]
    return told if sorted(told) == sharding else sharding


def _split(spans: Spans, count: int, index: int, factor: int) -> Spans:
    """Part `index` of `count`, cut as torch.chunk does; of each of `factor` parts of the whole."""
    size = sum(end - begin for begin, end in spans)
    found: list[tuple[int, int]] = []
    for turn in range(factor):
        first, last = _chunk(size, factor, turn)
        begin, end = _chunk(last - first, count, index)
        found += _cut(spans, first + begin, first + end)
    return tuple(found)


def _chunk(size: int, count: int, index: int) -> tuple[int, int]:
    each = -(-size // count)
    begin = min(size, each * index)
    return begin, min(size, begin + each)


def _cut(spans: Spans, begin: int, end: int) -> list[tuple[int, int]]:
    """Positions from `begin` to before `end` of what the spans list."""
    found, at = [], 0
    for first, last in spans:
        low, high = max(begin - at, 0), min(end - at, last - first)
        if low < high:
            found.append((first + low, first + high))
        at += last - first
    return found


def _joined(spans: Spans) -> Spans:
    found: list[tuple[int, int]] = []
    for begin, end in spans:
        if found and found[-1][1] == begin:
            found[-1] = (found[-1][0], end)
        else:
            found.append((begin, end))
    return tuple(found)


def _placed(spans: Spans) -> list[tuple[int, int, int]]:
    """With each span, where it begins in the rank's own tensor."""
    starts = itertools.accumulate((end - begin for begin, end in spans), initial=0)
    return [(begin, end, at) for (begin, end), at in zip(spans, starts, strict=False)]


def has_elements(shape: Sequence[int]) -> bool:
    """Whether a tensor of that shape has any."""
    return math.prod(shape) > 0


# --- Tensors that are made of others -------------------------------------------------------------


def is_made_of_tensors(value: Any) -> bool:  # noqa: ANN401
    """Whether its type is a subclass that can say which tensors it is made of, as torchao's."""
    return (
        hasattr(value, "__tensor_flatten__")
        and hasattr(value, "__tensor_unflatten__")
        and not is_distributed(value)
        and not value.is_nested
    )


def parts_of(value: Any) -> tuple[dict[str, Any], object]:  # noqa: ANN401
    """Its tensors by name, and what else it takes to make it.

    Raises:
        TypeError: it does not say it as torch wants it.
    """
    told = value.__tensor_flatten__()
    if not isinstance(told, tuple) or len(told) != 2:
        raise TypeError(f"{type(value).__name__}.__tensor_flatten__ gives no names and context")
    names, context = told
    return {str(name): getattr(value, name) for name in names}, context


def plain_parts(value: Any) -> list[Any]:  # noqa: ANN401
    """The plain tensors whose memory a tensor has on this rank."""
    if is_dtensor(value):
        return [_local_of(value)]
    if is_distributed(value):
        return [each.tensor for each in value.local_shards()]
    if is_made_of_tensors(value):
        parts, _ = parts_of(value)
        return [each for part in parts.values() if part is not None for each in plain_parts(part)]
    return [value]
