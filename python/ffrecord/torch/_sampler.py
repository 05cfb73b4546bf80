"""The order of an epoch, cut into batches for ranks."""

import copy
import operator
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy.typing as npt
import torch
from torch.utils import data

from ffrecord._order.epoch_order import (
    EpochOrder,
    EpochShare,
    IndexBatch,
    check_counts,
    mixture_of,
    plain_number,
)
from ffrecord._order.mixture import Mixture
from ffrecord._order.weights import Weights
from ffrecord.torch._resharding import (
    refuse_other_epoch,
    refuse_second_share,
    refuse_second_skip,
)
from ffrecord.torch._sampler_state import DRAWN, FILE_ORDER, ORDER, checked, delivered_ahead
from ffrecord.torch._subsets import as_ours, fingerprint_of, versions_of
from ffrecord.torch._world import rank_in_job, ranks_of_job

_Last = Literal["drop", "pad", "short", "exact"]


class Cursor(NamedTuple):
    """The next position in the stream: everything before it was delivered.

    If batches come out of order, the steps of its epoch at the positions `ahead` were delivered,
    too.
    """

    epoch: int
    position: int
    ahead: frozenset[int] = frozenset()


# Where the next iteration begins, the state, and what has left the loader.
Places = tuple[Cursor, Cursor, Cursor]


