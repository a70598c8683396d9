"""The control process' care for its rules: which are in force, by whose will, and that all who need to know do."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.config.rules import LoadedRules
from gateway.config.specs import RulesSpec
from gateway.redis.bounded_client import Store
from gateway.rule_versions.editor import Edit
from gateway.rule_versions.version import Version
from gateway.supervision.replicas import Replica, Replicas
from gateway.supervision.rule_distribution import RuleSharing
from gateway.supervision.rulebook import Rulebook

_log = logging.getLogger("pointsman")


class RuleKeeping:
    """What a supervisor is besides all else; it says how rules are served by."""

    def __init__(self, rule_paths: Sequence[Path], versions_dir: Path | None) -> None:
        self._book = Rulebook(rule_paths, versions_dir)
        self._replicas: Replicas | None = None
        self._sharing: RuleSharing | None = None
        self._shared_rules = asyncio.Event()  # another gateway may have rules for this one
        self._told = (0, "")  # the version that the replicas know, and its base

    def _use_rules(self, rules: RulesSpec, number: int) -> None:
        """Serve by these, unless they are in use."""
        raise NotImplementedError

    async def _settle(self) -> None:
        """Wait until they are served by, a moment at most."""
        raise NotImplementedError

    # What is known

    @property
    def rules(self) -> RulesSpec:
        return self._book.rules

    @property
    def rules_number(self) -> int:
        return self._book.number

    @property
    def rule_files(self) -> list[str]:
        return self._book.files

    @property
    def rule_texts(self) -> dict[str, str]:
        """What is in force, as it is written, by file and in order."""
        return self._book.texts

    @property
    def problems(self) -> list[str]:
        """What the last reading of rules has found, and what other gateways have that this one has not."""
        assert self._sharing is not None
        shared = [self._sharing.problem] if self._sharing.problem is not None else []
        strangers = [each for each in self.replicas if each.base != self._book.base and not each.follows_its_files]
        return [*self._book.problems, *shared, *map(_elsewhere, strangers)]

    @property
    def replicas(self) -> Sequence[Replica]:
        assert self._replicas is not None
        return self._replicas.known

    def versions(self) -> Sequence[Version]:
        """Oldest first."""
        return self._book.versions()

    def version(self, number: int) -> Version:
        """Raises: NoSuchVersion."""
        return self._book.version(number)

    def version_texts(self, number: int) -> dict[str, str]:
        """The files of a version, as they are written, by name and in order.

        Raises: NoSuchVersion.
        """
        return self._book.texts_of(number)

    @property
    def version_in_force(self) -> Version:
        return self._book.in_force

    @property
    def is_shared(self) -> bool:
        """Whether the gateways that share its Redis know what was put in force here."""
        assert self._sharing is not None
        return self._sharing.is_shared

    async def judge(self, files: Mapping[str, str]) -> LoadedRules:
        """What would be said of these files.

        Raises: RulesRefused where their names cannot be.
        """
        return await self._book.judge(files)

    # What is decided here

    async def activate(
        self, files: Mapping[str, str] | int, author: str, reason: str = "", source: str = "api"
    ) -> Version:
        """Put these files, or those of a version, in force.

        Raises: RulesRefused, NoSuchVersion.
        """
        await self._look()
        return await self._decided(await self._book.activate(files, author, reason, source))

    async def change(self, edit: Edit, author: str, reason: str = "", source: str = "api") -> Version:
        """Put in force what an edit makes of the files in force.

        Raises: EditError, RulesRefused.
        """
        await self._look()
        return await self._decided(await self._book.change(edit, author, reason, source))

    async def roll_back(self, author: str, reason: str = "") -> Version:
        """Put in force again what was there before.

        Raises: NoSuchVersion, RulesRefused.
        """
        await self._look()
        return await self._decided(await self._book.roll_back(author, reason))

    async def _decided(self, version: Version) -> Version:
        """Serve by what was put in force here, and have the other gateways do so."""
        assert self._sharing is not None
        if self._book.in_force is version and version.number != self._told[0]:
            self._sharing.decided()
        self._serve_by_book()
        await asyncio.gather(self._settle(), self._sharing.share())
        self._tell_replicas()
        return version

    # What others say

    def _meet(self, replicas: Replicas, store: Store | None) -> None:
        """These are the gateways of the same Redis."""
        self._replicas = replicas
        self._sharing = RuleSharing(self._book, store, replicas.name)

    async def _join(self) -> None:
        """Become one of them, and begin to serve by their rules."""
        assert self._replicas is not None and self._sharing is not None
        if self._book.superseded_base is not None:
            self._sharing.superseded(self._book.superseded_base)
        await self._look()
        self._told = (self._book.number, self._book.base)
        await self._replicas.start(self._book.rules.digest, *self._told)

    async def _keep_rules(self) -> None:
        """Serve by what the files on disk say whenever they change."""
        assert self._sharing is not None
        while True:
            base = self._book.base
            await self._book.next()
            self._serve_by_book()
            self._sharing.superseded(base)
            self._tell_replicas()

    async def _keep_sharing(self) -> None:
        """Serve by what operators put in force at other gateways."""
        while True:
            await self._shared_rules.wait()
            self._shared_rules.clear()
            try:
                await self._look()
            except Exception:  # a fault of ours must not make this gateway deaf
                _log.exception("cannot look at the rules of other gateways; rules %d stay in force", self._book.number)
            self._tell_replicas()

    async def _look(self) -> None:
        assert self._sharing is not None
        if await self._sharing.look():
            self._serve_by_book()

    def _serve_by_book(self) -> None:
        self._use_rules(self._book.rules, self._book.number)

    def _tell_replicas(self) -> None:
        assert self._replicas is not None
        told = (self._book.number, self._book.base)
        if self._told != told:
            self._told = told
            self._replicas.rules_activated(self._book.rules.digest, *told)


def _elsewhere(other: Replica) -> str:
    return (
        f"{other.name} has rules in force that are not its files' ({other.digest[:12]}); they are not taken over here, "
        f"since they are based on other rule files ({other.base[:12]}) than those on this disk"
    )
