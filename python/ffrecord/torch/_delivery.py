"""The steps after a batch has reached its consumer."""

from collections.abc import Callable, Iterator, Sized
from typing import Any

from ffrecord import _ffrecord
from ffrecord._read.reader import Reader
from ffrecord.errors import ClosedError
from ffrecord.torch._plain_state import PlainPlace
from ffrecord.torch._sampler import Cursor, Places, Sampler


class Delivery:
    """Reports to the sampler how far one iteration has come."""

    def __init__(
        self,
        sampler: Sampler,
        start: Cursor,
        hinter: "EpochHinter | None",
        held_back: bool,
    ) -> None:
        """`held_back`: a batch is with the consumer when the next one is requested."""
        self._sampler = sampler
        self._jumps = sampler.jumps
        self._mixture = sampler.mixture
        self._start = start
        self._hinter = hinter
        self._held_back = held_back
        self._last: Cursor | None = None
        self._before: tuple[Cursor | None, Places] | None = None
        self._noted = start
        """Where the step that was noted last begins."""
        self.is_last = False
        """Whether the batch that was noted last is the epoch's last."""

    @property
    def shares_differ(self) -> bool:
        """Whether ranks have more records than others in the step that was noted last."""
        return self._sampler.shares_differ(self._noted.position)

    def renewed(self) -> Cursor | None:
        """Where to go on, if what was read ahead is of another order than the sampler's by now.

        The weights of a mixture were changed. An iteration that the sampler has left, for another
        position, stays in its order.
        """
        changed = self._sampler.mixture is not self._mixture
        if not changed or self._sampler.jumps != self._jumps or self.is_last:
            return None
        self._mixture = self._sampler.mixture
        return self._last or self._start

    def note(self, cursor: Cursor | None) -> None:
        """Note that a batch is delivered, and that `cursor` follows it."""
        if cursor is None:
            return
        self._before = self._last, self._sampler.places  # Before anything changes.
        self._noted = self._last or self._start
        delivered, self._last = (self._last if self._held_back else cursor), cursor
        if delivered is not None:
            self._sampler.deliver(delivered, handed=cursor, jumps=self._jumps)
        self.is_last = cursor.epoch != self._start.epoch
        if self._hinter is not None:
            self._hinter.keep(cursor)

    def take_back(self) -> None:
        """Undo `note`, perhaps one that was interrupted: the batch does not reach the consumer."""
        if self._before is not None:
            self._last, places = self._before
            self._sampler.put_back(places, jumps=self._jumps)

    def settle(self) -> None:
        """The batch that was noted last is with the consumer."""
        self._before = None

    def finish(self) -> None:
        """All batches are with the consumer."""
        if self._held_back and self._last is not None:
            self._sampler.deliver(self._last, jumps=self._jumps)


class PlainDelivery:
    """Reports how far one iteration without a `Sampler` has come."""

    def __init__(
        self, tell: Callable[[PlainPlace], None], place: PlainPlace, held_back: bool
    ) -> None:
        """`held_back`: as for a `Delivery`."""
        self._tell = tell
        self._place = place
        self._first = place.batches
        self._held_back = held_back
        self._count = 0
        self._before: tuple[int, int] | None = None
        self.is_last = False
        """Unknown."""
        self.shares_differ = False
        """Unknown."""

    def renewed(self) -> None:
        """An order of torch's does not change on the way."""

    def note(self, _: Cursor | None) -> None:
        """Note that a batch is delivered."""
        self._before = self._count, self._place.batches
        self._count += 1
        delivered = self._count - self._held_back
        if delivered:
            self._place.deliver(self._first + delivered)
            self._tell(self._place)

    def take_back(self) -> None:
        """As of a `Delivery`."""
        if self._before is not None:
            self._count, self._place.batches = self._before

    def settle(self) -> None:
        """As of a `Delivery`."""
        self._before = None

    def finish(self) -> None:
        """All batches are with the consumer."""
        self._place.end()
        self._tell(self._place)


class EpochHinter:
    """Keeps the prefetch hint of one epoch alive; `Reader.hint_epoch`."""

    def __init__(self, reader: Reader, sampler: Sampler) -> None:
        """Send none yet."""
        self._reader = reader
        self._sampler = sampler
        self._epoch = -1
        self._hint: _ffrecord.PrefetchHint | None = None

    def send(self, cursor: Cursor) -> None:
        """Send one for the epoch of `cursor`, from there on."""
        self._epoch = cursor.epoch
        self._hint = self._reader.hint_epoch(self._sampler.share(cursor))

    def keep(self, cursor: Cursor) -> None:
        """Send it again if the daemon was lost; a daemon that took none gets none again."""
        if self._hint is not None and not self._hint.alive:
            self._hint = None
            if cursor.epoch == self._epoch:
                self.send(cursor)


class Handover:
    """Where a batch is between the loader, which counts it as delivered, and its consumer."""

    def __init__(self) -> None:
        """None is on its way."""
        self._counting: Delivery | PlainDelivery | None = None

    def begin(self) -> None:
        """The consumer asks for a batch, so it has the one before."""
        self._counting = None

    def count(self, delivery: "Delivery | PlainDelivery", cursor: Cursor | None) -> None:
        """Count a batch as delivered, which leaves now."""
        delivery.settle()
        self._counting = delivery
        delivery.note(cursor)

    def fail(self) -> None:
        """Take back what was counted since `begin`.

        An interrupt, or what a handler of a signal raises, may come between the count and the
        consumer, who then never sees the batch.
        """
        if self._counting is not None:
            self._counting.take_back()


class Iteration:
    """Yields batches; after an error it raises again, since an end would look like the epoch's."""

    def __init__(
        self, batches: Iterator[Any], steps: Sized, handover: Handover | None = None
    ) -> None:
        """Yield `batches`, of a generator, which tells `handover` what it has counted.

        `steps` are those of an epoch.
        """
        self._batches = batches
        self._steps = steps
        self._handover = handover or Handover()
        self._error = ""

    def __iter__(self) -> "Iteration":
        return self

    def __len__(self) -> int:
        """As of torch's iterators: that of the loader, however many batches are left."""
        return len(self._steps)

    def __next__(self) -> Any:  # noqa: ANN401 - collate_fn's
        if self._error:
            raise ClosedError(
                f"this iteration ended with {self._error}; the rest of it was not delivered: "
                "start a new one, or continue from state_dict()"
            )
        self._handover.begin()
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except BaseException as error:  # Do not keep it: its traceback would keep the batch alive.
            self._handover.fail()
            # A worker's error has the worker's traceback in its message.
            reason = str(error).strip().rpartition("\n")[2]
            self._error = f"{type(error).__name__}: {reason}"
            raise

    def close(self) -> None:
        """Start no further batch, and release what was loaded."""
        self._batches.close()  # type: ignore[attr-defined]


def nothing() -> Iterator[Any]:
    """End at once."""
    yield from ()


def refused(error: Exception) -> Iterator[Any]:
    """Raise when the first batch is wanted: Lightning hides what is raised before."""
    raise error
    yield