class Sampler(data.Sampler[Any]):
    """Yields this rank's share of each global batch, in one global order.

    The order of an epoch is a function of seed, epoch and position alone: exact, without a list in
    memory, and the same at every world size, because each step of `global_batch` records is divided
    among the ranks. Every rank runs the same number of steps. For `batch_sampler=` of a loader.

    After an epoch that was yielded whole, the next begins; `set_epoch` is only needed to jump.
    """

    def __init__(
        self,
        dataset: Sized | int,
        global_batch: int | None = None,
        seed: int = 0,
        *,
        batch_size: int | None = None,
        shuffle: bool = True,
        weights: npt.ArrayLike | torch.Tensor | None = None,
        block: int | None = None,
        window: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        group_size: int = 1,
        last: _Last | None = None,
        drop_last: bool | None = None,
        uneven: bool = False,
    ) -> None:
        """Define the stream and this rank's share of it.

        Args:
            dataset: the dataset to sample, or its length. If it has a `fingerprint`, a state says
                which data it belongs to; if it is a `mix`, its weights define the order, and each
                epoch goes on with the mixed stream.
            global_batch: records of one step over all ranks. It defines the steps at any world
                size; the learning rate need not change with the ranks.
            seed: 0 to 2**64 - 1.
            batch_size: instead of `global_batch`, records of one step on each rank: as torch means
                it, so that a step of more ranks has more records.
            shuffle: False leaves the records in their order, as for an evaluation; those of a `mix`
                in the order of its first epoch.
            weights: one number for each record, 0 or more: each position of an epoch draws a record
                by them, with replacement. A record of weight 0 never comes; an epoch has as many
                draws as there are records. Takes 8 bytes for each record.
            block: records of one block, for slow disks: blocks are permuted, then records inside
                windows of `window` blocks. None, the default, permutes all records.
            window: blocks of one window; given with `block`.
            rank: of this process; by default that of torch.distributed, or of torchrun.
            world_size: of the job; by default that of torch.distributed, or of torchrun.
            group_size: consecutive ranks that get the same samples, such as a group that shares
                tensors or a context. If such ranks are not consecutive, pass rank and world size of
                the data-parallel group instead.
            last: what to do with a last step of too few records: "drop", the default; "pad" from
                the start of the epoch; "short". A short step with fewer records than ranks is
                padded to one record per rank, so that no rank waits for one without data. "exact"
                is "short" without that padding: if there are fewer records than ranks, they are
                added to the step before, in which some ranks get one record more. Each record
                comes once, and all ranks have the same number of steps: for exact evaluation.
            drop_last: torch's name for it: True is "drop", False is "short".
            uneven: allow a global batch that is not a multiple of the ranks; their shares then
                differ by one record.

        Raises:
            TypeError: the records of a step are no whole number.
            ValueError: an argument is wrong, or the epoch would be empty.
        """
        dataset = as_ours(dataset, slice(None))  # With its indices of now.
        self.count = len(dataset) if isinstance(dataset, Sized) else int(dataset)
        self.fingerprint: str | None = fingerprint_of(dataset)
        self.versions: list[str] = versions_of(dataset)
        if (global_batch is None) == (batch_size is None):
            raise ValueError(
                "give one of global_batch, records of a step over all ranks, and batch_size, those "
                "of each rank"
            )
        if last is not None and drop_last is not None:
            raise ValueError("last and drop_last say the same: give one of them")
        if last is None:
            last = "short" if drop_last is False else "drop"
        # Whole numbers of Python's, for a state is JSON; the checks refuse what is none.
        self._global_batch: int | None = plain_number(global_batch)
        self._batch_size: int | None = plain_number(batch_size)
        self.shuffle = shuffle
        self.seed, self.block, self.window = map(plain_number, (seed, block, window))
        self.group_size: int = plain_number(group_size)
        self.last: _Last = last
        self.uneven = uneven
        self.mixture: Mixture | None = mixture_of(dataset) if shuffle else None
        self.weights: Weights | None = None
        if weights is not None:
            self._check_count()
            if isinstance(weights, torch.Tensor):
                weights = _as_numpy(weights)
            self.weights = Weights.of(weights, self.count)
        self._rank: int | None = plain_number(rank)
        self._world_size: int | None = plain_number(world_size)
        self._next = Cursor(0, 0)  # Where the next iteration begins.
        self._cursor = self._next  # The state: all batches before it were delivered.
        self._handed = self._next  # All batches before it have left the loader.
        self._jumps = 0
        self._named: tuple[int, int] | None = None
        self.was_restored = False
        """Whether `load_state_dict` set the position, and no epoch has been counted since."""
        self._check()

    @property
    def global_batch(self) -> int:
        """Records of one step over all ranks."""
        if self._global_batch is not None:
            return self._global_batch
        assert self._batch_size is not None
        return self._batch_size * self._ranks()

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        return self._next.epoch

    @property
    def place(self) -> Cursor:
        """Where the next iteration begins."""
        return self._next

    @property
    def step(self) -> int:
        """The steps of its epoch that come before the next iteration; 0 unless it was resumed.

        It serves a loader as `initial` of a progress bar: `tqdm(loader, initial=sampler.step)`.
        """
        return len(self) - self._steps(self._next.position)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of `epoch`; does nothing if it is in that epoch already.

        An iteration in progress goes on, and no longer moves the position.
        """
        self.was_restored = False
        epoch = operator.index(epoch)
        if epoch != self._next.epoch:
            _ = self._order(epoch).range(0, 1)  # Raises for one that there is not.
            self._move(Cursor(epoch, 0))
            self._named = None

    def note_name(self, epoch: int) -> None:
        """Note that a framework calls the epoch of the next iteration `epoch`.

        If that goes on, perhaps in a resumed run, it still began where it was named first.
        """
        if self._named is None or self._named[0] != epoch:
            self._named = epoch, self.epoch

    def is_left(self, epoch: int) -> bool:
        """Whether a framework that begins `epoch` has left the epoch of a restored position.

        It called that one by the number before, and ended it early.
        """
        return self._named == (epoch - 1, self.epoch)

    def is_beyond(self, epoch: int) -> bool:
        """Whether all of an epoch of ours was delivered in the one before a framework's `epoch`."""
        return (
            self._named is not None
            and self._named[0] == epoch - 1
            and self._named[1] < self._cursor.epoch
        )

    def go_on(self) -> None:
        """Let the next iteration begin where the state is, in the middle of an epoch, too."""
        if self._next != self._cursor:
            self._move(self._cursor)

    def set_weights(self, weights: Iterable[int]) -> None:
        """Use other proportions from the next batch on, also of an iteration in progress.

        Our loader makes anew what it has read ahead. In torch's own loader, the position counts
        the batches that it has requested, and the new weights apply after these. A next iteration
        begins there. Every rank must call it after the same step.

        Raises:
            TypeError: the order is not that of a `mix`.
            ValueError: the weights do not fit its sources, or batches came out of order.
        """
        if self.mixture is None:
            raise TypeError(
                "only the order of an ffrecord.mix has proportions that change; for other weights "
                "of records, make another Sampler"
            )
        if self._cursor.ahead or self._handed.ahead:
            raise ValueError("batches came out of order: change weights without in_order=False")
        at = self._handed.epoch * self.count + self._handed.position
        # An epoch may start again, and a state of batches that are on their way lies before it.
        known_from = self._cursor.epoch * self.count
        self.mixture = self.mixture.change(weights, at, known_from=known_from)
        self._next = self._cursor

    def state_dict(self) -> dict[str, Any]:
        """The position in the stream, as a few scalars (JSON, at most 256 bytes).

        It counts what was yielded; `ffrecord.torch.DataLoader` corrects that to what it delivered.
        The state of a mixture also has its weights, that of a stream drawn by weights a digest of
        them. After batches out of order (`in_order=False`),
        it also has `ahead`, the positions of delivered steps after that position. With a framework
        that counts epochs, it has `named`, the number of the framework for this one; and if that
        one began in an earlier epoch of ours, `named_at`, in which.
        """
        mixture = {} if self.mixture is None else {"mixture": self.mixture.state()}
        steps = {"step": self.global_batch, "positions": sorted(self._cursor.ahead)}
        drawn = {} if self.weights is None else {"weights": self.weights.token}
        return {
            **mixture,
            **drawn,
            **({"ahead": steps} if self._cursor.ahead else {}),
            **self._names(),
            "order": self._kind_of_order(),
            "seed": self.seed,
            "epoch": self._cursor.epoch,
            "position": self._cursor.position,
            "block": self.block,
            "window": self.window,
            "count": self.count,
            "fingerprint": self.fingerprint,
            **({"versions": list(self.versions)} if self.versions else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue the stream of `state`, at any world size and with any global batch.

        The seed and the kind of order come from the state. A state with batches out of order needs
        the same global batch.

        Raises:
            ValueError: the state belongs to other data, or to an order that this version lacks.
        """
        state = checked(self, state)
        resumed = copy.copy(self)
        resumed.seed = plain_number(state["seed"])
        resumed.block, resumed.window = state["block"], state["window"]
        resumed.shuffle = state["order"] != FILE_ORDER
        if self.mixture is not None:
            resumed.mixture = self.mixture.restored(state["mixture"])
        resumed._check()
        cursor = Cursor(state["epoch"], state["position"], delivered_ahead(self, state))
        resumed._check_last_step(cursor.position)
        resumed._move(cursor if self._steps(cursor.position) else Cursor(cursor.epoch + 1, 0))
        named_at = state.get("named_at", state["epoch"])
        resumed._named = (state["named"], named_at) if "named" in state else None
        resumed.was_restored = True
        vars(self).update(vars(resumed))  # Together: a rejected state changes nothing.

    def begin(self) -> Cursor:
        """The position where an iteration that begins now begins."""
        self._cursor = self._handed = self._next
        return self._next

    @property
    def jumps(self) -> int:
        """How often the position was set by others than iterations."""
        return self._jumps

    def deliver(
        self, cursor: Cursor, *, handed: Cursor | None = None, jumps: int | None = None
    ) -> None:
        """Set the state to `cursor`: everything before it is with the consumer.

        Args:
            cursor: the position.
            handed: where the next batch begins, if a framework holds some back.
            jumps: as it was when the iteration began; if it has changed, this does nothing.
        """
        if jumps not in (None, self._jumps):
            return
        self._cursor, self._handed = cursor, handed or cursor
        # After an interrupted iteration, the epoch starts again.
        self._next = Cursor(cursor.epoch, 0)

    @property
    def places(self) -> Places:
        """For `put_back`."""
        return self._next, self._cursor, self._handed

    def put_back(self, places: Places, *, jumps: int) -> None:
        """Take back a `deliver`; `jumps` as there."""
        if jumps == self._jumps:
            self._next, self._cursor, self._handed = places

    def skipped(self, cursor: Cursor, steps: int) -> Cursor:
        """The position so many steps after `cursor`."""
        for _ in range(steps):
            cursor = self.after(cursor)
        return cursor

    def identity(self) -> tuple[Any, ...]:
        """A value that differs if streams, or shares of them, differ."""
        drawn = None if self.weights is None else self.weights.token
        order = (self.seed, self.shuffle, self.block, self.window, self.count, self.mixture, drawn)
        return (*order, self.global_batch, self.last, *self._place())

    def after(self, cursor: Cursor) -> Cursor:
        """The position one step after `cursor`, past steps that were delivered already."""
        ahead, position = cursor.ahead, cursor.position + self.global_batch
        while position in ahead:
            position += self.global_batch
        if position < self.count and self._steps(position):
            left = frozenset(step for step in ahead if step > position) if ahead else ahead
            return Cursor(cursor.epoch, position, left)
        return Cursor(cursor.epoch + 1, 0)

    def reached(self, cursor: Cursor, position: int) -> Cursor:
        """The position after the step at `position` is delivered too; in any order."""
        if position == cursor.position:
            return self.after(cursor)
        return cursor._replace(ahead=cursor.ahead | {position})

    def __len__(self) -> int:
        return self._steps(0)

    def __iter__(self) -> Iterator[IndexBatch]:
        self._place()
        refuse_second_share(self.rank_count)
        if not self.was_restored:
            refuse_other_epoch(self.epoch)
        elif self.step:
            refuse_second_skip(self.step)
        return self._delivering()

    def __repr__(self) -> str:
        how = f"seed {self.seed}" if self.shuffle else "in their order"
        how += "" if self.weights is None else ", by weight"
        return (
            f"<ffrecord.torch.Sampler: {self.count} records, {self.global_batch} a step, {how}, "
            f"at epoch {self._cursor.epoch}, position {self._cursor.position}>"
        )

    def stream(self, start: Cursor) -> Iterator[tuple[Cursor, IndexBatch]]:
        """This rank's batches from `start` on, epoch after epoch without end.

        Each with the position after its step. The sampler itself stays where it is.
        """
        return ((cursor, make()) for cursor, make in self.plans(start))

    def plans(self, start: Cursor) -> Iterator[tuple[Cursor, Callable[[], IndexBatch]]]:
        """Like `stream`, but with a function that makes the batch, for another thread to call."""
        rank, world_size = self._place()
        self._check_first_step(start.position)
        cursor, jumps = start, self._jumps
        order = self._order(start.epoch)
        while True:
            changed = order.mixture is not self.mixture and jumps == self._jumps
            if order.epoch != cursor.epoch or changed:
                order = self._order(cursor.epoch)
            size = self._step_size(cursor.position, world_size)
            first = rank * size // world_size
            end = (rank + 1) * size // world_size
            make = partial(IndexBatch, order, cursor.position + first, end - first)
            cursor = self.after(cursor)
            yield cursor, make

    def epoch_from(self, start: Cursor) -> Iterator[tuple[Cursor, IndexBatch]]:
        """Like `stream`, to the end of the epoch."""
        return ((cursor, make()) for cursor, make in self.plans_of_epoch(start))

    def plans_of_epoch(self, start: Cursor) -> Iterator[tuple[Cursor, Callable[[], IndexBatch]]]:
        """Like `plans`, to the end of the epoch."""
        for cursor, make in self.plans(start):
            yield cursor, make
            if cursor.epoch != start.epoch:
                return

    def share(self, start: Cursor) -> EpochShare:
        """The indices that this rank reads from `start` to the end of its epoch."""
        rank, world_size = self._place()
        self._check_first_step(start.position)
        last = start.position + (self._steps(start.position) - 1) * self.global_batch
        end = last + self._step_size(last, world_size)
        order = self._order(start.epoch)
        return EpochShare(order, start.position, end, self.global_batch, world_size, rank)

    def _delivering(self) -> Iterator[IndexBatch]:
        """Begins with the first batch: what was set until then counts."""
        start, jumps = self.begin(), self._jumps
        for cursor, batch in self.epoch_from(start):
            self.deliver(cursor, jumps=jumps)
            yield batch

    def _order(self, epoch: int) -> EpochOrder:
        how = (self.block, self.window, self.mixture, self.shuffle, self.weights)
        return EpochOrder(self.seed, epoch, self.count, *how)

    def _names(self) -> dict[str, int]:
        """The number that a framework has for the epoch of the state."""
        if self._named is None:
            return {}
        named, at = self._named
        return {"named": named, **({} if at == self._cursor.epoch else {"named_at": at})}

    def _kind_of_order(self) -> int:
        if self.weights is not None:
            return DRAWN
        return ORDER if self.shuffle else FILE_ORDER

    def _step_size(self, position: int, world_size: int) -> int:
        """Records of the step at `position`, over all ranks."""
        left, size = self.count - position, self.global_batch
        if self.last == "exact":
            return left if left < size + world_size else size
        if left >= size or self.last == "pad":
            return size
        return max(left, world_size)

    def _steps(self, position: int) -> int:
        """Steps from `position` to the end of its epoch."""
        whole, rest = divmod(self.count - position, self.global_batch)
        if self.last == "drop":
            return whole
        fewest = self._place()[1] if self.last == "exact" else 1
        return whole + (rest >= fewest)

    def _move(self, cursor: Cursor) -> None:
        self._next = self._cursor = self._handed = cursor
        self._jumps += 1

    def _check_count(self) -> None:
        if self.count < 1:
            raise ValueError("the dataset is empty: there is nothing to sample")

    def _check(self) -> None:
        self._check_count()
        for name, size in (("global_batch", self._global_batch), ("batch_size", self._batch_size)):
            if size is not None:
                check_counts(1, **{name: size})
        if self.group_size < 1:
            raise ValueError(f"group_size is {self.group_size}; a group has one rank or more")
        if self.last not in get_args(_Last):
            raise ValueError(f"last is {self.last!r}; it can be {', '.join(get_args(_Last))}")
        self._order(0)  # Raises for an invalid seed, block or window.
        if self._world_size is not None:
            self._place()
        if self._world_size is not None or self.last != "exact":
            self._check_first_step(0)

    def _check_first_step(self, position: int) -> None:
        """Reject an epoch without steps."""
        if self.last == "drop" and not self._steps(position):
            raise ValueError(
                f"an epoch would be empty: {self.count} records are fewer than global_batch "
                f"{self.global_batch}; use last='pad', last='short' or a smaller global_batch"
            )
        self._check_last_step(position)

    def _check_last_step(self, position: int) -> None:
        left = self.count - position
        if self.last == "exact" and 0 < left < (ranks := self._place()[1]):
            raise ValueError(
                f"{left} records are left of the epoch, for {ranks} ranks: with last='exact' each "
                "needs one; use fewer ranks or last='short'"
            )

    def has_equal_steps(self, position: int) -> bool:
        """Whether no step from `position` to the end of its epoch has more records than others."""
        left = (self.count - position) % self.global_batch
        return self.last != "exact" or left not in range(1, self._ranks())

    def shares_differ(self, position: int) -> bool:
        """Whether some ranks have more records than others in the step at `position`."""
        ranks = self.world_size
        return ranks > 1 and self._step_size(position, ranks) % ranks != 0

    @property
    def unpadded(self) -> int:
        """Records of an epoch's last step over all ranks, without padding, if others have more.

        0 if it has as many, or more; and if several ranks get the same samples: these repeat in
        every step.
        """
        if self.last == "drop" or self.group_size > 1 or not self.has_equal_steps(0):
            return 0
        return self.count % self.global_batch

    @property
    def world_size(self) -> int:
        """How many ranks get samples of their own."""
        return self._place()[1]

    @property
    def rank_count(self) -> int:
        """How many ranks there are; counts each rank of a group that gets the same samples."""
        world_size = self._world_size
        return ranks_of_job() if world_size is None else world_size

    @property
    def is_sharding(self) -> bool:
        """Whether the ranks get shares, or there is only one: False if each gets all on request."""
        return self.rank_count > 1 or ranks_of_job() == 1

    def _ranks(self) -> int:
        """How many get samples of their own."""
        if self.rank_count % self.group_size:
            raise ValueError(
                f"groups of {self.group_size} ranks do not divide a world of {self.rank_count}"
            )
        return self.rank_count // self.group_size

    def _place(self) -> tuple[int, int]:
        """Rank and number of those that get samples of their own; a step is divided among them."""
        rank, world_size = self._rank, self.rank_count
        if rank is None:
            rank = rank_in_job()
        if not 0 <= rank < world_size:
            raise ValueError(f"rank {rank} is not below the world size {world_size}")
        rank, world_size = rank // self.group_size, self._ranks()
        if self.global_batch < world_size:
            raise ValueError(
                f"global_batch {self.global_batch} leaves some of {world_size} ranks without a "
                f"record; use {world_size} or more"
            )
        if self.global_batch % world_size and not self.uneven:
            below = self.global_batch // world_size * world_size
            raise ValueError(
                f"global_batch {self.global_batch} does not divide among {world_size} ranks; use "
                f"{below} or {below + world_size}, another world size, or uneven=True"
            )
        return rank, world_size


def _as_numpy(weights: torch.Tensor) -> npt.NDArray[Any]:
    """The numbers of a tensor on any device, of any type: those of a model, too."""
    values = weights.detach().cpu()
    made: npt.NDArray[Any] = (values.double() if values.is_floating_point() else values).numpy()
    return made
