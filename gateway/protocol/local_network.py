"""macOS 15's Local Network privacy, as a program meets it: a connect to the own network ends with EHOSTUNREACH at once.

Source: Apple TN3179, "Understanding local network privacy": user agents and their children need the user's consent;
daemons of root, and what is started from Terminal or over ssh, do not. Loopback and the Internet are not affected.
"""

from __future__ import annotations

from ipaddress import ip_address

# EHOSTUNREACH of macOS (XNU, bsd/sys/errno.h); on Linux it is 113, and has no such cause.
_NO_ROUTE = 65

HINT = (
    "Local Network access is not allowed for this program: System Settings > Privacy & Security > Local Network, "
    "or run as a LaunchDaemon"
)


def local_network_hint(error: BaseException, host: str, platform: str) -> str:
    """What to do about a failed connect to `host` where Local Network privacy may be the cause; else "".

    `platform` is sys.platform. Several addresses of one name fail as one OSError without an errno: its text has theirs.
    """
    if platform != "darwin" or not isinstance(error, OSError) or not _may_be_local(host):
        return ""
    return HINT if error.errno == _NO_ROUTE or f"[Errno {_NO_ROUTE}]" in str(error) else ""


def _may_be_local(host: str) -> bool:
    """A private or link-local address, or a name other than this machine's own."""
    try:
        address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        name = host.rstrip(".").lower()
        return name != "localhost" and not name.endswith(".localhost")
    return (address.is_private or address.is_link_local) and not (address.is_loopback or address.is_unspecified)
