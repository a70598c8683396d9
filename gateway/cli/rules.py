"""`pointsman rules`: versions of the rules of a running gateway."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.syntax import Syntax

from gateway.cli.admin_client import Gateway, GatewayTyper, Row, console, print_table, refused
from gateway.cli.check import RulePaths
from gateway.cli.recordings import print_report

app = GatewayTyper(help="Versions of the rules of a running gateway: list, compare, activate, roll back, export.")

Number = Annotated[int | None, typer.Argument(help="A version's number; by default the one in force.", min=1)]
Reason = Annotated[str, typer.Option(help="The reason, for the history of versions.")]


@app.command("list")
def versions(gateway: Gateway) -> None:
    """List the stored versions, the latest first."""
    result = gateway.get("rules", "versions")
    rows: list[Row] = [
        (
            str(each["number"]) + (" *" if each["number"] == result["in_force"] else ""),
            datetime.fromtimestamp(each["time"]).isoformat(" ", "seconds"),
            each["author"],
            each["source"],
            each["reason"],
            each["digest"][:12],
        )
        for each in result["versions"]
    ]
    print_table(("version", "since", "by", "from", "reason", "digest"), rows, "There is no version.")


@app.command()
def show(gateway: Gateway, number: Number = None) -> None:
    """Show the files of a version, as they are written."""
    wanted = number if number is not None else gateway.get("rules", "versions")["in_force"]
    for name, text in gateway.get("rules", "versions", str(wanted))["texts"].items():
        typer.echo(f"# --- {name}")
        typer.echo(text, nl=not text.endswith("\n"))


@app.command()
def diff(
    gateway: Gateway,
    from_: Annotated[int | None, typer.Argument(metavar="FROM", help="By default the previous one.", min=1)] = None,
    to: Number = None,
) -> None:
    """Show how a version differs from another: FROM from the one in force, or from TO."""
    query = {name: value for name, value in (("from", from_), ("to", to)) if value is not None}
    _print_diff(gateway.get("rules", "diff", query=query)["diff"])


@app.command()
def validate(gateway: Gateway, paths: RulePaths) -> None:
    """Validate rule files at a running gateway, and show their differences from those in force. Exit code: 0 if they
    are valid, else 1."""
    result = gateway.call("POST", "rules", "validate", body={"files": _texts(paths)})
    _print_problems(result["problems"])
    _print_diff(result["diff"])
    typer.echo("These rules can be activated." if result["ok"] else "Refused.")
    raise typer.Exit(0 if result["ok"] else 1)


@app.command()
def activate(
    gateway: Gateway,
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="PATH", help="All rule files, or their directories.", show_default=False),
    ] = None,
    version: Annotated[int | None, typer.Option(help="An earlier version instead of files.", min=1)] = None,
    reason: Reason = "",
) -> None:
    """Put rule files, or an earlier version, in force. The files on the gateway's disk do not change: `pointsman rules
    export` writes what is in force, and until then a change of those files supersedes it."""
    if bool(paths) == (version is not None):
        raise typer.BadParameter("name rule files, or say --version NUMBER; one of them")
    body: dict[str, Any] = {"reason": reason}
    body |= {"files": _texts(paths)} if paths else {"version": version}
    _print_result(gateway.reply("POST", "rules", "activate", body=body, timeout=60.0, accepted=(422,)))


@app.command()
def rollback(gateway: Gateway, reason: Reason = "") -> None:
    """Put the previous version in force; repeated, the one before that."""
    body = {"reason": reason}
    _print_result(gateway.reply("POST", "rules", "rollback", body=body, timeout=60.0, accepted=(422,)))


@app.command()
def export(
    gateway: Gateway,
    folder: Annotated[Path | None, typer.Argument(help="The folder to write to; by default standard output.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write the rule files in force, for the gateway's disk."""
    result = gateway.get("rules", "export")
    files: dict[str, str] = result["files"]
    if result.get("cut") and folder is not None:
        raise refused("these files have secrets in them, which only a key of role admin may export")
    if folder is None:
        for name, text in files.items():
            if len(files) > 1:
                typer.echo(f"# --- {name}")
            typer.echo(text, nl=not text.endswith("\n"))
        return
    if len({Path(name).name for name in files}) < len(files):
        raise refused(f"files of several folders have one name, and {folder} would keep the last: {', '.join(files)}")
    for name, text in files.items():
        path = folder / Path(name).name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with path.open("wb" if force else "xb") as file:
                file.write(text.encode())
        except FileExistsError:
            raise refused(f"{path} is there already: --force writes over it") from None
        except OSError as error:
            raise refused(f"{path} cannot be written: {error.strerror}") from error
        typer.echo(str(path))


@app.command("replay")
def try_out(
    gateway: Gateway,
    name: Annotated[str, typer.Argument(help="A recording of the gateway.")],
    paths: Annotated[list[Path] | None, typer.Argument(metavar="PATH", help="The candidate's rule files.")] = None,
    version: Annotated[int | None, typer.Option(help="A version instead of files.", min=1)] = None,
) -> None:
    """Show how other rules would route a gateway's recorded requests, compared with those in force."""
    body: dict[str, Any] = {"recording": name}
    if paths:
        body["files"] = _texts(paths)
    if version is not None:
        body["version"] = version
    print_report(gateway.call("POST", "rules", "replay", body=body, timeout=300.0))


def _texts(paths: Iterable[Path]) -> dict[str, str]:
    """Rule files by their base names, which a gateway maps to its own files."""
    from gateway.config.rule_files import read_files

    files, problems = read_files(list(paths))
    if problems:
        raise refused("; ".join(map(str, problems)))
    texts: dict[str, str] = {}
    for file in files:
        if file.path.name in texts:
            raise refused(f"two of the files are called {file.path.name}")
        try:
            texts[file.path.name] = file.content.decode()
        except UnicodeDecodeError:
            raise refused(f"{file.path} is not UTF-8") from None
    return texts


def _print_result(answer: Any) -> None:
    """Print the result of an activation, or its errors."""
    result = answer.json()
    if answer.status_code != 200:
        _print_problems(result.get("problems", []))
        raise refused("the rules in force stay" if result.get("problems") else str(result.get("detail")))
    version = result["version"]
    where = "at every gateway with these files" if result["shared"] else "at this gateway alone"
    typer.echo(f"Version {version['number']} is in force, {where}.")
    if not version["exported"]:
        typer.echo("The files on its disk say something else: `pointsman rules export` writes what is in force.")


def _print_problems(problems: Iterable[dict[str, Any]]) -> None:
    for each in problems:
        typer.echo(f"{each['file']}:{each['line']}:{each['column']}: {each['severity']}: {each['message']}")


def _print_diff(text: str) -> None:
    if not text:
        typer.echo("They say the same.")
    elif sys.stdout.isatty():
        console().print(Syntax(text.rstrip("\n"), "diff", background_color="default"))
    else:
        typer.echo(text, nl=False)
