"""The stage that this package's tests play on, and those of the Python backend."""

from collections.abc import Iterator

import pytest

from tests.engines.instances.stage import Stage


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    created = Stage()
    yield created
    created.close()
