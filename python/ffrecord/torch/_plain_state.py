"""The position of a loader that has no `Sampler`, but one of torch's own."""

import copy
import hashlib
import itertools
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any

import numpy as np
import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from ffrecord.torch._subsets import fingerprint_of, said_of_data, versions_of

# They draw an epoch at once, from torch's default generator unless they have their own.
_DRAWN = (data.WeightedRandomSampler, data.SubsetRandomSampler)
# Named by the states of loaders.
_KINDS = (data.SequentialSampler, data.RandomSampler, *_DRAWN, DistributedSampler)
_NAMES = (
    *("sampler", "count", "samples", "replacement"),
    *("batch_size", "drop_last", "fingerprint"),
)
_OWN = ("epoch", "seed", "batches", "drawn", "begun")
# The states of an epoch's order that has begun: drawn; to be drawn from the generator as it was
# saved; or as it is then.
_DONE, _DUE, _OPEN = "done", "due", "open"


class PlainPlace:
    """How far an iteration has come."""

    def __init__(
        self,
        seed: int,
        epoch: int,
        batches: int = 0,
        drawn: int | str | None = None,
        draw: str = _DUE,
    ) -> None:
        """In the `epoch`-th iteration, after so many batches.

        Args:
            seed: for transforms that draw.
            epoch: counts iterations, from 0.
            batches: from the start of the epoch.
            drawn: what the order was drawn from: the seed that torch's sampler took from the
                default generator, or the state of a generator, in hex; of a `DistributedSampler`,
                its epoch; None as long as it is not drawn.
            draw: whether the order is drawn, as states name it.
        """
        self.seed = seed
        self.epoch = epoch
        self.batches = batches
        self.drawn = drawn
        self.draw = draw
        self.ended = False
        self._before: tuple[torch.Generator, str] | None = None
        self._trail: _Trail | None = None
        self._chosen: list[int] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy draws from no generator."""
        return {**vars(self), "_trail": None, "_chosen": None}

    def chosen(self) -> list[int] | None:
        """The samples of the order that `walk` has drawn, if it chooses from all; once."""
        found, self._chosen = self._chosen, None
        return found

    def deliver(self, batches: int) -> None:
        """Note that so many batches of the epoch are delivered."""
        self.batches = batches
        if self._trail is not None:
            self._trail.follow(batches)

    def end(self) -> None:
        """Note that the epoch is over."""
        self.ended = True
        if self._trail is not None:
            self._trail.end()

    def keep(self, generator: torch.Generator | None) -> None:
        """Let the next iterator of torch's draw no seed for its workers from the generator.

        The iteration that goes on here has drawn one.
        """
        used = generator or torch.default_generator
        self._before = used, _state_of(used)

    def release(self) -> None:
        """The seed is drawn: put the generator back to where it was."""
        if self._before is not None:
            _set_state(*self._before)
            self._before = None

    def leave(self, inner: Any) -> None:  # noqa: ANN401 - torch's own
        """Leave this epoch to others: draw what it has drawn, from a generator of its own."""
        sampler = _of_samples(inner)
        own = getattr(sampler, "generator", None)
        if own is None or self.drawn is None:
            return
        _set_state(own, str(self.drawn))
        if _draws_on(sampler):
            _Trail(inner).follow(self.batches)
        else:
            deque(sampler, maxlen=0)

    def will_draw(self, inner: Any) -> int | str | None:  # noqa: ANN401 - torch's own
        """The seed of the order, or the one if the walk began now; changes nothing."""
        if self.drawn is not None:
            return self.drawn
        return None if self.draw == _OPEN else _next_draw(_of_samples(inner))

    def walk(self, inner: Any) -> Iterator[Any]:  # noqa: ANN401 - torch's own
        """The steps of torch's sampler in the order of this place, from the first one on."""
        sampler = _of_samples(inner)
        self.release()
        if self.draw == _DUE and self.drawn is not None and self.drawn == _next_draw(sampler):
            # The program has restored its random numbers, too: they go on as if never saved.
            self.drawn = None
        self.draw = _DONE
        if type(sampler) is DistributedSampler:
            # Whatever epoch a framework names: this one was begun.
            again = copy.copy(sampler)
            again.epoch = self.drawn = sampler.epoch if self.drawn is None else int(self.drawn)
            return _with_samples(inner, again)
        if (wrapped := _wrapped_by(sampler)) is not None:
            again = copy.copy(sampler)
            again.epoch = self.drawn = sampler.epoch if self.drawn is None else int(self.drawn)
            # All ranks draw alike, as torch's DistributedSampler does: each takes its share of it.
            own = torch.Generator().manual_seed(sampler.seed + again.epoch)
            again.dataset = type(sampler.dataset)(_drawing(wrapped, own))
            return _with_samples(inner, again)
        if type(sampler) not in (data.RandomSampler, *_DRAWN):
            return iter(inner)
        if (own := sampler.generator) is not None:
            if self.drawn is None:
                self.drawn = _state_of(own)
            else:
                _set_state(own, str(self.drawn))
            if not _draws_on(sampler):
                # At once, for torch's sampler draws once more behind the last sample: the order of
                # the next epoch must not depend on where this one is left.
                return self._drawn(inner, sampler)
            self._trail = _Trail(inner)
            return _with_samples(inner, _drawing(sampler, _with_state(str(self.drawn))))
        if type(sampler) in _DRAWN:
            if self.drawn is None:
                self.drawn = _state_of(torch.default_generator)
                return self._drawn(inner, sampler)
            return self._drawn(inner, _drawing(sampler, _with_state(str(self.drawn))))
        if self.drawn is None:  # As the sampler would: once from the default generator.
            self.drawn = int(torch.empty((), dtype=torch.int64).random_().item())
        generator = torch.Generator()
        generator.manual_seed(int(self.drawn))
        drawn = data.RandomSampler(
            sampler.data_source, sampler.replacement, sampler._num_samples, generator
        )
        return _with_samples(inner, drawn)

    def _drawn(self, inner: Any, sampler: Iterable[int]) -> Iterator[Any]:  # noqa: ANN401
        samples = list(sampler)
        self._chosen = samples if type(_of_samples(inner)) in _DRAWN else None
        return _with_samples(inner, samples)


