"""Versions of the rules by the admin API: looked at, compared, judged, put in force, taken back, exported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from gateway.admin.api_keys import Role
from gateway.admin.auth import Admin, Caller, Viewer
from gateway.admin.redaction import text_cut
from gateway.config.rules import LoadedRules
from gateway.config.specs import RulesSpec
from gateway.rule_versions.diff import diff_texts
from gateway.rule_versions.version import EditError, NoSuchVersion, RulesRefused, Version
from gateway.yaml.problems import Problem

Json = dict[str, Any]

Number = Annotated[int, Field(ge=1, le=2**53)]
Text = Annotated[str, Field(max_length=4 * 1024 * 1024)]
Files = Annotated[
    dict[Annotated[str, Field(max_length=1024)], Text],
    Field(max_length=1000, description="Every rule file by its name, as it is to be written: all of them, or none."),
]
Reason = Annotated[str, Field(max_length=1000, description="Why, for whoever reads the versions later.")]


class VersionState(Protocol):
    """Whoever keeps versions of the rules."""

    @property
    def rules(self) -> RulesSpec: ...

    def versions(self) -> Sequence[Version]: ...

    def version(self, number: int) -> Version:
        """Raises: NoSuchVersion."""
        ...

    def version_texts(self, number: int) -> dict[str, str]:
        """Raises: NoSuchVersion."""
        ...

    @property
    def version_in_force(self) -> Version: ...

    @property
    def rule_texts(self) -> dict[str, str]:
        """What is in force, as it is written, by file and in order."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether the gateways that share its Redis know what was put in force here."""
        ...

    async def judge(self, files: Mapping[str, str]) -> LoadedRules:
        """Raises: RulesRefused where their names cannot be."""
        ...

    async def activate(
        self, files: Mapping[str, str] | int, author: str, reason: str = "", source: str = "api"
    ) -> Version:
        """Raises: RulesRefused, NoSuchVersion."""
        ...

    async def roll_back(self, author: str, reason: str = "") -> Version:
        """Raises: RulesRefused, NoSuchVersion."""
        ...


class Candidate(BaseModel):
    """Rule files that nobody is served by."""

    files: Files


class Activation(BaseModel):
    """What is to be in force: these files, or those of a version; one of them is given."""

    files: Files | None = None
    version: Number | None = None
    reason: Reason = ""


class Return(BaseModel):
    """Why to go back."""

    reason: Reason = ""


REFUSED: dict[int | str, dict[str, Any]] = {
    404: {"description": "there is no such version"},
    422: {"description": "the rules have mistakes; `problems` says where"},
}


