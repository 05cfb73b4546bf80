"""What tests in Python share, whatever folder they lie in."""

import os
import random

import pytest

# Markers of tests that tools/test does not run again when they fail.
FAULTS = ("wrong_data", "leak")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --times N, which runs each test N times."""
    parser.addoption("--times", type=int, default=1, help="how often to run each test")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make N tests of one."""
    times = metafunc.config.getoption("--times")
    if times > 1:
        metafunc.fixturenames.append("time_of_many")
        metafunc.parametrize("time_of_many", range(times))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let reports say how a test is run alone, and what its failure means."""
    for item in items:
        item.user_properties.append(("test", item.nodeid))
        marked = [name for name in FAULTS if item.get_closest_marker(name)]
        item.user_properties += [("fault", name) for name in marked[:1]]


@pytest.fixture(scope="session")
def seed() -> int:
    """Of random tests: FFRECORD_TEST_SEED if it is set, else a fresh one; printed."""
    value = int(os.environ.get("FFRECORD_TEST_SEED", random.randrange(2**32)))
    print(f"FFRECORD_TEST_SEED={value}")
    return value