class Unused:
    """An iteration that a framework may begin and throw away before it has asked for a batch."""

    def __init__(self, loader: Any, place: PlainPlace, *, is_resumed: bool) -> None:  # noqa: ANN401
        """Note an iteration of a `DataLoader` that is about to begin.

        Args:
            loader: the loader.
            place: where it begins.
            is_resumed: whether a state had named the place.
        """
        self._place, self._first, self._is_resumed = place, place.batches, is_resumed
        own = getattr(_of_samples(loader._steps.inner), "generator", None)
        drawn_from = [each or torch.default_generator for each in (loader.generator, own)]
        self._generators = [each for each in drawn_from if isinstance(each, torch.Generator)]
        self._before = self._after = self._states()

    def note_begun(self) -> None:
        """Note that it has begun."""
        self._after = self._states()

    def take_back(self) -> tuple[bool, PlainPlace | None]:
        """Let the next iteration begin as this one did, if that is still possible.

        Returns:
            Whether it is: nothing was delivered, and nobody has drawn from the generators since;
            and where it begins, if a state had named the place.
        """
        place = self._place
        if place.ended or place.batches != self._first:
            return False, None
        if self._is_resumed:
            return True, copy.copy(place)
        if not all(map(torch.equal, self._states(), self._after)):
            return False, None
        for generator, before in zip(self._generators, self._before, strict=True):
            generator.set_state(before)
        return True, None

    def _states(self) -> list[torch.Tensor]:
        return [each.get_state() for each in self._generators]


class _Trail:
    """Draws from a sampler's own generator what is delivered, as torch's loader without workers.

    The order itself is drawn from a copy, as far ahead as batches are loaded. So the order of the
    next epoch does not depend on how far that was.
    """

    def __init__(self, inner: Any) -> None:  # noqa: ANN401 - torch's own
        """Nothing is drawn yet of an epoch of `inner`, whose generator is where that begins."""
        self._samples = iter(_of_samples(inner))
        self._size = inner.batch_size if type(inner) is data.BatchSampler else 1
        self._steps = len(inner)
        self._batches = 0

    def follow(self, batches: int) -> None:
        """Draw so many batches of the epoch; with the last one, what is left of it."""
        if batches >= self._steps:
            self.end()
            return
        count = (batches - self._batches) * self._size
        deque(itertools.islice(self._samples, max(0, count)), maxlen=0)
        self._batches = batches

    def end(self) -> None:
        """Draw what is left."""
        deque(self._samples, maxlen=0)


