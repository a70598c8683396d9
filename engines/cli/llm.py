"""`pointsman llm`: serves a language model from its folder by V2, gRPC and OpenAI's API."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from engines.cli import options
from engines.cli.options import ENGINE, MEMORY, SERVER, option, port_option
from gateway.options.commands import PlainGroup

_STORE, _EVENTS, _ANSWERS, _LOGGING = "Stored blocks", "Cache events", "Answers", "Logging"

llm = typer.Typer(
    name="llm",
    cls=PlainGroup,
    invoke_without_command=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@llm.callback()
def serve(
    context: typer.Context,
    model: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder: config.json, *.safetensors, tokenizer.json, as Hugging Face and mlx-community have them.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="The model's name in requests.", show_default="the folder's name")] = "",
    listen_on: options.ListenOn = "127.0.0.1",
    settings_file: options.SettingsFile = None,
    http_port: Annotated[int, port_option(SERVER, "REST", "--http-port", "--port")] = 8100,
    grpc_port: Annotated[int, port_option(SERVER, "gRPC")] = 8101,
    metrics_port: Annotated[int, port_option(SERVER, "metrics")] = 8102,
    drain_delay: options.DrainDelay = 0.0,
    exit_timeout_secs: Annotated[
        float, option(SERVER, "Time for answers to end after Ctrl-C or SIGTERM, and --drain-delay.", min=0)
    ] = 30.0,
    ready_file: options.ReadyFile = None,
    device: options.Device = "auto",
    ops: options.Ops = "auto",
    dtype: options.Dtype = "auto",
    threads: options.Threads = None,
    speculate: Annotated[
        str,
        option(
            ENGINE,
            "Speculative decoding: ngram (from the text so far), or draft=DIR (a small model of the same vocabulary), "
            "optionally with ,num_tokens=4. Answers do not change.",
            metavar="HOW",
        ),
    ] = "off",
    max_sequences: Annotated[int, option(ENGINE, "Concurrent generations.", min=1)] = 64,
    max_batch_tokens: Annotated[
        int, option(ENGINE, "Tokens of a step: more of them process prompts faster, and delay other requests.", min=1)
    ] = 512,
    max_waiting: Annotated[int, option(ENGINE, "Requests that wait; more are rejected (503).", min=1)] = 1024,
    memory_gb: Annotated[
        float | None,
        option(
            MEMORY, "For weights, cache and workspace together.", min=0.001, show_default="a share of the free memory"
        ),
    ] = None,
    max_context: Annotated[
        int | None,
        option(
            MEMORY, "Tokens of a prompt with its answer.", min=1, show_default="the model's, as far as memory holds one"
        ),
    ] = None,
    quantize: options.Quantize = "none",
    quantize_group: options.QuantizeGroup = 64,
    block_size: Annotated[int, option(MEMORY, "Tokens of a block of the cache.", min=1)] = 16,
    prefix_cache: Annotated[bool, option(MEMORY, "Cache common prefixes of prompts.")] = True,
    kv_store: Annotated[
        str,
        option(
            _STORE,
            "A Redis that stores computed prompts, for restarts of this server and for other servers of the same "
            "model: redis://host:6379/0, with user:password@ before the host where required, rediss:// over TLS, "
            "unix:///socket, redis+sentinel://, redis+cluster://.",
            metavar="URL",
            envvar="POINTSMAN_KV_STORE",
            show_default="none",
        ),
    ] = "",
    kv_ttl: Annotated[str, option(_STORE, "The lifetime of a block after its last use.", metavar="TIME")] = "24h",
    kv_codec: Annotated[
        Literal["raw", "int8"], option(_STORE, "int8: half the bytes (of 16 bits); texts may differ.")
    ] = "raw",
    kv_secret_file: Annotated[
        Path | None,
        option(
            _STORE,
            "Seal blocks with this secret (HMAC), so that foreign ones are not read.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    kv_deadline: Annotated[
        str, option(_STORE, "A request waits this long for blocks, but no longer than computing takes.", metavar="TIME")
    ] = "1s",
    kv_fetch: Annotated[
        Literal["auto", "always"], option(_STORE, "auto: read blocks where measured to be faster than computing.")
    ] = "auto",
    kv_events: Annotated[
        str,
        option(
            _EVENTS,
            "Publish what the prefix cache holds, in vLLM's format, for routers: a ZeroMQ address to bind, as "
            "tcp://127.0.0.1:5557. Events have the tokens of prompts and no authentication: use a private network.",
            metavar="ADDRESS",
            show_default="off",
        ),
    ] = "",
    kv_events_replay: Annotated[
        str,
        option(
            _EVENTS,
            "Where routers ask for events that they missed, as tcp://127.0.0.1:5558.",
            metavar="ADDRESS",
            show_default="off",
        ),
    ] = "",
    adapter: Annotated[
        list[str] | None,
        option(
            _ANSWERS,
            "A LoRA adapter; requests use NAME as the model. May be repeated.",
            metavar="NAME=DIR",
            show_default=False,
        ),
    ] = None,
    deterministic: Annotated[
        bool, option(_ANSWERS, "Greedy text does not depend on other requests; costs throughput.", "--deterministic")
    ] = False,
    log_info: Annotated[bool, option(_LOGGING, "Also log lines of the host.", "--log-info")] = False,
    log_file: options.LogFile = "",
) -> None:
    """Serve a language model from a Hugging Face folder: OpenAI's API, Triton's V2 (REST and gRPC), metrics.

    One REST port serves /v1/... and /v2/..., one port gRPC. Nothing is downloaded. Ctrl-C lets answers end; a second
    one stops at once. Exit code: 0, or 1 where the server cannot start.

    The same engine serves in a model repository, with backend "paged" and these options as parameters.
    """
    if context.invoked_subcommand is not None:
        return
    if model is None:
        raise typer.BadParameter("name the folder of a model", param_hint="--model")
    from engines.cli.llm_command import Serving, serve_folder

    engine_options = {
        "device": device,
        "ops": ops,
        "dtype": dtype,
        "quantize": quantize,
        "speculation": speculate,
        "max_sequences": max_sequences,
        "max_batch_tokens": max_batch_tokens,
        "max_waiting": max_waiting,
        "quantize_group": quantize_group,
        "block_size": block_size,
        "prefix_cache": prefix_cache,
        "deterministic": deterministic,
        "threads": threads,
        "memory_gb": memory_gb,
        "max_context": max_context,
    }
    if kv_store:
        engine_options |= {"kv_store": kv_store, "kv_ttl": kv_ttl, "kv_codec": kv_codec, "kv_deadline": kv_deadline}
        engine_options |= {
            "kv_fetch": kv_fetch,
            "kv_secret_file": kv_secret_file and kv_secret_file.expanduser().resolve(),
        }
    if kv_events:
        engine_options["kv_events"] = kv_events
    if kv_events_replay:
        engine_options["kv_events_replay"] = kv_events_replay
    serving = Serving(
        model=model,
        name=name,
        options={option: str(value) for option, value in engine_options.items() if value is not None},
        adapters=dict(_adapter(text) for text in adapter or ()),
        host=listen_on,
        ports=(http_port, grpc_port, metrics_port),
        drain_delay_seconds=drain_delay,
        exit_timeout_seconds=exit_timeout_secs,
        ready_file=ready_file,
        logs_info=log_info,
        log_file=log_file,
    )
    raise typer.Exit(serve_folder(serving))


def _adapter(text: str) -> tuple[str, Path]:
    name, _, folder = text.partition("=")
    if not name or not folder:
        raise typer.BadParameter(f"it is NAME=DIR, not '{text}'", param_hint="--adapter")
    return name, Path(folder)
