"""The rules of a gateway: decided here, changed on disk, or shared by other gateways; put in force in every part."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from gateway.config.specs import RulesSpec
from gateway.rule_versions.version import Version
from gateway.supervision.replicas import Replica, Replicas
from gateway.supervision.rule_distribution import RuleSharing
from gateway.supervision.rulebook import Rulebook

_log = logging.getLogger("pointsman")


class RuleManager:
    """Keeps the parts of a gateway and its replicas up to date with a `Rulebook`, which is open."""

    def __init__(
        self,
        book: Rulebook,
        replicas: Replicas,
        sharing: RuleSharing,
        use_rules: Callable[[RulesSpec, int], None],
        settle: Callable[[], Awaitable[None]],
    ) -> None:
        """`use_rules` puts rules in force unless they are already; `settle` waits until the workers use them."""
        self._book = book
        self._replicas = replicas
        self._sharing = sharing
        self._use_rules = use_rules
        self._settle = settle
        self._sync_due = asyncio.Event()  # another gateway may have rules for this one
        self._announced = (0, "")  # the version that the replicas know, and its base

    @property
    def problems(self) -> Sequence[str]:
        """Findings of the last reading of the rule files, a line each, and differences to other gateways."""
        shared = [self._sharing.problem] if self._sharing.problem is not None else []
        foreign = [other for other in self._replicas.known if other.base not in (self._book.base, "", other.digest)]
        return [*self._book.problems, *shared, *map(_foreign_rules, foreign)]

    @property
    def is_shared(self) -> bool:
        """Whether the gateways that share its Redis know what was put in force here."""
        return self._sharing.is_shared

    async def use(self, change: Awaitable[Version]) -> Version:
        """Carry out a change of the rulebook, use it in all parts, and have the other gateways use it.

        Raises: EditError, NoSuchVersion, RulesRefused.
        """
        await self._take_shared()
        version = await change
        if self._book.in_force is version and version.number != self._announced[0]:
            self._sharing.decided()
        self._use_book()
        await asyncio.gather(self._settle(), self._sharing.share())
        self._announce()
        return version

    # Files and other gateways

    async def join(self) -> None:
        """Join the other gateways, and take over their rules."""
        if self._book.superseded_base is not None:
            self._sharing.superseded(self._book.superseded_base)
        await self._take_shared()
        self._announced = (self._book.number, self._book.base)
        await self._replicas.start(self._book.rules.digest, *self._announced)

    async def follow_files(self) -> None:
        """Put the rules of the files on disk in force whenever they change."""
        while True:
            base = self._book.base
            await self._book.next()
            self._use_book()
            self._sharing.superseded(base)
            self._announce()

    def sync(self) -> None:
        """Have `follow_replicas` read what other gateways share."""
        self._sync_due.set()

    async def follow_replicas(self) -> None:
        """Put in force what operators put in force at other gateways."""
        while True:
            await self._sync_due.wait()
            self._sync_due.clear()
            await self._take_shared()
            self._announce()

    async def _take_shared(self) -> None:
        try:
            if await self._sharing.look():
                self._use_book()
        except Exception:  # a bug, or what others write to Redis, must not end the gateway
            _log.exception("cannot look at the rules of other gateways; rules %d stay in force", self._book.number)

    def _use_book(self) -> None:
        self._use_rules(self._book.rules, self._book.number)

    def _announce(self) -> None:
        current = (self._book.number, self._book.base)
        if self._announced != current:
            self._announced = current
            self._replicas.rules_activated(self._book.rules.digest, *current)


def _foreign_rules(other: Replica) -> str:
    return (
        f"{other.name} has rules in force that are not its files' ({other.digest[:12]}); they are not taken over here, "
        f"since they are based on other rule files ({other.base[:12]}) than those on this disk"
    )
