"""One line that makes the collectives of a training signal when they need the network."""

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

from ffrecord.runtime._phases import PacerSignals, Signals

_lock = threading.Lock()
_attachments: "list[Attachment]" = []
_PACER = PacerSignals()


class Attachment:
    """Collectives that signal, until `detach()`.

    Attributes:
        source: what signals. "hooks": torch's hooks of collectives. "methods": those of process
            groups, in a torch without these hooks. "gradients": the same, and all between the first
            gradient and the step of the optimizer, for DistributedDataParallel. "engine": the
            collectives of `ffrecord.distributed`, which signal without hooks. "none": there are no
            collectives.
    """

    def __init__(self, target: object, watched: Any, signals: Signals) -> None:  # noqa: ANN401
        """Made by `attach`."""
        # It may end before the attachment.
        self._target: Callable[[], object] = (
            (lambda: None) if target is None else weakref.ref(target)
        )
        self._is_of_all = target is None
        self._signals = signals
        self._watched = watched
        self._owner = os.getpid()
        self._is_attached = True

    @property
    def source(self) -> str:
        """The source of signals; see the class."""
        return str(self._watched.source)

    @property
    def errors(self) -> list[str]:
        """Errors within hooks, which training does not see; the newest of them."""
        return list(self._watched.errors)

    def detach(self) -> None:
        """Signal no longer, and end open phases. May be called again, and in any process."""
        with _lock:
            if not self._is_attached:
                return
            self._is_attached = False
            if self in _attachments:
                _attachments.remove(self)
        if os.getpid() == self._owner:
            self._watched.stop()

    def _is_of(self, target: object) -> bool:
        return self._is_of_all if target is None else self._target() is target

    def _is_left(self) -> bool:
        """Whether what was attached is no more."""
        return not self._is_of_all and self._target() is None

    def __enter__(self) -> "Attachment":
        """Return the attachment."""
        return self

    def __exit__(self, *_: object) -> None:
        """Detach."""
        self.detach()


def attach(model_or_group: object = None, *, signals: Signals | None = None) -> Attachment:
    """Make the collectives of a model, or of a process group, signal to the pacer.

    Call it once, after the groups are made. It changes no result of the training, whose threads it
    never holds up. Each step of the optimizer ends a step: of several optimizers, the first that
    steps does. Attaching the same again returns the attachment that there is, which then has the
    groups that are new, too. Keeps neither models nor groups alive. Thread-safe.

    Args:
        model_or_group: a model, also in DistributedDataParallel or after `fully_shard`; a process
            group of torch; or a group of `ffrecord.distributed`. None: all groups that there are.
        signals: the receiver; the pacer of this process by default.

    Returns:
        The attachment; call its `detach()`, or use it in a `with` block.

    Raises:
        ImportError: there is no torch. `watch_interfaces` needs none.
        TypeError: it is neither a model nor a group.
    """
    try:
        from ffrecord.runtime import _collectives
    except ImportError as error:
        raise ImportError(
            f"attach() needs torch ({error}): run pip install 'ffrecord[torch]', or call"
            " ffrecord.runtime.watch_interfaces(), which needs none"
        ) from error
    told = _PACER if signals is None else signals
    for left in [each for each in list(_attachments) if each._is_left()]:
        left.detach()
    with _lock:
        for each in _attachments:
            if each._is_of(model_or_group) and (signals is None or each._signals is signals):
                _collectives.update(each._watched, model_or_group)
                return each
        attachment = Attachment(model_or_group, _collectives.watch(model_or_group, told), told)
        _attachments.append(attachment)
        return attachment


def detach() -> None:
    """Detach everything that is attached in this process."""
    with _lock:
        attachments = list(_attachments)
    for each in attachments:
        each.detach()


@atexit.register
def _stop() -> None:
    """Hooks stay: another thread may run one."""
    for each in _attachments:
        each._watched.is_off = True
        each._watched.phases.stop()


def _forget() -> None:
    """A forked child has no thread that ends phases: nothing is attached there."""
    global _lock
    _lock = threading.Lock()  # Another thread may have held it.
    for each in _attachments:
        each._is_attached = False
        each._watched.is_off = True
    _attachments.clear()


os.register_at_fork(after_in_child=_forget)
