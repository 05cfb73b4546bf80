"""Each model of the product for half a minute, with seeds that are always the same.

Goal: what holds on one path holds on all. Method: `driver.explore`. FFRECORD_MODEL_SECONDS sets
another time; tests/models/campaign looks for hours, with fresh seeds.
"""

import os

import pytest

import driver

pytestmark = pytest.mark.wrong_data

SECONDS = float(os.environ.get("FFRECORD_MODEL_SECONDS", "30"))


@pytest.mark.parametrize("name", driver.names())
def test_the_product_agrees_with_its_model(name: str, seed: int) -> None:
    finding = driver.explore(name, SECONDS, seed)

    assert finding is None, str(finding)
