"""One limit of the rules with its accounts, and the estimate of a request's tokens."""

from __future__ import annotations

import re

from gateway.config.limit_specs import LimitSpec
from gateway.config.specs import IdentitySpec
from gateway.limits.account import Account, Counts
from gateway.limits.limit_key import LimitKey, header_names, reader_of
from gateway.protocol.llm.token_estimate import BYTES_PER_TOKEN

# Bounds the memory, because clients choose tenants and keys: an account is about 1 KiB.
MAX_ACCOUNTS = 10_000
# An account used within this time is evicted only if no other can be.
_RECENT_SECONDS = 1.0
_MAX_INSPECTED = 16


class Limit:
    """Finds the account of a request, and opens new ones."""

    __slots__ = ("accounts", "counts", "header_names", "read_key", "spec")

    def __init__(self, spec: LimitSpec, identity: IdentitySpec, *, is_verified: bool = False) -> None:
        """`is_verified`: the rules have `auth:`, so tenants and keys are those of verified callers."""
        self.spec = spec
        self.header_names = header_names(spec, identity, is_verified=is_verified)  # that keys are read from
        self.read_key = reader_of(spec, identity, is_verified=is_verified)
        self.accounts: dict[LimitKey, Account] = {}
        self.counts = Counts()

    def open(self, limit_key: LimitKey, num_workers: int, now: float) -> tuple[Account, Account | None]:
        """Returns: a new account, and the one that was evicted for it, if any."""
        evicted = self._make_room(now) if len(self.accounts) >= MAX_ACCOUNTS else None
        account = self.accounts[limit_key] = Account(self.spec, limit_key, num_workers, now, self.counts)
        return account, evicted

    def _make_room(self, now: float) -> Account | None:
        """Evict the oldest unused account; none if all are in use."""
        for number in range(_MAX_INSPECTED * 2):
            limit_key, account = next(iter(self.accounts.items()))
            del self.accounts[limit_key]
            is_recent = now - account.used_at < _RECENT_SECONDS and number < _MAX_INSPECTED
            if not account.is_in_use and not is_recent:
                return account
            self.accounts[limit_key] = account  # moved to the end
        return None

    def take_over(self, before: Limit, num_workers: int, now: float) -> None:
        """Adopt the accounts of an earlier limit of the same name, if it has the same keys. Active requests without a
        bound of their own get this spec's."""
        self.counts = before.counts
        if before.spec.per == self.spec.per:
            self.accounts = before.accounts
            if before.spec != self.spec:
                before.spec = self.spec
                for account in self.accounts.values():
                    account.use(self.spec, num_workers, now)


# The estimate for a reply without a bound.
_REPLY_TOKENS = 256

_BOUND = re.compile(rb'"max_(?:completion_|output_|new_)?tokens"\s{0,4}:\s{0,4}(\d{1,7})')
_LAST_OF_A_BOUND = b'_tokens"'


def prompt_tokens(num_bytes: int) -> int:
    """Estimate the tokens of a request body of `num_bytes` bytes."""
    return 1 + num_bytes // BYTES_PER_TOKEN


def expected_tokens(body: bytes, num_bytes: int) -> int:
    """Estimate the tokens of a request and its reply; `body` is what has arrived of its `num_bytes` bytes."""
    return prompt_tokens(num_bytes) + reply_tokens(body)


def reply_tokens(body: bytes) -> int:
    """The most tokens of a reply: the first bound in the body; without one an estimate."""
    if _LAST_OF_A_BOUND in body:  # much faster than the expression
        found = _BOUND.search(body)
        if found is not None:
            return int(found[1])
    return _REPLY_TOKENS
