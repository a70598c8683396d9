"""`pointsman conversations`: what a running gateway keeps of its sessions' conversations."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

app = typer.Typer(help="List, show, export or delete the conversations that a running gateway keeps.")

Admin = Annotated[
    str, typer.Option(metavar="URL", help="The admin address of a running gateway, as `pointsman serve` prints it.")
]
Session = Annotated[str, typer.Argument(help="The session's id, as clients send it.")]
Tenant = Annotated[str, typer.Option(help="Whose session it is, where clients name a tenant.")]

_ADMIN = "http://127.0.0.1:8002"
_TIMEOUT_SECONDS = 10.0
# A pipe has no width; rich would fold ids that a script looks for.
_PIPE_COLUMNS = 400


@app.command("list")
def list_all(admin: Admin = _ADMIN) -> None:
    """List all of them, with their size; in no order."""
    table = Table()
    for column in ("session", "tenant", "written", "exchanges", "tokens", "bytes"):
        table.add_column(column, overflow="fold")
    cursor: int | None = 0
    known: set[tuple[str, str]] = set()  # a page may repeat what another had
    while cursor is not None:
        page = _ask(admin, "GET", f"?cursor={cursor}").json()
        for each in page["conversations"]:
            if (each["tenant"], each["session"]) not in known:
                known.add((each["tenant"], each["session"]))
                numbers = (str(each[name]) for name in ("revision", "tokens", "bytes"))
                table.add_row(Text(each["session"]), Text(each["tenant"]), _moment(each["updated"]), *numbers)
        cursor = page["cursor"]
    console = _console()
    console.print(table if known else "The gateway keeps no conversation.")


@app.command()
def show(session: Session, tenant: Tenant = "", admin: Admin = _ADMIN) -> None:
    """Show one, as it was said."""
    told = _ask(admin, "GET", _path(session, tenant)).json()
    console = _console()
    for message in told["system"]:
        console.print(Text("system  ", style="bold").append(_said(message), style="not bold"))
    for turn in told["turns"]:
        who = turn.get("engine", "")
        about = f"{_moment(turn['created'])}, {turn['tokens']} tokens{' (estimated)' if turn.get('estimated') else ''}"
        notes = ", ".join(filter(None, (who, turn.get("arm", ""), about, "cut off" if turn.get("cut") else "")))
        console.print(Text(turn["role"], style="bold").append(f"  {notes}", style="dim not bold"))
        console.print(Text(_said(turn)))


@app.command()
def export(session: Session, tenant: Tenant = "", admin: Admin = _ADMIN) -> None:
    """Write one to stdout as JSON lines, a message of OpenAI's API each."""
    typer.echo(_ask(admin, "GET", _path(session, tenant, "/export")).text, nl=False)


@app.command()
def delete(session: Session, tenant: Tenant = "", admin: Admin = _ADMIN) -> None:
    """Forget one."""
    _ask(admin, "DELETE", _path(session, tenant))
    typer.echo(f"The conversation of session {session!r} is deleted.")


def _path(session: str, tenant: str, suffix: str = "") -> str:
    return f"/{quote(session, safe='')}{suffix}?tenant={quote(tenant, safe='')}"


def _ask(admin: str, method: str, path: str) -> Any:
    """The gateway's answer; where it has none, one line says why and the command ends with 1."""
    import httpx

    url = f"{admin.rstrip('/')}/conversations{path}"
    try:
        reply = httpx.request(method, url, timeout=_TIMEOUT_SECONDS, trust_env=False)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        typer.echo(f"No gateway answers at {admin} ({error}). Name its admin port: --admin URL", err=True)
        raise typer.Exit(1) from error
    if not reply.is_success:
        typer.echo(_why(reply), err=True)
        raise typer.Exit(1)
    return reply


def _why(reply: Any) -> str:
    try:
        return str(reply.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"The admin API answers {reply.status_code}"


def _said(turn: dict[str, Any]) -> str:
    """What a turn says, as text: its content, and the calls in it."""
    content = turn.get("content") or ""
    if not isinstance(content, str):
        content = " ".join(part.get("text") or f"<{part['type']}>" for part in content)
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in turn.get("tool_calls") or ()]
    return "\n".join(filter(None, (content, *calls)))


def _moment(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _PIPE_COLUMNS
    return console
