"""Versions of the rules by the admin API: listed, compared, validated, activated, rolled back, exported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query
from pydantic import BaseModel, Field

from gateway.admin.api_keys import Caller, Role
from gateway.admin.auth import Admin, Viewer
from gateway.admin.errors import problems_json
from gateway.admin.redaction import redacted_rules
from gateway.rule_versions.version import RulesRefused, Version, diff_texts
from gateway.supervision.control_plane import ControlPlane
from gateway.supervision.rulebook import Rulebook

Json = dict[str, Any]

Number = Annotated[int, Field(ge=1, le=2**53)]
Text = Annotated[str, Field(max_length=4 * 1024 * 1024)]
Files = Annotated[
    dict[Annotated[str, Field(max_length=1024)], Text],
    Field(max_length=1000, description="All rule files by name, as they are to be written."),
]
Masked = Annotated[bool, Query(description="Redact secrets for admins, too.")]
Reason = Annotated[str, Field(max_length=1000, description="The reason, for the history of versions.")]


class Candidate(BaseModel):
    """Candidate rule files, not in force."""

    files: Files


class Activation(BaseModel):
    """The rules to put in force: either `files` or a `version`."""

    files: Files | None = None
    version: Number | None = None
    reason: Reason = ""


class RollbackRequest(BaseModel):
    """The reason of a rollback."""

    reason: Reason = ""


REFUSED: dict[int | str, dict[str, Any]] = {
    404: {"description": "there is no such version"},
    422: {"description": "the rules have errors; see `problems`"},
}


def add_rule_versions(app: FastAPI, control: ControlPlane) -> None:
    book, manager = control.book, control.rule_manager

    @app.get("/rules/versions", tags=["rules"])
    async def list_versions(_: Viewer) -> Json:
        """Every stored version, the latest first, with author, time and reason."""
        versions = [version_json(version) for version in reversed(book.versions())]
        return {"in_force": book.in_force.number, "shared": manager.is_shared, "versions": versions}

    @app.get("/rules/versions/{number}", tags=["rules"], responses={404: REFUSED[404]})
    async def show_version(
        number: Annotated[int, Field(ge=1, le=2**53)], caller: Viewer, masked: Masked = False
    ) -> Json:
        """A version with its files as they are written: `${VAR}` stays, so no secret of the environment is shown.
        Secrets in the files themselves are shown to admins only. `cut`: secrets are redacted."""
        texts = book.texts_of(number)
        readable = _readable(caller, texts, masked)
        return {**version_json(book.version(number)), "texts": readable, "cut": readable != texts}

    @app.get("/rules/diff", tags=["rules"], responses={404: REFUSED[404]})
    async def diff(
        caller: Viewer,
        from_: Annotated[Number | None, Query(alias="from", description="Default: the version before `to`.")] = None,
        to: Annotated[Number | None, Query(description="Default: the version in force.")] = None,
        masked: Masked = False,
    ) -> Json:
        """A unified diff of two versions, file by file."""
        later = to if to is not None else book.in_force.number
        earlier = from_ if from_ is not None else _before(book, later)
        before, after = (_readable(caller, book.texts_of(number), masked) for number in (earlier, later))
        files = diff_texts(before, after, str(earlier), str(later))
        return {"from": earlier, "to": later, "files": files, "diff": "".join(each["diff"] for each in files)}

    @app.post("/rules/validate", tags=["rules"])
    async def validate(candidate: Candidate, _: Admin) -> Json:
        """Findings in candidate files, and their differences from those in force. Since the files may name variables
        and files of this host, this requires the same role as activating them."""
        try:
            loaded = await book.judge(candidate.files)
        except RulesRefused as error:
            return {"ok": False, "problems": problems_json(error.problems), "diff": "", "files": []}
        files = diff_texts(book.texts, loaded.texts, "in force", "candidate")
        return {
            "ok": loaded.rules is not None,
            "problems": problems_json(loaded.problems),
            "diff": "".join(each["diff"] for each in files),
            "files": files,
        }

    @app.post("/rules/activate", tags=["rules"], responses=REFUSED)
    async def activate(activation: Activation, caller: Admin) -> Json:
        """Put rules in force, completely or not at all: in all workers when this returns, and at the gateways with the
        same Redis and rule files. `shared` is whether those could be notified."""
        if (activation.files is None) == (activation.version is None):
            raise HTTPException(400, "say which rules: 'files', or a 'version'; one of them")
        files = activation.files if activation.files is not None else activation.version
        assert files is not None
        version = await manager.use(book.activate(files, caller.name, activation.reason))
        return {"version": version_json(version), "shared": manager.is_shared}

    @app.post("/rules/rollback", tags=["rules"], responses=REFUSED)
    async def roll_back(body: RollbackRequest, caller: Admin) -> Json:
        """Put the previous version in force; repeated, the one before that."""
        version = await manager.use(book.roll_back(caller.name, body.reason))
        return {"version": version_json(version), "shared": manager.is_shared}

    @app.get("/rules/export", tags=["rules"])
    async def export(caller: Viewer) -> Json:
        """The files in force, to write to the gateway's disk. `cut`: secrets are redacted, since the caller is not an
        admin."""
        version, texts = book.in_force, book.texts
        files = _readable(caller, texts)
        return {
            "version": version_json(version),
            "exported": version.is_exported,
            "files": files,
            "cut": files != dict(texts),
        }


def _readable(caller: Caller, texts: Mapping[str, str], masked: bool = False) -> dict[str, str]:
    """Rule files as a caller may read them: secrets in them are redacted for all but admins, and where `masked`."""
    if caller.role >= Role.admin and not masked:
        return dict(texts)
    return {name: redacted_rules(text) for name, text in texts.items()}


def check_may_bring(caller: Caller, files: Mapping[str, str] | None) -> None:
    """Allow candidate files to admins only: they may name variables and files of this host, which findings reveal.

    Raises: HTTPException.
    """
    if files is not None and caller.role < Role.admin:
        raise HTTPException(
            403,
            f"rules in files of one's own need a key of role admin, since they are judged with the environment of "
            f"the gateway; {caller.name!r} is {caller.role.name}",
        )


def version_json(version: Version) -> Json:
    fields = asdict(version)
    del fields["base_files"], fields["is_return"]
    return {**fields, "exported": version.is_exported}


def _before(book: Rulebook, number: int) -> int:
    """The previous version's number; `number` where there is none."""
    earlier = [version.number for version in book.versions() if version.number < number]
    return earlier[-1] if earlier else number
