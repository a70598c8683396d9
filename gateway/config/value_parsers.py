"""Parsers of values that only rules have: text in, a value out, or a ValueError that describes what is expected; and
the types of specs' fields, each with its parser (see `gateway.yaml.readers.record_of`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import ip_address
from typing import Annotated

from gateway.config.globs import MAX_GLOB, is_exact
from gateway.protocol.datatypes import DATATYPES
from gateway.protocol.operations import MODEL_OPERATIONS, Operation
from gateway.yaml import values
from gateway.yaml.problems import suggest
from gateway.yaml.values import NameOf, number

PROTOCOLS = ("rest", "grpc", "openai")
# Tokens are counted where the chat itself goes.
OPERATIONS = tuple(each.value for each in Operation if each in MODEL_OPERATIONS - {Operation.COUNT_TOKENS})
# The APIs that an openai engine may accept unchanged: OpenAI's and Anthropic's.
DIALECTS = ("chat", "completions", "embeddings", "responses", "messages")
FEEDBACK = "feedback:"

_TIMES = ("latency", "first_token", "per_token")
_QUANTILES = ("_p50", "_p90", "_p95", "_p99")
_METRICS = ("error_rate", *(time + end for time in _TIMES for end in ("", *_QUANTILES)), "output_tokens")
_SHOWN_METRICS = ("error_rate", "latency", "latency_p95", "first_token", "per_token", "output_tokens", "feedback:NAME")

_AUTHORITY = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.]{2,45}\])(?::([0-9]{1,5}))?")
_SCHEMES = ("http", "https", "grpc", "grpcs")


def endpoint_url(text: str) -> str:
    """`http://host[:port]` or `https://host[:port]`, or `grpc://host:port` or `grpcs://host:port` for a server without
    REST; one trailing slash is dropped."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise ValueError(f"URL {text!r} has no scheme: did you mean 'http://{text}'?")
    if scheme not in _SCHEMES:
        raise ValueError(f"URL {text!r} must begin with http://, https://, grpc:// or grpcs://")
    authority, _, path = rest.partition("/")
    if path:
        meant = f"did you mean '{scheme}://{authority}'?"
        if scheme.startswith("http"):
            meant = f"{meant} Of an openai engine, write 'base_path: /{path.rstrip('/')}' beside it"
        raise ValueError(f"URL {text!r} has a path: {meant}")
    port = _check_authority(authority, f"URL {text!r}")
    if scheme.startswith("grpc") and not port:
        raise ValueError(f"URL {text!r} has no port: gRPC has no usual one")
    return f"{scheme}://{authority}"


def request_url(text: str) -> str:
    """The URL of an HTTP request, with its path and query."""
    scheme, _, rest = text.partition("://")
    if scheme not in ("http", "https"):
        raise ValueError("the URL must begin with http:// or https://")
    authority, slash, target = rest.partition("/")
    _check_authority(authority, "the URL's host")
    path(slash + target or "/")
    if not text.isascii() or "#" in text:
        raise ValueError("the URL has a fragment, or characters that a URL writes with percent signs")
    return text


def host_port(text: str) -> str:
    """`host:port`, as gRPC clients write it."""
    if "://" in text:
        bare = text.partition("://")[2]
        raise ValueError(f"address {text!r} has a scheme: did you mean {bare!r}?")
    if not _check_authority(text, f"address {text!r}"):
        raise ValueError(f"address {text!r} has no port: write host:port")
    return text


def host_name(text: str) -> str:
    """A name without a port, as certificates and `host` fields have it."""
    if _check_authority(text, f"name {text!r}") is not None or text.startswith("["):
        raise ValueError(f"name {text!r} is not a host name without a port")
    return text


_DNS_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_SRV_NAME = re.compile(r"_[A-Za-z0-9-]{1,62}\._[A-Za-z0-9-]{1,62}\.[A-Za-z0-9_][A-Za-z0-9._-]{0,200}")