def add_rule_versions(app: FastAPI, state: VersionState) -> None:
    """Answer for `/rules/...`."""
    app.add_exception_handler(RulesRefused, _refused)
    app.add_exception_handler(EditError, _not_edited)
    app.add_exception_handler(NoSuchVersion, _not_there)

    @app.get("/rules/versions", tags=["rules"])
    async def versions(_: Viewer) -> Json:
        """Every version that is kept, the latest first: who put it in force, when and why."""
        told = [version_told(version) for version in reversed(state.versions())]
        return {"in_force": state.version_in_force.number, "shared": state.is_shared, "versions": told}

    @app.get("/rules/versions/{number}", tags=["rules"], responses={404: REFUSED[404]})
    async def version(number: Annotated[int, Field(ge=1, le=2**53)], caller: Viewer) -> Json:
        """A version with its files as they are written: `${VAR}` stays, so no secret of the environment is shown. Those
        that stand in the files themselves are admins' to read."""
        return {**version_told(state.version(number)), "texts": _readable(caller, state.version_texts(number))}

    @app.get("/rules/diff", tags=["rules"], responses={404: REFUSED[404]})
    async def diff(
        caller: Viewer,
        from_: Annotated[Number | None, Query(alias="from", description="Not given: the one before `to`.")] = None,
        to: Annotated[Number | None, Query(description="Not given: the one in force.")] = None,
    ) -> Json:
        """How one version differs from another, file by file, as a unified diff."""
        later = to if to is not None else state.version_in_force.number
        earlier = from_ if from_ is not None else _before(state, later)
        before, after = (_readable(caller, state.version_texts(number)) for number in (earlier, later))
        files = diff_texts(before, after, str(earlier), str(later))
        return {"from": earlier, "to": later, "files": files, "diff": "".join(each["diff"] for each in files)}

    @app.post("/rules/validate", tags=["rules"])
    async def validate(candidate: Candidate, _: Admin) -> Json:
        """What would be said of these files, and how they differ from those in force. Nobody is served by them; yet
        they may name variables and files of this host: only who may put them in force has them judged."""
        try:
            loaded = await state.judge(candidate.files)
        except RulesRefused as error:
            return {"ok": False, "problems": problems_told(error.problems), "diff": "", "files": []}
        files = diff_texts(state.rule_texts, loaded.texts, "in force", "candidate")
        return {
            "ok": loaded.rules is not None,
            "problems": problems_told(loaded.problems),
            "diff": "".join(each["diff"] for each in files),
            "files": files,
        }

    @app.post("/rules/activate", tags=["rules"], responses=REFUSED)
    async def activate(activation: Activation, caller: Admin) -> Json:
        """Put rules in force, whole or not at all; in all workers when this returns, and at the gateways that share
        its Redis and its rule files. `shared` says whether those can know."""
        if (activation.files is None) == (activation.version is None):
            raise HTTPException(400, "say which rules: 'files', or a 'version'; one of them")
        files = activation.files if activation.files is not None else activation.version
        assert files is not None
        made = await state.activate(files, caller.name, activation.reason)
        return {"version": version_told(made), "shared": state.is_shared}

    @app.post("/rules/rollback", tags=["rules"], responses=REFUSED)
    async def roll_back(back: Return, caller: Admin) -> Json:
        """Put in force again what was there before; once more: what was there before that."""
        made = await state.roll_back(caller.name, back.reason)
        return {"version": version_told(made), "shared": state.is_shared}

    @app.get("/rules/export", tags=["rules"])
    async def export(caller: Viewer) -> Json:
        """The files in force, to be written to the disk that they are based on: then they are what the files say.
        `cut`: they are not whole, since who asks is no admin and there are secrets in them."""
        there, texts = state.version_in_force, state.rule_texts
        files = _readable(caller, texts)
        is_cut = files != dict(texts)
        return {"version": version_told(there), "exported": there.is_exported, "files": files, "cut": is_cut}


def _readable(caller: Caller, texts: Mapping[str, str]) -> dict[str, str]:
    """Rule files as a caller may read them: a viewer sees no API key that somebody has written into one."""
    if caller.role >= Role.admin:
        return dict(texts)
    return {name: text_cut(text) for name, text in texts.items()}


def check_may_bring(caller: Caller, files: Mapping[str, str] | None) -> None:
    """Rules that somebody brings may name variables and files of this host, and what is said of them tells what is
    there: an API key, for one.

    Raises: HTTPException.
    """
    if files is not None and caller.role < Role.admin:
        raise HTTPException(
            403,
            f"rules in files of one's own need a key of role admin, since they are judged with the environment of "
            f"the gateway; {caller.name!r} is {caller.role.name}",
        )


def version_told(version: Version) -> Json:
    return {
        "number": version.number,
        "time": version.time,
        "author": version.author,
        "reason": version.reason,
        "source": version.source,
        "digest": version.digest,
        "base": version.base,
        "files": list(version.files),
        "exported": version.is_exported,
        "of": version.of,
    }


def problems_told(problems: Sequence[Problem]) -> list[Json]:
    return [
        {
            "file": problem.location.file,
            "line": problem.location.line,
            "column": problem.location.column,
            "severity": problem.severity.value,
            "message": problem.message,
        }
        for problem in problems
    ]


def _before(state: VersionState, number: int) -> int:
    """The version before one, itself where there is none."""
    earlier = [version.number for version in state.versions() if version.number < number]
    return earlier[-1] if earlier else number


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, RulesRefused)
    return JSONResponse({"detail": str(error), "problems": problems_told(error.problems)}, 422)


async def _not_edited(_: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, 409)


async def _not_there(_: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, 404)
