"""The built package and daemon for these tests too, and what may be asked of the chaos."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

_path = Path(__file__).resolve().parents[1] / "python" / "conftest.py"
_spec = importlib.util.spec_from_file_location("ffrecord_python_conftest", _path)
assert _spec is not None and _spec.loader is not None
_python: ModuleType = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_python)
BUILD: Path = _python.BUILD
sys.path.append(str(_path.parent))  # For the daemon of those tests.


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds", type=float, default=120.0, help="how long the chaos lasts")


@pytest.fixture
def chaos(request: pytest.FixtureRequest, seed: int) -> tuple[int, float]:
    """Seed and seconds."""
    return seed, request.config.getoption("--seconds")
