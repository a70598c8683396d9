"""A local Ray of two nodes with our applications on Ray Serve, in a process of its own.

    python -m tests.support.ray_cluster MODEL_REPOSITORY LLM_FOLDER --ready-file PATH

Each node has a CPU for one replica of the application `models`, a host that starts with no replica; the language model
of `llm` is on the first node. SIGUSR1 kills the second node with all its processes.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.child import Child
from tests.support.ports import free_port

# Ray reads them when it is imported; the second one is for a cluster on 127.0.0.1.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_enable_worker_prestart": "0",
    # On a busy machine processes need long to start.
    "RAY_gcs_server_request_timeout_seconds": "300",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "60",
}
START_SECONDS = 300.0
# Seconds; the autoscaler decides by the mean of this time.
LOOK_BACK, LEASE, DRAIN = 2.0, 3.0, 1.0
FIRST = "first"


class RayCluster(Child):
    """The process, as tests see it."""

    what = "ray"
    start_timeout_seconds = 600.0

    @classmethod
    def start(cls, repository: Path, model: Path, directory: Path) -> Self:
        return cls.start_module(["tests.support.ray_cluster", str(repository), str(model)], directory)

    def kill_node(self) -> None:
        """Return once its processes are gone."""
        self.process.send_signal(signal.SIGUSR1)


def applications(repository: str, model: str) -> dict[str, Any]:
    from engines.ray_app import host, llm
    from engines.ray_app.arguments import HostArguments, LlmArguments

    soon = {"metrics_interval_s": LOOK_BACK / 4, "look_back_period_s": LOOK_BACK}
    times = {"lease_s": LEASE, "drain_delay_s": DRAIN}
    models = HostArguments(
        model_repository=repository,
        min_replicas=0,
        max_replicas=2,
        target_ongoing_requests=2,
        upscale_delay_s=0,
        downscale_delay_s=1,
        autoscaling={**soon, "downscale_to_zero_delay_s": 3600.0},
        **times,
    )
    counter = LlmArguments(
        model=model,
        num_cpus=0,
        ray_actor_options={"resources": {FIRST: 0.1}},
        name="counter",
        threads=1,
        memory_gb=0.5,
        **times,
    )
    return {"models": host(models), "llm": llm(counter)}


def _wait_for_nodes() -> None:
    """Ray itself waits 30 s for a node."""
    from ray._private import services

    get_node = services.get_node

    def get_node_in_time(*arguments: Any) -> Any:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    services.get_node = get_node_in_time


def main(repository: str, model: str, ready_file: str) -> None:
    import ray
    from ray import serve
    from ray.cluster_utils import Cluster

    _wait_for_nodes()
    killing, stopping = threading.Event(), threading.Event()
    node: dict[str, Any] = {"node_ip_address": "127.0.0.1", "num_cpus": 1, "include_log_monitor": False}
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as folder:
        first = node | {"include_dashboard": False, "no_monitor": True, "temp_dir": folder, "resources": {FIRST: 1}}
        cluster = Cluster(initialize_head=True, head_node_args=first)
        try:
            second = cluster.add_node(**node)
            ray.init(address=cluster.address, log_to_driver=False)
            signal.signal(signal.SIGUSR1, lambda *_: killing.set())
            signal.signal(signal.SIGTERM, lambda *_: stopping.set())  # Ray has set its own
            port = free_port()
            serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
            built = applications(repository, model)
            serve.run_many([serve.RunTarget(each, name, f"/{name}") for name, each in built.items()])
            aside = Path(f"{ready_file}.new")
            aside.write_text(json.dumps({"http": port}))
            aside.rename(ready_file)
            while not stopping.wait(0.1):
                if killing.is_set() and second is not None:
                    cluster.remove_node(second, allow_graceful=False)
                    second = None
        finally:
            ray.shutdown()
            cluster.shutdown()


def _arguments(command: Sequence[str]) -> tuple[str, str, str]:
    repository, model, option, ready_file = command
    assert option == "--ready-file"
    return repository, model, ready_file


if __name__ == "__main__":
    os.environ.update(SETTINGS)
    main(*_arguments(sys.argv[1:]))
