"""Goal: which slices a rank has of a DTensor, and writes, is what torch gave it, on any mesh.

Method: random meshes, shapes and placements; every rank's part as torch's placements cut it,
against the slices that are computed for it; each element is written by exactly one rank.
"""

import itertools
import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("torch has no distributed package", allow_module_level=True)

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.distributed.tensor import Replicate, Shard  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402

from ffrecord.checkpoint._layouts import Layout, Layouts  # noqa: E402
from ffrecord.checkpoint._sharing import Leaf, Sharing  # noqa: E402

pytestmark = pytest.mark.wrong_data


class Entry(NamedTuple):
    """As torch tells the order in which the dimensions of a mesh shard."""

    mesh_dims: tuple[int, ...]


class Rank:
    """One rank's side of a DTensor, without the others."""

    def __init__(
        self,
        ranks: Any,  # noqa: ANN401 (torch may be missing)
        coordinate: tuple[int, ...],
        placements: list[Any],
        whole: Any,  # noqa: ANN401
        order: list[int] | None,
    ) -> None:
        self.device_mesh = SimpleNamespace(
            mesh=ranks,
            size=lambda at: ranks.shape[at],
            get_coordinate=lambda: list(coordinate),
        )
        self.placements, self.shape, self.dtype = placements, whole.shape, whole.dtype
        told = None if order is None else (Entry(tuple(order)),)
        self._spec = SimpleNamespace(shard_order=told)
        self._local_tensor = whole
        for at in range(len(placements)) if order is None else order:
            if not placements[at].is_replicate():
                parts, _ = placements[at]._split_tensor(
                    self._local_tensor, ranks.shape[at], with_padding=False
                )
                self._local_tensor = parts[coordinate[at]]


@st.composite
def cases(draw: st.DrawFn) -> tuple[Any, ...]:
    mesh = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    shape = draw(st.lists(st.integers(0, 9), min_size=1, max_size=3))
    dimensions = st.integers(0, len(shape) - 1)
    kinds = st.one_of(
        st.just(Replicate()),
        st.builds(Shard, dimensions),
        st.builds(lambda d, f: _StridedShard(d, split_factor=f), dimensions, st.integers(1, 4)),
    )
    placements = [draw(kinds) for _ in mesh]
    order = None
    sharding = [at for at, each in enumerate(placements) if type(each) is Shard]
    if not any(type(each) is _StridedShard for each in placements) and draw(st.booleans()):
        order = draw(st.permutations(sharding))
    numbers = draw(st.permutations(range(math.prod(mesh))))
    return mesh, shape, placements, order, torch.tensor(numbers).reshape(mesh)


def elements_of(layout: Layout, ids: Any) -> list[Any]:  # noqa: ANN401
    """The elements of the whole tensor that each piece names, by their numbers."""
    return [
        ids[tuple(slice(o, o + e) for o, e in zip(piece.offset, piece.extent, strict=True))]
        for piece in layout.pieces
    ]


@settings(max_examples=200, deadline=None)
@given(cases())
def test_slices_are_what_torch_gave_and_each_element_is_written_once(case: tuple[Any, ...]) -> None:
    mesh, shape, placements, order, ranks = case
    whole = torch.arange(math.prod(shape), dtype=torch.int32).reshape(shape)
    written = torch.zeros(shape, dtype=torch.int64)
    known: dict[int, tuple[Layout, Any]] = {}
    for coordinate in itertools.product(*map(range, mesh)):
        value = Rank(ranks, coordinate, placements, whole, order)
        layout = Layouts().of(value)
        assert layout.rank == int(ranks[coordinate]) and layout.rank in layout.holders
        pieces = elements_of(layout, whole)
        for piece, expected in zip(layout.pieces, pieces, strict=True):
            assert torch.equal(piece.data, expected)
        assert sum(each.numel() for each in pieces) == value._local_tensor.numel()
        known[layout.rank] = layout, value._local_tensor
        sharing = Sharing()
        for piece in layout.pieces:
            leaf = Leaf(
                "w", "int32", layout.shape, piece.offset, piece.extent, None,
                4 * piece.data.numel(), False, piece.data, True,
            )  # fmt: skip
            part = sharing.part_of(leaf, layout.holders, layout.rank)
            if part is not None:
                index = zip(part.offset, part.extent, strict=True)
                written[tuple(slice(o, o + e) for o, e in index)] += 1
    assert (written == 1).all()
    for layout, local in known.values():
        for other in layout.holders:
            assert known[other][0].holders == layout.holders
            assert torch.equal(known[other][1], local)