def dns_label(text: str) -> str:
    """The name of a Service or a namespace of Kubernetes (RFC 1035)."""
    if not _DNS_LABEL.fullmatch(text):
        raise ValueError(f"name {text!r} is none of Kubernetes': lower case letters, digits and -, at most 63")
    return text


def service_port(text: str) -> str:
    """A port's number, or its name in Kubernetes."""
    if text.isdigit():
        if not 1 <= int(text) <= 65535:
            raise ValueError(f"port {text}: 1 to 65535")
        return text
    return dns_label(text)


def dns_name(text: str) -> str:
    """`name:port`, or the name of SRV records, as `_http._tcp.name`."""
    if text.startswith("_"):
        if not _SRV_NAME.fullmatch(text):
            raise ValueError(f"{text!r} is no name of SRV records: write _PORT._tcp.NAME, without a port")
        return text
    host = host_port(text).rpartition(":")[0]
    if is_address(host):
        raise ValueError(f"{text!r} has an address: write 'http://{text}' as an endpoint")
    return text


def address_port(text: str) -> str:
    """The address of a server, with a port or without."""
    _check_authority(text, f"address {text!r}")
    host = text.rpartition(":")[0] if text.rpartition("]")[2].count(":") else text
    if not is_address(host):
        raise ValueError(f"{text!r} is no address: write 10.0.0.10 or 127.0.0.1:8600")
    return text


def is_address(host: str) -> bool:
    """Whether a host is an address and no name; IPv6 may stand in brackets."""
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def api_url(text: str) -> str:
    """The URL of an API server, which may have a path in front of it."""
    scheme, _, rest = text.partition("://")
    authority, slash, path = rest.partition("/")
    if scheme not in ("http", "https"):
        raise ValueError(f"URL {text!r} must begin with https:// or http://")
    _check_authority(authority, f"URL {text!r}")
    if not re.fullmatch(r"[A-Za-z0-9._~/-]*", path):
        raise ValueError(f"URL {text!r} has more than a path behind its host")
    return f"{scheme}://{authority}{slash}{path}".rstrip("/")


