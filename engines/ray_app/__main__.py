"""A server as the child of a replica: `python -m engines.ray_app host ...`, as `pointsman host`.

It ends with its parent. The parent holds the other end of the standard input, and never writes: where a node, or Ray
on it, kills the replica's process, the input ends, and this process ends at once, so that its GPU is free for another.
"""

from __future__ import annotations

import os
import threading


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)  # its instances end as their connections do


if __name__ == "__main__":
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()

    from engines.cli.app import main

    main()
