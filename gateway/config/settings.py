"""Settings, fixed when the gateway starts: one value, passed to each worker.

Times are seconds, sizes are bytes. `pointsman serve --help` shows the same descriptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gateway.config.operation_access import OperationAccess
from gateway.config.tracing import Tracing
from gateway.net.listener_tls import ListenerTls
from gateway.protocol.json_bounds import JsonBounds

# What a compressed body may hold whatever its ratio.
_FREE_INFLATED_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may use up; every limit answers with a clear error, none is silent."""

    max_header_bytes: int = 64 * 1024  # request line and headers together: 431 beyond
    max_body_bytes: int = 64 * 1024 * 1024  # Triton's own default: 413 beyond
    # Of a compressed body or message that the gateway must read; and how many times as long as its wire form, beyond
    # the first 1 MiB. Bodies that pass through are not inflated.
    max_inflated_bytes: int = 8 * 1024 * 1024
    max_inflation_ratio: int = 100
    # Values and keys of a JSON body that the gateway must read whole: 413 beyond. Four numbers of a tensor count as
    # one, an object as eight, an array as four.
    max_json_values: int = 1_000_000
    max_request_items: int = 4096  # messages, parts, tools, prompts, tensors and parameters of such a body together
    # How much may wait in memory for a slow reader, each way and connection, before the sender is paused. A socket read
    # reads up to 256 KiB at once, in addition.
    high_water_bytes: int = 256 * 1024
    # How late the event loop may be, in seconds, before requests for engines with `overload:` are refused (0: any)
    max_loop_lag: float = 1.0
    # What a worker, and one client connection, may hold of requests that must be whole before they go on: above it the
    # largest is shed.
    max_buffered_bytes: int = 256 * 1024 * 1024
    max_connection_bytes: int = 128 * 1024 * 1024
    # A reply with so much to come is read to its end before a slow client takes it, and gives its engine's connection
    # back; a worker reads at most so much of all of them.
    read_ahead_bytes: int = 1024 * 1024
    max_read_ahead_bytes: int = 64 * 1024 * 1024
    window_bytes: int = 1024 * 1024  # the same for each HTTP/2 stream: what a client may send before it is consumed
    retry_body_bytes: int = 1024 * 1024  # longer bodies are streamed on and cannot be tried a second time
    header_timeout: float = 15.0  # from a request's first byte (or the connection's start) to the end of its head
    idle_timeout: float = 75.0  # a connection without a request is closed after this
    body_timeout: float = 60.0  # longest silence inside a request's body
    # A client that sends no more may read on, or have gone. Its inference has this long for the reply (0: none);
    # language models' work is cancelled at once, and other operations are answered whatever they take.
    half_close_timeout: float = 1.0
    max_streams: int = 1000  # gRPC calls at the same time on one connection; more are refused, and may be tried again
    max_resets: int = 2000  # gRPC calls that one connection may break off in a burst, a twentieth of it each second
    max_connections: int = 10_000  # client connections per worker (0: as many as the system allows)
    # Those of one address (0: any number; behind a proxy, all clients have its address)
    max_per_address: int = 0
    # Bytes a second that a request's body comes at, and that a reply is read at, at the least, on average: 408, or the
    # connection ends (0: any).
    min_rate: int = 240

    def most_inflated(self, size: int) -> int:
        """How long a compressed body of this size may be once it is inflated."""
        allowed = max(_FREE_INFLATED_BYTES, size * self.max_inflation_ratio)
        return min(allowed, self.max_inflated_bytes, self.max_body_bytes)

    @property
    def json_bounds(self) -> JsonBounds:
        """What a JSON body may have that is read whole."""
        return JsonBounds(self.max_json_values, self.max_request_items)


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the gateway listens and how it behaves, apart from the rules."""

    host: str = "127.0.0.1"
    http_port: int = 8000
    grpc_port: int = 8001
    admin_port: int = 8002
    admin_tls: ListenerTls | None = None
    rules_api_env: tuple[str, ...] = ()  # variables that rules of the admin API may read beside those of the rule files
    admin_host: str = "127.0.0.1"
    admin_keys: Path | None = None  # who may use the admin API; without it this gateway's user, on this host
    open_metrics: bool = False  # /metrics needs no key even if there are keys
    id: str = "triton"  # the server's name in /v2, as Triton's own `--id`: clients compare it
    workers: int = 1
    take_over: bool = False  # the ports of a gateway with the same data folder, which ends
    # How long the gateway serves on after SIGTERM while its readiness says no: balancers notice, and send no more.
    drain_delay: float = 0.0
    drain_timeout: float = 30.0  # how long active requests may continue after that
    # A worker that does not respond for this long is restarted; 0 disables this. An event loop that stalls for
    # seconds (a starved machine) may recover; half a minute is too long.
    hang_timeout: float = 30.0
    # Connections that health probes hold at a time; half of them are kept from one probe to the next.
    probe_connections: int = 1024
    access_log: bool = False
    log_format: Literal["text", "json"] = "text"
    access_log_file: Path | None = None  # where its lines go instead of stdout; it turns the log on
    # text and json are older; otel has more: JSON by OpenTelemetry's names. None: as `log_format`
    access_log_format: Literal["text", "json", "otel"] | None = None
    access_log_sample: float = 1.0  # the share of requests that have not failed
    tracing: Tracing | None = None  # None: nothing is traced, and a `traceparent` goes on as it came
    tls: ListenerTls | None = None
    limits: Limits = field(default_factory=Limits)
    # Whether /v2/health/ready requires a healthy endpoint behind every route (all) or behind at least one (any).
    # With `all`, one engine that is down takes every gateway out of a balancer.
    ready_when: Literal["all", "any"] = "any"
    name_decision: bool = True  # x-pointsman-route, -engine and -arm on each reply; names and addresses in errors
    operation_access: OperationAccess = field(default_factory=OperationAccess)
    # Names of models in paths may have encoded slashes, backslashes, NULs and dot segments: engines may read others
    encoded_slashes: bool = False
    trust_forwarded: bool = False  # keep incoming x-forwarded-* (behind another proxy) instead of replacing them
    # embedded, off, or a URL (gateway.redis.address), which may contain a password: never shown in a repr
    redis: str = field(default="embedded", repr=False)
    redis_prefix: str = "pointsman"  # what all keys in a Redis by URL begin with
    shared_secret_file: Path | None = field(default=None, repr=False)  # signs the rules that gateways share by Redis
    redis_deadline: float = 0.005  # longest wait of a request for Redis; it proceeds without it then
    # The memory of the embedded Redis. Half a million sessions need less.
    redis_memory_bytes: int = 256 * 1024 * 1024
    # Requests of experiments that a worker remembers by their ids, for `POST /feedback`: about 110 bytes each. Half as
    # many are certain; 0: feedback is taken by session alone.
    feedback_requests: int = 50_000
    # The interval of evaluations and ramp steps. A collapsing arm is detected within a second regardless.
    experiment_tick: float = 5.0
    # Headers and parameters (lower case) whose values are never recorded or streamed, even if rules use them, beside
    # those of credentials (gateway.protocol.credentials).
    redact: tuple[str, ...] = ()
    # The folder of the embedded Redis, rule versions, recordings and audit; None: a
    # folder of the user's state.
    data_dir: Path | None = None
