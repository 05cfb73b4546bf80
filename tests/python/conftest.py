"""Puts the built package in front of the tests and of every process that they start.

The extension comes from the Meson build folder (FFRECORD_BUILD_DIR, or `build` in the source
tree), the Python files from the source tree; where there is no build, or FFRECORD_TEST_INSTALLED
is set, the installed package is tested.
"""

import multiprocessing
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from going_back import Runs
    from object_store import Store

# A busy machine is no failure; a failing example is printed so that it can be run again. Where the
# seed is given, so are the examples.
settings.register_profile(
    "ffrecord",
    deadline=None,
    print_blob=True,
    derandomize="FFRECORD_TEST_SEED" in os.environ,
)
settings.load_profile("ffrecord")

# Processes that tests start are forked from one that has imported these, for torch alone takes
# seconds. There is one list for all of them: another call would replace it. No module of this
# folder, for Python 3.11 does not find it there.
multiprocessing.set_forkserver_preload(
    [
        "ffrecord.checkpoint",
        "ffrecord.torch",
        # What DTensor and the optimizers import when they are first used.
        "torch.distributed.checkpoint",
        "torch.distributed.tensor",
        "torch._dynamo",
    ]
)

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FFRECORD_BUILD_DIR", ROOT / "build"))


def stage(build: Path) -> Path | None:
    """Links sources and extension into one importable folder of the build."""
    extensions = sorted((build / "python" / "src").glob("_ffrecord.*.so"))
    if not extensions or os.environ.get("FFRECORD_TEST_INSTALLED"):
        return None
    package = build / "python" / "stage" / "ffrecord"
    package.mkdir(parents=True, exist_ok=True)
    sources = [p for p in (ROOT / "python" / "ffrecord").iterdir() if p.name != "__pycache__"]
    wanted = {source.name: source for source in [*sources, *extensions]}
    for link in package.iterdir():
        if link.name != "__pycache__" and wanted.get(link.name) != link.resolve():
            link.unlink()
    for name, source in wanted.items():
        if not (package / name).exists():
            (package / name).symlink_to(source)
    return package.parent


if (staged := stage(BUILD)) is not None:
    sys.path.insert(0, str(staged))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(staged), *filter(None, [os.environ.get("PYTHONPATH")])]
    )


@pytest.fixture(scope="session")
def data() -> Path:
    """Golden files and their manifests."""
    return ROOT / "tests" / "data"


@pytest.fixture(scope="module")
def store() -> Iterator["Store"]:
    """An S3-compatible store in this process, and the AWS variables that lead to it."""
    from object_store import serve

    yield from serve()


@pytest.fixture
def runs(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator["Runs"]:
    """Addresses of runs at a kind of target, by name; `going_back.every_kind` gives the kinds."""
    from going_back import runs_of

    yield from runs_of(request, tmp_path)


@pytest.fixture
def run(runs: "Runs") -> str:
    """The address of one run."""
    return runs("run")
