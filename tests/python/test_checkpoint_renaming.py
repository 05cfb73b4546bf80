"""Goal: a load takes the part of a checkpoint that it wants, under other names and as other floats.

Method: names of single values, of all below a path, and by a function; every pair of floating-point
types against torch's own conversion; one report of all that does not fit, and nothing is touched.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ffrecord.checkpoint as ckpt
from thread_ranks import ThreadRank, ThreadRanks

pytestmark = pytest.mark.wrong_data


def saved(target: Path) -> dict[str, Any]:
    state = {
        "model": {"encoder.w": torch.arange(6.0), "encoder.b": torch.ones(2), "head/x": 1},
        "ema": {"w": torch.full((3,), 7.0), "~odd": 2},
        "step": 5,
        "list": [torch.zeros(1)],
    }
    ckpt.save(target, 1, state)
    return state


def test_values_are_loaded_under_other_names(tmp_path: Path) -> None:
    saved(tmp_path)
    found: Any = ckpt.load(
        tmp_path,
        rename={
            "ema": "average",
            "step": "counts/step",
            "model/head~1x": "top",
            "list": "deep/er/list",
        },
    )
    assert list(found) == ["model", "average", "counts", "top", "deep"]
    assert found["average"]["w"].tolist() == [7, 7, 7] and found["average"]["~odd"] == 2
    assert (found["counts"], found["top"]) == ({"step": 5}, 1)
    assert found["deep"]["er"]["list"][0].tolist() == [0]
    # Two may change places, and a dict that has become empty is gone.
    found = ckpt.load(tmp_path, rename={"model": "ema", "ema": "model"})
    assert found["model"]["~odd"] == 2 and "encoder.w" in found["ema"]
    found = ckpt.load(tmp_path, rename={"ema/w": "w", "ema/~0odd": "odd"})
    assert "ema" not in found and found["odd"] == 2


def test_names_are_changed_by_a_function_where_a_model_has_others(tmp_path: Path) -> None:
    state = saved(tmp_path)
    into: Any = {"model": {"backbone.w": torch.zeros(6), "backbone.b": torch.zeros(2)}}
    ckpt.load(tmp_path, into, strict=False, rename=lambda path: path.replace("encoder", "backbone"))
    for name, value in into["model"].items():
        assert torch.equal(value, state["model"][name.replace("backbone", "encoder")])

    def load(rank: ThreadRank) -> object:
        into = {"w": torch.zeros(6)}
        rename = {"model/encoder.w": "w"}
        ckpt.load(tmp_path, into, strict=False, rename=rename, group=rank)
        return into["w"].tolist()

    assert ThreadRanks(2).must(load) == [[0, 1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize(
    ("rename", "why"),
    [
        ({"nothing": "a"}, "nothing is not in the checkpoint"),
        ({"list/#0": "a"}, "list/#0 is not in the checkpoint, or is in a list"),
        ({"step": "ema/w"}, "the checkpoint has ema/w already"),
        ({"step": "list/x"}, "list/x is below something that is no dict"),
        ({"step": "a/#3"}, "a/#3 has a key that is no name"),
    ],
)
def test_names_that_do_not_fit_are_refused(
    tmp_path: Path, rename: dict[str, str], why: str
) -> None:
    saved(tmp_path)
    with pytest.raises(ValueError, match=f"rename: {why}"):
        ckpt.load(tmp_path, rename=rename)


FLOATS = ["float16", "bfloat16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"]


def test_floats_are_converted_as_torch_converts_them_where_that_is_meant(tmp_path: Path) -> None:
    values = torch.linspace(-3, 3, 77)
    state = {name: values.to(getattr(torch, name)) for name in FLOATS}
    ckpt.save(tmp_path, 1, {"w": state, "n": torch.arange(3)})
    for wanted in FLOATS:
        into: Any = {name: torch.zeros(77, dtype=getattr(torch, wanted)) for name in FLOATS}
        with pytest.raises(ckpt.MismatchError, match=f"is stored, the state has {wanted}"):
            ckpt.load(tmp_path, {"w": into, "n": torch.zeros(3, dtype=torch.int64)})
        assert not any(each.float().any() for each in into.values())
        ckpt.load(tmp_path, {"w": into, "n": torch.zeros(3, dtype=torch.int64)}, cast=True)
        for name in FLOATS:
            assert torch.equal(into[name].float(), state[name].to(getattr(torch, wanted)).float())
    array = np.zeros(77)
    ckpt.load(tmp_path, {"w": {"float32": array}}, cast=True, strict=False)
    assert array.tolist() == values.double().tolist()
    with pytest.raises(ckpt.MismatchError, match=r"n .int64 .* is stored, the state has float32"):
        ckpt.load(tmp_path, {"n": torch.zeros(3)}, cast=True, strict=False)


def test_a_model_is_loaded_as_other_floats(tmp_path: Path) -> None:
    model = torch.nn.Linear(5, 3)
    ckpt.save(tmp_path, 1, {"model": model})
    half = torch.nn.Linear(5, 3, dtype=torch.bfloat16)
    ckpt.load(tmp_path, {"model": half}, cast=True)
    assert torch.equal(half.weight, model.weight.bfloat16())


def test_all_that_does_not_fit_is_one_report_and_nothing_is_touched(tmp_path: Path) -> None:
    def save(rank: ThreadRank) -> object:
        state = {
            "a": np.ones(3), "b": {"c": np.ones(2), "d": 1}, "own": ckpt.PerRank(rank.rank),
            "list": [1, 2], "good": np.ones(4), "more": 1,
        }  # fmt: skip
        return ckpt.save(tmp_path, 1, state, group=rank)

    ThreadRanks(2).must(save)
    good = np.zeros(4)
    into = {
        "a": np.zeros(4), "b": {"c": np.zeros(2, int), "e": 1}, "own": ckpt.PerRank(None),
        "list": [1], "good": good,
    }  # fmt: skip
    with pytest.raises(ckpt.MismatchError) as caught:
        ckpt.load(tmp_path, into, group="alone")
    report = caught.value
    assert (report.missing, sorted(report.extra)) == (["b/e"], ["b/d", "more"])
    assert [each.split(" ")[0] for each in report.different] == ["a", "b/c", "own", "list"]
    assert "saved by each of 2 ranks, loaded by 1" in str(report)
    assert not good.any()


def test_a_scalar_of_numpy_is_converted_too(tmp_path: Path) -> None:
    ckpt.save(tmp_path, 1, {"x": np.float64(3.25), "y": torch.tensor(2.5, dtype=torch.float64)})
    loaded: Any = ckpt.load(tmp_path, {"x": np.float32(0), "y": np.float16(0)}, cast=True)
    assert (loaded["x"], loaded["y"]) == (3.25, 2.5)
    assert (type(loaded["x"]), type(loaded["y"])) == (np.float32, np.float16)
