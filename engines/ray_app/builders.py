"""Builders of the applications. Serve reads the types of their arguments as objects, so annotations are no strings."""

import math
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from engines.ray_app.arguments import EngineArguments, HostArguments, LlmArguments
from engines.ray_app.command_options import command_line
from engines.ray_app.endpoint_list import ENDPOINTS, EndpointList
from engines.ray_app.engine_replica import EngineReplica
from engines.ray_app.policy import scale

# For a killed server's processes to end.
_LAST_SECONDS = 10.0
_HEALTH_SECONDS = 5.0
# Calls to the list, one for each lease that is renewed and each gateway; and to a replica, which wake it.
_MAX_CALLS = 1000
# The list is on the head node, as Serve's controller is: without it nothing joins or leaves anyway.
_HEAD = "node:__internal_head__"


def host(arguments: HostArguments) -> Any:
    """The application of an engine host: `model_repository` is a folder that all nodes have, or a URL."""
    return _application("host", arguments)


def llm(arguments: LlmArguments) -> Any:
    """The application of a language model: `model` is a folder that all nodes have."""
    return _application("llm", arguments)


def _application(command: str, arguments: EngineArguments) -> Any:
    ports = dict.fromkeys(("http_port", "grpc_port", "metrics_port"), 0)
    times = {"drain_delay": arguments.drain_delay_s, "exit_timeout_secs": arguments.exit_timeout_s}
    line = command_line(command, ports | times | arguments.options)
    stop_seconds = arguments.drain_delay_s + arguments.exit_timeout_s + _LAST_SECONDS
    engine = serve.deployment(EngineReplica).options(
        name="engine",
        autoscaling_config=AutoscalingConfig(
            **{
                "min_replicas": arguments.min_replicas,
                "max_replicas": arguments.max_replicas,
                "target_ongoing_requests": arguments.target_ongoing_requests,
                "upscale_delay_s": arguments.upscale_delay_s,
                "downscale_delay_s": arguments.downscale_delay_s,
                "policy": AutoscalingPolicy(policy_function=scale),
                **arguments.autoscaling,
            }
        ),
        ray_actor_options={
            "num_cpus": arguments.num_cpus,
            "num_gpus": arguments.num_gpus,
            **arguments.ray_actor_options,
        },
        max_ongoing_requests=max(_MAX_CALLS, math.ceil(arguments.target_ongoing_requests)),
        **({"max_replicas_per_node": arguments.max_replicas_per_node} if arguments.max_replicas_per_node else {}),
        health_check_period_s=_HEALTH_SECONDS,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=stop_seconds + _LAST_SECONDS,
    )
    endpoints = serve.deployment(EndpointList).options(
        name=ENDPOINTS,
        num_replicas=1,
        ray_actor_options={"num_cpus": 0, "resources": {_HEAD: 0.001}},
        max_ongoing_requests=_MAX_CALLS,
        logging_config={"enable_access_log": False},  # a line for each lease that is renewed
    )
    replica = engine.bind(line, arguments.listen_on, arguments.lease_s, stop_seconds)
    return endpoints.bind(replica, arguments.lease_s, arguments.token_env)
