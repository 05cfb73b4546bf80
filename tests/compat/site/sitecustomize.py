"""Put the `torch.utils.data` of another release before that of the torch that is installed.

Python imports this when it starts, in every process of a test, if its folder is in PYTHONPATH.
FFRECORD_OLDER_TORCH is a folder that holds `torch/utils/data` of that release.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import types
from collections.abc import Sequence

PACKAGE = "torch.utils.data"
OLDER = pathlib.Path(os.environ["FFRECORD_OLDER_TORCH"])


class Older(importlib.abc.MetaPathFinder):
    """Finds the modules of the package in the other release."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Tell where `name` is, if it is the package or in it."""
        if name != PACKAGE and not name.startswith(PACKAGE + "."):
            return None
        place = OLDER.joinpath(*name.split("."))
        if place.is_dir():
            return importlib.util.spec_from_file_location(
                name, place / "__init__.py", submodule_search_locations=[str(place)]
            )
        return importlib.util.spec_from_file_location(name, place.with_suffix(".py"))


# Releases before 2.6 cannot be imported from within torch's own first import: that has its way, and
# what it imported of the package is let go.
importlib.import_module("torch")
for module in [name for name in sys.modules if name == PACKAGE or name.startswith(PACKAGE + ".")]:
    del sys.modules[module]
sys.meta_path.insert(0, Older())
importlib.import_module(PACKAGE)
