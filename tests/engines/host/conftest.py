"""Fixtures of the host's tests."""

import logging
from collections.abc import Iterator

import pytest

from engines.host.logs import LOGGER


@pytest.fixture
def restored_logs() -> Iterator[None]:
    """Remove the log handlers that a test installs."""
    logger = logging.getLogger(LOGGER)
    before = (list(logger.handlers), logger.level, logger.propagate)
    yield
    for handler in logger.handlers:
        if handler not in before[0]:
            handler.close()
    logger.handlers[:], logger.propagate = before[0], before[2]
    logger.setLevel(before[1])
