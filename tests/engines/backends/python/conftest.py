"""The stage that the Python backend's tests play on."""

from collections.abc import Iterator

import pytest

from tests.engines.instances.stage import Stage


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    created = Stage()
    yield created
    created.close()
