"""The stage for the tests of this package and of the Python backend."""

from collections.abc import Iterator

import pytest

from tests.engines.instances.stage import Stage


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    created = Stage()
    yield created
    created.close()
