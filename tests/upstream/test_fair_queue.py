"""A higher class is served first, tenants share a class by their weights, and an overloaded queue turns around."""

from dataclasses import dataclass

from gateway.config.overload_specs import QueueSpec
from gateway.upstream.fair_queue import FairQueue

SPEC = QueueSpec(target=0.1, interval=0.5)


@dataclass(eq=False)
class Entry:
    tenant: bytes = b""
    level: int = 0
    queued_at: float = 0.0


def fill(queue, *entries):
    for entry in entries:
        queue.add(entry)
    return entries


def test_a_higher_class_is_served_first():
    queue = FairQueue(SPEC, ({}, {}))
    low, high = fill(queue, Entry(level=1), Entry(level=0))
    assert queue.ahead_of(0, b"other") == 1
    assert queue.ahead_of(1, b"other") == 2
    assert [queue.pop(0.0), queue.pop(0.0)] == [high, low]
    assert queue.size == 0


def test_a_tenant_with_many_requests_does_not_hold_up_another():
    queue = FairQueue(SPEC)
    fill(queue, *[Entry(b"many") for _ in range(100)])
    one, two = fill(queue, Entry(b"few"), Entry(b"few"))
    served = [queue.pop(0.0) for _ in range(4)]
    assert served.index(one) == 1
    assert served.index(two) == 3


def test_tenants_share_a_class_by_their_weights():
    queue = FairQueue(SPEC, ({b"gold": 3},))
    fill(queue, *[Entry(tenant) for tenant in (b"gold", b"plain") for _ in range(40)])
    served = [queue.pop(0.0).tenant for _ in range(40)]
    assert served.count(b"gold") == 30


def test_requests_that_have_waited_for_too_long_are_served_last_in_first_out():
    queue = FairQueue(SPEC)
    entries = fill(queue, *[Entry(queued_at=at / 100) for at in range(100)])
    assert queue.pop(1.0) is entries[0], "the first sign"
    assert queue.pop(1.4) is entries[1], "not yet for an interval"
    assert queue.pop(1.5) is entries[-1]
    assert queue.pop(1.5) is entries[-2]
    for _ in range(96):
        queue.pop(1.6)
    assert not queue.levels[0], "nothing is kept of a tenant without requests"
    late, later = fill(queue, Entry(queued_at=2.0), Entry(queued_at=2.0))
    assert [queue.pop(2.01), queue.pop(2.01)] == [late, later]


def test_a_full_queue_gives_up_the_lowest_class_of_the_tenant_with_most():
    queue = FairQueue(SPEC, ({}, {}))
    fill(queue, Entry(b"a", 0), Entry(b"a", 1), *[Entry(b"b", 1) for _ in range(3)])
    displaced = queue.displace(0, b"c")
    assert (displaced.tenant, displaced.level) == (b"b", 1)
    assert queue.displace(1, b"b") is None, "a new request does not displace its own tenant's"
    assert queue.displace(1, b"a").tenant == b"b"
    for _ in range(2):
        queue.displace(0, b"c")
    assert queue.sizes == [1, 0]
    assert queue.displace(1, b"c") is None, "a lower class displaces no higher one"


def test_an_entry_that_leaves_is_not_served():
    queue = FairQueue(SPEC)
    one, two = fill(queue, Entry(), Entry())
    queue.remove(one)
    assert queue.pop(0.0) is two
    assert (queue.size, queue.sizes) == (0, [0])
