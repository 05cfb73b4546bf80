"""Pages as a browser shows them."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def shown(url: str, folder: Path, size: str = "800x600") -> str:
    """The page in a window of this size, once its scripts have run for three seconds.

    Skips the test without a browser.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-headless-shell")
    if browser is None:
        pytest.skip("no chromium here: apt install chromium-headless-shell")
    done = subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder / 'browser'}",
            "--virtual-time-budget=3000",
            f"--window-size={size.replace('x', ',')}",
            "--dump-dom",
            url,
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, "HOME": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
