"""`pointsman serve`: the gateway."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from gateway.cli.quantities import as_text
from gateway.cli.serve_options import PANELS
from gateway.cli.tls_options import TLS_OPTIONS, admin_tls_of, tls_of
from gateway.config.operation_access import OperationAccess, read_allowed
from gateway.config.settings import Limits, Settings
from gateway.config.tracing import DEFAULT_RATE, DEFAULT_SLOW_SECONDS, Tracing, read_tracing
from gateway.protocol.restricted_apis import RestrictedApis, grpc_restrictions, http_restrictions

if TYPE_CHECKING:
    from gateway.config.rules import LoadedRules
    from gateway.supervision.rulebook import Rulebook

_LEAST_TICK_SECONDS = 0.1
_LEAST_REDIS_BYTES = 1 << 20  # the size of an empty server; 0 would mean no limit

_WITHOUT_OPPOSITE = {"open_metrics", "take_over"}  # no --no-open-metrics
_TRACE_OPTIONS = {
    "otlp_endpoint": None,
    "trace_sample": None,
    "trace_slow": DEFAULT_SLOW_SECONDS,
    "trace_rate": DEFAULT_RATE,
}
_ACCESS_OPTIONS = ("allow_control", "http_restricted_api", "grpc_restricted_protocol")


def serve(**options: Any) -> int:
    """Serve: route requests by the rules to the engines, until SIGTERM or Ctrl-C.

    SIGTERM lets requests in flight end, after --drain-delay; a second one stops at once. SIGHUP reads the rules again.
    """
    if options["redis_memory_bytes"] < _LEAST_REDIS_BYTES:
        raise typer.BadParameter("--redis-memory-bytes is 1MiB at the least")
    if options["experiment_tick"] < _LEAST_TICK_SECONDS:
        raise typer.BadParameter("--experiment-tick is 100ms at the least")
    rules, ready_file = options.pop("rules"), options.pop("ready_file")
    del options["settings"]  # whose values are in the others
    tls = tls_of(*(options.pop(f"tls_{name}") for name in TLS_OPTIONS))
    admin_tls = admin_tls_of(*(options.pop(f"admin_tls_{name}") for name in ("cert", "key", "client_ca")))
    access = _access(*(options.pop(name) for name in _ACCESS_OPTIONS))
    limits = Limits(**{each.name: options.pop(each.name) for each in fields(Limits)})
    tracing = _tracing(*(options.pop(name) for name in _TRACE_OPTIONS))
    options["rules_api_env"] = tuple(_names(options["rules_api_env"]))
    options["redact"] = tuple(map(str.lower, options["redact"]))
    return _run(
        Settings(tls=tls, admin_tls=admin_tls, limits=limits, operation_access=access, tracing=tracing, **options),
        rules,
        ready_file,
    )


def _parameters() -> Iterator[inspect.Parameter]:
    """The options of `serve`, for typer."""
    types = (
        get_type_hints(Settings)
        | get_type_hints(Limits)
        | {
            "rules": list[Path],
            "redact": list[str],
            "rules_api_env": list[str],
            "tls_cert": list[Path],
            "tls_key": list[Path],
            "tls_min_version": str,
            "tls_client_auth": str | None,
            "tls_ciphers": str | None,
        }
    )
    types |= dict.fromkeys(_ACCESS_OPTIONS, list[str] | None)
    types |= {"otlp_endpoint": str | None, "trace_sample": float | None, "trace_slow": float, "trace_rate": int}
    defaults = {each.name: getattr(values, each.name) for values in (Settings(), Limits()) for each in fields(values)}
    defaults |= _TRACE_OPTIONS
    defaults |= {"rules": inspect.Parameter.empty, "redact": []}
    defaults |= {"rules_api_env": [], "tls_cert": [], "tls_key": [], "tls_min_version": "1.2"}
    for panel, options in PANELS.items():
        for name, (text, more) in options.items():
            names = (f"--{name.replace('_', '-')}",) if name in _WITHOUT_OPPOSITE else ()
            option = typer.Option(*names, help=text, rich_help_panel=panel, **more)
            yield inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=as_text(defaults.get(name), more),
                annotation=Annotated[types.get(name, Path | None), option],
            )


serve.__signature__ = inspect.Signature([*_parameters()], return_annotation=int)  # type: ignore[attr-defined]


def _names(lists: list[str]) -> Iterator[str]:
    """Raises: typer.BadParameter."""
    for name in (each.strip() for names in lists for each in names.split(",")):
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise typer.BadParameter(f"--rules-api-env {name!r}: not a name of an environment variable")
        yield name


def _tracing(endpoint: str | None, share: float | None, slow: float, rate: int) -> Tracing | None:
    """What the options and the environment say. A variable alone does without traces where the SDK is missing: it may
    be meant for other programs."""
    from importlib.util import find_spec

    try:
        tracing = read_tracing(endpoint, share, slow, rate, os.environ)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if tracing is None or find_spec("opentelemetry.exporter.otlp.proto.http") is not None:
        return tracing
    missing = 'traces need OpenTelemetry\'s SDK: pip install "pointsman[otel]"'
    if endpoint:
        raise typer.BadParameter(f"--otlp-endpoint: {missing}")
    print(f"pointsman: warning: nothing is traced: {missing}", file=sys.stderr)
    return None


def _access(allowed: list[str] | None, http: list[str] | None, grpc: list[str] | None) -> OperationAccess:
    try:
        return OperationAccess(
            read_allowed(allowed or ()),
            RestrictedApis(http_restrictions(http or ())),
            RestrictedApis(grpc_restrictions(grpc or ())),
        )
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _run(settings: Settings, paths: list[Path], ready_file: Path | None) -> int:
    from gateway.cli.check import print_problems, summarize
    from gateway.config.rules import load_rules
    from gateway.dry_run.hook_check import with_hooks
    from gateway.dry_run.rule_tests import tested
    from gateway.dry_run.tls_check import with_tls_files
    from gateway.net.listener_tls import listener_problems
    from gateway.observability.logs import set_up_logging
    from gateway.supervision.data_dir_permissions import data_dir_problems
    from gateway.supervision.redis_setup import data_dir_of, versions_dir
    from gateway.supervision.rulebook import Rulebook
    from gateway.yaml.problems import Severity

    set_up_logging(settings.log_format)

    folder = data_dir_of(settings)
    problems = data_dir_problems(folder) if folder is not None else []
    for tls in filter(None, (settings.tls, settings.admin_tls)):
        problems += listener_problems(tls)
    for severity, what in problems:
        print(f"pointsman: {severity.value}: {what}", file=sys.stderr)
    if any(severity is Severity.ERROR for severity, _ in problems):
        return 2
    if folder is not None:
        with suppress(OSError):  # who needs it says what is missing
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    book = Rulebook(paths, versions_dir(settings, paths), settings.rules_api_env)
    loaded = tested(with_hooks(with_tls_files(load_rules(paths))))
    if loaded.problems:
        print_problems(loaded)
    if loaded.rules is None:
        print(summarize(loaded), file=sys.stderr)
        return 2
    return _serve(settings, book, loaded, ready_file)


def _serve(settings: Settings, book: Rulebook, loaded: LoadedRules, ready_file: Path | None) -> int:
    """Run the control process. It forks its first workers before it imports what only it needs, and before there is
    anything that they must not have: threads, sockets, keys of the admin API."""
    from gateway.control.forked_child import forked_children
    from gateway.net.descriptors import raise_limit
    from gateway.net.server import loop_factory
    from gateway.worker import process

    raise_limit()
    with forked_children(settings.workers, process.main, "gateway.worker") as forked:
        from gateway.admin.access import AccessError
        from gateway.cli.supervisor import Supervisor
        from gateway.supervision.ports import PortError
        from gateway.supervision.worker_pool import StartError

        supervisor = Supervisor(settings, book, ready_file=ready_file, forked=forked)
        try:
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                return runner.run(supervisor.run(loaded))
        except (AccessError, PortError, StartError, OSError) as error:
            print(f"pointsman: {error}", file=sys.stderr)
            return 1
