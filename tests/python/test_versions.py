"""Goal: a release of torch or of a framework that is too old is named, with what to install.

Method: modules that only have a version, in the place of those.
"""

import subprocess
import sys
import types
from pathlib import Path

import pytest

import ffrecord
from ffrecord.torch import DataLoader, Sampler
from ffrecord.torch._old_releases import is_older, loaders_are_lost_by


def pretend(monkeypatch: pytest.MonkeyPatch, name: str, version: str) -> None:
    module = types.ModuleType(name)
    module.__dict__["__version__"] = version
    monkeypatch.setitem(sys.modules, name, module)


def test_an_old_torch_is_refused_at_import(tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text('__version__ = "2.1.0+cpu"\n')
    place = Path(ffrecord.__file__).parents[1]
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(place)!r}]; import ffrecord.torch"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stderr.splitlines()[-1] == (
        "ImportError: ffrecord.torch needs torch 2.4 or newer, and this is 2.1.0+cpu:"
        " run pip install -U 'ffrecord[torch]'"
    )


@pytest.mark.parametrize(
    ("name", "version", "remedy"),
    [
        ("accelerate", "0.33.0", "'accelerate>=1.1'"),
        ("accelerate", "0.34.2", None),
        ("accelerate", "1.15.0.dev0", None),
        ("pytorch_lightning", "2.1.4", "'pytorch-lightning>=2.4'"),
        ("pytorch_lightning", "2.2.5", None),
        ("lightning", "2.0.9.post0", "'lightning>=2.4'"),
        ("lightning", "unknown", None),
    ],
)
def test_a_framework_that_loses_the_states_of_loaders_is_named(
    name: str, version: str, remedy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, name, version)
    why = loaders_are_lost_by(name)
    assert (why is None) == (remedy is None)
    assert why is None or remedy is None or (f"{name} {version} " in why and remedy in why)


def test_accelerate_is_refused_when_it_prepares_a_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = DataLoader(range(10), batch_sampler=Sampler(10, 2, rank=0, world_size=2))  # type: ignore[arg-type]
    pretend(monkeypatch, "accelerate", "0.33.0")
    with pytest.raises(RuntimeError, match="a resumed run would repeat records: run pip install"):
        _ = loader._is_accelerate_prepared
    pretend(monkeypatch, "accelerate", "1.1.1")
    assert loader._is_accelerate_prepared


def test_versions_are_compared_as_numbers() -> None:
    assert is_older("2.3.1", (2, 4)) and is_older("1.13", (2, 4))
    assert not is_older("2.13.0+cpu", (2, 4)) and not is_older("2.4.0a0", (2, 4))
