"""The built package for these tests too: see tests/python/conftest.py."""

import importlib.util
from pathlib import Path

_path = Path(__file__).resolve().parents[1] / "python" / "conftest.py"
_spec = importlib.util.spec_from_file_location("ffrecord_python_conftest", _path)
assert _spec is not None and _spec.loader is not None
_spec.loader.exec_module(importlib.util.module_from_spec(_spec))
