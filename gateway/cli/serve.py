"""`pointsman serve`: the gateway."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from gateway.config.settings import Limits, ListenerTls, Settings
from gateway.yaml import values

_DEFAULTS = Settings()
_LIMITS = Limits()
_LEAST_TICK_SECONDS = 0.1
_LEAST_REDIS_BYTES = 1 << 20  # the size of an empty server; 0 would mean no limit


def _quantity(parse: Callable[[str], float | int]) -> Callable[[Any], Any]:
    """A typer parser of a duration or a size; a default is returned unchanged."""

    def parsed(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return parsed


_duration = _quantity(values.duration)
_size = _quantity(values.size)


def _redis(value: str) -> str:
    """Check the option early; no message repeats the value, which may contain a password."""
    if value not in ("embedded", "off"):
        from gateway.redis.address import read_address

        try:
            read_address(value)
        except ValueError as error:
            raise typer.BadParameter(f"embedded, off, or a URL: {error}") from error
    return value


def serve(
    rules: Annotated[
        list[Path],
        typer.Option(
            metavar="PATH",
            help="A rule file, or a directory whose *.yaml and *.yml files are read in name order; may be repeated. "
            "Changes are applied while serving; a file with an error changes nothing.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for all.")] = _DEFAULTS.host,
    http_port: Annotated[int, typer.Option(help="The inference port; 0 takes a free one.")] = _DEFAULTS.http_port,
    grpc_port: Annotated[
        int,
        typer.Option(
            help="A second inference port, where gRPC clients expect it; 0 takes a free one. Both ports accept HTTP "
            "and gRPC: use the same number as --http-port for a single port."
        ),
    ] = _DEFAULTS.grpc_port,
    admin_port: Annotated[
        int, typer.Option(help="The admin API, its page, and metrics; 0 takes a free one.")
    ] = _DEFAULTS.admin_port,
    admin_host: Annotated[
        str,
        typer.Option(
            envvar="POINTSMAN_ADMIN_HOST", help="The admin port's address; other than loopback it needs --admin-keys."
        ),
    ] = _DEFAULTS.admin_host,
    admin_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="POINTSMAN_ADMIN_KEYS",
            help="Keys of the admin API, as `pointsman keys add` writes them; changes are applied while serving. "
            "Without it, every process on this host is an admin.",
            show_default=False,
        ),
    ] = _DEFAULTS.admin_keys,
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", help="With --admin-keys: /metrics needs no key.")
    ] = _DEFAULTS.open_metrics,
    workers: Annotated[int, typer.Option(min=1, help="Data-plane processes; each uses one core.")] = _DEFAULTS.workers,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write ports and pid to this file, as JSON, once the gateway serves.")
    ] = None,
    access_log: Annotated[bool, typer.Option(help="Write one line per request to stdout.")] = _DEFAULTS.access_log,
    log_format: Annotated[Literal["text", "json"], typer.Option(help="Format of log lines.")] = "text",
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate for TLS on the inference ports.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM key of --tls-cert.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="PEM authority that must have signed the clients' certificates.")
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="How long requests may continue after SIGTERM.")
    ] = _DEFAULTS.drain_timeout,
    hang_timeout: Annotated[
        float,
        typer.Option(
            parser=_duration,
            metavar="DURATION",
            help="A worker that does not answer for this long is restarted; 0: never.",
        ),
    ] = _DEFAULTS.hang_timeout,
    ready_when: Annotated[
        Literal["all", "any"],
        typer.Option(help="/v2/health/ready needs a healthy endpoint for all routes, or for any."),
    ] = "all",
    name_decision: Annotated[
        bool, typer.Option(help="Add route, engine and arm to the header of each reply.")
    ] = _DEFAULTS.name_decision,
    trust_forwarded: Annotated[
        bool, typer.Option(help="Keep incoming x-forwarded-* fields: another proxy is in front of this one.")
    ] = _DEFAULTS.trust_forwarded,
    max_header_bytes: Annotated[
        int, typer.Option(parser=_size, metavar="SIZE", help="Longest head of a request; beyond it the status is 431.")
    ] = _LIMITS.max_header_bytes,
    max_body_bytes: Annotated[
        int, typer.Option(parser=_size, metavar="SIZE", help="Longest body of a request; beyond it the status is 413.")
    ] = _LIMITS.max_body_bytes,
    high_water_bytes: Annotated[
        int,
        typer.Option(
            parser=_size,
            metavar="SIZE",
            help="Bytes buffered for a slow reader, in each direction, before the sender is paused.",
        ),
    ] = _LIMITS.high_water_bytes,
    window_bytes: Annotated[
        int,
        typer.Option(
            parser=_size,
            metavar="SIZE",
            help="Flow-control window of each HTTP/2 stream; at least 64KiB.",
        ),
    ] = _LIMITS.window_bytes,
    retry_body_bytes: Annotated[
        int, typer.Option(parser=_size, metavar="SIZE", help="Longest body that is buffered for a retry.")
    ] = _LIMITS.retry_body_bytes,
    redis: Annotated[
        str,
        typer.Option(
            parser=_redis,
            metavar="embedded|off|URL",
            envvar="POINTSMAN_REDIS",
            help="Shared state: a redis-server started by the gateway, none, or redis://, rediss://, unix://, "
            "redis+sentinel://, redis+cluster://. Put a URL with a password in the variable POINTSMAN_REDIS: other "
            "users can see the options of a process.",
        ),
    ] = _DEFAULTS.redis,
    redis_deadline: Annotated[
        float,
        typer.Option(parser=_duration, metavar="DURATION", help="Longest time that a request waits for Redis."),
    ] = _DEFAULTS.redis_deadline,
    redis_memory_bytes: Annotated[
        int, typer.Option(parser=_size, metavar="SIZE", help="Memory of the embedded Redis; at least 1MiB.")
    ] = _DEFAULTS.redis_memory_bytes,
    experiment_tick: Annotated[
        float,
        typer.Option(
            parser=_duration,
            metavar="DURATION",
            help="Interval of the experiments' evaluation; a failing arm is detected within a second anyway.",
        ),
    ] = _DEFAULTS.experiment_tick,
    feedback_requests: Annotated[
        int,
        typer.Option(min=0, help="Requests of experiments that a worker remembers by id, for POST /feedback."),
    ] = _DEFAULTS.feedback_requests,
    redact: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="A header or a parameter whose value is redacted in recordings and the live tail; may be repeated. "
            "It replaces the defaults.",
        ),
    ] = list(_DEFAULTS.redact),  # noqa: B006
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the embedded Redis, rule versions, recordings and the audit; gateways with the same folder "
            "share one Redis. Default: $XDG_STATE_HOME/pointsman or ~/.local/state/pointsman, on macOS "
            "~/Library/Application Support/pointsman.",
            show_default=False,
        ),
    ] = _DEFAULTS.data_dir,
    header_timeout: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="Longest time for a request's head to arrive.")
    ] = _LIMITS.header_timeout,
    idle_timeout: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="A connection idle for longer is closed.")
    ] = _LIMITS.idle_timeout,
    body_timeout: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="Longest pause within a request's body.")
    ] = _LIMITS.body_timeout,
    max_streams: Annotated[
        int, typer.Option(min=1, help="Concurrent gRPC calls per connection.")
    ] = _LIMITS.max_streams,
    max_resets: Annotated[
        int, typer.Option(min=1, help="gRPC calls that one connection may reset in a burst.")
    ] = _LIMITS.max_resets,
    max_connections: Annotated[
        int, typer.Option(min=0, help="Client connections per worker; 0: no limit.")
    ] = _LIMITS.max_connections,
) -> int:
    """Serve: route requests by the rules to the engines, until SIGTERM or Ctrl-C.

    SIGTERM lets requests in flight end; a second one stops at once. SIGHUP reads the rules again.
    """
    if redis_memory_bytes < _LEAST_REDIS_BYTES:
        raise typer.BadParameter("--redis-memory-bytes is 1MiB at the least")
    if experiment_tick < _LEAST_TICK_SECONDS:
        raise typer.BadParameter("--experiment-tick is 100ms at the least")
    settings = Settings(
        host=host,
        http_port=http_port,
        grpc_port=grpc_port,
        admin_port=admin_port,
        admin_host=admin_host,
        admin_keys=admin_keys,
        open_metrics=open_metrics,
        workers=workers,
        drain_timeout=drain_timeout,
        hang_timeout=hang_timeout,
        access_log=access_log,
        log_format=log_format,
        tls=_tls(tls_cert, tls_key, tls_client_ca),
        ready_when=ready_when,
        name_decision=name_decision,
        trust_forwarded=trust_forwarded,
        redis=redis,
        redis_deadline=redis_deadline,
        redis_memory_bytes=redis_memory_bytes,
        data_dir=data_dir,
        redact=tuple(name.lower() for name in redact),
        experiment_tick=experiment_tick,
        feedback_requests=feedback_requests,
        limits=Limits(
            max_header_bytes=max_header_bytes,
            max_body_bytes=max_body_bytes,
            high_water_bytes=high_water_bytes,
            window_bytes=window_bytes,
            retry_body_bytes=retry_body_bytes,
            header_timeout=header_timeout,
            idle_timeout=idle_timeout,
            body_timeout=body_timeout,
            max_streams=max_streams,
            max_resets=max_resets,
            max_connections=max_connections,
        ),
    )
    return _run(settings, rules, ready_file)


# The groups of `--help`.
_PANELS = {
    "Rules and processes": ("rules", "workers", "ready_file", "data_dir", "drain_timeout", "hang_timeout"),
    "Inference ports": (
        *("host", "http_port", "grpc_port", "tls_cert", "tls_key", "tls_client_ca", "ready_when"),
        *("name_decision", "trust_forwarded"),
    ),
    "Admin port": ("admin_host", "admin_port", "admin_keys", "open_metrics"),
    "Logs": ("access_log", "log_format"),
    "Redis": ("redis", "redis_deadline", "redis_memory_bytes"),
    "Experiments and recordings": ("experiment_tick", "feedback_requests", "redact"),
    "Limits of clients": (
        *("max_header_bytes", "max_body_bytes", "high_water_bytes", "window_bytes", "retry_body_bytes"),
        *("header_timeout", "idle_timeout", "body_timeout", "max_streams", "max_resets", "max_connections"),
    ),
}
serve.__annotations__ = get_type_hints(serve, include_extras=True)
for _panel, _names in _PANELS.items():
    for _name in _names:
        serve.__annotations__[_name].__metadata__[0].rich_help_panel = _panel


def _tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ListenerTls | None:
    if cert is not None and key is not None:
        return ListenerTls(str(cert), str(key), str(client_ca) if client_ca is not None else None)
    if cert is not None or key is not None or client_ca is not None:
        raise typer.BadParameter("TLS needs both --tls-cert and --tls-key")
    return None


def _run(settings: Settings, paths: list[Path], ready_file: Path | None) -> int:
    from gateway.admin.auth import AccessError
    from gateway.cli.check import print_problems, summarize
    from gateway.cli.supervisor import Addresses, Supervisor
    from gateway.config.rules import load_rules
    from gateway.dry_run.rule_tests import tested
    from gateway.net.server import loop_factory
    from gateway.observability.logs import set_up_logging
    from gateway.supervision.ports import PortError
    from gateway.supervision.worker_pool import StartError

    set_up_logging(settings.log_format)

    def ready(addresses: Addresses) -> None:
        scheme = "https" if settings.tls else "http"
        log = logging.getLogger("pointsman")
        log.info("%s", summarize(loaded))
        log.info("inference  %s://%s:%d/v2", scheme, _in_url(addresses.host), addresses.http_port)
        log.info("gRPC       %s:%d", _in_url(addresses.host), addresses.grpc_port)
        log.info("page       http://%s:%d/", _in_url(addresses.admin_host), addresses.admin_port)
        log.info("metrics    http://%s:%d/metrics", _in_url(addresses.admin_host), addresses.admin_port)

    supervisor = Supervisor(settings, paths, ready_file=ready_file, ready=ready)
    loaded = tested(load_rules(paths))
    if loaded.problems:
        print_problems(loaded)
    if loaded.rules is None:
        print(summarize(loaded), file=sys.stderr)
        return 2
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(supervisor.run(loaded))
    except (AccessError, PortError, StartError, OSError) as error:
        print(f"pointsman: {error}", file=sys.stderr)
        return 1


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