def _draws_on(sampler: Any) -> bool:  # noqa: ANN401 - torch's own
    """Whether it draws on the way, since an epoch may have very many samples."""
    return type(sampler) is data.RandomSampler and bool(sampler.replacement)


def state_of(
    loader: Any,  # noqa: ANN401 - a `DataLoader`, which imports this
    inner: Any,  # noqa: ANN401 - torch's own
    place: PlainPlace | None,
    begun: PlainPlace | None,
    epoch: int,
) -> dict[str, Any]:
    """The state of a loader: JSON, and 10 KB if it has the state of a generator.

    Args:
        loader: the loader.
        inner: torch's sampler, of batches or of samples.
        place: of the iteration that delivered last, if there is one.
        begun: of the iteration that began last, if there is one: it may have delivered nothing yet.
        epoch: that of the next iteration, if there is none.

    Raises:
        TypeError: nothing says where a loader with such a sampler is.
        ValueError: batches come out of order.
    """
    known = _identity("state_dict", loader, inner)
    own = getattr(_of_samples(inner), "generator", None)
    is_whole = place is not None and place.batches >= len(inner)
    is_over = place is None or place.ended or is_whole
    if is_over and begun is not None and begun is not place and not begun.ended:
        place, is_over = begun, False
    draw = _OPEN
    if place is None or is_over:
        drawn = None if own is None else _state_of(own)
        next_epoch = epoch if place is None else place.epoch + 1
        values: tuple[Any, ...] = (next_epoch, None, 0, drawn, False)
        if getattr(loader, "_iterator", None) is not None:
            # Workers that persist get no new seed, which others draw from the generator first.
            seed = (loader.generator or torch.default_generator).initial_seed()
            values = (next_epoch, seed, 0, drawn, True)
    else:
        values = (place.epoch, place.seed, place.batches, place.will_draw(inner), True)
        draw = place.draw
    versions = versions_of(loader.dataset)
    own_facts = {"versions": versions} if versions else {}
    return {**known, **dict(zip(_OWN, values, strict=True)), "draw": draw, **own_facts}


def place_of(loader: Any, inner: Any, state: dict[str, Any]) -> tuple[PlainPlace | None, int]:  # noqa: ANN401
    """Where the next iteration begins, if inside of an epoch; and which one it is.

    Raises:
        TypeError, ValueError: as `state_of`; or the state is of other data, or another loader.
    """
    known = _identity("load_state_dict", loader, inner)
    if "position" in state:
        raise ValueError(
            "the state is of a loader with batch_sampler=ffrecord.torch.Sampler(...): give this "
            "one a Sampler, too"
        )
    if missing := [name for name in (*_NAMES, *_OWN) if name not in state]:
        raise ValueError(f"not a loader's state: {', '.join(missing)} is missing")
    for name in _NAMES:
        if name == "fingerprint" and None in (state[name], known[name]):
            continue  # The state is of a dataset that has none, or of an earlier release.
        if state[name] != known[name]:
            both = said_of_data(state.get("versions"), versions_of(loader.dataset))
            raise ValueError(
                f"the state is of a loader whose {name} is {state[name]}, this one's is "
                f"{known[name]}{both}: resuming would not continue the same epoch"
            )
    _check_own(state)
    epoch, seed, batches, drawn, begun = (state[name] for name in _OWN)
    sampler = _of_samples(inner)
    own = getattr(sampler, "generator", None)
    is_kept = own is not None or (type(sampler) in _DRAWN and drawn is not None)
    if is_kept != isinstance(drawn, str):
        raise ValueError(
            "one of the state and the loader has a generator of its own and the other has not: "
            "resuming would not continue the same order"
        )
    if not begun:
        if own is not None:
            _set_state(own, drawn)
        return None, epoch
    if batches < len(inner):
        return PlainPlace(seed, epoch, batches, drawn, state.get("draw", _DONE)), epoch
    if own is not None:  # An earlier release: the sampler may draw once more at the end.
        _set_state(own, drawn)
        for _ in inner:
            pass
    return None, epoch + 1


