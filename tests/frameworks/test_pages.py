"""Goal: the pages on frameworks work as their readers use them, with torchrun.

Method: all their commands are run; tests/python/test_docs.py, which is quick, runs their Python.
"""

from pathlib import Path

import pytest
from tutorial import ROOT, framework, run_page

PAGES = {
    "accelerate.md": "accelerate",
    "lightning.md": "pytorch_lightning",
    "huggingface-trainer.md": "transformers",
    "torchdata.md": "torchdata",
    "huggingface-datasets.md": "datasets",
    "grain.md": "grain",
    "tensorflow.md": "tensorflow",
}


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    framework(PAGES[page])
    text = (ROOT / "docs" / "tutorials" / page).read_text()
    (tmp_path / page).write_text(text.replace("```shell\n", "```sh\n"))

    run_page(tmp_path / page, tmp_path, timeout_s=600, OMP_NUM_THREADS="1")
