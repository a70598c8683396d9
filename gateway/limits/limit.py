"""One limit of the rules at work: the accounts of those whom it tells apart."""

from __future__ import annotations

import re

from gateway.config.specs import IdentitySpec, LimitSpec
from gateway.limits.account import Account, Counts
from gateway.limits.limit_key import Who, reader_of

# Who invents tenants or keys must not fill the memory: an account is about 1 KiB.
MAX_ACCOUNTS = 10_000
# One that was used so shortly ago stays, where another can go.
_RECENT_SECONDS = 1.0
_LOOKED_AT = 16


class Limit:
    """Finds the account of a request, and opens those that are new."""

    __slots__ = ("accounts", "counts", "read_who", "spec")

    def __init__(self, spec: LimitSpec, identity: IdentitySpec) -> None:
        self.spec = spec
        self.read_who = reader_of(spec, identity)
        self.accounts: dict[Who, Account] = {}
        self.counts = Counts()

    def __repr__(self) -> str:
        return f"<Limit {self.spec.name}: {len(self.accounts)} accounts, {self.counts}>"

    def open(self, who: Who, num_workers: int, now: float) -> tuple[Account, Account | None]:
        """A new account, and the one that had to go for it."""
        gone = self._make_room(now) if len(self.accounts) >= MAX_ACCOUNTS else None
        account = self.accounts[who] = Account(self.spec, who, num_workers, now, self.counts)
        return account, gone

    def _make_room(self, now: float) -> Account | None:
        """Close the oldest account that nobody uses; where all are in use, none."""
        for number in range(_LOOKED_AT * 2):
            who, account = next(iter(self.accounts.items()))
            del self.accounts[who]
            is_recent = now - account.used_at < _RECENT_SECONDS and number < _LOOKED_AT
            if not account.is_in_use and not is_recent:
                return account
            self.accounts[who] = account  # a second chance, at the end of the row
        return None

    def take_over(self, before: Limit, num_workers: int, now: float) -> None:
        """Go on with the accounts of a limit of the same name, as far as they tell apart the same. Requests that began
        before meet this one's spec from now on, as far as they have none."""
        self.counts = before.counts
        if before.spec.per == self.spec.per:
            self.accounts = before.accounts
            if before.spec != self.spec:
                before.spec = self.spec
                for account in self.accounts.values():
                    account.use(self.spec, num_workers, now)


# English text in common vocabularies; markup and code have fewer bytes a token, the JSON around them makes up for it.
_BYTES_PER_TOKEN = 4
# A reply for which no bound is told.
_REPLY_TOKENS = 256

_BOUND = re.compile(rb'"max_(?:completion_|output_|new_)?tokens"\s{0,4}:\s{0,4}(\d{1,7})')
_LAST_OF_A_BOUND = b'_tokens"'


def prompt_tokens(num_bytes: int) -> int:
    """Those of a request's body."""
    return 1 + num_bytes // _BYTES_PER_TOKEN


def expected_tokens(body: bytes, num_bytes: int) -> int:
    """Those of a request and its reply: `body` is what has come of so many bytes."""
    return prompt_tokens(num_bytes) + _reply_tokens(body)


def _reply_tokens(body: bytes) -> int:
    """The reply's bound, the first that is told."""
    if _LAST_OF_A_BOUND in body:  # much faster than the expression, where there is none
        found = _BOUND.search(body)
        if found is not None:
            return int(found[1])
    return _REPLY_TOKENS
