"""A connect to one engine of the rules."""

from __future__ import annotations

import socket
import sys
import time
from urllib.parse import urlsplit

from engines.doctor.finding import Finding, fail, ok
from gateway.protocol.local_network import local_network_hint

_PORTS = {"http": 80, "https": 443}
SECONDS = 5.0


def connect(url: str) -> Finding:
    """Whether somebody listens at an endpoint: a TCP connect to each address of its host, until one is made."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 0)
    began = time.perf_counter()
    try:
        with socket.create_connection((host, port), timeout=SECONDS) as made:
            seconds, address = time.perf_counter() - began, made.getpeername()[0]
    except TimeoutError:
        cure = "is it running, and does a firewall between drop the connection?"
        return fail(f"no answer from {host}:{port} within {SECONDS:g} s", cure)
    except (OSError, UnicodeError) as error:
        hint = local_network_hint(error, host, sys.platform)
        return fail(
            f"cannot connect to {host}:{port}: {error}", hint or _cure(error), errno=getattr(error, "errno", None)
        )
    return ok(f"connects to {address} port {port} in {1000 * seconds:.1f} ms", seconds=seconds)


def _cure(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there: start the engine, with --host 0.0.0.0 where it is another machine"
    if isinstance(error, socket.gaierror):
        return "the name is not known here: check it, or write the address"
    return "check the address in the rules, and the network between"
