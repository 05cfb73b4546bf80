"""Starts the commands. Apart from the package, whose import is what takes time."""

import importlib
import signal


def ffrecord() -> int:
    """Run `ffrecord`; return the exit code."""
    return _run("ffrecord._cli.main")


def ffrecord_pack() -> int:
    """Run `ffrecord-pack`; return the exit code."""
    return _run("ffrecord._cli.pack")


def _run(module: str) -> int:
    """Import and run a command. Until it runs, Ctrl-C ends the process without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    main = importlib.import_module(module).main
    signal.signal(signal.SIGINT, handler)
    return int(main())
