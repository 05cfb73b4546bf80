"""Lets mosaicml-streaming be imported without torchvision.

The index has torchvision for torch with CUDA only. streaming needs it for its classes over
pictures, which are not used here, and cannot be imported without.
"""

import sys
import types
from importlib.machinery import ModuleSpec


def install() -> None:
    """Put empty modules where torchvision would be."""
    names = ["torchvision", "torchvision.datasets", "torchvision.transforms"]
    names.append("torchvision.transforms.functional")
    for name in names:
        module = types.ModuleType(name)
        module.__dict__["__path__"] = []
        module.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name] = module
    sys.modules["torchvision.datasets"].__dict__["VisionDataset"] = object
    sys.modules["torchvision.transforms.functional"].__dict__["to_tensor"] = None
