"""The hooks of one route."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.config.hook_specs import HookSpec
from gateway.hooks.loader import METHODS, load_hook
from gateway.hooks.method import CallMode, HookMethod


class HookChain:
    """The hooks of one route, in their order; loaded when the first request needs them, unless they are already."""

    __slots__ = ("_methods", "_route", "_specs", "is_inline", "reads_reply", "rerouted", "sees_replies")

    def __init__(self, route: str, specs: Sequence[HookSpec]) -> None:
        self._route = route
        self._specs = specs
        self._methods: dict[str, list[HookMethod]] | None = None
        # Of some hook, once they are loaded
        self.reads_reply = self.sees_replies = False
        self.is_inline = False  # all that see requests
        self.rerouted: dict[tuple[object, ...], Any] = {}  # the targets that they have chosen instead of the route's

    def methods(self, name: str) -> list[HookMethod]:
        """Those of this name. Raises: HookLoadError."""
        if self._methods is None:
            hooks = [(spec, load_hook(spec)) for spec in self._specs]
            self.reads_reply = any(getattr(hook, "reads_reply", False) for _, hook in hooks)
            self._methods = {
                each: [
                    HookMethod(self._route, spec, hook, each)
                    for spec, hook in hooks
                    if callable(getattr(hook, each, None))
                ]
                for each in METHODS
            }
            self.sees_replies = any(self._methods[each] for each in METHODS[1:])
            self.is_inline = all(method.mode is CallMode.INLINE for method in self._methods[METHODS[0]])
        return self._methods[name]
