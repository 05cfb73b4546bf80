"""Loading under other paths than those that were saved."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ffrecord.checkpoint._state import join, part_of_path

# Stored path -> path in the state: of single tensors and values or all below a path, or for each.
Rename = Mapping[str, str] | Callable[[str], str]


def renamed(tree: object, rename: Rename) -> object:
    """The tree of a checkpoint as if it had been saved under other paths; changes `tree`.

    Raises:
        ValueError: a path is not stored, is in a list, or something has that path already.
    """
    if isinstance(rename, Mapping):
        names = dict(rename)
    else:
        names = {path: new for path in _leaves(tree, "") if (new := rename(path)) != path}
    # All are taken before one is put, so that two may change places.
    for new, item in [(new, _taken(tree, old)) for old, new in names.items()]:
        _put(tree, new, item)
    return tree


def _leaves(tree: object, path: str) -> Iterator[str]:
    if isinstance(tree, dict) and tree:
        for key, item in tree.items():
            yield from _leaves(item, join(path, key))
    elif path:
        yield path


def _child(tree: object, part: str) -> Any:  # noqa: ANN401
    """The key of a dict that is called so in paths; raises KeyError."""
    if isinstance(tree, dict):
        if not part.startswith("#") and (name := _name_of(part)) in tree:
            return name
        for key in tree:
            if not isinstance(key, str) and part_of_path(key) == part:
                return key
    raise KeyError(part)


def _taken(tree: object, path: str) -> object:
    parents: list[tuple[Any, object]] = []
    for part in path.split("/"):
        try:
            key = _child(tree, part)
        except KeyError:
            raise ValueError(f"rename: {path} is not in the checkpoint, or is in a list") from None
        parents.append((tree, key))
        tree = parents[-1][0][key]
    for parent, key in reversed(parents):
        del parent[key]
        if parent:
            break  # Others have nothing else in them: they have moved with it.
    return tree


def _put(tree: Any, path: str, item: object) -> None:  # noqa: ANN401
    *parts, last = path.split("/")
    for part in parts:
        try:
            tree = tree[_child(tree, part)]
        except KeyError:
            if not isinstance(tree, dict):
                break
            tree = tree.setdefault(_new_name(part, path), {})
    if not isinstance(tree, dict):
        raise ValueError(f"rename: {path} is below something that is no dict")
    name = _new_name(last, path)
    if name in tree:
        raise ValueError(f"rename: the checkpoint has {path} already")
    tree[name] = item


def _new_name(part: str, path: str) -> str:
    if part.startswith("#"):
        raise ValueError(f"rename: {path} has a key that is no name: give the path of its dict")
    return _name_of(part)


def _name_of(part: str) -> str:
    """The string that is called so in paths."""
    part = "#" + part[2:] if part.startswith("~2") else part
    return part.replace("~1", "/").replace("~0", "~")
