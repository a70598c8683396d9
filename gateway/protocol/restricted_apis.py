"""APIs that need a secret header: `--http-restricted-api` and `--grpc-restricted-protocol`.

Source: Triton server `src/restricted_features.h`, `command_line_parser.cc` ParseRestrictedFeatureOption.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hmac import compare_digest

from gateway.protocol.operations import Operation

# The category of each operation, as the options name it.
CATEGORIES: dict[Operation, str] = {
    operation: category
    for category, operations in {
        "health": (Operation.SERVER_LIVE, Operation.SERVER_READY, Operation.MODEL_READY),
        "metadata": (Operation.SERVER_METADATA, Operation.MODEL_METADATA, Operation.MODEL_LIST),
        "inference": (
            *(Operation.INFER, Operation.GENERATE, Operation.GENERATE_STREAM),
            *(Operation.CHAT, Operation.COMPLETION, Operation.EMBEDDING, Operation.COUNT_TOKENS),
        ),
        "shared-memory": (Operation.SHARED_MEMORY,),
        "model-config": (Operation.MODEL_CONFIG,),
        "model-repository": (Operation.REPOSITORY_INDEX, Operation.LOAD, Operation.UNLOAD),
        "statistics": (Operation.MODEL_STATS, Operation.SERVER_STATS),
        "trace": (Operation.MODEL_TRACE, Operation.TRACE),
        "logging": (Operation.LOGGING,),
    }.items()
    for operation in operations
}
_NAMES = tuple(dict.fromkeys(CATEGORIES.values()))

# Operations that change an engine, by their names in --allow-control.
CONTROL_OPERATIONS: dict[Operation, str] = {
    Operation.LOAD: "load",
    Operation.UNLOAD: "unload",
    Operation.LOGGING: "logging",
    Operation.TRACE: "trace",
    Operation.MODEL_TRACE: "trace",
}
# Operations that change what a server serves. Clients that are no browser do them.
_CHANGES = frozenset({*CONTROL_OPERATIONS, Operation.SHARED_MEMORY})
# What a browser says of the page that a request comes from (Fetch Standard; Fetch Metadata). Pages of any site can
# reach the ports of their reader's machine, and need no leave for a POST of plain text.
ORIGIN, FETCH_SITE = b"origin", b"sec-fetch-site"
OF_A_PAGE = "a web page may not change what a server serves: the request has the field 'Origin' or 'Sec-Fetch-Site'"


def is_change_by_page(operation: Operation, method: str, headers: Mapping[bytes, bytes]) -> bool:
    """Whether a web page asks for a change. `headers` have names in lower case."""
    if operation not in _CHANGES or method != "POST":
        return False
    return ORIGIN in headers or headers.get(FETCH_SITE, b"none") != b"none"


# By category, the header that a request needs and its value.
Restrictions = Mapping[str, tuple[str, str]]


@dataclass(frozen=True, slots=True)
class RestrictedApis:
    """The restrictions of one front."""

    restrictions: Restrictions = field(default_factory=dict, repr=False)  # with secrets
    # By operation: the header as the option names it, as it is looked up, and its value.
    _by_operation: dict[Operation, tuple[str, bytes, bytes]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        encoded = {
            category: (header, header.lower().encode("latin-1"), value.encode("utf-8"))
            for category, (header, value) in self.restrictions.items()
        }
        by_operation = {
            operation: encoded[category] for operation, category in CATEGORIES.items() if category in encoded
        }
        object.__setattr__(self, "_by_operation", by_operation)

    def __bool__(self) -> bool:
        return bool(self._by_operation)

    def __contains__(self, operation: Operation) -> bool:
        """Whether the operation needs a header."""
        return operation in self._by_operation

    @property
    def headers(self) -> frozenset[bytes]:
        """The names of the headers that guard operations, in lower case."""
        return frozenset(name for _, name, _ in self._by_operation.values())

    def missing_header(self, operation: Operation, headers: Mapping[bytes, bytes]) -> str:
        """The header that guards an operation where the request lacks its value, else ""."""
        restriction = self._by_operation.get(operation)
        if restriction is None:
            return ""
        header, name, value = restriction
        return "" if compare_digest(headers.get(name, b""), value) else header


_GRPC_PREFIX = "triton-grpc-protocol-"


def http_restrictions(options: Iterable[str]) -> Restrictions:
    """Parse `--http-restricted-api`. Raises: ValueError."""
    return _read(options, "http-restricted-api", "", "api")


def grpc_restrictions(options: Iterable[str]) -> Restrictions:
    """Parse `--grpc-restricted-protocol`; the header's name gets Triton's prefix. Raises: ValueError."""
    return _read(options, "grpc-restricted-protocol", _GRPC_PREFIX, "protocol")


def _read(options: Iterable[str], option: str, prefix: str, noun: str) -> Restrictions:
    restrictions: dict[str, tuple[str, str]] = {}
    for text in options:
        names, _, setting = text.partition(":")
        key, _, value = setting.partition("=")
        if not (names and key and value):
            raise ValueError(f"--{option} option format is '<{noun}s>:<key>=<value>'. Got {text}")
        for name in names.split(","):
            if name not in _NAMES:
                raise ValueError(f"unknown restricted {noun} '{name}'; there are {', '.join(_NAMES)}")
            if name in restrictions:
                raise ValueError(f"restricted {noun} '{name}' can not be specified in multiple config groups")
            restrictions[name] = (prefix + key, value)
    return restrictions
