"""Recordings of traffic: the facts that rules match of a sample of requests, and their decisions; never a body.

A recording is a file of JSON lines: a header, a decision per line, and an end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import strftime, time
from typing import Any, TextIO

from gateway.config.specs import RulesSpec
from gateway.dry_run.recording import NAME, NoRecordingError, Recording, RecordingError, read_recording
from gateway.routing.used_fields import used_fields
from gateway.supervision.decision_feed import DecisionFeed, FeedSubscription

_log = logging.getLogger("pointsman")

Json = dict[str, Any]

_SUFFIX = ".jsonl"
# Decisions a second of each worker: more would not show more.
_RATE = 500.0
_MAX_BYTES = 256 * 1024 * 1024
_MAX_RECORDINGS = 50
_MAX_RUNNING = 4


@dataclass(slots=True)
class _Running:
    recording: Recording
    file: TextIO
    subscription: FeedSubscription
    timer: asyncio.TimerHandle


class Recordings:
    """The recordings of one gateway, in a folder; None: recording is not possible."""

    def __init__(self, folder: Path | None, feed: DecisionFeed) -> None:
        self._folder = folder
        self._feed = feed
        self._running: dict[str, _Running] = {}

    def start(
        self, name: str | None, by: str, *, share: float, seconds: float, max_facts: int, rules: RulesSpec, number: int
    ) -> Recording:
        """Start a recording, which ends by itself.

        Raises: RecordingError.
        """
        name = name or strftime("%Y-%m-%dT%H-%M-%S")
        path = self._path(name)
        if len(self._running) >= _MAX_RUNNING:
            raise RecordingError(f"{_MAX_RUNNING} recordings run already: stop one of {', '.join(self._running)}")
        if len(self._paths()) >= _MAX_RECORDINGS:
            raise RecordingError(f"there are {_MAX_RECORDINGS} recordings already: delete some")
        recording = Recording(
            name, time(), by, share, seconds, max_facts, rules.digest, number, tuple(sorted(used_fields(rules).headers))
        )
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8")
        except FileExistsError:
            raise RecordingError(f"there is a recording {name!r} already") from None
        except OSError as error:
            raise RecordingError(f"{path} cannot be written: {error.strerror}") from error
        file.write(json.dumps({"recording": 1, **asdict(recording)}) + "\n")
        subscription = FeedSubscription(partial(self._take, name), _RATE, share, with_body_facts=True)
        timer = asyncio.get_running_loop().call_later(seconds, self._end, name, "its time is over")
        self._running[name] = _Running(recording, file, subscription, timer)
        self._feed.add(subscription)
        return recording

    def all(self) -> Sequence[Recording]:
        """The latest first."""
        recordings = [self._read(path) for path in self._paths()]
        return sorted((each for each in recordings if each is not None), key=lambda each: -each.started)

    def get(self, name: str) -> Recording:
        """Raises: NoRecordingError."""
        found = self._read(self.path(name))
        if found is None:
            raise NoRecordingError(f"recording {name!r} cannot be read")
        return found

    def path(self, name: str) -> Path:
        """A recording's file, complete so far.

        Raises: NoRecordingError.
        """
        known = self._paths()
        found = next((path for path in known if path.stem == name), None)
        if found is None:
            there = ", ".join(path.stem for path in known) or "none"
            raise NoRecordingError(f"there is no recording {name!r}; there are {there}")
        running = self._running.get(name)
        if running is not None:
            running.file.flush()
        return found

    def stop_or_delete(self, name: str) -> bool:
        """Stop a recording that runs, or delete one that has ended; returns whether it was deleted.

        Raises: NoRecordingError.
        """
        if name in self._running:
            self._end(name, "stopped")
            return False
        path = self.path(name)
        with suppress(FileNotFoundError):
            path.unlink()
        return True

    def close(self) -> None:
        """Stop all recordings."""
        for name in list(self._running):
            self._end(name, "the gateway has stopped")

    def _take(self, name: str, decisions: list[Json], skipped: int) -> None:
        running = self._running.get(name)
        if running is None:
            return
        before = running.recording
        room = before.max_facts - before.facts
        lines = [json.dumps(each, separators=(",", ":")) + "\n" for each in decisions[:room]]
        text = "".join(lines)
        try:
            running.file.write(text)
        except OSError as error:
            self._end(name, f"it could not be written: {error.strerror}")
            return
        running.recording = replace(
            before,
            facts=before.facts + len(lines),
            skipped=before.skipped + skipped,
            bytes=before.bytes + len(text),
        )
        if running.recording.facts >= before.max_facts:
            self._end(name, "it is full")
        elif running.recording.bytes >= _MAX_BYTES:
            self._end(name, f"it has {_MAX_BYTES} bytes")

    def _end(self, name: str, why: str) -> None:
        running = self._running.pop(name)
        running.timer.cancel()
        self._feed.remove(running.subscription)
        ended = replace(running.recording, ended=why)
        try:
            running.file.write(json.dumps({"end": why, "facts": ended.facts, "skipped": ended.skipped}) + "\n")
            running.file.close()
        except OSError as error:
            _log.error("recording %s is not whole: %s", name, error)
        _log.info("recording %s has ended with %d facts: %s", name, ended.facts, why)

    def _paths(self) -> list[Path]:
        if self._folder is None or not self._folder.is_dir():
            return []
        return sorted(path for path in self._folder.glob(f"*{_SUFFIX}") if re.fullmatch(NAME, path.stem))

    def _path(self, name: str) -> Path:
        if self._folder is None:
            raise RecordingError("there is no place for recordings: start the gateway with --data-dir")
        if not re.fullmatch(NAME, name):
            raise RecordingError(f"{name!r} is no name: letters, digits, '.', '_', '-', up to 64, a letter first")
        return self._folder / f"{name}{_SUFFIX}"

    def _read(self, path: Path) -> Recording | None:
        running = self._running.get(path.stem)
        return running.recording if running is not None else read_recording(path)
