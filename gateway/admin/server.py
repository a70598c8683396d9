"""The server of the admin API, as the control process runs it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any

import uvicorn
from fastapi import FastAPI


class _Server(uvicorn.Server):
    """Leaves signals to the supervisor, which drains before it stops."""

    @contextmanager
    def capture_signals(self) -> Any:
        yield


def admin_server(app: FastAPI) -> uvicorn.Server:
    """A server to be run in the supervisor's loop by `serve([listening socket])` and stopped by `should_exit`."""
    config = uvicorn.Config(
        app,
        access_log=False,
        log_level="warning",
        log_config=None,
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    return _Server(config)
