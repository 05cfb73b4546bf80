"""A loader that can save and restore its position."""

import copy
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from torch.utils import data

from ffrecord._base import clock, recording
from ffrecord._base.stage_times import (
    STAGES,
    Stages,
    figures,
    numbers_of,
    since,
    summed,
    verdict,
    write_trace,
)
from ffrecord._order.epoch_order import check_counts
from ffrecord._read.reader import Reader
from ffrecord._read.records import Formatted, Records
from ffrecord.errors import BadArgumentError
from ffrecord.torch._batch_transfer import CrossingCollate, Told
from ffrecord.torch._collate import collate, convert
from ffrecord.torch._dataset import BATCHES_AS_INDICES, Dataset
from ffrecord.torch._delivery import (
    Delivery,
    EpochHinter,
    Handover,
    Iteration,
    PlainDelivery,
    nothing,
    refused,
)
from ffrecord.torch._engine_choice import (
    MODES,
    EngineChoice,
    Mode,
    choice_of,
    given_for_processes,
)
from ffrecord.torch._engines import Beginning, Caller, Engine, Name, Processes
from ffrecord.torch._epoch_steps import Steps
from ffrecord.torch._frameworks import (
    Accelerated,
    Share,
    has_ended_epoch,
    has_no_more,
    is_held_back_by,
    is_saved_by,
    lightning_fit_loop,
    take_state,
)
from ffrecord.torch._loader_order import (
    order_of,
    refuse_other_dataset,
    refuse_other_order,
    sampler_among,
)
from ffrecord.torch._old_releases import loaders_are_lost_by
from ffrecord.torch._placing import accelerator, on_device
from ffrecord.torch._plain_state import PlainPlace, Unused, name_epoch, place_of, state_of
from ffrecord.torch._profiling import note_source, profiled
from ffrecord.torch._sampler import Cursor, Sampler
from ffrecord.torch._subsets import stats_of
from ffrecord.torch._threads import Threads

_log = logging.getLogger("ffrecord.torch")
# The value of timeout=0, so that every wait ends.
_TIMEOUT_S = 600.0
_MEMORY_LIMIT_BYTES = 1 << 30
# Statistics of readers that have a store.
_OF_STORES = ("store_", "cache_")


