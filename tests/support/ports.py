"""Ports for servers that cannot choose one themselves, or cannot tell which."""

from gateway.supervision.ports import WORKERS_BIND, ReservedPort

_HELD: list[ReservedPort] = []


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens, kept for whom it is meant until this process ends.

    A port that is only found to be free and let go may be the local end of somebody's connection by the time its server
    binds it: tests in other processes open thousands. One that is held a server can bind, since servers say
    SO_REUSEADDR. macOS has no such thing; there it is let go.
    """
    reserved = ReservedPort("127.0.0.1", 0, "")
    if WORKERS_BIND:
        _HELD.append(reserved)
    else:
        reserved.close()
    return reserved.port
