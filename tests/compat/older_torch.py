"""Run the loader's tests beside the `torch.utils.data` of older releases of torch.

The package index has torch 2.4 to 2.6 for Linux with CUDA only, gigabytes each. What the loader
stands on is `torch.utils.data`, which is Python and the same for every system: it is taken out of
the wheel for another system (66 MB) and put before that of the torch that is installed. A test that
runs Python with warnings as errors is left out: older releases call what the newer core deprecates.

    tests/compat/older_torch                 2.4.1 and 2.6.0
    tests/compat/older_torch 2.5.1 -- -k order
"""

import argparse
import os
import pathlib
import subprocess
import sys
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
SITE = pathlib.Path(__file__).resolve().parent / "site"
RELEASES = ("2.4.1", "2.6.0")
SYSTEM = ("--platform", "macosx_11_0_arm64", "--python-version", "311")
PATTERNS = (
    "test_torch.py",
    "test_loader*.py",
    "test_sampler.py",
    "test_views.py",
    "test_upstream.py",
    "test_decode.py",
    "test_token_blocks.py",
    "test_read_ahead.py",
    "test_checkpoint_training.py",
)
LEFT_OUT = "test_an_interpreter_that_exits_while_batches_are_loaded_ends_quietly"


def fetched(release: str) -> pathlib.Path:
    """Return a folder with `torch/utils/data` of `release`, fetched from the index if need be."""
    folder = ROOT / "build" / "older-torch" / release
    if not (folder / "torch" / "utils" / "data" / "__init__.py").exists():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += [*SYSTEM, "--dest", str(folder), f"torch=={release}"]
        subprocess.run(command, check=True)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.startswith("torch/utils/data/")]
            archive.extractall(folder, names)
        wheel.unlink()
    return folder


def passes(release: str, options: list[str]) -> bool:
    """Run the tests beside `release`."""
    print(f"torch.utils.data of {release}:", flush=True)
    environment = os.environ | {
        "FFRECORD_OLDER_TORCH": str(fetched(release)),
        "PYTHONPATH": str(SITE),
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "FFRECORD_TEST_INSTALLED": "1",
    }
    folder = ROOT / "tests" / "python"
    files = sorted(str(file) for pattern in PATTERNS for file in folder.glob(pattern))
    chosen = f"not {LEFT_OUT}"
    command = [sys.executable, "-m", "pytest", "-q", "-k", chosen, *options, *files]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def main() -> int:
    """Run every release; exit 1 if a test failed beside one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("releases", nargs="*", default=list(RELEASES), help="of torch")
    ours, separator, options = sys.argv[1:], "--", []
    if separator in ours:
        place = ours.index(separator)
        ours, options = ours[:place], ours[place + 1 :]
    verdicts = [passes(release, options) for release in parser.parse_args(ours).releases]
    return 0 if all(verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
