"""`pointsman host`: an unchanged Triton model repository, served."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from engines.cli.options import SERVER, ListenOn, ReadyFile, boolean, by_name, read, resources

_REPOSITORY, _HTTP, _GRPC = "Model repository", "REST", "gRPC"
_METRICS, _TRACING, _LOGGING, _RUNNING = "Metrics", "Tracing", "Logging", "Scheduling and backends"
_MEBIBYTE = 1024 * 1024
_MAX_MESSAGE_BYTES = 2**31 - 1

# A boolean with a value, as Triton's are: true or false.
Flag = str


def _flag(help_text: str, panel: str) -> typer.models.OptionInfo:
    made: typer.models.OptionInfo = typer.Option(metavar="BOOL", help=help_text, rich_help_panel=panel)
    return made


def _port(front: str, panel: str) -> typer.models.OptionInfo:
    made: typer.models.OptionInfo = typer.Option(
        min=0, max=65535, help=f"The {front} port; 0 takes a free one.", rich_help_panel=panel
    )
    return made


def _address(front: str, panel: str) -> typer.models.OptionInfo:
    made: typer.models.OptionInfo = typer.Option(
        help=f"The address of the {front} port; --host where it is not given.", rich_help_panel=panel, metavar="ADDRESS"
    )
    return made


def _texts(form: str, help_text: str, panel: str) -> typer.models.OptionInfo:
    made: typer.models.OptionInfo = typer.Option(
        metavar=form, help=f"{help_text} May be repeated.", rich_help_panel=panel, show_default=False
    )
    return made


def host(
    model_repository: Annotated[
        list[str],
        typer.Option(
            metavar="DIR",
            help="A Triton model repository: a directory with one directory a model (NAME/config.pbtxt, "
            "NAME/1/model.py), or an s3:// or gs:// URL of one. May be repeated; a name that is in several of them is "
            "served from none.",
            show_default=False,
            rich_help_panel=_REPOSITORY,
        ),
    ],
    model_control_mode: Annotated[
        Literal["none", "poll", "explicit"],
        typer.Option(
            help="none: load everything at the start. poll: load and unload with the files. explicit: load what "
            "clients ask for, and --load-model at the start.",
            rich_help_panel=_REPOSITORY,
        ),
    ] = "none",
    load_model: Annotated[
        list[str] | None,
        _texts("NAME", "Load it at the start, in explicit mode; * alone means all.", _REPOSITORY),
    ] = None,
    repository_poll_secs: Annotated[
        float,
        typer.Option(min=0.01, help="In poll mode, how often the files are looked at.", rich_help_panel=_REPOSITORY),
    ] = 15.0,
    model_config_name: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Read configs/NAME.pbtxt of a model, where it has one, instead of config.pbtxt.",
            rich_help_panel=_REPOSITORY,
        ),
    ] = "",
    disable_auto_complete_config: Annotated[
        bool,
        typer.Option(
            "--disable-auto-complete-config",
            help="Take configurations as they are written; by default the backend fills in what the model tells.",
            rich_help_panel=_REPOSITORY,
        ),
    ] = False,
    strict_readiness: Annotated[
        Flag, _flag("/v2/health/ready wants every model ready; if false, only a host that serves.", _REPOSITORY)
    ] = "true",
    exit_on_error: Annotated[
        Flag, _flag("End where a model does not load at the start; if false, serve the others.", _REPOSITORY)
    ] = "true",
    listen_on: ListenOn = "127.0.0.1",
    name: Annotated[
        str, typer.Option("--id", help="The name that /v2 tells.", rich_help_panel=SERVER)
    ] = "pointsman-host",
    exit_timeout_secs: Annotated[
        float,
        typer.Option(min=0, help="After SIGTERM, how long requests in flight may go on.", rich_help_panel=SERVER),
    ] = 30.0,
    ready_file: ReadyFile = None,
    receive_timeout_secs: Annotated[
        float,
        typer.Option(
            min=0,
            help="A client that stops sending in the middle of a request is given up after so long; 0 waits for ever.",
            rich_help_panel=SERVER,
        ),
    ] = 60.0,
    send_timeout_secs: Annotated[
        float,
        typer.Option(
            min=0,
            help="A client that takes nothing of its answer is given up after so long; 0 waits for ever.",
            rich_help_panel=SERVER,
        ),
    ] = 60.0,
    allow_client_shm: Annotated[Flag, _flag("Clients may register POSIX shared memory.", SERVER)] = "true",
    allow_http: Annotated[Flag, _flag("Serve REST.", _HTTP)] = "true",
    http_port: Annotated[int, _port("REST", _HTTP)] = 8100,
    http_address: Annotated[str | None, _address("REST", _HTTP)] = None,
    http_header_forward_pattern: Annotated[
        str,
        typer.Option(
            metavar="REGEX", help="Headers whose names match become parameters of requests.", rich_help_panel=_HTTP
        ),
    ] = "",
    http_restricted_api: Annotated[
        list[str] | None,
        _texts("APIS:KEY=VALUE", "These APIs want the header KEY with this value: health,metadata:admin=xyz.", _HTTP),
    ] = None,
    http_max_input_size: Annotated[
        int,
        typer.Option(min=1, metavar="BYTES", help="The longest request body, decompressed too.", rich_help_panel=_HTTP),
    ] = 64 * _MEBIBYTE,
    allow_grpc: Annotated[Flag, _flag("Serve gRPC.", _GRPC)] = "true",
    grpc_port: Annotated[int, _port("gRPC", _GRPC)] = 8101,
    grpc_address: Annotated[str | None, _address("gRPC", _GRPC)] = None,
    grpc_header_forward_pattern: Annotated[
        str,
        typer.Option(
            metavar="REGEX", help="Metadata whose names match becomes parameters of requests.", rich_help_panel=_GRPC
        ),
    ] = "",
    grpc_restricted_protocol: Annotated[
        list[str] | None,
        _texts("APIS:KEY=VALUE", "These APIs want the metadata triton-grpc-protocol-KEY with this value.", _GRPC),
    ] = None,
    grpc_infer_response_compression_level: Annotated[
        Literal["none", "low", "medium", "high"],
        typer.Option(help="How replies to inferences are compressed.", rich_help_panel=_GRPC),
    ] = "none",
    grpc_max_message_size: Annotated[
        int,
        typer.Option(
            min=1,
            max=_MAX_MESSAGE_BYTES,
            metavar="BYTES",
            help="The longest request message, decompressed too.",
            rich_help_panel=_GRPC,
        ),
    ] = _MAX_MESSAGE_BYTES,
    allow_metrics: Annotated[Flag, _flag("Serve Prometheus metrics.", _METRICS)] = "true",
    metrics_port: Annotated[int, _port("metrics", _METRICS)] = 8102,
    metrics_address: Annotated[str | None, _address("metrics", _METRICS)] = None,
    trace_config: Annotated[
        list[str] | None,
        _texts(
            "SETTING=VALUE",
            "level=TIMESTAMPS|TENSORS|OFF, rate=1000, count=-1, mode=triton|opentelemetry, triton,file=PATH, "
            "triton,log-frequency=N, opentelemetry,url=URL.",
            _TRACING,
        ),
    ] = None,
    log_verbose: Annotated[int, typer.Option(min=0, help="From 1 on, log more.", rich_help_panel=_LOGGING)] = 0,
    log_info: Annotated[Flag, _flag("Log lines of level info.", _LOGGING)] = "true",
    log_warning: Annotated[Flag, _flag("Log warnings.", _LOGGING)] = "true",
    log_error: Annotated[Flag, _flag("Log errors.", _LOGGING)] = "true",
    log_format: Annotated[
        Literal["default", "ISO8601"], typer.Option(help="How times are written.", rich_help_panel=_LOGGING)
    ] = "default",
    log_file: Annotated[
        str, typer.Option(metavar="PATH", help="Log there instead of to stderr.", rich_help_panel=_LOGGING)
    ] = "",
    backend_config: Annotated[
        list[str] | None,
        _texts("BACKEND,SETTING=VALUE", "A setting of a backend; without BACKEND of all.", _RUNNING),
    ] = None,
    cache_config: Annotated[
        list[str] | None,
        _texts("CACHE,SETTING=VALUE", "The response cache: local,size=BYTES, or redis,host=... and port.", _RUNNING),
    ] = None,
    rate_limit: Annotated[
        Literal["off", "execution_count"],
        typer.Option(
            help="execution_count: instances run when the resources that their groups name are free.",
            rich_help_panel=_RUNNING,
        ),
    ] = "off",
    rate_limit_resource: Annotated[
        list[str] | None,
        _texts(
            "NAME:COUNT[:DEVICE]", "How much there is of a resource; by default what the largest user needs.", _RUNNING
        ),
    ] = None,
) -> int:
    """Serve a Triton model repository, unchanged: REST, gRPC and metrics, until SIGTERM or Ctrl-C.

    Options have the names and meanings of Triton's; ports are 8100, 8101 and 8102, so that a Triton or the gateway may
    run beside it. Each model runs in processes of its own: one that crashes is started anew, and the others go on.

    SIGTERM lets requests in flight end; a second one stops at once. Exit code: 0, or 1 where it could not start.
    """
    from engines.host.client_limits import ClientLimits
    from engines.host.logs import LogSettings
    from engines.host.restricted_apis import grpc_restrictions, http_restrictions
    from engines.host.server.run import run
    from engines.host.settings import Address, HostSettings
    from engines.host.trace_settings import read_trace_options

    if load_model and model_control_mode != "explicit":
        raise typer.BadParameter("requires --model-control-mode=explicit as well", param_hint="--load-model")

    def address(is_served: bool, own: str | None, port: int) -> Address | None:
        return Address(own or listen_on, port) if is_served else None

    levels = {"none": None, "low": 1, "medium": 6, "high": 9}
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
            ),
        ),
        http_restrictions=read("http-restricted-api", lambda: http_restrictions(http_restricted_api or ())),
        grpc_restrictions=read("grpc-restricted-protocol", lambda: grpc_restrictions(grpc_restricted_protocol or ())),
        trace=read("trace-config", lambda: read_trace_options(trace_config or ())),
    )
    logs = LogSettings(
        info=boolean("log-info", log_info),
        warning=boolean("log-warning", log_warning),
        error=boolean("log-error", log_error),
        verbose_level=log_verbose,
        log_format=log_format,
        file=log_file,
    )
    try:
        logs.install()
    except OSError as error:
        print(f"pointsman host: cannot log to {log_file}: {error.strerror}", file=sys.stderr)
        return 1
    return run(settings, logs, ready_file)
