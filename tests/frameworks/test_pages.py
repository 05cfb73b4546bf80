"""Goal: the pages on frameworks work as their readers use them, with torchrun.

Method: all their commands are run; tests/python/test_docs.py, which is quick, runs their Python.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tutorial import ROOT, framework

PAGES = {
    "accelerate.md": "accelerate",
    "lightning.md": "pytorch_lightning",
    "huggingface-trainer.md": "transformers",
    "torchdata.md": "torchdata",
    "huggingface-datasets.md": "datasets",
    "grain.md": "grain",
}


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    framework(PAGES[page])
    text = (ROOT / "docs" / "tutorials" / page).read_text()
    (tmp_path / page).write_text(text.replace("```shell\n", "```sh\n"))

    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "python" / "run_page.py", tmp_path / page],
        cwd=tmp_path,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        timeout=600,
    )

    assert done.returncode == 0, done.stderr
