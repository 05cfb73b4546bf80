"""Run a model of the product for a time; return the shortest program that shows a difference.

A model is a module of this folder that sets `MODEL`, a Hypothesis state machine. Its rules are what
users do, its invariants what was promised to them. The machine holds the truth as plain values, and
compares every answer of the product with it.
"""

import dataclasses
import importlib
import pathlib
import random
import re
import sys
import time
from typing import Any

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

import conftest  # noqa: F401  (puts the built package in front)

FOLDER = pathlib.Path(__file__).resolve().parent
# One run of Hypothesis remembers all that it has tried; the next run begins with a new seed.
EXAMPLES_PER_RUN = 200
STEPS_PER_EXAMPLE = 25


INTERRUPTS = (KeyboardInterrupt, SystemExit)


class TimeIsUpError(KeyboardInterrupt):
    """Ends Hypothesis from inside: it treats nothing but an interrupt as no result."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """A difference between a model and the product."""

    model: str
    seed: int  # Of the run that found it; the same seed repeats it.
    seconds: float  # Until it was first seen, without the time to shrink it.
    program: str  # A few lines that show it.
    error: str

    def __str__(self) -> str:
        """Say it as one text for people."""
        return (
            f"model {self.model}, seed {self.seed}: found after {self.seconds:.0f} s\n"
            f"{self.program}\n# {self.error.replace(chr(10), chr(10) + '# ')}"
        )


def names() -> list[str]:
    """Return the names of all models."""
    marked = re.compile(r"^MODEL\b", re.MULTILINE)
    return sorted(path.stem for path in FOLDER.glob("*.py") if marked.search(path.read_text()))


def load(name: str) -> type[RuleBasedStateMachine]:
    """Return the state machine of a model."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    machine: type[RuleBasedStateMachine] = importlib.import_module(name).MODEL
    return machine


class Watch:
    """The time that a run has, and the first failure that it sees."""

    def __init__(self, seconds: float) -> None:
        """Begin to count."""
        self.start = time.monotonic()
        self.end = self.start + seconds
        self.found_s: float | None = None
        self.first_text = ""  # What happens at real processes need not happen again.

    def time_is_up(self) -> bool:
        """Whether no other example may begin. A failure is shrunk first."""
        return self.found_s is None and time.monotonic() >= self.end

    def note(self, error: BaseException | None) -> None:
        """Take the exception that ends an example."""
        # torch has errors that are no Exceptions.
        of_hypothesis = type(error).__module__.startswith("hypothesis")
        ours = error is not None and not of_hypothesis and not isinstance(error, INTERRUPTS)
        if ours and error is not None and self.found_s is None:
            self.found_s = time.monotonic() - self.start
            self.first_text = said(error)


def watched(machine: type[RuleBasedStateMachine], watch: Watch) -> type[RuleBasedStateMachine]:
    """Return the machine as one that ends with its time."""

    class Watched(machine):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            if watch.time_is_up():
                raise TimeIsUpError
            super().__init__()

        def teardown(self) -> None:
            watch.note(sys.exc_info()[1])
            super().teardown()

    Watched.__name__ = Watched.__qualname__ = machine.__name__  # For the program.
    return Watched


def program_of(name: str, machine: type[Any], error: BaseException) -> str:
    """Return what Hypothesis says of a failure, as a program that can be run."""
    said = "\n".join(getattr(error, "__notes__", ()))
    _, begin, steps = said.partition("state = ")
    lines = (begin + steps if begin else "# Hypothesis has no program; use the seed").splitlines()
    return "\n".join(
        [
            "import sys; sys.path.insert(0, 'tests/models')",
            f"from {name} import *",
            *lines,
        ]
    )


def said(error: BaseException) -> str:
    """Return the text of an error; of a failure that comes and goes, each that was seen."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, BaseExceptionGroup):
        return "\n".join([text, *map(said, error.exceptions)])
    return "\n".join([text, *getattr(error, "journal", ())])


def explore(name: str, seconds: float, first_seed: int) -> Finding | None:
    """Run a model for `seconds`, with seeds from `first_seed` on, until it fails.

    The time to shrink a failure comes on top: some minutes at most.
    """
    machine = load(name)
    watch = Watch(seconds)
    # At real processes a shorter program may do something else: its journal says what happened.
    shrinks = getattr(machine, "SHRINKS", True)
    one_run = settings(
        max_examples=EXAMPLES_PER_RUN,
        stateful_step_count=getattr(machine, "STEPS", STEPS_PER_EXAMPLE),
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    current = first_seed
    while not watch.time_is_up():
        tried = seed(current)(watched(machine, watch))
        try:
            run_state_machine_as_test(tried, settings=one_run)
        except TimeIsUpError:
            break
        except INTERRUPTS:
            raise
        except Flaky as error:
            # Two runs of one program have differed, and neither of them has failed.
            if watch.found_s is None:
                current += 1
                continue
            text = f"{said(error)}\nseen first: {watch.first_text}"
            return Finding(name, current, watch.found_s, program_of(name, machine, error), text)
        except BaseException as error:  # Whatever it is: the model or the product is wrong.
            text = said(error)
            found = watch.found_s if watch.found_s is not None else time.monotonic() - watch.start
            return Finding(name, current, found, program_of(name, machine, error), text)
        current += 1
    return None


def fresh_seed() -> int:
    """Return a seed that nobody has chosen."""
    return random.SystemRandom().randrange(2**31)
