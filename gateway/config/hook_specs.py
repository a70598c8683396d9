"""Declarations of Python hooks in rule files. Created by `config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from gateway.config import value_parsers
from gateway.config.value_parsers import PositiveDuration, Text
from gateway.yaml.problems import Location


@dataclass(frozen=True, slots=True)
class HookSpec:
    """Code of the operator that requests of a route pass: `module:object`, or the name of an entry point."""

    use: Annotated[str, value_parsers.hook_name]  # module:object, or the name of an entry point
    # Seconds of each call: far beyond what a hook on the way of each request takes, so that a busy machine fails none
    timeout: PositiveDuration = 0.25
    on_failure: Literal["refuse", "continue"] = "refuse"  # where it raises, or takes longer
    options: Mapping[Text, Text] = field(default_factory=dict)  # keyword arguments of a class
    file: str | None = None  # its module's, where that is in the rule file's folder; None: of an installed package
    source: str | None = None  # that file's text: all processes run what was checked
    location: Location | None = field(default=None, compare=False)

    @property
    def identity(self) -> str:
        """What names the code, and what it is created with: rules that no operator has written may only have those of
        rule files on disk."""
        return repr((self.use, self.file, sorted(self.options.items())))

    @property
    def key(self) -> tuple[object, ...]:
        """What its object depends on."""
        return self.identity, self.source
