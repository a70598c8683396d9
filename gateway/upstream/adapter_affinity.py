"""LoRA adapters that servers have loaded: a request for one goes where it is, since loading it elsewhere costs time and
puts another one out.

All servers of an engine may list an adapter, and only few of them have it in memory: vLLM reports these.
"""

from __future__ import annotations

from gateway.config.engine_specs import AffinitySpec
from gateway.upstream.endpoint import Endpoint


def with_adapter(endpoints: list[Endpoint], adapter: str, spec: AffinitySpec) -> list[Endpoint]:
    """Those that have an adapter and are not much busier than the least busy one; all where none is."""
    having = [each for each in endpoints if each.load is not None and adapter in each.load.adapters]
    if not having or len(having) == len(endpoints):
        return endpoints
    least = min(each.pressure for each in endpoints)
    too_busy = max(least + spec.imbalance, least * spec.imbalance_ratio)
    return [each for each in having if each.pressure < too_busy] or endpoints
