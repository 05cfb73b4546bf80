"""The names under which other programs know the tensors of a checkpoint: paths joined by dots."""

from collections.abc import Iterator

from ffrecord.checkpoint._named import inside
from ffrecord.checkpoint._state import join
from ffrecord.checkpoint._values import Named, TensorRef


def below(tree: object, prefix: str) -> object:
    """The part of the stored tree at a path. Raises ValueError: nothing."""
    path = ""
    while path != prefix:
        if isinstance(tree, Named):
            tree = inside(tree)
        children = tree.items() if isinstance(tree, dict) else ()
        for key, child in children:
            here = join(path, key)
            if prefix == here or prefix.startswith(f"{here}/"):
                path, tree = here, child
                break
        else:
            raise ValueError(f"the checkpoint has nothing below {prefix}")
    return tree


def tensors_by_name(tree: object) -> dict[str, TensorRef]:
    """The tensors of a tree, in its order; two names may be of one tensor.

    Raises:
        ValueError: two tensors would get one name.
    """
    found: dict[str, TensorRef] = {}
    for name, ref in _leaves(tree, ""):
        if name in found:
            raise ValueError(f"two tensors would be called {name}: {found[name].key} and {ref.key}")
        found[name] = ref
    return found


def _leaves(tree: object, name: str) -> Iterator[tuple[str, TensorRef]]:
    if isinstance(tree, TensorRef):
        yield name or tree.key, tree
    elif isinstance(tree, Named):
        yield from _leaves(inside(tree), name)
    elif isinstance(tree, dict | list | tuple):
        pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
        for key, child in pairs:
            yield from _leaves(child, f"{name}.{key}" if name else str(key))
