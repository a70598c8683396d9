"""`pointsman epp`: the endpoint picker."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from gateway.cli.quantities import DURATION, PORT, SIZE, as_text
from gateway.cli.tls_options import TLS_OPTIONS, client_auth, tls_of, tls_version
from gateway.epp.settings import PickerSettings
from gateway.options.sources import SETTINGS_HELP, SETTINGS_OPTION

# The options by their group in `--help`, as those of `serve`.
_PANELS: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {
    "Rules and process": {
        "rules": (
            "A rule file, or a directory whose *.yaml and *.yml files are read in name order; may be repeated. "
            "Changes are applied while serving; a file with an error, or what a picker cannot do, changes nothing.",
            {"metavar": "PATH", "show_default": False},
        ),
        "settings": (SETTINGS_HELP, SETTINGS_OPTION),
        "ready_file": ("Write ports and pid to this file, as JSON, once the picker serves.", {}),
        "endpoints": (
            "Endpoints of an answer: the first choice, then those that a proxy with retries asks next. Envoy's "
            "ORIGINAL_DST clusters take one address alone.",
            {"min": 1, "max": 16},
        ),
        "probe_connections": ("Connections that health probes hold at a time.", {"min": 2}),
        "ready_when": ("Health says yes with a healthy endpoint for any route, or for all.", {}),
        "drain_delay": ("How long to answer on after SIGTERM while health says no.", DURATION),
        "drain_timeout": ("How long requests may continue after that.", DURATION),
        "log_format": ("Format of log lines.", {}),
    },
    "Ports": {
        "host": ("The address of the gRPC port; 0.0.0.0 for all. Only the proxy should reach it.", {}),
        "port": ("The gRPC port: ext_proc and grpc.health.v1; 0 takes a free one.", PORT),
        "tls_cert": (
            "PEM certificate for TLS on the gRPC port, read again when the file changes.",
            {"metavar": "FILE"},
        ),
        "tls_key": ("PEM key of --tls-cert.", {"metavar": "FILE"}),
        "tls_client_ca": ("PEM authority that must have signed the proxy's certificate.", {"metavar": "FILE"}),
        "tls_client_auth": (
            "Whether proxies show certificates: none asks for none, optional verifies those that are shown. Default: "
            "required with --tls-client-ca.",
            {"metavar": "MODE", "parser": client_auth, "show_default": False},
        ),
        "tls_min_version": ("The lowest version of TLS.", {"metavar": "1.2|1.3", "parser": tls_version}),
        "tls_ciphers": ("Cipher suites of TLS 1.2, by OpenSSL's names.", {"metavar": "LIST", "show_default": False}),
        "metrics_host": ("The address of the metrics port.", {}),
        "metrics_port": ("The HTTP port of /metrics, /livez and /readyz; 0 takes a free one.", PORT),
    },
    "Requests": {
        "name_decision": ("Name route, engine and arm in replies: in their headers and errors.", {}),
        "encoded_slashes": ("As of `pointsman serve`: accept model names with %2F and the like in paths.", {}),
        "max_requests": ("Requests at the same time; beyond it the status is 429.", {"min": 1}),
        "max_streams": ("The same of one connection of a proxy, which opens another beyond it.", {"min": 1}),
        "max_body_bytes": ("Longest body that must be read before it goes on; beyond it the status is 413.", SIZE),
        "max_buffered_bytes": ("Bytes of all such bodies at a time; beyond it the status is 503.", SIZE),
        "max_inflated_bytes": ("Longest content of a compressed body that must be read.", SIZE),
        "max_inflation_ratio": ("How many times as long as its compressed form it may be, beyond 1 MiB.", {"min": 1}),
        "max_json_values": ("Values and keys of a JSON body that must be read whole.", {"min": 1}),
        "max_request_items": ("Messages, parts, tools, tensors and parameters of such a body.", {"min": 1}),
        "high_water_bytes": ("Bytes that wait for a proxy that does not read, before it may send no more.", SIZE),
        "window_bytes": ("Flow-control window of each stream; at least 64KiB.", SIZE),
        "body_timeout": ("Longest pause within a body that is waited for.", DURATION),
    },
}
_TYPES: dict[str, Any] = {
    "rules": list[Path],
    "tls_cert": list[Path],
    "tls_key": list[Path],
    "tls_min_version": str,
    "tls_client_auth": str | None,
    "tls_ciphers": str | None,
}


def epp(**options: Any) -> int:
    """Pick endpoints for a proxy: an endpoint picker (EPP) of the Kubernetes Gateway API Inference Extension.

    The proxy (Envoy, or a gateway that is built on it) stays in the data path. It asks the picker over gRPC, by Envoy's
    external processing, where each request goes, and the picker answers by the same rule files as `pointsman serve`:
    rules choose the engine, and the engine's balancing its endpoint, by model, prompt, session, load and latency. It
    reads OpenAI's and Anthropic's APIs, and Triton's over REST and gRPC.

    `pointsman check` checks the files; what a picker cannot do is named with file and line when it starts. SIGTERM lets
    requests end, after --drain-delay; a second one stops at once. SIGHUP reads the rules again.
    """
    rules, ready_file = options.pop("rules"), options.pop("ready_file")
    del options["settings"]  # whose values are in the others
    tls = tls_of(*(options.pop(f"tls_{name}") for name in TLS_OPTIONS))
    return _run(PickerSettings(tls=tls, **options), rules, ready_file)


def _parameters() -> Iterator[inspect.Parameter]:
    """The options, for typer."""
    types, settings = get_type_hints(PickerSettings) | _TYPES, PickerSettings()
    defaults: dict[str, Any] = {name: getattr(settings, name) for name in get_type_hints(PickerSettings)}
    defaults |= {"rules": inspect.Parameter.empty, "tls_cert": [], "tls_key": [], "tls_min_version": "1.2"}
    for panel, options in _PANELS.items():
        for name, (text, more) in options.items():
            names = ("--port",) if name == "port" else ()  # typer takes a metavar that is the name for the option's
            option = typer.Option(*names, help=text, rich_help_panel=panel, **more)
            yield inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=as_text(defaults.get(name), more),
                annotation=Annotated[types.get(name, Path | None), option],
            )


epp.__signature__ = inspect.Signature([*_parameters()], return_annotation=int)  # type: ignore[attr-defined]


def _run(settings: PickerSettings, paths: list[Path], ready_file: Path | None) -> int:
    from gateway.cli.check import print_problems, summarize
    from gateway.config.rules import load_rules
    from gateway.dry_run.rule_tests import tested
    from gateway.dry_run.tls_check import with_tls_files
    from gateway.epp.picker_process import PickerProcess
    from gateway.epp.rule_support import supported
    from gateway.net.descriptors import raise_limit
    from gateway.net.server import loop_factory
    from gateway.observability.logs import set_up_logging
    from gateway.supervision.ports import PortError
    from gateway.supervision.rulebook import Rulebook

    set_up_logging(settings.log_format)
    book = Rulebook(paths)
    loaded = tested(with_tls_files(load_rules(paths)))
    followed = supported(loaded, is_closed=settings.is_closed)
    if followed.problems:
        print_problems(followed)
    if followed.rules is None:
        print(summarize(followed), file=sys.stderr)
        return 2
    raise_limit()
    process = PickerProcess(settings, book, ready_file)
    try:
        with asyncio.Runner(loop_factory=loop_factory()) as runner:
            return runner.run(process.run(loaded, followed.rules))
    except (PortError, OSError) as error:
        print(f"pointsman epp: {error}", file=sys.stderr)
        return 1
