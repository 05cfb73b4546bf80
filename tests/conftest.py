"""What tests in Python share, whatever folder they lie in."""

import os
import random

import pytest


@pytest.fixture(scope="session")
def seed() -> int:
    """Of random tests: FFRECORD_TEST_SEED if it is set, else a fresh one; printed."""
    value = int(os.environ.get("FFRECORD_TEST_SEED", random.randrange(2**32)))
    print(f"FFRECORD_TEST_SEED={value}")
    return value