def file_path(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("a path of a file stands here, and this is none")
    return text


def _check_authority(authority: str, what: str) -> str | None:
    """The port's digits, None where there is no port."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        raise ValueError(f"{what} is not a host with an optional port")
    port: str | None = match[1]
    if port is not None and not 1 <= int(port) <= 65535:
        raise ValueError(f"{what} has port {port}: 1 to 65535")
    return port


_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def share(text: str) -> float:
    """A share of the whole: `20%` and `0.2` are the same."""
    return number(text[:-1]) / 100 if text.endswith("%") else number(text)


# An arm's weight, relative to the sum of all: `90` and `90%` are the same
weight = values.checked(
    lambda text: number(text.removesuffix("%")),
    lambda found: found >= 0,
    "weight {text} is negative: 0 sends no traffic to an arm",
)


def text(text: str) -> str:
    """A header value: not empty, no control characters, Latin-1. It may be a secret, so errors do not quote it."""
    if not text:
        raise ValueError("an empty text stands here")
    if _CONTROL.search(text):
        raise ValueError("the text has control characters (a line break at its end?)")
    try:
        text.encode("latin-1")
    except UnicodeEncodeError as error:
        raise ValueError(f"the text has a character that no header can carry, at place {error.start + 1}") from None
    return text


# RFC 9110, 5.6.2: a token; in lower case
header_name = values.matching(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", str.lower, "{text!r} is not a header name")

# Fields of one connection and of a body's framing (RFC 9110, 7.6.1; RFC 9112, 6): they say nothing about a client.
_OF_MESSAGES = frozenset(
    {
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


_OF_CONTENT = frozenset({"content-type", "host", "inference-header-content-length"})


def client_header(text: str) -> str:
    """The name of a field that tells clients apart."""
    name: str = header_name(text)
    if name in _OF_MESSAGES:
        raise ValueError(f"the field {name!r} is about the message or its connection: name one that clients differ in")
    return name


def added_header(text: str) -> str:
    """The name of a field that the gateway adds to requests: not one that it writes for each message itself."""
    name: str = header_name(text)
    if name in _OF_MESSAGES:
        raise ValueError(f"the field {name!r} is about the message or its connection: the gateway writes it itself")
    return name


def activator_header(text: str) -> str:
    """The same of an activator's request, whose host is that of its URL."""
    name = added_header(text)
    if name == "host":
        raise ValueError("the field 'host' is that of the URL")
    return name


def stripped_header(text: str) -> str:
    """The name of a field that an engine may do without."""
    name: str = header_name(text)
    if name in _OF_MESSAGES or name in _OF_CONTENT or name.startswith("grpc-"):
        raise ValueError(f"the field {name!r} says how to read the request: an engine needs it")
    return name


def base_path(text: str) -> str:
    """The base path of an engine's API; `/` means none."""
    if text == "/":
        return ""
    if path(text).endswith("/"):
        raise ValueError(f"{text!r} ends with '/': did you mean {text.rstrip('/')!r}?")
    if not text.isascii() or "?" in text or "#" in text:
        raise ValueError(f"{text!r} is not a path alone")
    return text


def metrics_path(text: str) -> str:
    """A path, or `:port/path` where metrics have a port of their own on the endpoint's host, as Triton's have."""
    port, slash, rest = text.removeprefix(":").partition("/")
    if not text.startswith(":"):
        return path(text)
    if not (slash and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError(f"{text!r} is not a path with a port: write :8002/metrics")
    return f":{port}{path(slash + rest)}"


def path(text: str) -> str:
    """The path of a URL."""
    if not text.startswith("/") or " " in text or _CONTROL.search(text):
        raise ValueError(f"{text!r} is not a path: it begins with '/' and has no spaces")
    return text


status = values.checked(
    values.integer, lambda found: 400 <= found <= 599, "{text} is not the status of a failure: 400 to 599"
)


def glob(text: str) -> str:
    """A glob; comparing two takes time by the product of their lengths."""
    if len(text) > MAX_GLOB and not is_exact(text):
        raise ValueError(f"a glob has at most {MAX_GLOB} characters, and this one {len(text)}: write shorter ones")
    return text


def text_glob(written: str) -> str:
    return glob(text(written))


def parameter_glob(text: str) -> str:
    return glob(truth_in_json(text))


def truth_in_json(text: str) -> str:
    """A parameter's value as text: YAML's `True` is JSON's `true`."""
    return text.lower() if text in ("True", "TRUE", "False", "FALSE") else text


_WHOLE = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")


def parameter(text: str) -> bool | int | str:
    """A parameter's value as a body has it: true, false and whole numbers are that, all else is text."""
    text = truth_in_json(text)
    if text in ("true", "false"):
        return text == "true"
    return int(text) if _WHOLE.fullmatch(text) else text


def request_value(what: str, *known: str) -> Callable[[str], str]:
    """The name of a value that requests have: a known word, `header:NAME` or `parameter:NAME`; a header name is
    lower-cased."""

    def parse(text: str) -> str:
        kind, separator, name = text.partition(":")
        if text in known and not separator:
            return text
        if kind == "header" and separator:
            return f"header:{client_header(name)}"
        if kind == "parameter" and name and "parameter:NAME" in known:
            return text
        raise ValueError(f"unknown {what} {text!r}{suggest(text, known)}")

    return parse


# A key's SHA-256. The key itself is a secret and appears neither in rule files nor in messages.
hashed_key = values.matching(
    r"[0-9a-fA-F]{64}",
    str.lower,
    "a key stands here by its SHA-256, 64 hexadecimal digits: `printf %s 'the key' | sha256sum` tells it",
)


share_of_units = values.checked(
    share,
    lambda found: 0 <= found <= 1,
    "{text} is out of range: a share is from 0 to 1, or from 0% to 100%",
)

client_share = values.checked(
    share,
    lambda found: 0 < found <= 1,
    "{text} is out of range: a client's share is more than 0, and 1 (or 100%: no limit) at the most",
)

# A share of requests: all of them, or fewer, but not none
sample = values.checked(
    share,
    lambda found: 0 < found <= 1,
    "a sample of {text} is out of range: more than 0, and 1 (or 100%) at the most",
)


def part(text: str) -> float:
    """A share of the whole that is more than nothing."""
    value = share(text)
    if not value > 0:
        raise ValueError(f"{text} is too small: more than 0")
    if value > 1:
        meant = "at most 100%" if "%" in text else f"did you mean {text}%?"
        raise ValueError(f"{text} is more than the whole: {meant}")
    return value


# A chance of error
alpha = values.checked(share, lambda found: 0 < found <= 0.5, "{text} is out of range: more than 0, up to 0.5")


# A number from 0 up, in scientific notation too: tolerances are small
deviation = values.matching(
    r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,2})?",
    float,
    "{text!r} is not a number from 0 up, as 0.001 or 1e-3",
)


