"""File descriptor limits of the programs that tests start: low, as in a shell on macOS."""

import contextlib
import resource
from collections.abc import Iterator

# The soft limit of a shell on macOS (launchctl limit maxfiles).
MAC_SOFT_LIMIT = 256


@contextlib.contextmanager
def soft_limit(number: int) -> Iterator[None]:
    """Processes started inside may open this many files, unless they raise the limit: the hard limit stays."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
