"""`pointsman engine-settings`: log and trace settings of an engine's endpoints."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from gateway.cli.admin_client import Gateway, Row, print_table
from gateway.cli.engines import EngineName
from gateway.cli.operator_commands import Reason

_TIMEOUT_SECONDS = 30.0


def engine_settings(
    gateway: Gateway,
    engine: EngineName,
    kind: Annotated[Literal["logging", "trace"], typer.Argument(help="Which settings.")],
    setting: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME=VALUE]...", help="Write these; none: show what is set.")
    ] = None,
    model: Annotated[str, typer.Option(help="Trace settings of this model only.")] = "",
    reason: Reason = "",
) -> int:
    """Show the log or trace settings of an engine's endpoints, or write them to all. Exit code: 1 if one fails."""
    where = "engines", engine, "settings", kind
    if setting:
        body = {"settings": dict(map(_setting, setting)), "model": model, "reason": reason}
        answer = gateway.reply("POST", *where, body=body, timeout=_TIMEOUT_SECONDS, accepted=(409,))
    else:
        answer = gateway.reply("GET", *where, query={"model": model}, timeout=_TIMEOUT_SECONDS, accepted=(409,))
    rows: list[Row] = []
    for each in answer.json()["endpoints"]:
        result = Text("done", style="green") if each["ok"] else Text("failed", style="red")
        rows.append((each["url"], result, json.dumps(each["settings"]) if each["ok"] else each["detail"]))
    print_table(("endpoint", "result", "settings"), rows, "The engine has no endpoint.")
    return int(answer.status_code == 409)


def _setting(text: str) -> tuple[str, Any]:
    """A name, and a value, parsed where it is JSON."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise typer.BadParameter(f"{text!r} is no NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
