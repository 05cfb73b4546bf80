"""Which optional features this build and this machine have, and how to get the others."""

import importlib.metadata
import os
import pathlib
import re
import shutil
import sys

from ffrecord import _ffrecord

# The packages that are optional: a name for people, the distribution, how to install it.
_PACKAGES = (
    ("PyTorch loader", "torch", "torch"),
    ("Pillow images", "pillow", "images"),
    ("Parquet, TFRecord", "pyarrow", "convert"),
    ("fsspec file systems", "fsspec", "fsspec"),
)


def daemon_program() -> str | None:
    """The path of `ffrecordd`: beside this interpreter, or else in PATH."""
    beside = pathlib.Path(sys.executable).with_name("ffrecordd")
    return str(beside) if os.access(beside, os.X_OK) else shutil.which("ffrecordd")


def absences() -> dict[str, str]:
    """Each optional feature by name, and why it is absent, with the remedy; empty if present."""
    engine, reason = _ffrecord.probe_io_engine()
    why_no_rdma, _ = _ffrecord.probe_rdma()
    found = {
        "io_uring": "" if engine == "io_uring" else reason,
        "RDMA": why_no_rdma,
        "TLS": _ffrecord.why_no_tls(),
        "object stores": _ffrecord.why_no_object_stores(),
        "JPEG decoder": ""
        if _ffrecord.has_jpeg
        else "this build has no JPEG decoder: install libjpeg62-turbo-dev, then configure with "
        "-Djpeg=enabled",
        "daemon": ""
        if daemon_program()
        else "ffrecordd is not installed: install the wheel, or build with -Dserver=enabled",
    }
    for name, package, extra in _PACKAGES:
        found[name] = _absence(package, extra)
    return found


def _absence(package: str, extra: str) -> str:
    """Why a package cannot be used; empty if it can."""
    try:
        version = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return f"run pip install {_how(package, extra)}"
    oldest = _oldest(package)
    if _numbers(version) >= _numbers(oldest):
        return ""
    return (
        f"{package} {version} is too old, {oldest} or newer is needed: run pip install -U"
        f" 'ffrecord[{extra}]'"
    )


def _oldest(package: str) -> str:
    """The lower bound that this package declares; empty if it is not installed as one."""
    try:
        declared = importlib.metadata.requires("ffrecord") or []
    except importlib.metadata.PackageNotFoundError:
        return ""
    bounds = [re.match(rf"{package}>=([\w.]+)", line) for line in declared]
    return next((bound[1] for bound in bounds if bound), "")


def _numbers(version: str) -> list[int]:
    """The numbers by which versions are compared: 10.0.1 is after 9.5."""
    return [int(number) for number in re.findall(r"\d+", version.partition("+")[0])[:3]]


def _how(package: str, extra: str) -> str:
    return package if package == extra else f"'ffrecord[{extra}]'"
