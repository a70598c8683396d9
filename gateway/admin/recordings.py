"""Recordings of traffic by the admin API, and replays of them by other rules."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path as FilePath
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, HTTPException, Path, Query
from fastapi.responses import FileResponse, Response, StreamingResponse
from pydantic import BaseModel, Field

from gateway.admin.api_keys import Role
from gateway.admin.auth import Operator, Viewer
from gateway.admin.redaction import Digest, redacted_decision
from gateway.admin.rule_trials import rules_of
from gateway.admin.rule_versions import Files, Number, check_may_bring
from gateway.dry_run.recording import NAME, Recording
from gateway.dry_run.replay import RecordingSpoiltError, Replay, read_facts
from gateway.supervision.control_plane import ControlPlane

Json = dict[str, Any]

_JSON_LINES = "application/x-ndjson"

Name = Annotated[str, Path(pattern=f"^{NAME}$")]


class RecordingRequest(BaseModel):
    """A recording to start."""

    name: Annotated[str, Field(pattern=f"^{NAME}$")] | None = None
    sample: Annotated[float, Field(gt=0, le=1, description="Share of the requests.")] = 0.01
    seconds: Annotated[float, Field(gt=0, le=86400, description="Duration.")] = 60.0
    max_facts: Annotated[int, Field(ge=1, le=1_000_000, description="It ends at this number of facts.")] = 10_000
    reason: Annotated[str, Field(max_length=1000, description="The reason, for the audit.")] = ""


class DryRunRequest(BaseModel):
    """A recording, and the candidate rules: files, or a version; neither: the rules in force. The decisions are
    compared with the recorded ones, or, with `against_rules_in_force`, with those of the rules in force."""

    recording: Annotated[str, Field(pattern=f"^{NAME}$")]
    files: Files | None = None
    version: Number | None = None
    against_rules_in_force: bool = True


def add_recordings(app: FastAPI, control: ControlPlane) -> None:
    book = control.book
    replays = ThreadPoolExecutor(1, "replay")  # the rest of the control process has threads of its own

    @app.post("/recordings", tags=["recordings"], responses=_CONFLICT)
    async def start(body: RecordingRequest, caller: Operator) -> Json:
        """Record the facts that rules match of a sample of requests, and the decisions: no bodies, and only the headers
        that the rules use. It ends by itself."""
        recording = control.recordings.start(
            body.name,
            caller.name,
            share=body.sample,
            seconds=body.seconds,
            max_facts=body.max_facts,
            rules=book.rules,
            number=book.in_force.number,
        )
        return _recording_json(recording)

    @app.get("/recordings", tags=["recordings"])
    async def list_recordings(_: Viewer) -> Json:
        """All recordings, the latest first; `ended` is the reason of its end, empty while it runs."""
        return {"recordings": [_recording_json(each) for each in control.recordings.all()]}

    @app.get("/recordings/{name}", tags=["recordings"], responses=_NOT_FOUND)
    async def show_recording(name: Name, _: Viewer) -> Json:
        """A recording's settings and its number of facts."""
        return _recording_json(control.recordings.get(name))

    @app.get("/recordings/{name}/file", tags=["recordings"], responses=_NOT_FOUND, response_class=FileResponse)
    async def fetch_recording(name: Name, caller: Viewer) -> Response:
        """The recording as JSON lines, for `pointsman replay`. For role viewer digests stand for the names of sessions,
        so that rules that assign by session replay as others."""
        path = control.recordings.path(name)
        if caller.role >= Role.operator:
            return FileResponse(path, media_type=_JSON_LINES, filename=path.name)
        fields = {"content-disposition": f'attachment; filename="{path.name}"'}
        lines = _without_sessions(path, book.rules.identity.session_header, control.digests.of)
        return StreamingResponse(lines, media_type=_JSON_LINES, headers=fields)

    @app.delete("/recordings/{name}", tags=["recordings"], responses=_NOT_FOUND)
    async def end_recording(
        name: Name,
        _: Operator,
        reason: Annotated[str, Query(max_length=1000, description="The reason, for the audit.")] = "",
    ) -> Json:
        """Stop a recording that runs; delete one that has ended."""
        return {"name": name, "deleted": control.recordings.stop_or_delete(name)}

    @app.post("/rules/replay", tags=["rules"], responses=_NOT_FOUND)
    async def replay(body: DryRunRequest, caller: Viewer) -> Json:
        """How other rules would route recorded requests: counts and examples of each change of route, engine and arm,
        and requests without a route. Nothing is sent. `files` require role admin."""
        check_may_bring(caller, body.files)
        if body.files is not None and body.version is not None:
            raise HTTPException(400, "say which rules: 'files', or a 'version'; not both")
        files = book.texts_of(body.version) if body.version is not None else body.files
        candidate = await rules_of(book, files)
        path = control.recordings.path(body.recording)
        dry_run = Replay(candidate, book.rules if body.against_rules_in_force else None)
        try:
            report = await asyncio.get_running_loop().run_in_executor(replays, _replay, dry_run, path)
        except RecordingSpoiltError as error:
            raise HTTPException(422, f"recording {body.recording!r}: {error}") from error
        if caller.role < Role.operator:
            for change in (each for changes in report["changes"].values() for each in changes):
                header = book.rules.identity.session_header
                change["examples"] = [
                    redacted_decision(example, header, control.digests.of) for example in change["examples"]
                ]
        return report


_CONFLICT: dict[int | str, dict[str, Any]] = {409: {"description": "this name cannot be used now"}}
_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"description": "there is no such recording, or version"}}


def _without_sessions(path: FilePath, session_header: str, digest: Digest) -> Iterator[bytes]:
    """The lines of a recording as viewers see them."""
    with path.open("rb") as file:
        for line in file:
            with suppress(ValueError):  # it is being written
                yield orjson.dumps(redacted_decision(orjson.loads(line), session_header, digest)) + b"\n"


def _replay(replay: Replay, path: FilePath) -> Json:
    """Raises: RecordingSpoiltError."""
    with path.open("rb") as file:
        unrecorded = replay.unrecorded(file.readline())
        file.seek(0)
        for fact in read_facts(file):
            replay.take(fact)
    return {**replay.report(), "unrecorded": unrecorded}


def _recording_json(recording: Recording) -> Json:
    return {**asdict(recording), "headers": list(recording.headers)}
