"""Calls of a running gateway's admin API by commands, the errors that they print, and tables of what it replies."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote, urlsplit

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Command = Callable[..., Any]

_ADMIN = typer.Option(
    metavar="URL",
    envvar="POINTSMAN_ADMIN",
    help="The admin address of a running gateway, as `pointsman serve` prints it.",
)
_KEY = typer.Option(
    metavar="KEY",
    envvar="POINTSMAN_ADMIN_KEY",
    help="A key of the admin API, where it requires one (`pointsman keys add`). Prefer the variable: other users can "
    "see the options of a process.",
    show_default=False,
)
_DATA_DIR = typer.Option(
    metavar="DIR",
    envvar="POINTSMAN_DATA_DIR",
    help="The data folder of a gateway on this host, whose own key is used where there is no --key. Default: as for "
    "`pointsman serve`.",
    show_default=False,
)
_CA = typer.Option(
    metavar="FILE",
    envvar="POINTSMAN_ADMIN_CA",
    help="PEM authority of an https:// admin address; default: those of the system.",
    show_default=False,
)
_CERT = typer.Option(
    metavar="FILE",
    envvar="POINTSMAN_ADMIN_CERT",
    help="PEM certificate with its key, where the admin port requires one (--admin-tls-client-ca).",
    show_default=False,
)
_OPTIONS: tuple[tuple[str, Any, Any, Any], ...] = (
    ("admin", str, "http://127.0.0.1:8002", _ADMIN),
    ("key", str, "", _KEY),
    ("data_dir", Path | None, None, _DATA_DIR),
    ("ca", Path | None, None, _CA),
    ("cert", Path | None, None, _CERT),
)

_TIMEOUT_SECONDS = 10.0
_BLANKS = "\n\t"
_USER_INFO = re.compile(r"(?<=//)[^/]*@")

# A cell is a Text where it has a colour. Names and addresses are not markup: [fe80::1] would be read as such.
Row = tuple["str | Text", ...]

# Without a terminal rich would assume 80 columns, and fold addresses that a script looks for.
_PIPE_COLUMNS = 400


class Gateway:
    """The admin API of a running gateway. After an error its methods print one line and exit with 1. The parts of a
    path are quoted."""

    def __init__(
        self, admin: str, key: str, data_dir: Path | None = None, ca: Path | None = None, cert: Path | None = None
    ) -> None:
        self._admin = admin.rstrip("/")
        self._key = key
        self._data_dir = data_dir
        self._ca = ca
        self._cert = cert

    @property
    def shown_address(self) -> str:
        """The address without a key."""
        return _USER_INFO.sub("", self._admin)

    def get(self, *path: str, **options: Any) -> Any:
        """The JSON of GET."""
        return self.call("GET", *path, **options)

    def call(self, method: str, *path: str, **options: Any) -> Any:
        """The JSON of any method."""
        return self.reply(method, *path, **options).json()

    def reply(
        self,
        method: str,
        *path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        timeout: float = _TIMEOUT_SECONDS,
        accepted: tuple[int, ...] = (),
    ) -> Any:
        """The reply as an httpx.Response, to a JSON body; a status in `accepted` is no error."""
        import httpx

        try:
            socket, key = (None, self._key) if self._key else self._local_access()
            base = self._admin if socket is None else "http://localhost"  # which has no TLS
            url = "/".join([base, *(quote(part, safe="") for part in path)])
            headers = {"authorization": f"Bearer {key}"} if key else {}
            with httpx.Client(timeout=timeout, trust_env=False, transport=self._transport(socket)) as client:
                answer = client.request(method, url, json=body, params=query, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError, OSError) as error:
            raise self._absent(str(error) or type(error).__name__) from error
        if answer.is_success or answer.status_code in accepted:
            return answer
        raise refused(_reason(answer))

    def _transport(self, socket: Path | None) -> Any:
        """Raises: OSError where a TLS file cannot be used."""
        import httpx

        if socket is not None:
            return httpx.HTTPTransport(uds=str(socket))
        if not self._admin.startswith("https:"):
            return None
        import ssl

        context = ssl.create_default_context(cafile=str(self._ca) if self._ca is not None else None)
        if self._cert is not None:
            context.load_cert_chain(self._cert)
        return httpx.HTTPTransport(verify=context)

    def _local_access(self) -> tuple[Path | None, str]:
        """The socket, else the key, of this user's gateway on this host.

        Raises: ValueError where the address is invalid.
        """
        from gateway.admin.local_key import find_access, is_loopback
        from gateway.redis.data_dir import EmbeddedError, default_data_dir

        url = urlsplit(self._admin)
        if url.username or url.password or not is_loopback(url.hostname or ""):
            return None, ""
        try:
            folder = self._data_dir or default_data_dir()
        except EmbeddedError:
            return None, ""
        return find_access(folder, url.port or (443 if url.scheme == "https" else 80))

    def items(self, what: str) -> list[dict[str, Any]]:
        answer = self.reply("GET", what)
        try:
            items: list[dict[str, Any]] = answer.json()[what]
        except (ValueError, KeyError, TypeError) as error:
            raise self._absent(f"/{what} is answered with something else") from error
        return items

    def _absent(self, reason: str) -> typer.Exit:
        text = (
            f"No gateway answers at {self.shown_address} ({reason}). Name the admin port of a running one: --admin URL"
        )
        typer.echo(text, err=True)
        return typer.Exit(1)


class GatewayTyper(typer.Typer):
    """Gives a command whose first parameter is `gateway` the options --admin and --key, which name it."""

    def command(self, *names: Any, **options: Any) -> Callable[[Command], Command]:  # type: ignore[override]
        return _registration(super().command(*names, **options))

    def callback(self, **options: Any) -> Callable[[Command], Command]:  # type: ignore[override]
        return _registration(super().callback(**options))


def _registration(register: Callable[[Command], Command]) -> Callable[[Command], Command]:
    def registered(command: Command) -> Command:
        register(_at_gateway(command))
        return command

    return registered


def _at_gateway(command: Command) -> Command:
    first, *parameters = inspect.signature(command, eval_str=True).parameters.values()
    if first.name != "gateway":
        return command

    @wraps(command)
    def run(**options: Any) -> Any:
        return command(Gateway(**{name: options.pop(name) for name, *_ in _OPTIONS}), **options)

    for name, value_type, default, option in _OPTIONS:
        kind: Any = Annotated[value_type, option]
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def refused(reason: str) -> typer.Exit:
    typer.echo(f"Refused: {printable(reason, keep=_BLANKS)}", err=True)
    return typer.Exit(1)


def _reason(answer: Any) -> str:
    """The gateway's reason of a refusal, as a sentence."""
    if answer.status_code == 401:
        return (
            "this gateway asks for a key: --key KEY, or POINTSMAN_ADMIN_KEY; for a gateway of this user, on this host "
            "and without --admin-keys, --data-dir as it has"
        )
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return f"{answer.request.url.path} is answered {answer.status_code}"
    if isinstance(detail, list):  # errors in fields of a body or a query
        return "; ".join(f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg', '')}" for each in detail)
    return str(detail)


def console() -> Console:
    """The terminal, or a pipe without folding."""
    from rich.console import Console

    output = Console(highlight=False)
    if not output.is_terminal:
        output.width = _PIPE_COLUMNS
    return output


def printable(text: str, keep: str = "") -> str:
    """A text without control characters for the terminal, but those to keep: clients may have written it."""
    return "".join(each if each.isprintable() or each in keep else repr(each)[1:-1] for each in text)


def print_table(columns: tuple[str, ...], rows: list[Row], empty: str) -> None:
    """Print rows as a table; `empty` where there are none."""
    from rich.table import Table
    from rich.text import Text

    output = console()
    if not rows:
        output.print(empty)
        return
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")  # a narrow terminal wraps an address instead of cutting it
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(printable(cell)) for cell in row))
    output.print(table)


def moment(seconds: float) -> str:
    """A time since 1970, in seconds."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
