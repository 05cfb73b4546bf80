"""The environment of the arms: peers from the package index, apart from the project's own."""

import compileall
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys

import harness

_TORCH = "torch==2.13.0"
_PINS = pathlib.Path(__file__).resolve().parent.parent / "peers.txt"
# The index has its source only, which wants these two of the system, libopencv-dev and
# libturbojpeg0-dev: where they are not installed its arms are not run.
_COMPILED = "ffcv==1.0.2"
_COMPILED_WITH = ("opencv4", "libturbojpeg")
_INSTALL_S = 900


def install(scratch: pathlib.Path) -> pathlib.Path:
    """Make the environment, or take the one of the last run; return its Python."""
    home = scratch / "peers"
    python = home / "bin" / "python"
    stamp = home / "pins.sha256"
    pins = [_TORCH, *([_COMPILED] if _can_compile() else [])]
    digest = hashlib.sha256(_PINS.read_bytes() + " ".join(pins).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == digest:
        return python
    shutil.rmtree(home, ignore_errors=True)
    print("installing peers from the package index", file=sys.stderr)
    _run(sys.executable, "-m", "venv", str(home))
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _run(*pip, _TORCH)
    _run(*pip, "--no-deps", "-r", str(_PINS))
    if pins[1:]:
        _run(*pip, "--no-deps", *pins[1:])
    stamp.write_text(digest)
    return python


def _can_compile() -> bool:
    if shutil.which("pkg-config") is None:
        return False
    words = ["pkg-config", "--exists", *_COMPILED_WITH]
    return subprocess.run(words, check=False).returncode == 0


def variables(scratch: pathlib.Path) -> dict[str, str]:
    """The environment variables of an arm: our package, and nothing else of our environment."""
    import ffrecord

    own = scratch / "own"
    own.mkdir(exist_ok=True)
    package = pathlib.Path(ffrecord.__file__).parent
    # As pip does with what it installs, the peers too: else each start may have to compile it.
    compileall.compile_dir(package, quiet=1)
    for link, target in (("ffrecord", package), (".ffrecord.mesonpy.libs", None)):
        (own / link).unlink(missing_ok=True)
        found = target or package.parent / link
        if found.exists():
            (own / link).symlink_to(found)
    return {
        **os.environ,
        "PYTHONPATH": str(own),
        "PYTHONWARNINGS": "ignore",
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }


def _run(*command: str) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_INSTALL_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise harness.Unable(f"{' '.join(command[:5])}: not done after {_INSTALL_S} s") from None
    if done.returncode:
        raise harness.Unable(f"{' '.join(command[:5])}: {done.stderr.strip()[-500:]}")