def relative_deviation(text: str) -> float:
    """The same, or percent."""
    return deviation(text[:-1]) / 100 if text.endswith("%") else deviation(text)


def metric(text: str) -> str:
    """What can be measured of an arm."""
    if text.startswith(FEEDBACK):
        values.name(text.removeprefix(FEEDBACK))
        return text
    if text not in _METRICS:
        likely = suggest(text, _METRICS)
        known = likely if "did you" in likely else f"; known: {', '.join(_SHOWN_METRICS)}"
        raise ValueError(f"unknown metric {text!r}{known}")
    return text


def binary_metric(text: str) -> str:
    """A metric that is 0 or 1 per request."""
    if metric(text) != "error_rate" and not text.startswith(FEEDBACK):
        raise ValueError(f"a bandit goes by error_rate, or by feedback:NAME of 0 and 1, not by {text}")
    return text


def guardrail_bound(metric: str, bound: str) -> Callable[[str], float]:
    """The parser of a guardrail's bound: in the metric's unit, except for ratios."""
    if bound in ("max_ratio", "min_ratio"):
        return values.above_zero(number)
    if metric == "error_rate":
        return share
    return values.duration if metric.startswith(_TIMES) else number


# The types of specs' fields

hook_name = values.matching(
    r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?::[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)?|[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
    str,
    "{text!r} is no hook: module:object, or the name of an entry point in the group 'pointsman.hooks'",
)
Name = Annotated[str, values.name]
Text = Annotated[str, text]
Glob = Annotated[str, glob]
HeaderName = Annotated[str, header_name]
ClientHeaderName = Annotated[str, client_header]
StrippedHeaderName = Annotated[str, stripped_header]
EngineName = Annotated[str, NameOf("engine")]
ExperimentName = Annotated[str, NameOf("experiment")]
LayerName = Annotated[str, NameOf("layer")]
RouteName = Annotated[str, NameOf("route")]
LimitKeyName = Annotated[str, request_value("value", "route", "tenant", "key", "session", "header:NAME")]
Datatype = Annotated[str, values.one_of(DATATYPES, "datatype")]
FrontProtocol = Annotated[str, values.one_of(PROTOCOLS)]
OperationName = Annotated[str, values.one_of(OPERATIONS)]
Unit = Annotated[str, request_value("unit", "session", "request", "header:NAME", "parameter:NAME")]
Metric = Annotated[str, metric]
Share = Annotated[float, share]
ClientShare = Annotated[float, client_share]
UnitShare = Annotated[float, share_of_units]
Part = Annotated[float, part]
Ratio = Annotated[float, values.at_least(1.0, number)]
Duration = Annotated[float, values.duration]
PositiveDuration = Annotated[float, values.above_zero(values.duration)]
Size = Annotated[int, values.size]
PositiveSize = Annotated[int, values.at_least(1, values.size)]
Count = Annotated[int, values.at_least(0, values.integer)]
PositiveCount = Annotated[int, values.at_least(1, values.integer)]
Port = Annotated[int, values.between(1, 65535, values.integer)]
# Redis counts the time to live in milliseconds, in 64 bits.
TimeToLive = Annotated[float, values.between(1.0, 10 * 365 * 86400.0, values.duration)]
