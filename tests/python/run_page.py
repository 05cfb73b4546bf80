"""Run the code blocks of a page of docs in the folder that this is started in.

    python run_page.py PAGE

Blocks run in their order: `python` in one namespace, `sh` in a shell each. A block with a title is
written to a file of that name. A line `print(...)  # text` has to print that text. Blocks in other
languages (`py`, `shell`, `text`) only show something. Exits with status 1 at the first block that
fails, and says which; ends whatever the blocks have left running in the background.
"""

import contextlib
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import traceback

BLOCK = re.compile(r"^```(\w+)(?: title=\"([\w.]+)\")?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROMISE = re.compile(r"^\s*print\(.*\)\s+# (.*)$", re.MULTILINE)


def run_python(code: str, place: str, namespace: dict[str, object]) -> None:
    """Run one block; compare what it prints with what its comments say."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, place, "exec"), namespace)
    lines = iter(printed.getvalue().splitlines())
    for promise in PROMISE.findall(code):
        if promise.strip() not in lines:  # Looks on from the line that kept the last one.
            raise AssertionError(f"nothing printed {promise!r}, but\n{printed.getvalue()}")


def run_shell(code: str) -> None:
    """Run one block as its reader would, with errors fatal."""
    with open("output.txt", "w+") as output:  # A pipe would wait for what goes on in background.
        done = subprocess.run(
            ["bash", "-euc", code],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            check=False,
        )
        output.seek(0)
        if done.returncode:
            raise AssertionError(f"exit status {done.returncode}:\n{code}\n{output.read()}")


def run_page(page: pathlib.Path) -> int:
    """Run all blocks of a page. Return the exit status."""
    text = page.read_text()
    namespace: dict[str, object] = {"__name__": "__main__"}
    for found in BLOCK.finditer(text):
        language, title, code = found.groups()
        place = f"{page.name}:{text.count(chr(10), 0, found.start()) + 1}"
        try:
            if title:
                pathlib.Path(title).write_text(code)
            elif language == "python":
                run_python(code, place, namespace)
            elif language == "sh":
                run_shell(code)
        except BaseException:
            print(f"the block at {place} fails:", file=sys.stderr)
            traceback.print_exc()
            return 1
    return 0


if __name__ == "__main__":
    status = run_page(pathlib.Path(sys.argv[1]).resolve())
    sys.stdout.flush()
    sys.stderr.flush()
    if os.getpgrp() == os.getpid():  # Started with a group of its own: nobody else is in it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(os.getpgrp(), signal.SIGTERM)
    sys.exit(status)
