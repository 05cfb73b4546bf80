"""Which rooms a change touches, and which tests are theirs.

The first row that a path begins like is its room.
"""

import dataclasses
import fnmatch
import pathlib
import subprocess
from collections.abc import Iterable, Sequence


@dataclasses.dataclass(frozen=True)
class Room:
    """Folders or files, as far as they begin so, and the tests to run when one of them changes."""

    paths: tuple[str, ...]
    suites: tuple[str, ...] = ()  # Suites of Meson.
    python: tuple[str, ...] = ()  # Names below tests/python, as patterns.


READING = ("test_reader*.py", "test_writer.py", "test_v1_files.py", "test_views.py")
DAEMON = ("test_daemon.py", "test_service.py", "test_admin.py", "test_tls.py", "test_config.py")
COLLECTIVE = (
    *("test_backend*.py", "test_comm_hook.py", "test_net_check.py"),
    *("test_overlap*.py", "test_fsdp.py", "test_tuner.py"),
)
ROOMS = (
    Room(("libffrecord/base/", "tests/unit/base/"), ("base",), ("test_permutation.py",)),
    Room(("libffrecord/pace/", "tests/unit/pace/"), ("pace", "client"), ("test_pacing.py",)),
    Room(("libffrecord/format/", "tests/unit/format/"), ("format", "record"), READING),
    Room(("libffrecord/io/", "tests/unit/io/"), ("io", "record"), READING),
    Room(("libffrecord/decode/", "tests/unit/decode/"), ("decode",), ("test_decode*.py",)),
    Room(
        ("libffrecord/source/", "libffrecord/record/", "tests/unit/record/"), ("record",), READING
    ),
    Room(("capi/", "tests/capi/"), ("capi",)),
    Room(
        ("libffrecord/object_store/", "libffrecord/net/http/", "tests/unit/object_store/"),
        ("object_store",),
        (
            *("test_archive.py", "test_checkpoint_store*.py", "test_checkpoint_staged*.py"),
            "test_objects*.py",
        ),
    ),
    Room(("libffrecord/net/", "tests/unit/net/"), ("net", "client"), ("test_daemon.py",)),
    Room(("server/cluster/", "tests/cluster/"), ("server", "cluster")),
    Room(("server/metadata/",), ("server", "cluster"), DAEMON),
    Room(("server/", "tests/unit/server/"), ("server",), DAEMON),
    Room(("client/checkpoint/",), ("client",), ("test_checkpoint*.py",)),
    Room(("client/collective/", "tests/collective/"), ("client", "collective"), COLLECTIVE),
    Room(("client/dataset/", "client/rdma_probe.cpp"), ("client",), ("test_daemon.py",)),
    Room(("tests/unit/client/",), ("client",)),
    Room(("python/ffrecord/checkpoint/",), python=("test_checkpoint*.py",)),
    Room(("python/ffrecord/pack/",), python=("test_pack*.py",)),
    Room(("python/ffrecord/_cli/", "python/ffrecord_commands.py"), python=("test_cli*.py",)),
    Room(("python/ffrecord/topology/",), python=("test_topology.py", "test_tuner.py")),
    Room(("python/ffrecord/decode/",), python=("test_decode*.py",)),
    Room(
        ("python/ffrecord/torch/",),
        python=(
            *("test_loader*.py", "test_torch.py", "test_sampler.py", "test_resharding.py"),
            *("test_lent_memory.py", "test_shared_memory.py"),
            *("test_read_ahead.py", "test_checkpoint_dcp.py", "test_checkpoint_t*.py"),
        ),
    ),
    Room(("python/ffrecord/distributed/",), python=COLLECTIVE),
    Room(
        ("python/ffrecord/_integrations/",),
        python=("test_fsspec*.py", "test_tensorflow_batches.py"),
    ),
    Room(
        ("python/ffrecord/_store/",),
        python=(
            *("test_archive.py", "test_catalogue*.py", "test_evicting.py"),
            *("test_daemon.py", "test_service.py"),
        ),
    ),
    Room(
        ("python/ffrecord/_write/",), python=("test_writer.py", "test_repair*.py", "test_tables.py")
    ),
    Room(
        ("python/ffrecord/",),
        python=(
            *(*READING, "test_upstream.py", "test_keys_and_columns.py", "test_prefetch.py"),
            *("test_token_blocks.py", "test_evicting.py", "test_archive.py"),
        ),
    ),
    Room(
        ("python/src/",),
        python=(*READING, "test_stub.py", "test_time_limits.py", "test_decode*.py"),
    ),
    Room(
        ("docs/", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"),
        python=("test_docs.py", "test_readme.py"),
    ),
    Room(("tools/", "benchmarks/", "tests/style/"), python=("test_tools.py",)),
    Room(("tests/models/",)),
    Room(("tests/conformance/", "tests/fuzz/", "tests/crash/", "tests/chaos/", "tests/rdma/")),
    Room(
        (
            "tests/data/",
            "tests/unsteady.md",
            "tests/compat/",
            "tests/soak/",
            ".ci/",
            "SECURITY.md",
            "LICENSE",
        )
    ),
)


@dataclasses.dataclass
class Selection:
    """The tests to run: suites of Meson, and files below tests/python by name. Or all there is."""

    suites: set[str] = dataclasses.field(default_factory=set)
    python: set[str] = dataclasses.field(default_factory=set)
    everything: bool = False


def git(root: pathlib.Path, *words: str) -> list[str]:
    """The output of a git list, by names that end in a NUL."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def changed(root: pathlib.Path, base: str = "main") -> list[str]:
    """Paths that differ from where this branch left `base`, with those git does not know yet."""
    differ = git(root, "diff", "-z", "--name-only", "--merge-base", base)
    unknown = git(root, "ls-files", "-z", "--others", "--exclude-standard")
    return sorted({*differ, *unknown})


def select(paths: Iterable[str], python_tests: Sequence[str]) -> Selection:
    """Return the tests of the rooms that the paths are of. A path of no room is of all of them."""
    selection = Selection()
    for path in paths:
        folder, _, name = path.rpartition("/")
        if folder == "tests/python" and name in python_tests:
            selection.python.add(name)
            continue
        room = next((room for room in ROOMS if path.startswith(room.paths)), None)
        if room is None:
            return Selection(everything=True)
        selection.suites.update(room.suites)
        for pattern in room.python:
            selection.python.update(fnmatch.filter(python_tests, pattern))
    return selection
