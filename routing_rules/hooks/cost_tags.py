"""Cost tags: each request says whose money it spends, for the engine's logs and the client's; requests without a known
cost centre are refused. What each tag has spent is at hand in `spent`, for a metric of your own.
"""

from collections import Counter

from gateway.hooks import Change, HookReply, HookRequest, Reject, ReplyChange


class CostTags:
    """`centres` are the known ones; the header `x-cost-centre` names one, else the caller's tenant does. `prices` are
    of a thousand tokens, by model: "small=0.2 large=1.5"."""

    reads_reply = True

    def __init__(self, centres: str, prices: str = "") -> None:
        self._centres = frozenset(centres.split())
        self._prices = {name: float(price) for name, price in (each.split("=") for each in prices.split())}
        self.spent: Counter[str] = Counter()

    async def on_request(self, request: HookRequest) -> Change | Reject:
        centre = request.headers.get("x-cost-centre") or request.tenant
        if centre not in self._centres:
            return Reject(403, "name a cost centre in the header x-cost-centre")
        request.state["centre"] = centre
        return Change(headers={"x-cost-centre": centre})

    async def on_reply(self, request: HookRequest, reply: HookReply) -> ReplyChange:
        centre = request.state["centre"]
        tokens = ((reply.json or {}).get("usage") or {}).get("total_tokens", 0)
        cost = tokens / 1000 * self._prices.get(request.model, 0.0)
        self.spent[centre] += cost
        return ReplyChange(headers={"x-cost-centre": centre, "x-cost": f"{cost:.6f}"})
