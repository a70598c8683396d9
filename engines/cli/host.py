"""`pointsman host`: serves a Triton model repository."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from engines.cli import options
from engines.cli.options import SERVER, boolean, by_name, option, port_option, read, refuse, resources

_REPOSITORY, _HTTP, _GRPC = "Model repository", "REST", "gRPC"
_METRICS, _TRACING, _LOGGING, _RUNNING = "Metrics", "Tracing", "Logging", "Scheduling and backends"
_MEBIBYTE = 1024 * 1024
_MAX_MESSAGE_BYTES = 2**31 - 1

# A boolean with a value, as Triton's are: true or false.
Flag = str


def _flag(panel: str, help_text: str) -> Any:
    return option(panel, help_text, metavar="BOOL")


def _texts(panel: str, metavar: str, help_text: str) -> Any:
    return option(panel, f"{help_text} May be repeated.", metavar=metavar, show_default=False)


def _address(panel: str, server: str) -> Any:
    return option(panel, f"The address of the {server} port; default: --host.", metavar="ADDRESS")


def host(
    model_repository: Annotated[
        list[str],
        _texts(
            _REPOSITORY,
            "DIR",
            "A Triton model repository: a directory with a directory for each model (NAME/config.pbtxt, "
            "NAME/1/model.py), or its s3:// or gs:// URL. A model that several repositories have is not served.",
        ),
    ],
    model_control_mode: Annotated[
        Literal["none", "poll", "explicit"],
        option(
            _REPOSITORY,
            "none: load all models at the start. poll: load and unload with the files. explicit: load by request, and "
            "--load-model at the start.",
            metavar="MODE",
        ),
    ] = "none",
    load_model: Annotated[
        list[str] | None, _texts(_REPOSITORY, "NAME", "Load the model at the start, in explicit mode; * loads all.")
    ] = None,
    repository_poll_secs: Annotated[
        float,
        option(_REPOSITORY, "The interval between checks of the files, in poll mode.", min=0.01, metavar="SECONDS"),
    ] = 15.0,
    model_config_name: Annotated[
        str,
        option(
            _REPOSITORY, "Read configs/NAME.pbtxt of a model, where present, instead of config.pbtxt.", metavar="NAME"
        ),
    ] = "",
    disable_auto_complete_config: Annotated[
        bool,
        option(_REPOSITORY, "Do not complete configurations from the models' files.", "--disable-auto-complete-config"),
    ] = False,
    strict_readiness: Annotated[
        Flag, _flag(_REPOSITORY, "/v2/health/ready requires every model; if false, only the server.")
    ] = "true",
    exit_on_error: Annotated[
        Flag, _flag(_REPOSITORY, "Exit where a model fails to load at the start; if false, serve the others.")
    ] = "true",
    listen_on: options.ListenOn = "127.0.0.1",
    settings_file: options.SettingsFile = None,
    name: Annotated[str, option(SERVER, "The server's name in its metadata.", "--id")] = "triton",
    drain_delay: options.DrainDelay = 0.0,
    exit_timeout_secs: Annotated[
        float, option(SERVER, "Time for requests in flight to end after SIGTERM and --drain-delay.", min=0)
    ] = 30.0,
    ready_file: options.ReadyFile = None,
    receive_timeout_secs: Annotated[
        float,
        option(SERVER, "Close a client that stops sending a request for this time; 0 disables the timeout.", min=0),
    ] = 60.0,
    send_timeout_secs: Annotated[
        float,
        option(SERVER, "Close a client that reads nothing of its reply for this time; 0 disables the timeout.", min=0),
    ] = 60.0,
    half_close_timeout_secs: Annotated[
        float,
        option(
            SERVER,
            "Time to answer a REST request after the client closes its sending half, which may mean that it has "
            "disconnected; then the request is cancelled. 0 disables the timeout.",
            min=0,
        ),
    ] = 5.0,
    allow_client_shm: Annotated[Flag, _flag(SERVER, "Let clients register POSIX shared memory.")] = "true",
    allow_http: Annotated[Flag, _flag(_HTTP, "Serve REST.")] = "true",
    http_port: Annotated[int, port_option(_HTTP, "REST")] = 8100,
    http_address: Annotated[str | None, _address(_HTTP, "REST")] = None,
    http_header_forward_pattern: Annotated[
        str,
        option(
            _HTTP,
            "Headers whose names match become parameters of requests; RE2 syntax, (?-i) heeds the case.",
            metavar="REGEX",
        ),
    ] = "",
    http_restricted_api: Annotated[
        list[str] | None,
        _texts(
            _HTTP, "APIS:KEY=VALUE", "These APIs require the header KEY with this value, for example health:key=abc."
        ),
    ] = None,
    http_max_input_size: Annotated[
        int, option(_HTTP, "The longest request body, also decompressed.", min=1, metavar="BYTES")
    ] = 64 * _MEBIBYTE,
    allow_grpc: Annotated[Flag, _flag(_GRPC, "Serve gRPC.")] = "true",
    grpc_port: Annotated[int, port_option(_GRPC, "gRPC")] = 8101,
    grpc_address: Annotated[str | None, _address(_GRPC, "gRPC")] = None,
    grpc_header_forward_pattern: Annotated[
        str, option(_GRPC, "Metadata whose names match becomes parameters of requests; RE2 syntax.", metavar="REGEX")
    ] = "",
    grpc_restricted_protocol: Annotated[
        list[str] | None,
        _texts(
            _GRPC,
            "APIS:KEY=VALUE",
            "These APIs need this value of the metadata KEY, with triton-grpc-protocol- before it.",
        ),
    ] = None,
    grpc_infer_response_compression_level: Annotated[
        Literal["none", "low", "medium", "high"],
        option(_GRPC, "Of replies to inferences: none, low, medium, high.", metavar="LEVEL"),
    ] = "none",
    grpc_max_message_size: Annotated[
        int,
        option(
            _GRPC, "The longest request message, also decompressed.", min=1, max=_MAX_MESSAGE_BYTES, metavar="BYTES"
        ),
    ] = _MAX_MESSAGE_BYTES,
    allow_metrics: Annotated[Flag, _flag(_METRICS, "Serve Prometheus metrics.")] = "true",
    metrics_port: Annotated[int, port_option(_METRICS, "metrics")] = 8102,
    metrics_address: Annotated[str | None, _address(_METRICS, "metrics")] = None,
    metrics_config: Annotated[
        list[str] | None,
        _texts(
            _METRICS,
            "SETTING=VALUE",
            "counter_latencies=false leaves out the latencies' counters, summary_latencies=true adds summaries, "
            "summary_quantiles=0.5:0.05,0.9:0.01 names their quantiles, each with an error that is not used.",
        ),
    ] = None,
    pinned_memory_pool_byte_size: Annotated[
        int,
        option(_METRICS, "Reported as the size of the pinned memory pool; the host has none.", min=0, metavar="BYTES"),
    ] = 256 * _MEBIBYTE,
    trace_config: Annotated[
        list[str] | None,
        _texts(
            _TRACING,
            "SETTING=VALUE",
            "level=TIMESTAMPS|TENSORS|OFF, rate=1000, count=-1, mode=triton|opentelemetry, triton,file=PATH, "
            "triton,log-frequency=N, opentelemetry,url=URL.",
        ),
    ] = None,
    otlp_endpoint: Annotated[
        str | None,
        option(
            _TRACING,
            "Send traces to this receiver of OTLP over HTTP, for example http://127.0.0.1:4318: those of requests that "
            "the caller samples, and of others by --trace-config rate. Short for --trace-config level=TIMESTAMPS, "
            "mode=opentelemetry, opentelemetry,url=URL/v1/traces.",
            metavar="URL",
            show_default=False,
        ),
    ] = None,
    log_verbose: Annotated[int, option(_LOGGING, "Log debug lines from 1 on.", min=0)] = 0,
    log_info: Annotated[Flag, _flag(_LOGGING, "Log lines of level info.")] = "true",
    log_warning: Annotated[Flag, _flag(_LOGGING, "Log warnings.")] = "true",
    log_error: Annotated[Flag, _flag(_LOGGING, "Log errors.")] = "true",
    log_format: Annotated[Literal["default", "ISO8601"], option(_LOGGING, "The format of times.")] = "default",
    log_file: options.LogFile = "",
    backend_config: Annotated[
        list[str] | None,
        _texts(_RUNNING, "BACKEND,SETTING=VALUE", "A setting of a backend, or of all without BACKEND."),
    ] = None,
    cache_config: Annotated[
        list[str] | None,
        _texts(_RUNNING, "CACHE,SETTING=VALUE", "The response cache: local,size=BYTES, or redis,host=... and port."),
    ] = None,
    rate_limit: Annotated[
        Literal["off", "execution_count"],
        option(_RUNNING, "execution_count: instances run when the resources of their groups are free."),
    ] = "off",
    rate_limit_resource: Annotated[
        list[str] | None,
        _texts(_RUNNING, "NAME:COUNT[:DEVICE]", "The amount of a resource; by default what the largest user needs."),
    ] = None,
) -> int:
    """Serve a Triton model repository, unchanged: REST, gRPC and metrics, until SIGTERM or Ctrl-C.

    Options have the names and meanings of Triton's; the ports differ, so that Triton or the gateway can run beside it.
    Each model runs in processes of its own: one that crashes is restarted without effect on the others.

    SIGTERM lets requests in flight end, after --drain-delay; a second one stops at once. Exit code: 0, or 1 where the
    host cannot start.
    """
    from engines.host.client_limits import ClientLimits
    from engines.host.logs import LogSettings
    from engines.host.metrics_config import read_metrics_options
    from engines.host.server.run import run
    from engines.host.settings import Address, HostSettings
    from engines.host.trace_settings import read_trace_options, with_otlp_endpoint
    from gateway.protocol.restricted_apis import grpc_restrictions, http_restrictions

    if load_model and model_control_mode != "explicit":
        raise typer.BadParameter("requires --model-control-mode=explicit as well", param_hint="--load-model")

    def address(is_served: bool, own: str | None, port: int) -> Address | None:
        return Address(own or listen_on, port) if is_served else None

    levels = {"none": None, "low": 1, "medium": 6, "high": 9}
    trace = read("trace-config", lambda: read_trace_options(trace_config or ()))
    settings = HostSettings(
        repositories=tuple(model_repository),
        http=address(boolean("allow-http", allow_http), http_address, http_port),
        grpc=address(boolean("allow-grpc", allow_grpc), grpc_address, grpc_port),
        metrics=address(boolean("allow-metrics", allow_metrics), metrics_address or http_address, metrics_port),
        name=name,
        control_mode=model_control_mode,
        load_models=tuple(load_model or ()),
        repository_poll_seconds=repository_poll_secs,
        config_name=model_config_name,
        completes_configs=not disable_auto_complete_config,
        strict_readiness=boolean("strict-readiness", strict_readiness),
        exit_on_error=boolean("exit-on-error", exit_on_error),
        drain_delay_seconds=drain_delay,
        exit_timeout_seconds=exit_timeout_secs,
        backend_options=read("backend-config", lambda: by_name("backend-config", backend_config or ())),
        cache_options=read("cache-config", lambda: by_name("cache-config", cache_config or ())),
        is_rate_limited=rate_limit != "off",
        rate_limits=read("rate-limit-resource", lambda: resources(rate_limit_resource or ())),
        allows_client_shared_memory=boolean("allow-client-shm", allow_client_shm),
        limits=read(
            "header-forward-pattern",
            lambda: ClientLimits(
                max_body_bytes=http_max_input_size,
                max_message_bytes=grpc_max_message_size,
                rest_header_pattern=http_header_forward_pattern,
                grpc_header_pattern=grpc_header_forward_pattern,
                compression_level=levels[grpc_infer_response_compression_level],
                receive_seconds=receive_timeout_secs or None,
                send_seconds=send_timeout_secs or None,
                half_close_seconds=half_close_timeout_secs or None,
            ),
        ),
        http_restrictions=read("http-restricted-api", lambda: http_restrictions(http_restricted_api or ())),
        grpc_restrictions=read("grpc-restricted-protocol", lambda: grpc_restrictions(grpc_restricted_protocol or ())),
        metrics_config=read(
            "metrics-config", lambda: read_metrics_options(metrics_config or (), pinned_memory_pool_byte_size)
        ),
        trace=read("otlp-endpoint", lambda: with_otlp_endpoint(trace, otlp_endpoint)) if otlp_endpoint else trace,
    )
    logs = LogSettings(
        log_info=boolean("log-info", log_info),
        log_warning=boolean("log-warning", log_warning),
        log_error=boolean("log-error", log_error),
        log_verbose_level=log_verbose,
        log_format=log_format,
        log_file=log_file,
    )
    try:
        logs.install()
    except OSError as error:
        return refuse("host", f"cannot log to {log_file}: {error.strerror}")
    return run(settings, logs, ready_file)
