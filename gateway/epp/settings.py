"""Settings of an endpoint picker, fixed when it starts. Times are seconds, sizes are bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.config.settings import Limits, Settings
from gateway.net.listener_tls import ListenerTls


@dataclass(frozen=True, slots=True)
class PickerSettings:
    """Where the picker listens, what a proxy may use up, and what it tells."""

    host: str = "127.0.0.1"
    port: int = 9002  # as the reference picker's
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 9090  # the same
    tls: ListenerTls | None = None
    # Endpoints of an answer: the first choice, and where a proxy with retries goes then. Envoy's ORIGINAL_DST cluster
    # reads one address alone.
    endpoints: int = 1
    name_decision: bool = True  # x-pointsman-route, -engine and -arm on each reply; names and addresses in errors
    encoded_slashes: bool = False  # as of `pointsman serve`
    ready_when: Literal["all", "any"] = "any"
    probe_connections: int = 1024
    log_format: Literal["text", "json"] = "text"
    drain_delay: float = 0.0  # how long it answers on after SIGTERM while health says no
    drain_timeout: float = 30.0  # how long requests may continue after that
    max_requests: int = 10_000  # at the same time, over all connections: 429 beyond
    max_streams: int = 10_000  # of one connection: a proxy has one stream for each request
    max_body_bytes: int = 64 * 1024 * 1024  # of a body that must be read before it goes on: 413 beyond
    max_buffered_bytes: int = 256 * 1024 * 1024  # of all such bodies: 503 beyond
    max_json_values: int = 1_000_000  # as of `pointsman serve`
    max_request_items: int = 4096
    max_inflated_bytes: int = 8 * 1024 * 1024
    max_inflation_ratio: int = 100
    high_water_bytes: int = 256 * 1024  # waiting for a proxy that does not read, before it may send no more
    window_bytes: int = 1024 * 1024  # of each stream
    body_timeout: float = 60.0  # longest silence inside a body that is waited for

    @property
    def is_closed(self) -> bool:
        """Whether only proxies with a certificate are served."""
        return self.tls is not None and self.tls.requires_certificates

    @property
    def of_plane(self) -> Settings:
        """The settings of the parts that the picker shares with the gateway."""
        limits = Limits(
            max_body_bytes=self.max_body_bytes,
            max_inflated_bytes=self.max_inflated_bytes,
            max_inflation_ratio=self.max_inflation_ratio,
            max_json_values=self.max_json_values,
            max_request_items=self.max_request_items,
            high_water_bytes=self.high_water_bytes,
            max_buffered_bytes=self.max_buffered_bytes,
        )
        return Settings(
            limits=limits,
            ready_when=self.ready_when,
            name_decision=self.name_decision,
            encoded_slashes=self.encoded_slashes,
            redis="off",
        )
