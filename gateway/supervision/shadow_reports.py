"""The reports of mirrored routes, kept beyond a gateway's end and summed over all gateways: in Redis, or for a gateway
without Redis in its data folder.

A stored report belongs to one candidate and tolerance (`measure`) and to one period (`period`), which a reset ends.
Each gateway adds what it has counted since it last did, by compare and swap.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Any

from gateway.config.experiment_specs import ShadowSpec
from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.command import Script
from gateway.shadow.comparison.report_state import added, measure_of

_log = logging.getLogger("pointsman")

Json = dict[str, Any]

_KEY = "pointsman:1:shadow:"
_KEPT_SECONDS = 30 * 24 * 3600
_DEADLINE_SECONDS = 1.0
_TRIES = 5

# KEYS: the report; ARGV: what was read of it ('' for nothing), its new text, time to live (s).
_SWAP = Script(
    """
    if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
    redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
    return 1
    """
)


class ReportFiles:
    """Reports in a folder; without one, in memory alone."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._texts: dict[str, bytes] = {}
        self._has_complained = False

    async def read(self, route: str) -> bytes:
        if route not in self._texts and self._folder is not None:
            try:
                self._texts[route] = self._path(self._folder, route).read_bytes()
            except OSError:
                self._texts[route] = b""
        return self._texts.get(route, b"")

    async def swap(self, route: str, before: bytes, after: bytes) -> bool:
        self._texts[route] = after
        if self._folder is None:
            return True
        path = self._path(self._folder, route)
        partial = path.with_name(f"{path.name}.partial")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial.touch(mode=0o600)
            partial.write_bytes(after)
            partial.replace(path)
        except OSError as error:
            if not self._has_complained:
                _log.warning("reports of mirrored routes are not kept over a restart: %s", error)
                self._has_complained = True
        return True

    @staticmethod
    def _path(folder: Path, route: str) -> Path:
        return folder / f"report-{route}.json"


class ReportsInRedis:
    """The same in Redis. Raises: StoreError."""

    def __init__(self, store: BoundedRedis) -> None:
        self._store = store

    async def read(self, route: str) -> bytes:
        (text,) = await self._store.run(("GET", _key(route)), timeout=_DEADLINE_SECONDS)
        return text or b""

    async def swap(self, route: str, before: bytes, after: bytes) -> bool:
        command = _SWAP.command([_key(route)], [before, after, _KEPT_SECONDS])
        (is_swapped,) = await self._store.run(command, timeout=_DEADLINE_SECONDS)
        return bool(is_swapped)


def _key(route: str) -> str:
    return f"{_KEY}{{{route}}}"


@dataclass(slots=True)
class _Shared:
    """What is known of a route's stored report: `state` is that of all gateways, `own` what this one has added of its
    own; both empty where nothing was."""

    measure: str
    period: str = ""
    state: Json = field(default_factory=dict)
    own: Json = field(default_factory=dict)


class SharedReports:
    """Adds a gateway's reports to the stored ones, and has the sum of all."""

    def __init__(self, reports: ReportFiles | ReportsInRedis) -> None:
        self._reports = reports
        self._shared: dict[str, _Shared] = {}

    def total(self, route: str, shadow: ShadowSpec, own: Json) -> Json:
        """The report of all gateways, as far as it is known here; `own` is this one's."""
        known = self._known(route, shadow)
        return added(known.state, own, self._before(known, own))

    async def share(self, route: str, shadow: ShadowSpec, own: Json) -> bool:
        """Add what is new, and read what others have added. Returns whether it has begun anew at another gateway: what
        this one has counted before is no part of it.

        Raises: StoreError.
        """
        was_reset = False
        known = self._known(route, shadow)
        for _ in range(_TRIES):
            text = await self._reports.read(route)
            stored = _read(text)
            if stored.get("measure") == known.measure and isinstance(stored.get("state"), dict):
                if known.period and known.period != stored["period"]:
                    known.own, was_reset = own, True
                known.period, known.state = str(stored["period"]), stored["state"]
            elif text and known.period and stored.get("measure") != known.measure:
                break  # another gateway has other rules: theirs or these are about to change
            state = added(known.state, own, self._before(known, own))
            if (state == known.state and text) or not state:
                break
            known.period = known.period or token_hex(8)
            after = {"measure": known.measure, "period": known.period, "state": state}
            if await self._reports.swap(route, text, json.dumps(after, separators=(",", ":")).encode()):
                known.state, known.own = state, own
                break
        return was_reset

    async def reset(self, route: str, shadow: ShadowSpec, now: float) -> None:
        """Begin a report anew, on all gateways; this one has begun its own anew.

        Raises: StoreError.
        """
        known = self._shared[route] = _Shared(measure_of(shadow), token_hex(8), {"since": now})
        for _ in range(_TRIES):
            after = {"measure": known.measure, "period": known.period, "state": known.state}
            text = await self._reports.read(route)
            if await self._reports.swap(route, text, json.dumps(after, separators=(",", ":")).encode()):
                return

    def _known(self, route: str, shadow: ShadowSpec) -> _Shared:
        known, measure = self._shared.get(route), measure_of(shadow)
        if known is None or known.measure != measure:
            known = self._shared[route] = _Shared(measure)
        return known

    @staticmethod
    def _before(known: _Shared, own: Json) -> Json:
        """What this gateway has added; nothing of a report that has begun anew here."""
        return known.own if known.own.get("since") == own.get("since") else {}


def _read(text: bytes) -> Mapping[str, Any]:
    try:
        data = json.loads(text) if text else {}
    except ValueError:
        return {}
    return data if isinstance(data, dict) else {}
