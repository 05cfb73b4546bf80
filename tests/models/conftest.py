"""The built package for the models too: see tests/python/conftest.py."""

import importlib.util
import sys
from pathlib import Path

_path = Path(__file__).resolve().parents[1] / "python" / "conftest.py"
_spec = importlib.util.spec_from_file_location("ffrecord_python_conftest", _path)
assert _spec is not None and _spec.loader is not None
_python = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_python)
BUILD: Path = _python.BUILD
sys.path.append(str(_path.parent))  # For the daemon, cluster and object store of those tests.
