"""The logs of ended requests in one worker: the access log, and samples for the decision log."""

from __future__ import annotations

from collections.abc import Collection

from gateway.dataplane.context.decision_log import DecisionSampler, EndedRequest
from gateway.observability.access_log import AccessLog, AccessLogEntry


class RequestLog:
    """`is_on`: some log takes ended requests. `keeps_bodies`: bodies are held until then, for the facts that rules may
    read in them."""

    def __init__(self, access_log: AccessLog | None, parameters: Collection[str]) -> None:
        """`parameters` are those that the rules read."""
        self._access_log = access_log
        self._sampler: DecisionSampler | None = None
        self._parameters = parameters
        self.is_on = access_log is not None
        self.keeps_bodies = False

    @property
    def access_log(self) -> AccessLog | None:
        return self._access_log

    @access_log.setter
    def access_log(self, access_log: AccessLog | None) -> None:
        self._access_log = access_log
        self.is_on = access_log is not None or self._sampler is not None

    def sample(self, sampler: DecisionSampler | None) -> None:
        """Report ended requests to this sampler instead of the one before; None: to none."""
        if self._sampler is not None:
            self._sampler.close()
        self._sampler = sampler
        if sampler is not None:
            sampler.parameters = self._parameters
        self.keeps_bodies = sampler is not None and sampler.with_body_facts
        self.is_on = self._access_log is not None or sampler is not None

    def use_parameters(self, parameters: Collection[str]) -> None:
        """The rules have changed, and read these."""
        self._parameters = parameters
        if self._sampler is not None:
            self._sampler.parameters = parameters

    def add(self, ended: EndedRequest) -> None:
        """Report a request; called only where `is_on`."""
        if self._sampler is not None:
            self._sampler.add(ended)
        if self._access_log is None:
            return
        method, path = ended.request_line
        target = ended.target
        self._access_log.write(
            AccessLogEntry(
                peer=ended.peer,
                method=method,
                target=path,
                route=target.route if target else "",
                arm=(target.arm or "") if target else "",
                engine=target.engine if target else "",
                endpoint=ended.endpoint,
                status=ended.status,
                reason=ended.reason,
                seconds=ended.seconds,
                request_id=ended.request_id.decode("latin-1"),
            )
        )

    def close(self) -> None:
        if self._access_log is not None:
            self._access_log.flush()
        self.sample(None)
