"""Declarations of `fallback:` as values: created by `config.fallbacks`, immutable."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.config.value_parsers import EngineName, Text
from gateway.protocol.fallback_reasons import DEFAULT_REASONS, FallbackReason
from gateway.yaml.problems import Location


@dataclass(frozen=True, slots=True)
class FallbackSpec:
    """An engine that answers where those before it cannot."""

    engine: EngineName  # that gets the request
    model: Text | None = None  # the model's name there; None: as at the engine before
    on: tuple[FallbackReason, ...] = DEFAULT_REASONS  # the failures that lead here
    location: Location | None = field(default=None, compare=False)

    @property
    def text(self) -> str:
        """As `pointsman explain` and the page show it."""
        model = f" as {self.model}" if self.model else ""
        return f"{self.engine}{model} ({', '.join(reason.value for reason in self.on)})"