def _check_own(state: dict[str, Any]) -> None:
    """Check what a state says of its place: a damaged one must not start somewhere else.

    Raises:
        ValueError: it says what no loader says.
    """
    epoch, seed, batches, drawn, begun = (state[name] for name in _OWN)
    counts = [epoch, batches, *([seed] if begun else [])]
    fits = all(type(count) is int for count in counts) and epoch >= 0 and batches >= 0
    if isinstance(drawn, str):
        fits = fits and re.fullmatch(r"(?:[0-9a-f]{2})+", drawn) is not None
    else:
        fits = fits and (drawn is None or (type(drawn) is int and 0 <= drawn < 1 << 63))
    fits = fits and state.get("draw", _DONE) in (_DONE, _DUE, _OPEN)
    if not fits or type(begun) is not bool:
        shown = f"{str(drawn)[:20]}..." if len(str(drawn)) > 20 else drawn
        raise ValueError(
            f"the state names epoch {epoch}, {batches} batches, seed {seed}, drawn {shown}, begun "
            f"{begun}: it is damaged"
        )


def may_repeat(inner: Any) -> bool:  # noqa: ANN401 - torch's own
    """Whether an epoch may have an index several times; of samplers that are not known, any may."""
    sampler = _of_samples(inner)
    if type(sampler) is data.RandomSampler:
        return sampler.replacement or sampler.num_samples > len(sampler.data_source)
    if type(sampler) is data.WeightedRandomSampler:
        return sampler.replacement
    return type(sampler) not in (data.SequentialSampler, DistributedSampler)


def may_leave_out(inner: Any, count: int) -> bool:  # noqa: ANN401 - torch's own
    """Whether epochs may lack some of `count` samples; of samplers that are not known, any may."""
    sampler = _of_samples(inner)
    if type(sampler) in (data.SequentialSampler, data.RandomSampler):
        return len(sampler.data_source) < count
    of: Any = sampler.dataset if type(sampler) is DistributedSampler else ()
    return len(of) < count


def listed(inner: Any) -> Sequence[int] | None:  # noqa: ANN401 - torch's own
    """The samples of all epochs, if the sampler is a list of them, or of steps."""
    found: Any = _of_samples(inner)
    if type(found) is list and found and all(type(step) is list for step in found):
        found = list(itertools.chain.from_iterable(found))
    is_listed = type(found) in (list, tuple, range) and all(type(i) is int for i in found[:1])
    return found if is_listed else None


def name_epoch(inner: Any, epoch: int) -> None:  # noqa: ANN401 - torch's own
    """Tell each sampler that has epochs: that of batches, and that of samples in it."""
    for sampler in (inner, getattr(inner, "sampler", None)):
        if (tell := getattr(sampler, "set_epoch", None)) is not None:
            tell(epoch)


def _of_samples(inner: Any) -> Any:  # noqa: ANN401 - torch's own
    """The sampler of samples in a plain sampler of batches."""
    return inner.sampler if type(inner) is data.BatchSampler else inner


def _with_samples(inner: Any, sampler: Iterable[int]) -> Iterator[Any]:  # noqa: ANN401
    """The steps of torch's sampler, were its samples those of `sampler`."""
    if type(inner) is not data.BatchSampler:
        return iter(sampler)
    return iter(data.BatchSampler(sampler, inner.batch_size, inner.drop_last))


def _name_of(sampler: Any) -> str:  # noqa: ANN401 - torch's own
    """A key that distinguishes orders; the ranks of one run have the same."""
    wrapped = _wrapped_by(sampler)
    if type(sampler) in _DRAWN:
        whose = ", with a generator of its own" if sampler.generator is not None else ""
        return f"{type(sampler).__name__} of {_digest_of(sampler)}{whose}"
    if type(sampler) is not DistributedSampler and wrapped is None:
        return type(sampler).__name__
    how = f"seed {sampler.seed}" if sampler.shuffle or wrapped is not None else "in order"
    last = ", drop_last" if sampler.drop_last else ""
    of = "" if wrapped is None else f", {_name_of(wrapped)}"
    return f"DistributedSampler of {sampler.num_replicas} ranks, {how}{last}{of}"


