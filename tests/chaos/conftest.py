"""The built package and daemon for these tests too, and what may be asked of the chaos."""

import importlib.util
import os
import secrets
import shutil
from pathlib import Path
from types import ModuleType

import pytest

_path = Path(__file__).resolve().parents[1] / "python" / "conftest.py"
_spec = importlib.util.spec_from_file_location("ffrecord_python_conftest", _path)
assert _spec is not None and _spec.loader is not None
_python: ModuleType = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_python)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds", type=float, default=40.0, help="how long the chaos lasts")
    parser.addoption("--seed", type=int, default=None, help="of its order; random by default")


@pytest.fixture
def chaos(request: pytest.FixtureRequest) -> tuple[int, float, str]:
    """Seed, seconds, and the daemon's program."""
    seed = request.config.getoption("--seed")
    seed = secrets.randbelow(1 << 30) if seed is None else seed
    print(f"seed {seed}")
    built = _python.BUILD / "server" / "ffrecordd"
    wants_installed = not built.exists() or os.environ.get("FFRECORD_TEST_INSTALLED")
    program = shutil.which("ffrecordd") if wants_installed else str(built)
    if program is None:
        pytest.skip("no ffrecordd here: the server's dependencies are not installed")
    return seed, request.config.getoption("--seconds"), program
