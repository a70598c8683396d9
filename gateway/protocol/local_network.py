"""macOS 15's Local Network privacy, as a program meets it: a connect to the own network ends with EHOSTUNREACH at once.

Source: Apple TN3179, "Understanding local network privacy". Programs need the user's consent, agents of launchd among
them. macOS allows any daemon started by launchd, any program that runs as root, and command-line tools run from
Terminal or over SSH. Loopback and the Internet are not affected.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

# EHOSTUNREACH of macOS (XNU, bsd/sys/errno.h); on Linux it is 113, and has no such cause.
_NO_ROUTE = 65
# As asyncio writes the address of each attempt: [Errno 65] Connect call failed ('10.0.0.7', 80).
_ATTEMPT = re.compile(rf"\[Errno {_NO_ROUTE}\] Connect call failed \('([^']+)'")

HINT = (
    "this program may not be allowed to use the local network (System Settings > Privacy & Security > Local Network; "
    "a LaunchDaemon needs no consent), or the machine is off or unreachable"
)


def local_network_hint(error: BaseException, host: str, platform: str) -> str:
    """What to do about a failed connect to `host` where Local Network privacy may be the cause; else "".

    The errno alone does not tell: a machine that is off has the same. Several addresses of one name fail as one OSError
    without an errno: its text has theirs. An address in the text counts before the name. `platform` is sys.platform.
    """
    if platform != "darwin" or not isinstance(error, OSError):
        return ""
    if error.errno != _NO_ROUTE and f"[Errno {_NO_ROUTE}]" not in str(error):
        return ""
    return HINT if any(map(_is_local, _ATTEMPT.findall(str(error)) or [host])) else ""


def _is_local(host: str) -> bool:
    """A private or link-local address, a name of Bonjour (.local), or one without a domain."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        name = host.rstrip(".").lower()
        return name != "localhost" and ("." not in name or name.endswith(".local"))
    return (address.is_private or address.is_link_local) and not (address.is_loopback or address.is_unspecified)
