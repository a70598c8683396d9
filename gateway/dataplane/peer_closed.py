"""Whether the other side has gone, of a connection that is not being read: the event loop tells only those who read."""

from __future__ import annotations

import asyncio
import select

# Linux has a flag of its own for a side that sends no more; POLLHUP and POLLERR are told everywhere.
_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


def has_hung_up(transport: asyncio.Transport) -> bool:
    """Ask the kernel. What the other side sent last may still wait to be read."""
    connection = transport.get_extra_info("socket")
    if connection is None or connection.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(connection.fileno(), _GONE)
    return bool(poll.poll(0))
