"""The priority class of a request: that of its caller, or a lower one that it names."""

from __future__ import annotations

from collections.abc import Callable

from gateway.config.overload_specs import PriorityClassSpec
from gateway.config.specs import RulesSpec
from gateway.protocol.principal import KEY_FIELD
from gateway.protocol.remembered_names import MAX_LENGTH
from gateway.protocol.request_urgency import CLASS_FIELD, URGENCY_FIELDS, Urgency
from gateway.protocol.sequence import read_text
from gateway.routing.matchers import text_test

# Callers whose class is remembered: clients without `auth:` invent tenants.
_MAX_CALLERS = 4096

_ONE_CLASS = (PriorityClassSpec("default"),)

ReadField = Callable[[bytes], bytes | None]


class PriorityClasses:
    """The classes of the rules, the highest first; one where they have none. `fields` are the names of the header
    fields that it reads."""

    def __init__(self, rules: RulesSpec) -> None:
        specs = rules.classes or _ONE_CLASS
        self.names = tuple(spec.name for spec in specs)
        self.weights = [{name.encode(): weight for name, weight in spec.weights.items()} for spec in specs]
        self.tenant_field = rules.identity.tenant_header.encode()
        self.fields = URGENCY_FIELDS | {self.tenant_field} | ({KEY_FIELD} if rules.auth is not None else set())
        self._numbers = {name.encode(): number for number, name in enumerate(self.names)}
        self._tests = [
            (number, text_test(spec.tenant or ("*",)), text_test(spec.key or ("*",)))
            for number, spec in enumerate(specs)
            if spec.names_callers
        ]
        unnamed = (number for number, spec in enumerate(specs) if not spec.names_callers)
        self.default = next(unnamed, len(specs) - 1)
        self._of_callers: dict[tuple[bytes, bytes], int] = {}

    def of_caller(self, tenant: bytes, key: bytes) -> int:
        """The number of the highest class that a caller may have."""
        if not self._tests:
            return self.default
        caller = tenant, key
        number = self._of_callers.get(caller)
        if number is None:
            if len(self._of_callers) >= _MAX_CALLERS:
                self._of_callers.clear()
            names = read_text(tenant), read_text(key)
            number = next((n for n, is_tenant, is_key in self._tests if is_tenant(names[0]) and is_key(names[1])), None)
            number = self.default if number is None else number
            if len(tenant) + len(key) <= MAX_LENGTH:
                self._of_callers[caller] = number
        return number

    def of_request(self, field: ReadField, urgency: Urgency) -> int:
        """The number of a request's class. What the header names counts before the body."""
        if len(self.names) == 1:
            return 0
        highest = self.of_caller(field(self.tenant_field) or b"", field(KEY_FIELD) or b"")
        named = self._numbers.get(field(CLASS_FIELD) or b"")
        if named is None:
            named = urgency.class_number
        if named is None:
            below = urgency.classes_below
            named = len(self.names) - 1 if below < 0 else highest + below
        return min(max(named, highest), len(self.names) - 1)
