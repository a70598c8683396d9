"""The fixture that has programs start as on a Mac."""

import sys
from collections.abc import Iterator

import pytest

from tests.macos.environment import mac


@pytest.fixture
def on_a_mac() -> Iterator[None]:
    """What is started in this test finds what a Mac has, and nothing else."""
    if sys.platform != "linux":
        pytest.skip("takes from Linux what macOS has not")
    with mac():
        yield
