"""What the rules of the model of the loader are drawn from, and scenes as rules."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from loader_truth import Plan

SIZES = st.integers(1, 7)
WORLDS = st.integers(1, 3)
SEEDS = st.sampled_from([0, 1, 7, 2**64 - 1])
WEIGHTS = st.sampled_from([[1, 1], [3, 1], [1, 2], [2, 0], [1, 6]])
POLICIES = st.sampled_from(["raise", "skip", "replace"])
GOOD_FILES = st.sampled_from(["a", "b", "c", "folder"])
# Processes cost tenths of a second; threads and the caller's own nearly nothing.
MODES = st.sampled_from(
    ["caller", "threads", "one thread", "by sampler", "torch"] * 6
    + ["auto"] * 4
    + ["workers", "persistent"]
)
SCENE_MODES = st.sampled_from(["threads", "one thread", "auto", "caller", "torch"])
PLANS = st.builds(
    Plan,
    labels=st.just([]),
    how=st.just("shuffled"),
    seed=SEEDS,
    size=SIZES,
    is_per_rank=st.booleans(),
    last=st.sampled_from(["exact", "exact", "drop", "pad", "short"]),
    world=WORLDS,
)

SCENES: dict[str, Any] = {}


def scene(**strategies: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:  # noqa: ANN401
    """Make a function a rule of the model, with arguments of these strategies."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        def play(_: object, **given: Any) -> None:  # noqa: ANN401 - of the strategies
            function(**given)

        play.__name__, play.__doc__ = function.__name__, function.__doc__
        SCENES[function.__name__] = rule(**strategies)(play)
        return function

    return decorate


def several(what: st.SearchStrategy[Any], count: int, **options: bool) -> Any:  # noqa: ANN401
    """As many of a strategy."""
    return st.lists(what, min_size=count, max_size=count, **options)
