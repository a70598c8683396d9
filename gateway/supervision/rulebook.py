"""The rules in force, and how new ones take their place: read whole, judged whole, refused whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gateway.config.rules import LoadedRules, load_rules
from gateway.config.specs import RulesSpec
from gateway.config.watch import RuleFiles
from gateway.upstream.tls import endpoint_tls

_log = logging.getLogger("pointsman")

_WATCH_SECONDS = 1.0


class Rulebook:
    """Owns the rule files of one gateway, and what their last reading has found."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Made before the rules are first loaded: a change between the two is then seen, not lost."""
        self._paths = paths
        self._watch = RuleFiles(paths)
        self._is_asked = asyncio.Event()
        self._loaded: LoadedRules | None = None
        self.number = 1
        self.problems: list[str] = []
        self.readings_ok = 0
        self.readings_refused = 0

    def __repr__(self) -> str:
        return f"<Rulebook {self.number}: {self.readings_ok} taken, {self.readings_refused} refused>"

    @property
    def rules(self) -> RulesSpec:
        assert self._loaded is not None and self._loaded.rules is not None
        return self._loaded.rules

    @property
    def files(self) -> list[str]:
        return [str(file) for file in self._loaded.files] if self._loaded is not None else []

    def open(self, loaded: LoadedRules) -> None:
        """Begin with these rules."""
        self._loaded = loaded
        self.problems = [str(problem) for problem in loaded.problems]

    def ask(self) -> None:
        """Have the files read again, though nothing says that they have changed."""
        self._is_asked.set()

    async def next(self) -> RulesSpec:
        """Wait for rules that differ from those in force, and put them in force.

        A mistake in them leaves the rules as they are. Reading is work for a thread: thousands of routes take seconds,
        in which workers die, probes run out of time and operators press Ctrl-C.
        """
        while True:
            try:
                await self._until_due()
                loaded, unusable = await asyncio.to_thread(_read, self._paths)
            except Exception:  # a fault of ours must not end the watch
                _log.exception("cannot read the rules; rules %d stay in force", self.number)
                self.readings_refused += 1
                continue
            if self._take(loaded, unusable):
                return self.rules

    async def _until_due(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_asked.wait(), _WATCH_SECONDS)
            is_asked = self._is_asked.is_set()
            self._is_asked.clear()
            # Files on a slow disk hold nobody up either. Asked or not, what is there now counts as seen.
            if await asyncio.to_thread(self._watch.changed) or is_asked:
                return

    def _take(self, loaded: LoadedRules, unusable: list[str]) -> bool:
        """Judge a reading; tells whether it has put new rules in force."""
        self.problems = [*map(str, loaded.problems), *unusable]
        for problem in self.problems:
            _log.warning("%s", problem)
        if loaded.rules is None or unusable:
            self.readings_refused += 1
            _log.error("the new rules are refused; rules %d stay in force", self.number)
            return False
        self.readings_ok += 1
        if loaded.rules.digest == self.rules.digest:
            _log.info("the rules have not changed; rules %d stay in force", self.number)
            return False
        self._loaded = loaded
        self.number += 1
        return True


def _read(paths: Sequence[Path]) -> tuple[LoadedRules, list[str]]:
    loaded = load_rules(paths)
    return loaded, unusable_files(loaded.rules) if loaded.rules is not None else []


def unusable_files(rules: RulesSpec) -> list[str]:
    """What is wrong with the certificate files that the rules name: workers would refuse the rules for it."""
    found = []
    for name, engine in rules.engines.items():
        for endpoint in engine.endpoints:
            try:
                endpoint_tls(engine.tls, endpoint.url)
            except OSError as error:  # ssl.SSLError is one
                found.append(f"{engine.location}: error: the TLS files of engine '{name}' cannot be used: {error}")
                break
    return found
