"""Recordings of traffic by the admin API, and what other rules would have made of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path as FilePath
from typing import Annotated, Any, Protocol

from fastapi import FastAPI, HTTPException, Path, Query, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from pydantic import BaseModel, Field

from gateway.admin.auth import Operator, Viewer
from gateway.admin.rule_trials import rules_of
from gateway.admin.rule_versions import Files, Number, VersionState, check_may_bring
from gateway.config.specs import RulesSpec
from gateway.dry_run.recording import NAME, NoRecordingError, Recording, RecordingError
from gateway.dry_run.replay import RecordingSpoiltError, Replay, read_facts

Json = dict[str, Any]

Name = Annotated[str, Path(pattern=f"^{NAME}$")]


class Recorder(Protocol):
    """Whoever records."""

    def start(
        self,
        name: str | None,
        by: str,
        *,
        share: float,
        seconds: float,
        max_facts: int,
        rules: RulesSpec,
        number: int,
    ) -> Recording:
        """Raises: RecordingError."""
        ...

    def all(self) -> Sequence[Recording]: ...

    def get(self, name: str) -> Recording:
        """Raises: NoRecordingError."""
        ...

    def path(self, name: str) -> FilePath:
        """Raises: NoRecordingError."""
        ...

    def stop_or_delete(self, name: str) -> bool:
        """Raises: NoRecordingError."""
        ...


class RecordingState(VersionState, Protocol):
    """Whoever has rules in force, and records what they decide."""

    @property
    def recordings(self) -> Recorder: ...


class Wanted(BaseModel):
    """A recording that is wanted."""

    name: Annotated[str, Field(pattern=f"^{NAME}$")] | None = None
    sample: Annotated[float, Field(gt=0, le=1, description="The share of requests that is taken.")] = 0.01
    seconds: Annotated[float, Field(gt=0, le=86400, description="How long.")] = 60.0
    max_facts: Annotated[int, Field(ge=1, le=1_000_000, description="It ends when it has so many.")] = 10_000
    reason: Annotated[str, Field(max_length=1000, description="Why, for the audit.")] = ""


class DryRunRequest(BaseModel):
    """A recording, and the rules by which it is decided again: files, or those of a version; neither: those in force.
    They are compared with what was decided then, or, with `against_rules_in_force`, with what would be now."""

    recording: Annotated[str, Field(pattern=f"^{NAME}$")]
    files: Files | None = None
    version: Number | None = None
    against_rules_in_force: bool = True


def add_recordings(app: FastAPI, state: RecordingState) -> None:
    """Answer for `/recordings` and `/rules/replay`."""
    app.add_exception_handler(RecordingError, _conflict)
    app.add_exception_handler(NoRecordingError, _not_there)

    @app.post("/recordings", tags=["recordings"], responses=_CONFLICT)
    async def started(wanted: Wanted, caller: Operator) -> Json:
        """Record what rules could ask of a sample of requests, and what they decided: no bodies; of headers those that
        rules ask for. It ends by itself."""
        made = state.recordings.start(
            wanted.name,
            caller.name,
            share=wanted.sample,
            seconds=wanted.seconds,
            max_facts=wanted.max_facts,
            rules=state.rules,
            number=state.version_in_force.number,
        )
        return _told(made)

    @app.get("/recordings", tags=["recordings"])
    async def listed(_: Viewer) -> Json:
        """All that are there, the latest first; `ended` says why one takes no more, and is empty while it does."""
        return {"recordings": [_told(each) for each in state.recordings.all()]}

    @app.get("/recordings/{name}", tags=["recordings"], responses=_NOT_THERE)
    async def told(name: Name, _: Viewer) -> Json:
        """What one is, and how many facts it has by now."""
        return _told(state.recordings.get(name))

    @app.get("/recordings/{name}/file", tags=["recordings"], responses=_NOT_THERE, response_class=FileResponse)
    async def file(name: Name, _: Viewer) -> FileResponse:
        """The recording itself, as JSON lines, for `pointsman replay`."""
        path = state.recordings.path(name)
        return FileResponse(path, media_type="application/x-ndjson", filename=path.name)

    @app.delete("/recordings/{name}", tags=["recordings"], responses=_NOT_THERE)
    async def ended(
        name: Name, _: Operator, reason: Annotated[str, Query(max_length=1000, description="Why, for the audit.")] = ""
    ) -> Json:
        """Stop one that takes facts yet; delete one that has ended."""
        return {"name": name, "deleted": state.recordings.stop_or_delete(name)}

    @app.post("/rules/replay", tags=["rules"], responses=_NOT_THERE)
    async def replayed(trial: DryRunRequest, caller: Viewer) -> Json:
        """How other rules change where recorded requests go: counts and examples of each change of route, engine and
        arm, and what they leave without a route. Nothing is sent. Files of one's own are for admins."""
        check_may_bring(caller, trial.files)
        if trial.files is not None and trial.version is not None:
            raise HTTPException(400, "say which rules: 'files', or a 'version'; not both")
        files = state.version_texts(trial.version) if trial.version is not None else trial.files
        candidate = await rules_of(state, files)
        path = state.recordings.path(trial.recording)
        replay = Replay(candidate, state.rules if trial.against_rules_in_force else None)
        try:
            return await asyncio.to_thread(_replay, replay, path)
        except RecordingSpoiltError as error:
            raise HTTPException(422, f"recording {trial.recording!r}: {error}") from error


_CONFLICT: dict[int | str, dict[str, Any]] = {409: {"description": "there can be none of this name now"}}
_NOT_THERE: dict[int | str, dict[str, Any]] = {404: {"description": "there is no such recording, or version"}}


def _replay(replay: Replay, path: FilePath) -> Json:
    """Raises: RecordingSpoiltError."""
    with path.open("rb") as file:
        unrecorded = replay.unrecorded(file.readline())
        file.seek(0)
        for fact in read_facts(file):
            replay.take(fact)
    return {**replay.report(), "unrecorded": unrecorded}


def _told(recording: Recording) -> Json:
    return {**asdict(recording), "headers": list(recording.headers)}


async def _conflict(_: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, 409)


async def _not_there(_: Request, error: Exception) -> Response:
    return JSONResponse({"detail": str(error)}, 404)
