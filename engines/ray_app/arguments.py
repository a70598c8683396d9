"""Arguments of an application: `serve run engines.ray_app:host KEY=VALUE ...`, or `args:` of a Serve config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

NonNegative = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]


class EngineArguments(BaseModel):
    """Of both kinds of engine. All other names are options of the command, as `pointsman host --help` has them, with
    `_` in place of `-`. Times are seconds."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    min_replicas: Annotated[int, Field(ge=0)] = 1
    max_replicas: Annotated[int, Field(ge=1)] = 1
    target_ongoing_requests: Positive = 8.0  # of each replica: more of them start another
    upscale_delay_s: NonNegative = 10.0
    downscale_delay_s: NonNegative = 300.0
    autoscaling: dict[str, Any] = {}  # further fields of Serve's AutoscalingConfig
    # Of a replica; what Ray reserves for it
    num_cpus: NonNegative = 1.0
    num_gpus: NonNegative = 0.0
    max_replicas_per_node: int | None = None
    ray_actor_options: dict[str, Any] = {}
    listen_on: str = ""  # the address of the server's ports; empty: the node's
    drain_delay_s: NonNegative = 10.0  # a replica that stops serves on for so long, while gateways learn of it
    exit_timeout_s: NonNegative = 60.0  # and then ends its requests within this
    lease_s: Positive = 10.0  # a replica that is silent for so long is left out of the list
    token_env: str = ""  # the name of an environment variable with the bearer token of the list; empty: none is needed

    @model_validator(mode="after")
    def _check(self) -> EngineArguments:
        if self.max_replicas < self.min_replicas:
            raise ValueError(f"max_replicas {self.max_replicas} is less than min_replicas {self.min_replicas}")
        return self

    @property
    def options(self) -> dict[str, Any]:
        """Of the command."""
        return dict(self.model_extra or {})


class HostArguments(EngineArguments):
    """A Triton model repository."""

    model_repository: str | list[str]

    @property
    def options(self) -> dict[str, Any]:
        written = [self.model_repository] if isinstance(self.model_repository, str) else self.model_repository
        return {"model_repository": [_absolute(each) for each in written], **super().options}


class LlmArguments(EngineArguments):
    """A language model in a Hugging Face folder."""

    model: str

    @property
    def options(self) -> dict[str, Any]:
        threads = {"threads": int(self.num_cpus)} if self.num_cpus >= 1 else {}
        return {"model": _absolute(self.model), **threads, **super().options}


def _absolute(path: str) -> str:
    """Processes of Ray have a folder of their own."""
    return path if "://" in path else str(Path(path).expanduser().absolute())
