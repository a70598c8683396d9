"""Calls of a running gateway's admin API by commands, the errors that they print, and tables of what it replies."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

Admin = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="POINTSMAN_ADMIN",
        help="The admin address of a running gateway, as `pointsman serve` prints it.",
    ),
]
Key = Annotated[
    str,
    typer.Option(
        metavar="KEY",
        envvar="POINTSMAN_ADMIN_KEY",
        help="A key of the admin API, where it requires one (`pointsman keys add`). Prefer the variable: other users "
        "can see the options of a process.",
        show_default=False,
    ),
]
ADMIN = "http://127.0.0.1:8002"

_TIMEOUT_SECONDS = 10.0

# A cell is a Text where it has a colour. Names and addresses are not markup: [fe80::1] would be read as such.
Row = tuple[str | Text, ...]

# Without a terminal rich would assume 80 columns, and fold addresses that a script looks for.
_PIPE_COLUMNS = 400


def get_json(admin: str, path: str, *, key: str = "", timeout: float = _TIMEOUT_SECONDS) -> Any:
    """The JSON of GET `path`. After an error the command prints one line and exits with 1."""
    return call(admin, "GET", path, key=key, timeout=timeout)


def call(
    admin: str, method: str, path: str, body: Any = None, *, key: str = "", timeout: float = _TIMEOUT_SECONDS
) -> Any:
    """The same for any method, with a JSON body."""
    return reply(admin, method, path, body, key=key, timeout=timeout).json()


def reply(
    admin: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    key: str = "",
    timeout: float = _TIMEOUT_SECONDS,
    accepted: tuple[int, ...] = (),
) -> Any:
    """The same as an httpx.Response; a status in `accepted` is no error."""
    import httpx

    url = f"{admin.rstrip('/')}/{path.lstrip('/')}"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.request(method, url, json=body, headers=headers, timeout=timeout, trust_env=False)
        if answer.is_success or answer.status_code in accepted:
            return answer
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise no_gateway(admin, str(error) or type(error).__name__) from error
    raise refused(_reason(answer))


def no_gateway(admin: str, reason: str) -> typer.Exit:
    """Print that no gateway answers there."""
    typer.echo(f"No gateway answers at {admin} ({reason}). Name the admin port of a running one: --admin URL", err=True)
    return typer.Exit(1)


def refused(reason: str) -> typer.Exit:
    """Print the reason of a refusal."""
    typer.echo(f"Refused: {reason}", err=True)
    return typer.Exit(1)


def _reason(answer: Any) -> str:
    """The gateway's reason of a refusal, as a sentence."""
    if answer.status_code == 401:
        return "this gateway asks for a key: --key KEY, or POINTSMAN_ADMIN_KEY"
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return f"{answer.request.url.path} is answered {answer.status_code}"
    if isinstance(detail, list):  # errors in fields of a body or a query
        return "; ".join(f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg', '')}" for each in detail)
    return str(detail)


def console() -> Console:
    """The terminal, or a pipe without folding."""
    output = Console(highlight=False)
    if not output.is_terminal:
        output.width = _PIPE_COLUMNS
    return output


def _escaped(text: str) -> str:
    """A text without control characters for the terminal."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def print_table(columns: tuple[str, ...], rows: list[Row], empty: str) -> None:
    """Print rows as a table; `empty` where there are none."""
    output = console()
    if not rows:
        output.print(empty)
        return
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")  # a narrow terminal wraps an address instead of cutting it
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(_escaped(cell)) for cell in row))
    output.print(table)
