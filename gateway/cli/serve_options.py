"""The options of `pointsman serve`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gateway.cli.quantities import DURATION, PORT, SHARE, SIZE
from gateway.cli.tls_options import client_auth, tls_version
from gateway.options.sources import SETTINGS_HELP, SETTINGS_OPTION

if TYPE_CHECKING:
    pass


def _redis(value: str) -> str:
    """Check the option early; no message repeats the value, which may contain a password."""
    if value not in ("embedded", "off"):
        from gateway.redis.address import read_address

        try:
            read_address(value)
        except ValueError as error:
            raise typer.BadParameter(f"embedded, off, or a URL: {error}") from error
    return value


def _redis_prefix(value: str) -> str:
    from gateway.redis.address import check_prefix

    try:
        return check_prefix(value)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _shared_secret_file(value: str) -> Path:
    from gateway.supervision.rule_signature import read_shared_secret

    try:
        read_shared_secret(path := Path(value))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return path


def _log_file(value: str) -> Path:
    from gateway.observability.access_log import LogFile

    path = Path(value)
    try:
        LogFile(path).check()
    except OSError as error:
        raise typer.BadParameter(f"cannot be appended to: {error.strerror}") from error
    return path.absolute()


# The options by their group in `--help`: name, help and further arguments of typer's Option. Types and defaults are
# those of the settings.
PANELS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "Rules and processes": {
        "rules": (
            "A rule file, or a directory whose *.yaml and *.yml files are read in name order; may be repeated. "
            "Changes are applied while serving; a file with an error changes nothing.",
            {"metavar": "PATH", "show_default": False},
        ),
        "workers": ("Data-plane processes; each uses one core.", {"min": 1}),
        "settings": (SETTINGS_HELP, SETTINGS_OPTION),
        "ready_file": ("Write ports and pid to this file, as JSON, once the gateway serves.", {}),
        "take_over": (
            "Replace the gateway that serves on these ports with the same data folder: its requests end, and no "
            "connection is refused.",
            {},
        ),
        "drain_delay": (
            "How long to serve on after SIGTERM while readiness says no, so that balancers send no more; then nothing "
            "new is accepted.",
            DURATION,
        ),
        "drain_timeout": ("How long requests may continue after that.", DURATION),
        "hang_timeout": ("A worker that does not answer for this long is restarted; 0: never.", DURATION),
        "probe_connections": (
            "Connections that health probes hold at a time. Half of them are kept from one probe to the next; "
            "endpoints beyond that are connected for each probe.",
            {"min": 2},
        ),
        "data_dir": (
            "Folder of the embedded Redis, rule versions, recordings, the audit and the admin key; gateways with the "
            "same folder share one Redis and one key. Default: $XDG_STATE_HOME/pointsman or ~/.local/state/pointsman, "
            "on macOS ~/Library/Application Support/pointsman.",
            {"metavar": "DIR", "show_default": False},
        ),
    },
    "Inference ports": {
        "host": ("The address to listen on; 0.0.0.0 for all.", {}),
        "http_port": ("The inference port; 0 takes a free one.", PORT),
        "grpc_port": (
            "A second inference port, where gRPC clients expect it; 0 takes a free one. Both ports accept HTTP "
            "and gRPC: use the same number as --http-port for a single port.",
            PORT,
        ),
        "tls_cert": (
            "PEM certificate for TLS on the inference ports, read again when the file changes; may be repeated: a "
            "client gets the one of the name that it asks for.",
            {"metavar": "FILE"},
        ),
        "tls_key": ("PEM key of --tls-cert, in the same order.", {"metavar": "FILE"}),
        "tls_client_ca": ("PEM authority that must have signed the clients' certificates.", {"metavar": "FILE"}),
        "tls_client_auth": (
            "Whether clients show certificates: none asks for none, optional verifies those that are shown. Default: "
            "required with --tls-client-ca.",
            {"metavar": "MODE", "parser": client_auth, "show_default": False},
        ),
        "tls_min_version": ("The lowest version of TLS.", {"metavar": "1.2|1.3", "parser": tls_version}),
        "tls_ciphers": ("Cipher suites of TLS 1.2, by OpenSSL's names.", {"metavar": "LIST", "show_default": False}),
        "id": ("The server's name in /v2, as in Triton.", {"metavar": "NAME"}),
        "ready_when": ("/v2/health/ready needs a healthy endpoint for any route, or for all.", {}),
        "name_decision": ("Name route, engine, arm and endpoint in replies: in their headers and errors.", {}),
        "encoded_slashes": (
            "Accept model names with %2F, %5C, %00 or dot segments in paths, which engines may read as another name "
            "than the rules do.",
            {},
        ),
        "trust_forwarded": ("Keep incoming x-forwarded-* fields: another proxy is in front of this one.", {}),
    },
    "Operations on the inference ports": {
        "allow_control": (
            "Operations that change engines and that any client of the inference ports may use: load, unload, "
            "logging, trace, separated by commas, or all. By default the admin API alone has them. shared-memory lets "
            "clients of other hosts register regions.",
            {"metavar": "NAMES", "show_default": False},
        ),
        "http_restricted_api": (
            "As Triton's, GROUP,..:KEY=VALUE: these groups of operations need the header KEY with this value over "
            "HTTP, for example trace:admin-key=abc. The key opens load and unload, too. May be repeated.",
            {"metavar": "TEXT", "show_default": False},
        ),
        "grpc_restricted_protocol": (
            "The same over gRPC, where the metadata is KEY behind triton-grpc-protocol-.",
            {"metavar": "TEXT", "show_default": False},
        ),
    },
    "Admin port": {
        "admin_port": ("The admin API, its page, and metrics; 0 takes a free one.", PORT),
        "admin_host": ("The admin port's address; other than loopback it needs --admin-keys.", {}),
        "admin_keys": (
            "Keys of the admin API, as `pointsman keys add` writes them; changes are applied while serving. "
            "Without it, the gateway makes one key, in admin.key of its data folder, for its own user on this host.",
            {"metavar": "FILE", "show_default": False},
        ),
        "admin_tls_cert": ("PEM certificate for TLS on the admin port, read again when the file changes.", {}),
        "admin_tls_key": ("PEM key of --admin-tls-cert.", {}),
        "admin_tls_client_ca": ("PEM authority that must have signed the certificates of callers.", {}),
        "rules_api_env": (
            "An environment variable that rules of the admin API may read as ${NAME}, beside those that the rule files "
            "on disk read; may be repeated, or a list with commas.",
            {"metavar": "NAME,..", "show_default": False},
        ),
        "open_metrics": ("With --admin-keys: /metrics needs no key, as without it.", {}),
    },
    "Logs": {
        "access_log": ("Write one line per request to stdout.", {}),
        "access_log_file": (
            "Write these lines to a file instead. It may be rotated: once it is renamed, it is made again.",
            {"metavar": "FILE", "show_default": False, "parser": _log_file},
        ),
        "access_log_format": (
            "Format of these lines: text and json are older; otel is JSON with all fields by OpenTelemetry's names. "
            "Default: that of --log-format.",
            {"show_default": False},
        ),
        "access_log_sample": (
            "Share of the requests that have such a line; those that fail always have one.",
            SHARE,
        ),
        "log_format": ("Format of log lines.", {}),
    },
    "Traces": {
        "otlp_endpoint": (
            "Send traces to this receiver of OTLP over HTTP, for example http://127.0.0.1:4318. Default: that of "
            "OTEL_EXPORTER_OTLP_ENDPOINT; without both nothing is traced.",
            {"metavar": "URL", "show_default": False},
        ),
        "trace_sample": (
            "Share of the requests that are traced, where the caller has not decided it. Default: 1%, or that of "
            "OTEL_TRACES_SAMPLER.",
            SHARE | {"show_default": False},
        ),
        "trace_slow": (
            "Requests that take so long are traced as well, as are those that fail or need another attempt; 0: none "
            "for their time.",
            DURATION,
        ),
        "trace_rate": ("Requests a second that a worker traces at the most; further ones are counted.", {"min": 1}),
    },
    "Redis": {
        "redis": (
            "Shared state: a redis-server started by the gateway, none, or redis://, rediss://, unix://, "
            "redis+sentinel://, redis+cluster://. Put a URL with a password in the variable POINTSMAN_REDIS: other "
            "users can see the options of a process.",
            {"parser": _redis, "metavar": "embedded|off|URL", "show_default": "embedded"},
        ),
        "redis_prefix": (
            "What the gateway's keys in a Redis by URL begin with; gateways with another one share nothing.",
            {"parser": _redis_prefix, "metavar": "NAME"},
        ),
        "shared_secret_file": (
            "A secret of 32 bytes or more that all gateways of one Redis have: rules that they share are signed with "
            "it, and others are ignored.",
            {"parser": _shared_secret_file, "metavar": "FILE"},
        ),
        "redis_deadline": ("Longest time that a request waits for Redis.", DURATION),
        "redis_memory_bytes": ("Memory of the embedded Redis; at least 1MiB.", SIZE),
    },
    "Experiments and recordings": {
        "experiment_tick": (
            "Interval of the experiments' evaluation; a failing arm is detected within a second anyway.",
            DURATION,
        ),
        "feedback_requests": (
            "Requests of experiments that a worker remembers by id, for POST /feedback.",
            {"min": 0},
        ),
        "redact": (
            "A header or a parameter whose value is redacted in recordings and the live tail; may be repeated. "
            "Credentials, whose names end with key, token, secret and the like, always are.",
            {"metavar": "NAME"},
        ),
    },
    "Limits of clients": {
        "max_header_bytes": ("Longest head of a request; beyond it the status is 431.", SIZE),
        "max_body_bytes": ("Longest body of a request; beyond it the status is 413.", SIZE),
        "max_inflated_bytes": (
            "Longest content of a compressed body or message that the gateway must read; beyond it the status is 413.",
            SIZE,
        ),
        "max_inflation_ratio": (
            "How many times as long as its compressed form such a content may be, beyond 1 MiB.",
            {"min": 1},
        ),
        "max_json_values": (
            "Values and keys of a JSON body that the gateway must read whole, where an object counts as eight and an "
            "array as four; beyond it the status is 413.",
            {"min": 1},
        ),
        "max_request_items": (
            "Messages, parts, tools, prompts, tensors and parameters, together, of a request that the gateway must "
            "read; beyond it the status is 413.",
            {"min": 1},
        ),
        "high_water_bytes": (
            "Bytes buffered for a slow reader, in each direction, before the sender is paused.",
            SIZE,
        ),
        "max_buffered_bytes": (
            "Bytes that a worker holds of requests that must be whole before they go on; above it the largest is "
            "answered 503.",
            SIZE,
        ),
        "max_loop_lag": (
            "How late a worker's event loop may be before it refuses the lowest priority class of engines with "
            "overload; 0: any.",
            DURATION,
        ),
        "max_connection_bytes": ("The same for one client connection.", SIZE),
        "read_ahead_bytes": (
            "A reply with so much to come is read to its end before a slow client takes it, and gives its engine's "
            "connection back.",
            SIZE,
        ),
        "max_read_ahead_bytes": ("Bytes that a worker reads ahead of all replies.", SIZE),
        "window_bytes": ("Flow-control window of each HTTP/2 stream; at least 64KiB.", SIZE),
        "retry_body_bytes": ("Longest body that is buffered for a retry.", SIZE),
        "header_timeout": ("Longest time for a request's head to arrive.", DURATION),
        "idle_timeout": ("A connection idle for longer is closed.", DURATION),
        "body_timeout": ("Longest pause within a request's body.", DURATION),
        "half_close_timeout": (
            "Time to answer an inference after the client closes its sending half, which may mean that it has "
            "disconnected; 0 cancels it at once.",
            DURATION,
        ),
        "max_streams": ("Concurrent gRPC calls per connection.", {"min": 1}),
        "max_resets": ("gRPC calls that one connection may reset in a burst.", {"min": 1}),
        "max_connections": ("Client connections per worker; 0: no limit.", {"min": 0}),
        "max_per_address": (
            "Client connections of one address per worker; 0: no limit. Behind a proxy, all clients have its address.",
            {"min": 0},
        ),
        "min_rate": (
            "Bytes a second at which a client must send a body and read a reply, on average, after the first 15 s; "
            "0: any.",
            SIZE,
        ),
    },
}
