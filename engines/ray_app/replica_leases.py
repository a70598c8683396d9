"""Which replicas serve: each renews a lease, and one that does not is left out. Pure: time is an argument."""

from __future__ import annotations

from collections.abc import Mapping

# An entry of a list of endpoints, as the gateway reads it: url, grpc, zone.
Entry = Mapping[str, str]


class ReplicaLeases:
    """The entries of replicas by their ids, for `lease_seconds` each."""

    def __init__(self, lease_seconds: float, now: float) -> None:
        self._lease_seconds = lease_seconds
        self._settled_at = now + lease_seconds
        self._leases: dict[str, tuple[Entry, float]] = {}
        self._ended: dict[str, float] = {}  # replicas that have left, and until when a late renewal may come

    def renew(self, replica: str, entry: Entry, now: float) -> None:
        if replica not in self._ended:
            self._leases[replica] = entry, now + self._lease_seconds

    def end(self, replica: str, now: float) -> None:
        """For good: a renewal that was sent before is of no effect."""
        self._leases.pop(replica, None)
        self._ended = {each: until for each, until in self._ended.items() if until > now}
        self._ended[replica] = now + self._lease_seconds

    def is_settled(self, now: float) -> bool:
        """Whether each replica has had the time to renew its lease since the start: before, some may be missing."""
        return now >= self._settled_at

    def entries(self, now: float) -> list[Entry]:
        self._leases = {replica: lease for replica, lease in self._leases.items() if lease[1] > now}
        return [entry for entry, _ in self._leases.values()]
