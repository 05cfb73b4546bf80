"""Goal: what the README shows works.

Method: its Python blocks run one after another, as one program, in an empty folder.
"""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_examples_of_the_readme_run(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    program = tmp_path / "readme.py"
    program.write_text("\n".join(blocks))

    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False, cwd=tmp_path
    )

    assert len(blocks) >= 3
    assert done.returncode == 0, done.stderr
    assert "[7 2 7]" in done.stdout
