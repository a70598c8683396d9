"""`pointsman conversations`: what a running gateway keeps of its sessions' conversations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table
from rich.text import Text

from gateway.cli.admin_client import ADMIN, Admin, Key, reply
from gateway.cli.tables import console

app = typer.Typer(help="List, show, export or delete the conversations that a running gateway keeps.")

Session = Annotated[str, typer.Argument(help="The session's id, as clients send it.")]
Tenant = Annotated[str, typer.Option(help="Whose session it is, where clients name a tenant.")]


@app.command("list")
def list_all(admin: Admin = ADMIN, key: Key = "") -> None:
    """List all of them, with their size; in no order."""
    table = Table()
    for column in ("session", "tenant", "written", "exchanges", "tokens", "bytes"):
        table.add_column(column, overflow="fold")
    cursor: int | None = 0
    known: set[tuple[str, str]] = set()  # a page may repeat what another had
    while cursor is not None:
        page = _ask(admin, key, "GET", f"?cursor={cursor}").json()
        for each in page["conversations"]:
            if (each["tenant"], each["session"]) not in known:
                known.add((each["tenant"], each["session"]))
                numbers = (str(each[name]) for name in ("revision", "tokens", "bytes"))
                table.add_row(Text(each["session"]), Text(each["tenant"]), _moment(each["updated"]), *numbers)
        cursor = page["cursor"]
    to = console()
    to.print(table if known else "The gateway keeps no conversation.")


@app.command()
def show(session: Session, tenant: Tenant = "", admin: Admin = ADMIN, key: Key = "") -> None:
    """Show one, as it was said."""
    told = _ask(admin, key, "GET", _path(session, tenant)).json()
    to = console()
    for message in told["system"]:
        to.print(Text("system  ", style="bold").append(_said(message), style="not bold"))
    for turn in told["turns"]:
        who = turn.get("engine", "")
        about = f"{_moment(turn['created'])}, {turn['tokens']} tokens{' (estimated)' if turn.get('estimated') else ''}"
        notes = ", ".join(filter(None, (who, turn.get("arm", ""), about, "cut off" if turn.get("cut") else "")))
        to.print(Text(turn["role"], style="bold").append(f"  {notes}", style="dim not bold"))
        to.print(Text(_said(turn)))


@app.command()
def export(session: Session, tenant: Tenant = "", admin: Admin = ADMIN, key: Key = "") -> None:
    """Write one to stdout as JSON lines, a message of OpenAI's API each."""
    typer.echo(_ask(admin, key, "GET", _path(session, tenant, "/export")).text, nl=False)


@app.command()
def delete(session: Session, tenant: Tenant = "", admin: Admin = ADMIN, key: Key = "") -> None:
    """Forget one."""
    _ask(admin, key, "DELETE", _path(session, tenant))
    typer.echo(f"The conversation of session {session!r} is deleted.")


def _path(session: str, tenant: str, suffix: str = "") -> str:
    return f"/{quote(session, safe='')}{suffix}?tenant={quote(tenant, safe='')}"


def _ask(admin: str, key: str, method: str, path: str) -> Any:
    """The gateway's answer; where it has none, one line says why and the command ends with 1."""
    return reply(admin, method, f"conversations{path}", key=key)


def _said(turn: dict[str, Any]) -> str:
    """What a turn says, as text: its content, and the calls in it."""
    content = turn.get("content") or ""
    if not isinstance(content, str):
        content = " ".join(part.get("text") or f"<{part['type']}>" for part in content)
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in turn.get("tool_calls") or ()]
    return "\n".join(filter(None, (content, *calls)))


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