def _digest_of(sampler: Any) -> str:  # noqa: ANN401 - torch's own
    """Digits that differ if the weights or indices do."""
    if isinstance(sampler, data.WeightedRandomSampler):
        what, values = "weights", sampler.weights.cpu().numpy()
    else:
        what, values = "indices", np.asarray(sampler.indices)
        # A list, a tensor and an array of smaller integers may be the same indices.
        values = values.astype(np.int64) if values.dtype.kind in "iu" else values
    return f"{what} {hashlib.blake2b(values.tobytes(), digest_size=8).hexdigest()}"


def _wrapped_by(sampler: Any) -> Any:  # noqa: ANN401 - Lightning's
    """The sampler whose draws Lightning shares out among ranks, if they can be drawn again."""
    kind = type(sampler)
    if kind.__name__ != "DistributedSamplerWrapper" or "lightning" not in kind.__module__:
        return None
    wrapped = getattr(sampler.dataset, "_sampler", None)
    known = type(wrapped) in _DRAWN and getattr(wrapped, "generator", None) is None
    return wrapped if known else None


def _drawing(sampler: Any, own: torch.Generator) -> Any:  # noqa: ANN401 - torch's own
    """The sampler with a generator of its own."""
    made = copy.copy(sampler)
    made.generator = own
    return made


def _identity(what: str, loader: Any, inner: Any) -> dict[str, Any]:  # noqa: ANN401
    sampler = _of_samples(inner)
    known = type(sampler) in _KINDS or _wrapped_by(sampler) is not None
    if isinstance(loader.dataset, data.IterableDataset) or not known:
        raise TypeError(f"{what}: {_remedy(loader, sampler)}")
    if loader.num_workers and not getattr(loader, "in_order", True):
        raise ValueError(
            f"{what}: with in_order=False nothing says which batches were delivered: use "
            "batch_sampler=ffrecord.torch.Sampler(...), or leave out in_order=False"
        )
    found = fingerprint_of(loader.dataset)
    source: Sized = loader.dataset
    batches = inner is not sampler
    values = (
        _name_of(sampler),
        len(source),
        len(sampler),
        getattr(sampler, "replacement", None),
        inner.batch_size if batches else None,
        inner.drop_last if batches else None,
        found,
    )
    return dict(zip(_NAMES, values, strict=True))


def _remedy(loader: Any, sampler: Any) -> str:  # noqa: ANN401
    if isinstance(loader.dataset, data.IterableDataset):
        return (
            f"only {type(loader.dataset).__name__} knows where it is, for it is iterable: use "
            "torchdata's StatefulDataLoader, which saves the state of datasets; or a map-style "
            "dataset with batch_sampler=ffrecord.torch.Sampler(...)"
        )
    wanted, name = "batch_sampler=ffrecord.torch.Sampler(...)", type(sampler).__name__
    shared = getattr(getattr(sampler, "dataset", None), "_sampler", sampler)
    if shared is not sampler:  # Lightning's wrapper.
        name = f"{type(shared).__name__} in a {name}"
    if isinstance(shared, data.WeightedRandomSampler):
        wanted = "batch_sampler=ffrecord.torch.Sampler(dataset, batch, weights=weights)"
    return (
        f"it needs {wanted}, whose order is a function of position; a loader with {name} cannot "
        "resume"
    )


def _state_of(generator: torch.Generator) -> str:
    return bytes(generator.get_state().tolist()).hex()


def _next_draw(sampler: Any) -> int | str | None:  # noqa: ANN401 - torch's own
    """The seed for a walk over torch's sampler that began now."""
    if type(sampler) is DistributedSampler or _wrapped_by(sampler) is not None:
        return int(sampler.epoch)
    if type(sampler) not in (data.RandomSampler, *_DRAWN):
        return None
    state = _state_of(sampler.generator or torch.default_generator)
    if sampler.generator is not None or type(sampler) in _DRAWN:
        return state
    return int(torch.empty((), dtype=torch.int64).random_(generator=_with_state(state)).item())


def _with_state(state: str) -> torch.Generator:
    made = torch.Generator()
    _set_state(made, state)
    return made


def _set_state(generator: torch.Generator, state: str) -> None:
    try:
        generator.set_state(torch.tensor(list(bytes.fromhex(state)), dtype=torch.uint8))
    except RuntimeError as error:
        raise ValueError(f"the state's generator is damaged: {error}") from None
