"""How a refused request is told which limit it has met, and when to come again."""

from __future__ import annotations

from math import ceil

from gateway.limits.account import Account
from gateway.limits.local_allowance import Slack
from gateway.protocol.errors import ErrorKind, GatewayError


def refusal(account: Account, tokens: int, now: float, is_shared: bool) -> GatewayError:
    """The error for a request that may not go; its fields are those of OpenAI's API."""
    spec = account.spec
    fields: list[tuple[bytes, bytes]] = []
    reached, wait = f"{spec.concurrency} requests at the same time", 1.0
    for slack, amount, what, told in (
        (account.tokens, tokens, b"tokens", f"{spec.tokens_per_minute} tokens per minute"),
        (
            account.requests,
            1,
            b"requests",
            f"{spec.requests_per_second:g} requests per second" if account.requests else "",
        ),
    ):
        if slack is None:
            continue
        if not slack.has(min(amount, slack.full), now, is_shared):
            reached, wait = told, slack.wait(amount, now, is_shared)
        fields += _told(slack, amount, what, now, is_shared)
    fields.insert(0, (b"retry-after", b"%d" % max(1, ceil(wait))))
    fields.insert(1, (b"retry-after-ms", b"%d" % max(1, ceil(wait * 1000))))
    per = f" per {', '.join(spec.per)}" if spec.per else ""
    message = f"limit '{spec.name}' is reached ({reached}{per}): try again in {_duration(wait)}"
    return GatewayError(ErrorKind.RATE_LIMITED, message, tuple(fields))


def _told(slack: Slack, amount: float, what: bytes, now: float, is_shared: bool) -> list[tuple[bytes, bytes]]:
    left = slack.allowance if is_shared else slack.own.level(now)
    reset = _duration(slack.wait(amount, now, is_shared)).replace(" ", "").encode("ascii")
    return [
        (b"x-ratelimit-limit-" + what, b"%d" % slack.full),
        (b"x-ratelimit-remaining-" + what, b"%d" % max(0, int(left))),
        (b"x-ratelimit-reset-" + what, reset),
    ]


def _duration(seconds: float) -> str:
    """As OpenAI tells it: 12ms, 3.4s, 2m3s."""
    if seconds < 1:
        return f"{max(1, ceil(seconds * 1000))}ms"
    if seconds < 60:
        return f"{seconds:.3g}s"
    return f"{int(seconds // 60)}m{int(seconds % 60)}s"
