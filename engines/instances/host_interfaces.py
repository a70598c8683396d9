"""What models may ask of the host while they run, besides inferences: whoever builds the host hands it in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

# A number; or, to merge into a histogram, how many observations are new in each bucket, and their sum.
Change = float | tuple[tuple[int, ...], float]


class ModelControl(Protocol):
    """The host's models, as `pb_utils.load_model` and its kin reach them."""

    def is_ready(self, name: str, version: str) -> bool:
        """Whether a model takes requests; `version` "" is whichever its policy chooses."""
        ...

    def is_decoupled(self, name: str, version: str) -> bool:
        """Whether a ready model may answer any number of times."""
        ...

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Raises: EngineError."""
        ...

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Raises: EngineError."""
        ...


class CustomMetricsInterface(Protocol):
    """Metrics that models make. A family or a metric lives until as many have dropped it as have made it."""

    def family(self, name: str, description: str, kind: str) -> int:
        """A family of `counter`, `gauge` or `histogram`: its number. Raises: EngineError."""
        ...

    def metric(self, family: int, labels: Mapping[str, str], buckets: tuple[float, ...] | None) -> int:
        """A metric of a family: its number; the same labels are the same metric. Raises: EngineError."""
        ...

    def change(self, operation: str, metric: int, value: Change) -> None:
        """`increment`, `set`, `observe`, or `merge`. Raises: EngineError."""
        ...

    def value(self, metric: int) -> float:
        """Raises: EngineError where it has no single one."""
        ...

    def drop_metric(self, metric: int) -> None: ...

    def drop_family(self, family: int) -> None: ...
