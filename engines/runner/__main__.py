"""`python -m engines.runner LIFELINE LIMIT INCOMING,OUTGOING,RECEIVED,SENT...`: the host starts it.

A model's virtual environment need not contain what this package imports: the host's packages are appended to the path,
behind the model's own.
"""

from __future__ import annotations

import os
import sys

HOST_PACKAGES = "POINTSMAN_HOST_PACKAGES"

for directory in os.environ.get(HOST_PACKAGES, "").split(os.pathsep):
    if directory and directory not in sys.path:
        sys.path.append(directory)

from engines.runner.process import run  # noqa: E402  imported from the path above


def main(arguments: list[str]) -> int:
    lifeline, limit_bytes, *channels = arguments
    return run(int(lifeline), int(limit_bytes), [[*map(int, channel.split(","))] for channel in channels])


if __name__ == "__main__":
    arguments = sys.argv[1:]
    sys.argv[:] = [""]  # as a model sees it in Triton: `unittest.main` parses it
    sys.exit(main(arguments))
