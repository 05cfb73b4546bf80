"""How exact two epochs on two ranks are under each framework, for the benchmark `frameworks`.

The ranks run the scripts of the tutorials, as the tests of tests/frameworks do.
"""

import collections
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile

from inside import RAY_SETTINGS

ROOT = pathlib.Path(__file__).resolve().parents[3]
EPOCHS, RANKS = 2, 2
TIMEOUT_S = 900
# Its page in docs/tutorials, by the package that it needs.
PAGES = {
    "accelerate": "accelerate.md",
    "pytorch_lightning": "lightning.md",
    "transformers": "huggingface-trainer.md",
    "torchdata": "torchdata.md",
    "ray": "ray.md",
}


def exact_epochs(notes: list[str]) -> dict[str, list[float]]:
    """The share of each epoch's records that the ranks saw exactly once: the least of all."""
    shares = {}
    for package, page in PAGES.items():
        if importlib.util.find_spec(package) is None:
            notes.append(f"{package} is not installed: its epochs are left out")
        else:
            shares[package] = share_of(page)
    if not shares:
        return {}
    notes.append(f"exact_epochs: {EPOCHS} epochs on {RANKS} ranks of each of {', '.join(shares)}")
    return {"exact_epochs": [min(shares.values())]}


def share_of(page: str) -> float:
    """Run the page's script, and count."""
    sys.path.append(str(ROOT / "tests" / "frameworks"))
    import tutorial

    with tempfile.TemporaryDirectory() as folder:
        script = tutorial.write_script(page, "train.py", pathlib.Path(folder))
        if page == PAGES["ray"]:
            subprocess.run(
                [sys.executable, script, str(RANKS), "0"],
                cwd=folder,
                env=os.environ | RAY_SETTINGS,
                stdout=subprocess.DEVNULL,
                timeout=TIMEOUT_S,
                check=True,
            )
            by_rank = tutorial.read_printed(script.parent, RANKS)
        else:
            by_rank = tutorial.run(script, RANKS, "0").by_rank
    seen = collections.Counter(
        (epoch, label) for steps in by_rank for epoch, labels in steps for label in labels
    )
    expected = [(epoch, label) for epoch in range(EPOCHS) for label in range(tutorial.RECORDS)]
    return sum(seen[one] == 1 for one in expected) / len(expected)
