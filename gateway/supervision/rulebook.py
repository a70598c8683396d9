"""The rules in force and their replacement: candidate rules are checked completely, and accepted or refused as one.

Files on disk are the source of truth. What operators put in force by the admin API is a version based on those files:
it stays in force, over restarts too, until the files change. The files then supersede it, which is logged.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import time
from typing import Any

from gateway.config.auth import still_named
from gateway.config.host_access import HostNames
from gateway.config.host_uses import foreign_uses
from gateway.config.rule_files import RuleFiles, digest_of, files_of
from gateway.config.rules import LoadedRules, load_rules, load_texts
from gateway.config.specs import RulesSpec
from gateway.dry_run.hook_check import with_hooks
from gateway.dry_run.rule_tests import tested
from gateway.dry_run.tls_check import with_tls_files
from gateway.rule_versions.editor import Edit
from gateway.rule_versions.store import VersionStore, named
from gateway.rule_versions.version import NoSuchVersion, RulesRefused, Version, placed

_log = logging.getLogger("pointsman")

_WATCH_SECONDS = 1.0
FILES = "the files on disk"  # the author of versions that were not activated


class Rulebook:
    """Owns the rule files of one gateway, the versions of their contents, and the findings of the last reading."""

    def __init__(self, paths: Sequence[Path], folder: Path | None = None, api_variables: Collection[str] = ()) -> None:
        """Made before the rules are first loaded, so that a change between the two is noticed. Versions are stored in
        `folder`, in memory where it is None. Rules that are not those of the files on disk may read the variables that
        those read, and `api_variables`."""
        self._paths = paths
        self._api_variables = frozenset(api_variables)
        self._allowed = HostNames()
        self._on_disk: LoadedRules | None = None  # when they were last good
        self._watched = RuleFiles(paths)
        self._store = VersionStore(folder)
        self._reload_due = threading.Event()
        self._one_at_a_time = asyncio.Lock()
        self._loaded: LoadedRules | None = None
        self._version: Version | None = None
        self.base = ""  # digest of the files on disk, when they were last good
        self.base_files: tuple[str, ...] = ()
        self.superseded_base: str | None = None  # of a version that was in force before the start
        self.problems: list[str] = []
        self.readings_ok = 0
        self.readings_refused = 0

    @property
    def rules(self) -> RulesSpec:
        assert self._loaded is not None and self._loaded.rules is not None
        return self._loaded.rules

    @property
    def in_force(self) -> Version:
        assert self._version is not None
        return self._version

    @property
    def number(self) -> int:
        return self._version.number if self._version is not None else 0

    @property
    def files(self) -> list[str]:
        return [str(file) for file in self._loaded.files] if self._loaded is not None else []

    @property
    def texts(self) -> dict[str, str]:
        """The files in force as they are written."""
        return dict(self._loaded.texts) if self._loaded is not None else {}

    # The versions

    def versions(self) -> Sequence[Version]:
        """Oldest first."""
        return self._store.versions

    def version(self, number: int) -> Version:
        """Raises: NoSuchVersion."""
        return self._store.get(number)

    def texts_of(self, number: int) -> dict[str, str]:
        """The files of a version, by their current names.

        Raises: NoSuchVersion.
        """
        version = self._store.get(number)
        return placed(self._store.texts(number), version.base_files, self.base_files)

    # What is on disk

    def open(self, loaded: LoadedRules) -> None:
        """Start with the rules of the files, or with the version of them that was in force when the gateway stopped."""
        assert loaded.rules is not None
        self.base, self.base_files = loaded.rules.digest, tuple(map(str, loaded.files))
        self._allow(loaded)
        self.problems = [str(problem) for problem in loaded.problems]
        latest = self._store.latest
        if latest is not None and self.base in (latest.base, latest.digest):
            restored = self._restored(latest, loaded)
            if restored is not None:
                self._use(restored)
                self._version = self._rebased(latest, restored)
                if not self._version.is_exported:
                    _log.info("%s is in force, since the files are those that it is based on", latest)
                return
            reason = f"{latest} cannot be used any more"
        else:
            reason = "read at the start" + self._superseded(latest)
            self.superseded_base = latest.base if latest is not None and not latest.is_exported else None
        self._enter(loaded, FILES, reason, "files")

    def reload(self) -> None:
        self._reload_due.set()

    async def next(self) -> RulesSpec:
        """Wait for changed files, and put their rules in force.

        An error in them leaves the rules as they are. A thread reads them, since thousands of routes take seconds.
        """
        while True:
            try:
                await self._until_due()
                async with self._one_at_a_time:
                    before = self.rules
                    if self._take(await asyncio.to_thread(judge_files, self._paths)) or await self._have_files(before):
                        return self.rules
            except Exception:  # a bug must not end the watch
                _log.exception("cannot read the rules; rules %d stay in force", self.number)
                self.readings_refused += 1

    # What operators and experiments put in force

    async def activate(self, files: Mapping[str, str] | int, author: str, reason: str = "") -> Version:
        """Put these files, or those of a version, in force, unless they are already.

        Raises: RulesRefused, NoSuchVersion.
        """
        async with self._one_at_a_time:
            if isinstance(files, int):
                return await self._activate(self.texts_of(files), author, reason, of=files)
            return await self._activate(named(files, self.base_files), author, reason)

    async def change(self, edit: Edit, author: str, reason: str = "", source: str = "api") -> Version:
        """Put the edited files in force.

        Raises: EditError, RulesRefused.
        """
        async with self._one_at_a_time:
            texts = self.texts
            await asyncio.to_thread(edit, texts)
            return await self._activate(texts, author, reason, source)

    async def roll_back(self, author: str, reason: str = "") -> Version:
        """Put the previous version in force; repeated, the one before that.

        Raises: NoSuchVersion where there is none, RulesRefused.
        """
        async with self._one_at_a_time:
            to = self._store.before(self.in_force)
            if to is None:
                raise NoSuchVersion(f"there is nothing before version {self.number} that says something else")
            why = f"back to {to}" + (f": {reason}" if reason else "")
            return await self._activate(self.texts_of(to.number), author, why, of=to.number, is_return=True)

    async def take_over(
        self, version: Version, texts: Mapping[str, str], instead_of: Version, is_signed: bool = False
    ) -> bool:
        """Put in force what another gateway has in force instead of the same files, unless the rules have changed
        meanwhile; returns whether that changes anything. Unless they are signed, they send credentials where the files
        on this disk do alone.

        Raises: RulesRefused.
        """
        async with self._one_at_a_time:
            if version.base != self.base or self._version is not instead_of:
                return False
            before = self.number
            same = [each.number for each in self._store.versions if each.digest == version.digest]
            of = same[-1] if version.is_return and same else None  # numbers are each gateway's own
            author, reason, source = version.author, version.reason, version.source
            judge = self._judged if is_signed else self._judged_of_others
            await self._activate(texts, author, reason, source, judge=judge, of=of, is_return=of is not None)
            return self.number != before

    async def judge(self, files: Mapping[str, str]) -> LoadedRules:
        """Check candidate files.

        Raises: RulesRefused where their names are invalid.
        """
        return await asyncio.to_thread(self._judged, named(files, self.base_files))

    # Under the lock

    async def _activate(
        self,
        texts: Mapping[str, str],
        author: str,
        reason: str,
        source: str = "api",
        judge: Callable[[Mapping[str, str]], LoadedRules] | None = None,
        **origin: Any,
    ) -> Version:
        """`origin` are further fields of the version."""
        if digest_of(file.content for file in files_of(texts)) == self.rules.digest:
            _log.info("what %s activates is in force already, as version %d", author, self.number)
            return self.in_force
        loaded = await asyncio.to_thread(judge or self._judged, texts)
        if loaded.rules is None:
            _log.warning("rules of %s are refused; rules %d stay in force", author, self.number)
            raise RulesRefused(loaded.problems)
        self.problems = [str(problem) for problem in loaded.problems]
        self._enter(loaded, author, reason, source, **origin)
        _log.info("%s is in force now", self.in_force)
        return self.in_force

    def _take(self, loaded: LoadedRules) -> bool:
        """Check a reading of the files; returns whether it has put new rules in force."""
        for problem in loaded.problems:
            _log.warning("%s", problem)
        if loaded.rules is None:
            self.problems = [*map(str, loaded.problems)]
            self.readings_refused += 1
            self._watch(loaded)
            _log.error("the new rules are refused; rules %d stay in force", self.number)
            return False
        self.readings_ok += 1
        assert self._loaded is not None
        before, self.base = self.base, loaded.rules.digest
        self.base_files = tuple(map(str, loaded.files))
        self._allow(loaded)
        if self.base in (before, self.rules.digest):
            if self.base == self.rules.digest:
                self._use(loaded)
            self.problems = [str(problem) for problem in self._loaded.problems]
            self._version = self._rebased(self.in_force, self._loaded)
            _log.info("the rules have not changed; rules %d stay in force", self.number)
            return self.base != before
        self.problems = [str(problem) for problem in loaded.problems]
        self._enter(loaded, FILES, "they have changed" + self._superseded(self._version), "files")
        return True

    async def _have_files(self, before: RulesSpec) -> bool:
        """Whether other keys of clients or credentials of engines are in force than before, under rules whose texts
        are the same."""
        if self.rules is before and self._loaded is not None and self._loaded.followed_files:
            # They have an error, or are a version that the files on disk do not have
            loaded = await asyncio.to_thread(self._judged, self.texts)
            if loaded.rules is None:
                what = (
                    "revocations are not applied until the files have no error: clients' keys whose ids they still "
                    "have, and engines' old credentials, stay in force: %s"
                )
                _log.error(what, "; ".join(map(str, loaded.errors[:3])))
                return await asyncio.to_thread(self._refuse_removed)
            if loaded.rules.of_files == before.of_files:
                return False
            self._use(loaded)
        if self.rules.of_files == before.of_files:
            return False
        _log.info("the keys of clients, the credentials of engines or hooks have changed")
        return True

    def _refuse_removed(self) -> bool:
        """Refuse the keys of clients whose ids the files do not have any more, whatever is wrong with these; returns
        whether there are any."""
        rules, auth = self.rules, self.rules.auth
        files = tuple(replace(file, keys=still_named(file)) for file in auth.keys) if auth is not None else ()
        if auth is None or files == auth.keys:
            return False
        assert self._loaded is not None
        self._loaded = replace(self._loaded, rules=replace(rules, auth=replace(auth, keys=files)))
        _log.warning("the keys of clients that damaged files do not have any more are refused")
        return True

    def _enter(self, loaded: LoadedRules, author: str, reason: str, source: str, **origin: Any) -> None:
        assert loaded.rules is not None
        names = tuple(loaded.texts)
        digest = loaded.rules.digest
        version = Version(0, time(), author, reason, source, digest, self.base, names, self.base_files, **origin)
        self._version = self._store.add(version, loaded.texts)
        self._use(loaded)

    def _use(self, loaded: LoadedRules) -> None:
        self._loaded = loaded
        self._watch(loaded)

    def _watch(self, latest: LoadedRules) -> None:
        """Notice changes of the files that the rules in force name, and those that rules with an error need."""
        assert self._loaded is not None
        self._watched.watch_too(list(dict.fromkeys((*self._loaded.followed_files, *latest.followed_files))))

    def _restored(self, version: Version, loaded: LoadedRules) -> LoadedRules | None:
        """The rules of the version that was in force; None where they are no longer valid."""
        if loaded.rules is not None and version.digest == loaded.rules.digest:
            return loaded
        try:
            restored = self._judged(self.texts_of(version.number))
            if restored.rules is None:
                raise RulesRefused(restored.problems)
        except (NoSuchVersion, RulesRefused) as error:
            _log.error("%s cannot be used any more, so the files on disk are in force: %s", version, error)
            self.problems.append(f"{version} was in force before the start, and cannot be used any more: {error}")
            return None
        self.problems = [str(problem) for problem in restored.problems]
        return restored

    def _allow(self, loaded: LoadedRules) -> None:
        """Other rules may name what these files name."""
        names = loaded.host_names
        self._on_disk = loaded
        self._allowed = HostNames(names.variables | self._api_variables, names.files, names.hooks)

    def _judged(self, texts: Mapping[str, str]) -> LoadedRules:
        """Texts of the admin API and of other gateways, checked; those of files that were on disk here may name what
        operators had written into them."""
        return _checked(load_texts(texts, allowed=None if self._were_files(texts) else self._allowed))

    def _judged_of_others(self, texts: Mapping[str, str]) -> LoadedRules:
        """The texts of another gateway, or of who else can write to Redis, checked."""
        loaded = self._judged(texts)
        if loaded.rules is None or self._were_files(texts):
            return loaded
        assert self._on_disk is not None
        problems = foreign_uses(loaded, self._on_disk)
        return replace(loaded, rules=None, problems=(*loaded.problems, *problems)) if problems else loaded

    def _were_files(self, texts: Mapping[str, str]) -> bool:
        digest = digest_of(file.content for file in files_of(texts))
        return any(each.source == "files" and each.digest == digest for each in self._store.versions)

    def _rebased(self, version: Version, loaded: LoadedRules) -> Version:
        if (version.base, version.base_files) == (self.base, self.base_files):
            return version
        return self._store.rebase(version.number, self.base, self.base_files, loaded.texts)

    def _superseded(self, version: Version | None) -> str:
        """What a change of the files supersedes, for the log and the version's reason."""
        if version is None or version.is_exported:
            return ""
        _log.warning("the files on disk have changed, and supersede %s, which was not exported to them", version)
        return f"; supersedes {version}, which was not exported"

    async def _until_due(self) -> None:
        """A thread watches the files, so that a slow disk does not block the event loop."""
        reload_due = self._reload_due
        try:
            await asyncio.to_thread(self._watched.wait, reload_due, _WATCH_SECONDS)
        finally:
            self._reload_due = threading.Event()
            reload_due.set()  # ends the thread of a cancelled wait


def judge_files(paths: Sequence[Path]) -> LoadedRules:
    """Load and check rule files; `rules` is None where they have an error."""
    return _checked(load_rules(paths))


def _checked(loaded: LoadedRules) -> LoadedRules:
    """Loaded rules after the checks that need this host: certificate files, hooks, and the rules' own tests."""
    return tested(with_hooks(with_tls_files(loaded)))
