"""Objects that may refuse the state that they are given, and how they get back the one they had."""

import sys
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np

from ffrecord import _ffrecord
from ffrecord.checkpoint._layouts import plain_parts
from ffrecord.checkpoint._named import fields_of, kind_of_template
from ffrecord.checkpoint._pieces import Wanted, read_into
from ffrecord.checkpoint._state import Shard, Stateful, map_children
from ffrecord.checkpoint._tensors import kind_of, movable
from ffrecord.checkpoint._values import Kind


class _Parts(Protocol):
    """A Restorer, which fills a state."""

    reader: _ffrecord.CheckpointReader
    wanted: list[Wanted]
    dtypes: dict[str, str]

    def assign(self) -> None:
        """Put values into dicts and lists."""


class Decision:
    """One such object. Its shown state is copied before its tensors are filled in place."""

    def __init__(self, target: Stateful, shown: object, parts: _Parts, state: object) -> None:
        """Store the arguments.

        Args:
            target: the object.
            shown: its `state_dict` of now.
            parts: fills `state`, in which tensors of `shown` may be.
            state: what it is to be given.
        """
        self._target, self._shown, self._parts, self._state = target, shown, parts, state
        self._before: tuple[object, list[tuple[Any, Any]]] | None = None

    @property
    def wanted(self) -> list[Wanted]:
        """The slices that are read for its state."""
        return self._parts.wanted

    def ask(self) -> None:
        """Give the object its stored state; raises what it raises."""
        self._before = (_containers(self._shown), [(a, _copied(a)) for a in _leaves(self._shown)])
        read_into(self._parts.reader, self._parts.wanted, self._parts.dtypes)
        self._parts.assign()
        self._target.load_state_dict(self._state)

    def undo(self) -> None:
        """Give it the state that it had, if it was asked; raises what it raises."""
        if self._before is None:
            return
        (shown, copies), self._before = self._before, None
        for tensor, copy in copies:
            if kind_of(tensor) is Kind.TORCH:
                movable(tensor.detach()).copy_(copy)
            else:
                tensor[...] = copy
        self._target.load_state_dict(shown)


def _containers(tree: object) -> object:
    """The same leaves in dicts, lists and tuples of their own."""
    return map_children(tree, _containers)


def _leaves(tree: object) -> Iterator[Any]:
    """The tensors in a state that can be filled in place."""
    if isinstance(tree, dict):
        for item in tree.values():
            yield from _leaves(item)
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from _leaves(item)
    elif isinstance(tree, Shard):
        yield from _leaves(tree.data)
    elif kind_of(tree) is Kind.TORCH:
        yield from plain_parts(tree)
    elif kind_of_template(tree) == "dataclass":
        yield from _leaves(fields_of(tree))
    elif isinstance(tree, np.ndarray) and tree.flags.writeable:
        yield tree


def _copied(tensor: Any) -> Any:  # noqa: ANN401 (an array or a tensor)
    return movable(tensor.detach()).clone() if kind_of(tensor) is Kind.TORCH else tensor.copy()


def may_refuse(target: object) -> bool:
    """Whether it may refuse a state of the right structure, types and shapes.

    Modules and optimizers that leave that to torch do not: they are filled in place, for there may
    be no memory for a second one.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return True
    if isinstance(target, torch.optim.Optimizer):
        own = type(target).load_state_dict is not torch.optim.Optimizer.load_state_dict
        return own or bool(getattr(target, "_optimizer_load_state_dict_pre_hooks", None))
    if not isinstance(target, torch.nn.Module):
        return True
    return any(_decides(module) for module in target.modules())


# By which a module takes part in load_state_dict.
_METHODS = ("load_state_dict", "_load_from_state_dict", "set_extra_state")


def _decides(module: Any) -> bool:  # noqa: ANN401 (torch.nn.Module)
    hooks = getattr(module, "_load_state_dict_pre_hooks", {}).values()
    of_whom = [getattr(type(module), name, None) for name in _METHODS]
    of_whom += [getattr(hook, "hook", hook) for hook in hooks]
    return not all(
        (getattr(each, "__module__", None) or "torch").partition(".")[0] == "torch"
        for each in of_whom
    )
