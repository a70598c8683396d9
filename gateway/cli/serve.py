"""`pointsman serve`: the gateway."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gateway.config.settings import Limits, ListenerTls, Settings
from gateway.yaml import values

_DEFAULTS = Settings()
_LIMITS = Limits()
_LEAST_TICK_SECONDS = 0.1
_LEAST_REDIS_BYTES = 1 << 20  # what an empty one takes itself; 0 would be no limit to it


def _quantity(parse: Callable[[str], float | int]) -> Callable[[Any], Any]:
    """A typer parser of a duration or a size; a default passes as it is."""

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
    """Checked here, so that a mistake is an option's; no message repeats it, since it may hold a password."""
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
            "Changes are noticed and taken over while serving; a file with a mistake changes nothing.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0 for every one.")] = _DEFAULTS.host,
    http_port: Annotated[int, typer.Option(help="The inference port; 0 takes a free one.")] = _DEFAULTS.http_port,
    grpc_port: Annotated[
        int,
        typer.Option(
            help="A second inference port, where gRPC clients expect one; 0 takes a free one. Both ports "
            "speak both: give the same number as --http-port to have one."
        ),
    ] = _DEFAULTS.grpc_port,
    admin_port: Annotated[
        int, typer.Option(help="The admin API, its page, and metrics; 0 takes a free one.")
    ] = _DEFAULTS.admin_port,
    admin_host: Annotated[
        str,
        typer.Option(
            envvar="POINTSMAN_ADMIN_HOST", help="The admin port's address; one beyond this host needs --admin-keys."
        ),
    ] = _DEFAULTS.admin_host,
    admin_keys: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="POINTSMAN_ADMIN_KEYS",
            help="Who may use the admin API: names, roles and hashes of keys, as `pointsman keys add` writes them. "
            "Changes are taken over while serving. Without it everybody on this host may do everything.",
            show_default=False,
        ),
    ] = _DEFAULTS.admin_keys,
    open_metrics: Annotated[
        bool, typer.Option("--open-metrics", help="With --admin-keys: /metrics asks for no key.")
    ] = _DEFAULTS.open_metrics,
    workers: Annotated[int, typer.Option(min=1, help="Data-plane processes; one uses one core.")] = _DEFAULTS.workers,
    ready_file: Annotated[
        Path | None, typer.Option(help="Write ports and pid here, as JSON, once requests are served.")
    ] = None,
    access_log: Annotated[bool, typer.Option(help="One line a request on stdout.")] = _DEFAULTS.access_log,
    log_format: Annotated[Literal["text", "json"], typer.Option(help="How log lines are written.")] = "text",
    tls_cert: Annotated[Path | None, typer.Option(help="PEM certificate: the inference port speaks TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM key of --tls-cert.")] = None,
    tls_client_ca: Annotated[
        Path | None, typer.Option(help="PEM authority: clients must show a certificate signed by it.")
    ] = None,
    drain_timeout: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="After SIGTERM, how long requests may go on.")
    ] = _DEFAULTS.drain_timeout,
    hang_timeout: Annotated[
        float,
        typer.Option(
            parser=_duration,
            metavar="DURATION",
            help="A worker that answers nothing for so long is started anew; 0: never.",
        ),
    ] = _DEFAULTS.hang_timeout,
    ready_when: Annotated[
        Literal["all", "any"],
        typer.Option(help="/v2/health/ready wants a healthy endpoint behind all routes, or behind any."),
    ] = "all",
    name_decision: Annotated[
        bool, typer.Option(help="Tell route, engine and arm in fields of each reply.")
    ] = _DEFAULTS.name_decision,
    trust_forwarded: Annotated[
        bool, typer.Option(help="Keep the x-forwarded-* fields that come in: another proxy stands before this one.")
    ] = _DEFAULTS.trust_forwarded,
    max_header_bytes: Annotated[
        int, typer.Option(parser=_size, metavar="SIZE", help="Longest head of a request; longer is answered 431.")
    ] = _LIMITS.max_header_bytes,
    max_body_bytes: Annotated[
        int, typer.Option(parser=_size, metavar="SIZE", help="Longest body of a request; longer is answered 413.")
    ] = _LIMITS.max_body_bytes,
    high_water_bytes: Annotated[
        int,
        typer.Option(
            parser=_size, metavar="SIZE", help="What may wait for a slow reader, each way, before the sender is paused."
        ),
    ] = _LIMITS.high_water_bytes,
    window_bytes: Annotated[
        int,
        typer.Option(
            parser=_size,
            metavar="SIZE",
            help="The same for each HTTP/2 stream: what a client may send before it is taken; 64KiB at the least.",
        ),
    ] = _LIMITS.window_bytes,
    retry_body_bytes: Annotated[
        int, typer.Option(parser=_size, metavar="SIZE", help="Longest body that is kept so that it can be sent again.")
    ] = _LIMITS.retry_body_bytes,
    redis: Annotated[
        str,
        typer.Option(
            parser=_redis,
            metavar="embedded|off|URL",
            envvar="POINTSMAN_REDIS",
            help="Where sessions are kept: a redis-server that is started here, nowhere, or redis://, rediss://, "
            "unix://, redis+sentinel://, redis+cluster:// elsewhere. Whoever may list processes reads this option: "
            "a URL with a password is better said in the variable.",
        ),
    ] = _DEFAULTS.redis,
    redis_deadline: Annotated[
        float,
        typer.Option(parser=_duration, metavar="DURATION", help="Longest that a request waits for Redis."),
    ] = _DEFAULTS.redis_deadline,
    redis_memory_bytes: Annotated[
        int, typer.Option(parser=_size, metavar="SIZE", help="What the embedded Redis may hold, 1MiB at the least.")
    ] = _DEFAULTS.redis_memory_bytes,
    experiment_tick: Annotated[
        float,
        typer.Option(
            parser=_duration,
            metavar="DURATION",
            help="How often experiments are judged and ramps go on; a collapsing arm is seen within a second anyway.",
        ),
    ] = _DEFAULTS.experiment_tick,
    feedback_requests: Annotated[
        int,
        typer.Option(min=0, help="Requests of experiments that a worker remembers by their ids, for POST /feedback."),
    ] = _DEFAULTS.feedback_requests,
    redact: Annotated[
        list[str],
        typer.Option(
            metavar="NAME",
            help="A header or a parameter whose value no recording and no live tail has, though rules ask for it; may "
            "be repeated. Those given take the place of the defaults.",
        ),
    ] = list(_DEFAULTS.redact),  # noqa: B006
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Where the embedded Redis keeps its file, and the gateway rule versions, recordings and its audit; "
            "gateways with the same one share one Redis. By default "
            "$XDG_STATE_HOME/pointsman or ~/.local/state/pointsman, on macOS ~/Library/Application Support/pointsman.",
            show_default=False,
        ),
    ] = _DEFAULTS.data_dir,
    header_timeout: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="Longest time for a request's head to come.")
    ] = _LIMITS.header_timeout,
    idle_timeout: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="A connection idle for longer is closed.")
    ] = _LIMITS.idle_timeout,
    body_timeout: Annotated[
        float, typer.Option(parser=_duration, metavar="DURATION", help="Longest silence inside a request's body.")
    ] = _LIMITS.body_timeout,
    max_streams: Annotated[
        int, typer.Option(min=1, help="gRPC calls at the same time on one connection.")
    ] = _LIMITS.max_streams,
    max_resets: Annotated[
        int, typer.Option(min=1, help="gRPC calls that one connection may break off in a burst.")
    ] = _LIMITS.max_resets,
    max_connections: Annotated[
        int, typer.Option(min=0, help="Client connections per worker; 0 for no limit of ours.")
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


def _tls(cert: Path | None, key: Path | None, client_ca: Path | None) -> ListenerTls | None:
    if cert is not None and key is not None:
        return ListenerTls(str(cert), str(key), str(client_ca) if client_ca is not None else None)
    if cert is not None or key is not None or client_ca is not None:
        raise typer.BadParameter("TLS needs both --tls-cert and --tls-key")
    return None


def _run(settings: Settings, paths: list[Path], ready_file: Path | None) -> int:
    from gateway.cli.check import print_problems, summarize
    from gateway.config.rules import load_rules
    from gateway.control.channel import loop_factory
    from gateway.dry_run.rule_tests import tested
    from gateway.observability.logs import set_up_logging
    from gateway.supervision.admin_access import AccessError
    from gateway.supervision.ports import PortError
    from gateway.supervision.supervisor import Addresses, Supervisor
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
