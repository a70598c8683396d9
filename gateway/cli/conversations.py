"""`pointsman conversations`: the conversations that a running gateway stores."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.table import Table
from rich.text import Text

from gateway.cli.admin_client import ADMIN, Admin, Key, console, reply

app = typer.Typer(help="List, show, export or delete the conversations that a running gateway stores.")

Session = Annotated[str, typer.Argument(help="The session's id, as clients send it.")]
Tenant = Annotated[str, typer.Option(help="The session's tenant, where clients name one.")]


@app.command("list")
def list_all(admin: Admin = ADMIN, key: Key = "") -> None:
    """List all conversations with their size, in no order."""
    table = Table()
    for column in ("session", "tenant", "written", "exchanges", "tokens", "bytes"):
        table.add_column(column, overflow="fold")
    cursor: int | None = 0
    known: set[tuple[str, str]] = set()  # pages may repeat conversations
    while cursor is not None:
        page = _request(admin, key, "GET", f"?cursor={cursor}").json()
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
    """Show a conversation, turn by turn."""
    result = _request(admin, key, "GET", _path(session, tenant)).json()
    to = console()
    for message in result["system"]:
        to.print(Text("system  ", style="bold").append(_text_of(message), style="not bold"))
    for turn in result["turns"]:
        engine = turn.get("engine", "")
        about = f"{_moment(turn['created'])}, {turn['tokens']} tokens{' (estimated)' if turn.get('estimated') else ''}"
        notes = ", ".join(filter(None, (engine, turn.get("arm", ""), about, "cut off" if turn.get("cut") else "")))
        to.print(Text(turn["role"], style="bold").append(f"  {notes}", style="dim not bold"))
        to.print(Text(_text_of(turn)))


@app.command()
def export(session: Session, tenant: Tenant = "", admin: Admin = ADMIN, key: Key = "") -> None:
    """Write a conversation to stdout as JSON lines, one message of OpenAI's API each."""
    typer.echo(_request(admin, key, "GET", _path(session, tenant, "/export")).text, nl=False)


@app.command()
def delete(session: Session, tenant: Tenant = "", admin: Admin = ADMIN, key: Key = "") -> None:
    """Delete a conversation."""
    _request(admin, key, "DELETE", _path(session, tenant))
    typer.echo(f"The conversation of session {session!r} is deleted.")


def _path(session: str, tenant: str, suffix: str = "") -> str:
    return f"/{quote(session, safe='')}{suffix}?tenant={quote(tenant, safe='')}"


def _request(admin: str, key: str, method: str, path: str) -> Any:
    """The gateway's reply. After an error the command prints one line and exits with 1."""
    return reply(admin, method, f"conversations{path}", key=key)


def _text_of(turn: dict[str, Any]) -> str:
    """A turn as text: its content and its tool calls."""
    content = turn.get("content") or ""
    if not isinstance(content, str):
        content = " ".join(part.get("text") or f"<{part['type']}>" for part in content)
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in turn.get("tool_calls") or ()]
    return "\n".join(filter(None, (content, *calls)))


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
