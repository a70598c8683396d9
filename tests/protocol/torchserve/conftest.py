"""One real TorchServe for the tests of its translation; it asks for a token, as TorchServe does by default."""

from collections.abc import Iterator

import pytest

from tests.support.outsiders import NotHereError
from tests.support.torchserve import TorchServe


@pytest.fixture(scope="session")
def torchserve() -> Iterator[TorchServe]:
    try:
        server = TorchServe.start(token_auth=True)
    except NotHereError as error:
        pytest.skip(str(error))
    with server:
        yield server.wait_ready()