class DataLoader(data.DataLoader[Any]):
    """torch's DataLoader, with a state, and with threads where they load faster than processes.

    With a `Sampler` as `batch_sampler` (or as `sampler`, without a batch size), an iteration begins
    where the sampler is when the first batch is requested. `state_dict` counts the batches that
    were delivered, not those that were read ahead, and a loader of any world size, mode and number
    of workers continues from it. Any framework that knows these two methods can save and restore
    it.

    Batches, their order, states and errors do not depend on what loads: the calling thread, threads
    or processes. `stats` says which of them does, and why.
    """

    def __init__(
        self,
        dataset: data.Dataset[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        sampler: Any = None,  # noqa: ANN401 - torch takes any iterable of indices
        batch_sampler: Any = None,  # noqa: ANN401 - any iterable of lists of indices
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        generator: torch.Generator | None = None,
        *,
        prefetch_factor: int | None = 2,
        persistent_workers: bool = False,
        skippable: bool = True,
        mode: Mode = "auto",
        memory_limit_bytes: int = _MEMORY_LIMIT_BYTES,
        device: torch.device | str | None = None,
        **options: Any,  # noqa: ANN401 - torch's own
    ) -> None:
        """Set up as torch's DataLoader does; the default `collate_fn` is `ffrecord.torch`'s.

        Args:
            dataset: any map-style dataset; one with `__getitems__` reads each batch at once.
            batch_size: without a batch_sampler, as in torch; with None each sample comes as it is,
                its arrays as tensors.
            shuffle: without a batch_sampler, as in torch.
            sampler: as in torch; with batch_size=None also a `Sampler`, as for `batch_sampler`.
            batch_sampler: a `Sampler` of this dataset, or any iterable of lists of indices.
            num_workers: processes or threads; 0 loads in the calling thread.
            collate_fn: makes a batch from samples.
            pin_memory: as in torch.
            drop_last: as in torch.
            timeout: seconds to wait for one batch of a worker or thread; 0 is ten minutes.
            worker_init_fn: as in torch.
            generator: as in torch.
            prefetch_factor: batches read ahead by each worker; with threads, the initial number of
                all threads together, beyond those that are being loaded.
            persistent_workers: as in torch.
            skippable: whether `set_step` may be called.
            mode: "workers" are torch's processes, whose batches come through shared memory;
                "threads" share memory with the caller: no batch crosses a process, reads and
                torch's operators run in parallel, and with a `Sampler`, reading ahead does not stop
                at the end of an epoch unless code of the program takes part. "auto" takes threads
                if only code of this library makes the batches, and processes if code of the program
                takes part (a transform, a collate_fn, a decoder, a dataset or sampler of its own),
                or if an argument is given that only processes obey, such as worker_init_fn. It
                looks when an iteration begins.
            memory_limit_bytes: for batches that threads have read ahead, per iterator.
            device: the accelerator to copy batches to, one ahead, on a stream of its own, as
                `torch.accelerator.current_accelerator()` names it; with "cpu" they stay where they
                are. Copies overlap with kernels if the batches are in page-locked memory
                (`pin_memory=True`).
            options: torch's other options; with threads there are no processes to apply them to.
        """
        if mode not in MODES:
            raise ValueError(f"mode is {mode!r}; it can be {', '.join(MODES)}")
        if not memory_limit_bytes >= 1:
            raise ValueError(f"memory_limit_bytes is {memory_limit_bytes}; it must be 1 or more")
        order = sampler_among(batch_sampler, sampler)
        if order is not None and order is sampler and batch_sampler is None:
            if batch_size is not None:
                raise ValueError(BATCHES_AS_INDICES)
            # torch would index the dataset with a whole batch, which few datasets take.
            batch_sampler, sampler, batch_size = order, None, 1
        if order is not None:
            refuse_other_order(order)
        check_counts(0, num_workers=num_workers)
        ahead = 2 if prefetch_factor is None else prefetch_factor
        check_counts(int(num_workers > 0), prefetch_factor=ahead)
        by_threads = mode == "threads" and num_workers > 0
        if by_threads and (isinstance(dataset, data.IterableDataset) or batch_size is None):
            raise ValueError(
                "mode='threads' loads batches of a map-style dataset only: give it a batch_size, "
                "or batch_sampler=ffrecord.torch.Sampler(...)"
            )
        self._device = accelerator(device)
        if isinstance(collate_fn, CrossingCollate):  # When this loader is made from another one.
            collate_fn = collate_fn.collate_fn
        if num_workers:
            options["prefetch_factor"] = prefetch_factor
            options["persistent_workers"] = persistent_workers
        # With batch_size=None the dataset returns samples, unless the sampler asks for several.
        many = batch_size is not None or isinstance(sampler, data.BatchSampler)
        self.stages = Stages()
        self._told = Told()
        super().__init__(
            dataset,
            batch_size=batch_size,
            shuffle=shuffle,
            sampler=sampler,
            batch_sampler=batch_sampler,
            num_workers=num_workers,
            collate_fn=CrossingCollate(
                collate_fn or (collate if many else convert),
                self.stages,
                self._told.token,
                None if order is None else order.weights,
            ),
            pin_memory=pin_memory,
            drop_last=drop_last,
            timeout=(timeout or _TIMEOUT_S) if num_workers else 0,
            worker_init_fn=worker_init_fn,
            generator=generator,
            **options,
        )
        self._accelerated: Accelerated | None = None
        self._share = None if order is None else Share(order)
        if order is not None and order is batch_sampler:
            vars(self)["sampler"] = self._share  # torch forbids assigning it.
        self.mode = mode
        self.skippable = skippable
        if by_threads and (names := given_for_processes(self)):
            raise ValueError(f"mode='threads' has no processes for {', '.join(names)}")
        self.memory_limit_bytes = int(memory_limit_bytes)
        self._engines = self._new_engines()
        self._chosen: EngineChoice | None = None  # The engine of the iteration that began last.
        self._beginning = threading.RLock()  # For iterations that threads of the program begin.
        self._delivered = 0
        # Without a `Sampler`: of the iteration that delivered last, and of the next if it resumes.
        self._place: PlainPlace | None = None
        self._begun: PlainPlace | None = None
        self._resumed: PlainPlace | None = None
        self._begins_epoch = False  # Whether a state of an epoch's start was loaded last.
        self._unused: Unused | None = None  # The iteration that Lightning began last.
        self._before: dict[str, float] | None = None  # Reads before the first iteration.

    def __getstate__(self) -> dict[str, Any]:
        """The arguments and the position, for a copy or a pickle, also in the middle of an epoch.

        A copy has no worker, thread, batch or statistics yet. It begins an epoch where this loader
        would; like a copy of torch's loader, `copy.copy` shares the sampler and the dataset.
        """
        state = dict(vars(self))
        for name in ("stages", "_told", "_engines", "_beginning", "_steps"):
            state.pop(name, None)
        # Iterations change them; one may be in two places.
        places = copy.deepcopy((self._place, self._begun, self._resumed))
        state["_place"], state["_begun"], state["_resumed"] = places
        state["_accelerated"] = copy.copy(self._accelerated)
        nothing_yet = {"_iterator": None, "_delivered": 0, "_before": None, "_chosen": None}
        nothing_yet["_unused"] = None  # Its generators may be others.
        return {**state, **nothing_yet, "_at": (self._steps.step, self._steps.epoch)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        at = state.pop("_at")
        vars(self).update(state)  # Past torch's __setattr__, which forbids assigning arguments.
        self.stages, self._told, self._engines = Stages(), Told(), self._new_engines()
        self._beginning = threading.RLock()
        if isinstance(self.collate_fn, CrossingCollate):
            self.collate_fn = self.collate_fn.reporting(self.stages, self._told.token)
        self._steps.step, self._steps.epoch = at

    def set_step(self, step: int) -> None:
        """Start epochs at batch `step`, in the same order; 0 starts them at the first batch.

        Raises:
            BadArgumentError, an AssertionError: no such batch, or the loader cannot skip any.
        """
        if not self.skippable or (step and isinstance(self.dataset, data.IterableDataset)):
            raise BadArgumentError("skippable=False, or an iterable dataset: no step is skipped")
        total = len(self) + self._steps.step
        if not 0 <= step < max(1, total):
            raise BadArgumentError(f"step {step} of {total} batches")
        self._steps.step = step

    def set_epoch(self, epoch: int) -> None:
        """Note that epoch `epoch` of the training begins; frameworks call it.

        With a `Sampler`, the first call after `load_state_dict` leaves the restored position alone,
        unless the training had left that epoch early and begins the next. Later calls count on from
        there; to jump, call the sampler's own `set_epoch`.
        """
        name_epoch(self._steps.inner if self._share is None else self._share, epoch)

    @property
    def _is_accelerate_prepared(self) -> bool:
        """For accelerate, which leaves alone a loader that was prepared already.

        This one was: a `Sampler` gives each rank its share. The rest of `prepare` is done here,
        too.
        """
        order = order_of(self)
        sharded = order is not None and order.is_sharding
        if order is not None and sharded and self._accelerated is None:
            if (why := loaders_are_lost_by("accelerate")) is not None:
                raise RuntimeError(why)
            self._accelerated = Accelerated(order)
        return sharded

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, _: bool) -> None:
        """Accelerate calls it on every object that it was given."""

    @property
    def use_stateful_dataloader(self) -> bool:
        """For accelerate's `save_state` and `load_state`, which then save this loader's state."""
        return order_of(self) is not None

    def state_dict(self) -> dict[str, Any]:
        """The position after the delivered batches, as a few scalars; see `Sampler.state_dict`.

        With several iterators, it is the position of the one that delivered last.

        Without a `Sampler`, with torch's own order (`shuffle=True` or not, a
        `WeightedRandomSampler` or `SubsetRandomSampler`): the state of this rank, from which a
        loader with the same arguments delivers the rest of the epoch; with a `DistributedSampler`
        that of all ranks. JSON, and 10 KB if `generator` is given, or for those two. The order
        of later epochs is drawn from torch's default generator, whose state is the program's to
        save, or from `generator`, which is restored.

        Raises:
            TypeError: nothing says where the loader is: the dataset is iterable, or the sampler is
                another one.
            ValueError: with `in_order=False` on several ranks, or without a `Sampler`, nothing says
                which batches all of them have.
        """
        sampler = order_of(self)
        if sampler is None:
            steps = self._steps
            return state_of(self, steps.inner, self._place, self._begun, steps.epoch + 1)
        if self.num_workers and not getattr(self, "in_order", True) and sampler.world_size > 1:
            raise ValueError(
                f"in_order=False on {sampler.world_size} ranks: each has delivered other steps, "
                "so no state fits all; leave out in_order=False, or use mode='threads'"
            )
        return sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next iteration continue from `state`; see `Sampler.load_state_dict`.

        Raises:
            TypeError, ValueError: as `state_dict`; or the state is of other data or arguments.
        """
        if (sampler := order_of(self)) is not None:
            sampler.load_state_dict(state)
            self._begins_epoch = sampler.place == Cursor(sampler.epoch, 0)
            return
        self._resumed, epoch = place_of(self, self._steps.inner, state)
        self._begins_epoch = self._resumed is None
        self._place, self._begun = self._resumed, None
        self._steps.epoch = epoch - 1

    def stats(self, *, probe_s: float = 0.0) -> dict[str, Any]:
        """Return where the time went, over all threads and workers, since the first iteration.

        Args:
            probe_s: seconds for which to read records past the page cache, to compare the loader
                with the rate of the device; 0: do not. See `Reader.probe`.

        Returns:
            `batches` delivered, `records` and `size_bytes` read; `stages`, seconds by stage, which
            loading.md defines: `submit`, `device`, `verify`, `decompress`, `decode`, `collate`,
            `queue`, `handover`, `user`; `wait_s`, the time the consumer waited; `depth`, batches
            read ahead by threads now, and `held_bytes`, their memory; `damaged` records; `limit`,
            bytes/s, if it was probed; `engine`, which loads ("caller", "threads" or "processes") in
            the iteration that began last, or would in the first, and one sentence,
            `engine_reason`, why; and one sentence about the time, `verdict`. With an object store,
            also its numbers of `Reader.stats`.
        """
        for engine in self._engines.values():
            engine.note_times()
        chosen = self._chosen or choice_of(self)
        own = self.stages.sums()
        counts = self._counts()
        stages = {stage: own.get(stage, 0.0) + counts.get(f"{stage}_s", 0.0) for stage in STAGES}
        stages["handover"] += self._told.received_s
        stages["queue"] += self._told.queued_s
        wait_s = own.get("wait", 0.0)
        size_bytes = int(counts.get("size_bytes", 0))
        limit = self._probe(probe_s) if probe_s else 0.0
        return {
            "batches": self._delivered,
            "records": int(counts.get("records", 0)),
            "size_bytes": size_bytes,
            "stages": stages,
            "wait_s": wait_s,
            "depth": sum(engine.depth for engine in self._engines.values()),
            "held_bytes": sum(engine.held_bytes for engine in self._engines.values()),
            "damaged": int(counts.get("damaged_records", 0)),
            "limit": limit,
            **{name: int(n) for name, n in counts.items() if name.startswith(_OF_STORES)},
            "engine": chosen.engine,
            "engine_reason": chosen.why,
            "verdict": verdict(stages, wait_s, size_bytes, limit),
        }

    def figures(self, prefix: str = "loader/") -> dict[str, float]:
        """Return the numbers of `stats` in one flat dict, for MLflow, W&B, TensorBoard.

        The names are stable; metrics.md lists them. All are of this rank since the first iteration.

        Args:
            prefix: what all names begin with.
        """
        return figures(self.stats(), prefix)

    def _probe(self, seconds: float) -> float:
        source = getattr(self.dataset, "source", None)
        if not isinstance(source, Records):
            raise BadArgumentError(f"probe_s: {self.dataset!r} is not an ffrecord dataset")
        return source.probe(seconds)

    def write_trace(self, path: str) -> None:
        """Write the events in this process as a trace for chrome://tracing and Perfetto."""
        inner = getattr(self.dataset, "__dict__", {}).get("stages")
        write_trace(path, [self.stages, *([inner] if isinstance(inner, Stages) else [])])

    def close(self) -> None:
        """End the threads and drop the batches that they read ahead; you may iterate again.

        Iterations in progress with threads then raise a `ClosedError`.
        """
        for engine in self._engines.values():
            engine.close()

    @property
    def _index_sampler(self) -> Any:  # noqa: ANN401 - what torch iterates over
        return self._steps

    @cached_property
    def _steps(self) -> Steps:
        seeded = isinstance(self.dataset, Dataset | data.Subset | data.ConcatDataset)
        return Steps(super()._index_sampler, self.dataset if seeded else None)

    def check_worker_number_rationality(self) -> None:
        """Do nothing: torch warns of many processes here; this loader does when it starts them."""

    def _new_engines(self) -> dict[Name, Engine]:
        engines: list[Engine] = [Caller(), Threads(self.memory_limit_bytes), Processes()]
        return {engine.name: engine for engine in engines}

    def _engine(self) -> Engine:
        """The engine of an iteration that begins now."""
        self._chosen = choice_of(self)
        for name, engine in self._engines.items():
            if name != self._chosen.engine:
                engine.rest()
        return self._engines[self._chosen.engine]

    # torch declares its own iterator class; callers only need to iterate.
    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        fit = lightning_fit_loop()
        if is_saved_by(fit) and (trouble := self._state_trouble()) is not None:
            return Iteration(refused(trouble), self._steps)
        if self._before is None:
            self._before = self._dataset_numbers()
        has_ended = has_ended_epoch(fit)
        if (state := take_state(fit, self)) is not None:
            has_ended = self._load_at_epochs_end(state)
        begins_epoch, self._begins_epoch = self._begins_epoch, False
        if begins_epoch and has_no_more(fit):
            return Iteration(nothing(), self._steps)
        # Checked before the generator starts: later, the caller's frame is not on its stack.
        held_back = is_held_back_by(sys._getframe(1).f_locals.get("self"))
        sampler = order_of(self)
        if sampler is not None:
            handover = Handover()
            begun = self._watched(lambda: self._begin_at(sampler, held_back), handover)
            return Iteration(begun, self._steps, handover)
        with self._beginning:  # Now, as torch's iterators.
            if fit is not None:
                self._take_back_unused()
            resumed = self._resumed
            place = self._begin_place(has_ended)
            if fit is not None:
                self._unused = Unused(self, place, is_resumed=place is resumed)
            made = self._batches(None, place), PlainDelivery(self._note_place, place, held_back)
            if self._unused is not None:
                self._unused.note_begun()
        handover = Handover()
        return Iteration(self._watched(lambda: made, handover), self._steps, handover)

    def _begin_at(self, sampler: Sampler, held_back: bool) -> tuple[Iterator[Any], Delivery]:
        """Begin where the sampler is."""
        refuse_other_dataset(sampler, self.dataset)
        start = self._steps.first(sampler)
        hinter = self._hint_epoch(sampler, start)  # Before the first record is requested.
        delivery = Delivery(sampler, start, hinter, held_back)
        return self._batches(start), delivery

    def _batches(self, start: Cursor | None, place: PlainPlace | None = None) -> Iterator[Any]:
        """The batches of an epoch from there on, each with the position after it."""
        note_source(self.dataset)
        batches = self._engine().batches(self, Beginning(order_of(self), start, place))
        device = self._device
        if device is None and self._accelerated is not None:
            device = self._accelerated.device
        return batches if device is None else on_device(batches, device)

    def _state_trouble(self) -> Exception | None:
        """The error, or the loss, that Lightning's first checkpoint would bring."""
        if (why := loaders_are_lost_by("lightning", "pytorch_lightning")) is not None:
            return RuntimeError(f"{why}, or use Trainer(enable_checkpointing=False)")
        try:
            self.state_dict()
        except (TypeError, ValueError) as error:
            why = f"Lightning's checkpoints have the state of each loader; of this one, {error}"
            return type(error)(why)
        return None

    def _load_at_epochs_end(self, state: dict[str, Any]) -> bool:
        """Load a state that Lightning leaves out; whether it is of this loader.

        A program may go on behind the end of an epoch with other data.
        """
        try:
            self.load_state_dict(state)
        except (TypeError, ValueError) as error:
            _log.warning("the loader begins anew, without its state in the checkpoint: %s", error)
            return False
        return True

    def _take_back_unused(self) -> None:
        """Undo an iteration that Lightning has begun and asked for no batch.

        Before 2.5, it begins two where it resumes behind the end of an epoch.
        """
        unused, self._unused = self._unused, None
        is_undone, place = (False, None) if unused is None else unused.take_back()
        if is_undone:
            self._steps.epoch -= 1
            self._resumed = place

    def _begin_place(self, is_left: bool) -> PlainPlace:
        """Where an iteration that begins now begins, if there is no `Sampler`.

        Args:
            is_left: whether a framework has left the epoch of a restored state.
        """
        steps = self._steps
        steps.epoch += 1
        seed = (self.generator or torch.default_generator).initial_seed()
        place, self._resumed = self._resumed, None
        if place is not None and is_left and place.batches:
            place.leave(steps.inner)
            steps.epoch += 1
            place = None
        if place is not None:
            place.keep(self.generator)
        steps.place = self._begun = place or PlainPlace(seed, steps.epoch, steps.step)
        return steps.place

    def _note_place(self, place: PlainPlace) -> None:
        self._place = place

    def _hint_epoch(self, sampler: Sampler, start: Cursor) -> EpochHinter | None:
        """Sends the daemon, if there is one, a prefetch hint for the rest of the epoch."""
        source = getattr(self.dataset, "source", None)
        if isinstance(source, Formatted):
            source = source.source
        if not isinstance(source, Reader) or source.is_local:
            return None
        hinter = EpochHinter(source, sampler)
        ahead = self._engines[choice_of(self).engine].pending(self, sampler, start)
        cursor = sampler.skipped(start, ahead)
        if cursor.epoch == start.epoch:
            hinter.send(cursor)
        return hinter

    def _watched(
        self,
        begin: Callable[[], tuple[Iterator[Any], Delivery | PlainDelivery]],
        handover: Handover,
    ) -> Iterator[Any]:
        """Yields batches; reports delivered batches to the sampler, and times the consumer."""
        batches, delivery = begin()
        end = clock.now_ns()
        accelerated = self._accelerated
        try:
            with nullcontext() if accelerated is None else accelerated.iterated():
                while True:
                    asked = clock.now_ns()
                    if self._delivered and asked > end:
                        self.stages.add("user", end, asked)
                    if (place := delivery.renewed()) is not None:
                        batches.close()  # type: ignore[attr-defined]
                        batches = self._batches(place)
                    with profiled("wait for a batch", recording.WAIT):
                        found = next(batches, None)
                    end = clock.now_ns()
                    if found is None:
                        delivery.finish()
                        return
                    self.stages.add("wait", asked, end)
                    cursor, batch = found
                    handover.count(delivery, cursor)
                    if accelerated is not None:
                        accelerated.note(delivery.is_last, delivery.shares_differ)
                    self._delivered += 1
                    yield batch
        finally:
            batches.close()  # type: ignore[attr-defined]

    def _counts(self) -> dict[str, float]:
        """Sums over this process and the workers, each of which reports its own."""
        if self._before is None:
            return {}
        return summed([since(self._dataset_numbers(), self._before), self._told.sums()])

    def _dataset_numbers(self) -> dict[str, float]:
        return numbers_of(stats_of(self.dataset))
