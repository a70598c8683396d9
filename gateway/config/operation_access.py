"""Which operations clients of the inference ports may use: `--allow-control`, `--http-restricted-api` and
`--grpc-restricted-protocol`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.operations import Operation
from gateway.protocol.restricted_apis import CONTROL_OPERATIONS, OF_A_PAGE, RestrictedApis, is_change_by_page

# Registering shared memory from another host than the gateway's.
_SHARED_MEMORY = "shared-memory"
_ALL = "all"
_NAMES = (*dict.fromkeys(CONTROL_OPERATIONS.values()), _SHARED_MEMORY)


@dataclass(frozen=True, slots=True)
class OperationAccess:
    """The `allowed` operations that change an engine, and those that need a header, by front."""

    allowed: frozenset[str] = frozenset()
    http: RestrictedApis = field(default_factory=RestrictedApis)
    grpc: RestrictedApis = field(default_factory=RestrictedApis)

    def restriction(
        self, operation: Operation, headers: Mapping[bytes, bytes], *, is_grpc: bool = True
    ) -> GatewayError | None:
        """The error of a request that lacks the header of its operation. `headers` are the first of each name, in
        lower case."""
        missing = (self.grpc if is_grpc else self.http).missing_header(operation, headers)
        noun = "protocol" if is_grpc else "API"
        text = f"This {noun} is restricted, expecting header '{missing}'"
        return GatewayError(ErrorKind.RESTRICTED, text) if missing else None

    def error(
        self, operation: Operation, method: str, headers: Mapping[bytes, bytes], *, is_grpc: bool
    ) -> GatewayError | None:
        """The error of a request that its client may not make. Who has the header of a restricted operation may."""
        if is_change_by_page(operation, method, headers):
            return GatewayError(ErrorKind.FORBIDDEN, OF_A_PAGE)
        if operation in (self.grpc if is_grpc else self.http):
            return self.restriction(operation, headers, is_grpc=is_grpc)
        name = CONTROL_OPERATIONS.get(operation)
        if name is None or method != "POST" or name in self.allowed:
            return None
        return GatewayError(ErrorKind.FORBIDDEN, _REFUSALS[name])

    def shares_memory(self, *, is_grpc: bool) -> bool:
        """Whether clients of other hosts may register memory of this one: all, or those with the key."""
        return _SHARED_MEMORY in self.allowed or Operation.SHARED_MEMORY in (self.grpc if is_grpc else self.http)


_ADMIN = {
    "load": "`pointsman load` and the admin API (POST /models/NAME/load) do it",
    "unload": "`pointsman unload` and the admin API (POST /models/NAME/unload) do it",
    "logging": "`pointsman engine-settings` and the admin API (POST /engines/NAME/settings/logging) do it",
    "trace": "`pointsman engine-settings` and the admin API (POST /engines/NAME/settings/trace) do it",
}
_REFUSALS = {
    name: f"'{name}' is refused on the inference ports: {admin}; --allow-control {name} opens it to all clients, "
    "--http-restricted-api and --grpc-restricted-protocol to those with a key"
    for name, admin in _ADMIN.items()
}


def read_allowed(options: Iterable[str]) -> frozenset[str]:
    """Parse `--allow-control`: names, separated by commas. Raises: ValueError."""
    names = [name.strip() for option in options for name in option.split(",") if name.strip()]
    unknown = [name for name in names if name not in (*_NAMES, _ALL)]
    if unknown:
        raise ValueError(f"--allow-control knows no operation '{unknown[0]}'; there are {', '.join(_NAMES)} and {_ALL}")
    return frozenset(_NAMES if _ALL in names else names)
