"""One real MLServer for the tests of its dialect."""

from collections.abc import Iterator

import pytest

from tests.support.mlserver import MLServer
from tests.support.outsiders import NotHereError


@pytest.fixture(scope="session")
def mlserver() -> Iterator[MLServer]:
    try:
        server = MLServer.start()
    except NotHereError as error:
        pytest.skip(str(error))
    with server:
        yield server.wait_ready()
