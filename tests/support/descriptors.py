"""File descriptors of the programs that tests start: few of them, as in a shell on macOS."""

import contextlib
import resource
from collections.abc import Iterator

# The soft limit of a shell on macOS (launchctl limit maxfiles).
MAC_SOFT_LIMIT = 256


@contextlib.contextmanager
def soft_limit(number: int) -> Iterator[None]:
    """What is started meanwhile may open so many, unless it raises the limit: the hard one stays."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
