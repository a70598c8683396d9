"""Asking a running gateway by its admin API, for every command that does: with which key, and what a refusal reads."""

from __future__ import annotations

from typing import Annotated, Any

import typer

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
        help="A key of the admin API, where it asks for one (`pointsman keys add`). Whoever may list processes reads "
        "this option: it is better said in the variable.",
        show_default=False,
    ),
]
ADMIN = "http://127.0.0.1:8002"

_TIMEOUT_SECONDS = 10.0


def ask(admin: str, path: str, *, key: str = "", timeout: float = _TIMEOUT_SECONDS) -> Any:
    """The JSON that the gateway answers to GET `path`. Where it refuses, or nobody answers, one line says so and the
    command ends with 1."""
    return call(admin, "GET", path, key=key, timeout=timeout)


def call(
    admin: str, method: str, path: str, wish: Any = None, *, key: str = "", timeout: float = _TIMEOUT_SECONDS
) -> Any:
    """The same for any method; `wish` goes as the JSON body."""
    return reply(admin, method, path, wish, key=key, timeout=timeout).json()


def reply(
    admin: str,
    method: str,
    path: str,
    wish: Any = None,
    *,
    key: str = "",
    timeout: float = _TIMEOUT_SECONDS,
    accepted: tuple[int, ...] = (),
) -> Any:
    """The whole reply, an httpx.Response, as `call` asks for it; one whose status is `accepted` is no refusal."""
    import httpx

    url = f"{admin.rstrip('/')}/{path.lstrip('/')}"
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        answer = httpx.request(method, url, json=wish, headers=headers, timeout=timeout, trust_env=False)
        if answer.is_success or answer.status_code in accepted:
            return answer
    except (httpx.HTTPError, httpx.InvalidURL, UnicodeError, ValueError) as error:
        raise no_gateway(admin, str(error) or type(error).__name__) from error
    raise refused(why(answer))


def no_gateway(admin: str, reason: str) -> typer.Exit:
    """Nobody that we know answers there."""
    typer.echo(f"No gateway answers at {admin} ({reason}). Name the admin port of a running one: --admin URL", err=True)
    return typer.Exit(1)


def refused(reason: str) -> typer.Exit:
    """One line, and the command ends with 1."""
    typer.echo(f"Refused: {reason}", err=True)
    return typer.Exit(1)


def why(answer: Any) -> str:
    """What the gateway says of a refusal, as a sentence."""
    if answer.status_code == 401:
        return "this gateway asks for a key: --key KEY, or POINTSMAN_ADMIN_KEY"
    try:
        detail = answer.json()["detail"]
    except (ValueError, KeyError, TypeError):
        return f"{answer.request.url.path} is answered {answer.status_code}"
    if isinstance(detail, list):  # what is wrong with the fields of a body or a query
        return "; ".join(f"{'.'.join(map(str, each.get('loc', ())))}: {each.get('msg', '')}" for each in detail)
    return str(detail)
