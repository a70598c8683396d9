"""`pointsman conversations`: the conversations that a running gateway stores."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from gateway.cli.admin_client import Gateway, GatewayTyper, console, moment, printable

app = GatewayTyper(help="List, show, export or delete the conversations that a running gateway stores.")

Session = Annotated[str, typer.Argument(help="The session's id, as clients send it.")]
Tenant = Annotated[str, typer.Option(help="The session's tenant, where clients name one.")]


@app.command("list")
def list_all(gateway: Gateway) -> None:
    """List all conversations with their size, in no order."""
    table = Table()
    for column in ("session", "tenant", "written", "exchanges", "tokens", "bytes"):
        table.add_column(column, overflow="fold")
    cursor: int | None = 0
    known: set[tuple[str, str]] = set()  # pages may repeat conversations
    while cursor is not None:
        page = gateway.get("conversations", query={"cursor": cursor})
        for each in page["conversations"]:
            if (each["tenant"], each["session"]) not in known:
                known.add((each["tenant"], each["session"]))
                numbers = (str(each[name]) for name in ("revision", "tokens", "bytes"))
                table.add_row(
                    Text(printable(each["session"])), Text(printable(each["tenant"])), moment(each["updated"]), *numbers
                )
        cursor = page["cursor"]
    to = console()
    to.print(table if known else "The gateway keeps no conversation.")


@app.command()
def show(gateway: Gateway, session: Session, tenant: Tenant = "") -> None:
    """Show a conversation, turn by turn."""
    result = gateway.get("conversations", session, query={"tenant": tenant})
    to = console()
    for message in result["system"]:
        to.print(Text("system  ", style="bold").append(_text_of(message), style="not bold"))
    for turn in result["turns"]:
        engine = turn.get("engine", "")
        about = f"{moment(turn['created'])}, {turn['tokens']} tokens{' (estimated)' if turn.get('estimated') else ''}"
        notes = ", ".join(filter(None, (engine, turn.get("arm", ""), about, "cut off" if turn.get("cut") else "")))
        to.print(Text(turn["role"], style="bold").append(f"  {printable(notes)}", style="dim not bold"))
        to.print(Text(_text_of(turn)))


@app.command()
def export(gateway: Gateway, session: Session, tenant: Tenant = "") -> None:
    """Write a conversation to stdout as JSON lines, one message of OpenAI's API each."""
    typer.echo(gateway.reply("GET", "conversations", session, "export", query={"tenant": tenant}).text, nl=False)


@app.command()
def delete(gateway: Gateway, session: Session, tenant: Tenant = "") -> None:
    """Delete a conversation."""
    gateway.reply("DELETE", "conversations", session, query={"tenant": tenant})
    typer.echo(f"The conversation of session {session!r} is deleted.")


def _text_of(turn: dict[str, Any]) -> str:
    """A turn as text: its content and its tool calls."""
    content = turn.get("content") or ""
    if not isinstance(content, str):
        content = " ".join(part.get("text") or f"<{part['type']}>" for part in content)
    calls = [f"{call['function']['name']}({call['function']['arguments']})" for call in turn.get("tool_calls") or ()]
    return printable("\n".join(filter(None, (content, *calls))), keep="\n\t")
