"""The fixture under which programs start as on a Mac."""

import sys
from collections.abc import Iterator

import pytest

from tests.macos.environment import mac


@pytest.fixture
def on_a_mac() -> Iterator[None]:
    """Programs started in this test find the environment of a Mac."""
    if sys.platform != "linux":
        pytest.skip("takes from Linux what macOS has not")
    with mac():
        yield
