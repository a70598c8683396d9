"""`python -m engines.runner LIFELINE LIMIT INCOMING,OUTGOING,RECEIVED,SENT...`: started by the host, never by hand."""

from __future__ import annotations

import os
import sys

from engines.runner.host_packages import add_host_packages

add_host_packages(sys.path, os.environ)

from engines.runner.process import run  # noqa: E402  what it imports is found by the line above


def main(arguments: list[str]) -> int:
    lifeline, limit_bytes, *channels = arguments
    descriptors = []
    for channel in channels:
        incoming, outgoing, received, sent = map(int, channel.split(","))
        descriptors.append((incoming, outgoing, received, sent))
    return run(int(lifeline), int(limit_bytes), descriptors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
