"""Rules that operators put in force at one gateway, shared with the gateways that have the same rule files.

Redis has one hash: a field is the digest of the files on disk, its value the version that is in force instead of them,
with its texts as they are written (`${VAR}` stays, so they contain no secret of the environment). What was put in force
while Redis was away is written when it is back; otherwise Redis decides.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from gateway.config.rule_files import digest_of, files_of
from gateway.protocol.stored_json import read_json_object
from gateway.redis.bounded_client import BoundedRedis
from gateway.redis.command import Command, Script, StoreError
from gateway.rule_versions.version import RulesRefused, Version, placed, read_version
from gateway.supervision.rule_signature import RuleSignature
from gateway.supervision.rulebook import FILES, Rulebook

_log = logging.getLogger("pointsman")

KEY = "pointsman:1:rules"

# No request waits for these calls; texts may be long.
_CALL_SECONDS = 2.0
# Different sets of rule files; those with the oldest versions are removed.
_MAX_BASES = 8
# What versions of other gateways come from: each has its own files.
_SOURCES = ("api", "experiment")

# KEYS[1]; ARGV: the base, its version, the maximum of fields. A value begins with its time in ms.
_WRITE = Script(
    """
    redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
    while redis.call('HLEN', KEYS[1]) > tonumber(ARGV[3]) do
        local oldest, since = nil, nil
        local found = redis.call('HGETALL', KEYS[1])
        for at = 1, #found, 2 do
            local time = tonumber(string.match(found[at + 1], '^(%d+) ')) or 0
            if found[at] ~= ARGV[1] and (since == nil or time < since) then oldest, since = found[at], time end
        end
        redis.call('HDEL', KEYS[1], oldest)
    end
    return 1
    """
)


@dataclass(frozen=True, slots=True)
class SharedRules:
    """A version of another gateway, and its texts by that gateway's file names."""

    version: Version
    texts: Mapping[str, str]
    by: str


class RuleSharing:
    """Writes and reads the shared rules; without a store it does nothing."""

    def __init__(
        self, book: Rulebook, store: BoundedRedis | None, name: str, signature: RuleSignature | None = None
    ) -> None:
        """With a `signature` versions are signed, and others are ignored."""
        self._signature = signature
        self._has_complained = False  # of a version without a valid signature
        self._book = book
        self._store = store
        self._name = name
        self._one_at_a_time = asyncio.Lock()
        self._refused = ""  # digest of a shared version that cannot be used here
        self._unwritten: SharedRules | None = None
        self._has_answered = False  # whether Redis answered the last read
        self.problem: str | None = None

    @property
    def is_shared(self) -> bool:
        """Whether what was put in force here is in Redis."""
        return self._store is not None and self._unwritten is None

    def decided(self) -> None:
        """What is in force was put there at this gateway, and is to be shared."""
        self._unwritten = SharedRules(self._book.in_force, self._book.texts, self._name)

    async def share(self) -> bool:
        """Write what was decided here; returns whether Redis took it."""
        async with self._one_at_a_time:
            return await self._write()

    def superseded(self, base: str) -> None:
        """The files on disk no longer have this digest: remove the version that replaced them."""
        self._unwritten, self.problem = None, None
        if self._store is not None:
            self._store.enqueue(("HDEL", KEY, base))

    async def look(self) -> bool:
        """Take over what another gateway has in force instead of the same files; returns whether the rules in force
        have changed."""
        if self._store is None:
            return False
        async with self._one_at_a_time:
            if self._unwritten is not None:
                await self._write()
                return False
            before = self._book.in_force
            shared = await self._read()
            if self._book.in_force is not before:  # decided here meanwhile, after the read
                return False
            if shared is None:
                if not before.is_exported and self._has_answered:  # Redis has lost it, or never had it
                    self.decided()
                    await self._write()
                return False
            if shared.version.digest in (before.digest, self._refused):
                return False
            return await self._take(shared, before)

    async def _take(self, shared: SharedRules, instead_of: Version) -> bool:
        version = shared.version
        texts = placed(shared.texts, version.base_files, self._book.base_files)
        try:
            taken = await self._book.take_over(version, texts, instead_of, self._signature is not None)
        except RulesRefused as error:
            self._refused = version.digest
            self.problem = f"{version}, which {shared.by} has in force, cannot be used here: {error}"
            _log.error("%s", self.problem)
            return False
        self._refused, self.problem = "", None
        return taken

    async def _write(self) -> bool:
        shared = self._unwritten
        if shared is None or self._store is None:
            return self._store is not None
        version = shared.version
        try:
            (answer,) = await self._store.call([self._command(shared)], _CALL_SECONDS)
        except StoreError as error:
            _log.warning("the other gateways do not know %s yet: %s", version, error)
            return False
        if isinstance(answer, Exception):
            _log.warning("Redis does not keep %s for the other gateways: %s", version, answer)
            return False
        if self._unwritten is shared:
            self._unwritten = None
        return True

    async def _read(self) -> SharedRules | None:
        assert self._store is not None
        try:
            (answer,) = await self._store.call([("HGET", KEY, self._book.base)], _CALL_SECONDS)
        except StoreError:
            self._has_answered = False
            return None
        self._has_answered = True
        if not isinstance(answer, bytes):
            return None
        content = self._verified(answer.partition(b" ")[2])
        if content is None:
            return None
        try:
            fields = read_json_object(content)
            version = read_version(fields)
            texts = {name: str(fields["texts"][name]) for name in version.files}
            if version.source not in _SOURCES or version.author == FILES:
                raise ValueError(f"{version.source} of {version.author} is not shared")
            if version.digest != digest_of(file.content for file in files_of(texts)):
                raise ValueError("its digest is not that of its texts")
        except (KeyError, TypeError, ValueError):
            return None
        return SharedRules(version, texts, str(fields.get("by", "another gateway")))

    def _verified(self, signed: bytes) -> bytes | None:
        """The JSON of a version; None where it is not signed, and has to be."""
        if self._signature is None:
            return signed
        signature, _, content = signed.partition(b" ")
        if self._signature.is_of(signature, self._book.base, content):
            self._has_complained = False
            return content
        if not self._has_complained:
            self._has_complained = True
            _log.warning("the rules in Redis are ignored: they are not signed with the secret of --shared-secret-file")
        return None

    def _command(self, shared: SharedRules) -> Command:
        version = shared.version
        content = json.dumps(asdict(version) | {"texts": dict(shared.texts), "by": shared.by})
        if self._signature is not None:
            content = f"{self._signature.of(version.base, content.encode())} {content}"
        return _WRITE.command([KEY], [version.base, f"{int(version.time * 1000)} {content}", _MAX_BASES])
