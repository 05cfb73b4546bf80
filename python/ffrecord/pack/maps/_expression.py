"""Keeping samples for which an expression or a function is true."""

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ffrecord._tables.values import unmasked
from ffrecord.pack.maps._base import Map

_BINARY: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARED: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}
_UNARY: dict[type[ast.AST], Callable[[Any], Any]] = {
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "len": len,
    "abs": abs,
    "min": min,
    "max": max,
    "sum": sum,
    "any": any,
    "all": all,
    "lower": lambda text: text.lower(),
    "startswith": lambda text, start: text.startswith(start),
    "endswith": lambda text, end: text.endswith(end),
}


class keep(Map):
    """Keeps the samples for which `condition` is true; the columns stay as they are.

    Args:
        condition: an expression over the columns, such as `"len(text) > 100 and lang == 'en'"`, or
            a function of a sample. Expressions have comparisons, `and`, `or`, `not`, `in`,
            arithmetic, items (`meta['url']`), and the functions len, abs, min, max, sum, any, all,
            lower, startswith and endswith. A comparison of null with `<` and the like is an error:
            write `score is not None and score > 0`.

    Raises:
        ValueError: the expression has something else.
    """

    def __init__(self, condition: str | Callable[[Any], Any]) -> None:
        """Check the expression."""
        self.condition = condition
        self.functions = () if isinstance(condition, str) else (condition,)
        if isinstance(condition, str):
            self._tree()

    def __call__(self, sample: Any) -> Any:  # noqa: ANN401 - see `Map`
        """Return the sample, or None."""
        if callable(self.condition):
            return sample if self.condition(sample) else None
        if not isinstance(sample, Mapping):
            raise ValueError(f"keep({self.condition!r}): the records have no columns")
        return sample if _value(self._tree(), sample, self.condition) else None

    def _tree(self) -> ast.AST:
        if "_parsed" not in vars(self):
            assert isinstance(self.condition, str)
            try:
                self._parsed = ast.parse(self.condition.strip(), mode="eval").body
            except (SyntaxError, ValueError, RecursionError) as error:
                raise ValueError(f"keep({self.condition!r}) is no expression: {error}") from None
            _check(self._parsed, self.condition)
        return self._parsed


def _check(tree: ast.AST, text: str) -> None:
    known = (ast.BoolOp, ast.Compare, ast.Constant, ast.Name, ast.Subscript, ast.List, ast.Tuple)
    for node in ast.walk(tree):
        is_call = isinstance(node, ast.Call) and not node.keywords
        is_known = isinstance(node, (*known, ast.boolop, ast.expr_context)) or (
            type(node) in (*_BINARY, *_COMPARED, *_UNARY, ast.BinOp, ast.UnaryOp)
        )
        if is_call and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS:  # type: ignore[attr-defined]
            continue
        if not is_known:
            what = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
            raise ValueError(
                f"keep({text!r}) has {what!r:.60}, which expressions have not: give a function"
            )


def _value(node: Any, sample: Mapping[str, Any], text: str) -> Any:  # noqa: ANN401 - any value
    def of(inner: ast.AST) -> Any:  # noqa: ANN401
        return _value(inner, sample, text)

    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            if node.id not in sample:
                names = ", ".join(sample)
                raise ValueError(f"keep({text!r}): no column '{node.id}'; columns: {names}")
            return _python_of(sample[node.id])
        case ast.BoolOp():
            is_and = isinstance(node.op, ast.And)
            found = None
            for each in node.values:
                found = of(each)
                if bool(found) != is_and:
                    break
            return found
        case ast.Compare():
            left = of(node.left)
            for sign, right in zip(node.ops, map(of, node.comparators), strict=True):
                if not _COMPARED[type(sign)](left, right):
                    return False
                left = right
            return True
        case ast.BinOp():
            return _BINARY[type(node.op)](of(node.left), of(node.right))
        case ast.UnaryOp():
            return _UNARY[type(node.op)](of(node.operand))
        case ast.Subscript():
            return of(node.value)[of(node.slice)]
        case ast.Call():
            return _FUNCTIONS[ast.unparse(node.func)](*map(of, node.args))
        case _:
            return [of(each) for each in node.elts]


class _Bytes(bytes):
    """Bytes, or a list of numbers below 256: from an array alone nobody can tell."""

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list) else bytes(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = bytes.__hash__


def _python_of(value: Any) -> Any:  # noqa: ANN401 - any value
    """The value as Python's own, as sources of other kinds give it.

    Numbers of NumPy wrap around where Python's grow, and its masked values are none and false.
    """
    if isinstance(value, np.ma.MaskedArray):
        return _python_of(unmasked(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        is_bytes = value.dtype == np.uint8 and value.ndim == 1
        return _Bytes(value.tobytes()) if is_bytes else value.tolist()
    if isinstance(value, Mapping):
        return {name: _python_of(each) for name, each in value.items()}
    return [_python_of(each) for each in value] if isinstance(value, list | tuple) else value
