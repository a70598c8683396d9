"""Ports for servers that cannot choose one themselves, or cannot report which one they chose."""

from gateway.supervision.ports import WORKERS_BIND, ReservedPort

_HELD: list[ReservedPort] = []


def free_port() -> int:
    """A free port of 127.0.0.1, reserved until this process ends.

    A free port that is released may become the local end of another connection before its server binds it, because
    tests in other processes open thousands. A server can bind a reserved port, since servers set SO_REUSEADDR. macOS
    does not allow that, so there the port is released.
    """
    reserved = ReservedPort("127.0.0.1", 0, "")
    if WORKERS_BIND:
        _HELD.append(reserved)
    else:
        reserved.close()
    return reserved.port
