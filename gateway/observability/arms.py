"""Counts of experiments' arms in a worker: on the hot path, so plain lists and dicts.

Each bucket of an arm's units has a `Meter`, and the handler of a request holds that of its unit. Requests without a
unit are independent of each other: they count into one bucket after the other.
"""

from __future__ import annotations

from math import log

from gateway.observability.arm_stats import FIRST_SECONDS, LAST_BIN, NUM_BUCKETS, ArmCounts, ArmKey, Feedback, bin_of
from gateway.protocol.errors import ErrorKind
from gateway.protocol.grpc_status import OK

# gRPC's statuses that are a server's fault, as 5xx are: UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, DATA_LOSS.
_RPC_FAILURES = frozenset({2, 4, 13, 14, 15})
# Failures that say nothing about an arm: refused by limits, cancelled by operators, without a history in Redis.
_NOT_THE_ARMS = frozenset(
    {ErrorKind.RATE_LIMITED, ErrorKind.BUDGET_EXHAUSTED, ErrorKind.HISTORY_MISSING, ErrorKind.CANCELLED}
)
# What `bin_of` does, on the hot path.
_PER_BIN = 20.0

# Clients choose names and labels; these bound the memory.
MAX_FEEDBACK_NAMES = 20
MAX_LABELS = 50
# A longer id is not stored; with `auth:`, 16 bytes are those of the tenant.
_MAX_ID_BYTES = 144


class RecentAnswers:
    """The requests that arms have answered last, by their ids, behind their tenants' `rater_of`: at most `size`, at
    least half as many."""

    __slots__ = ("_half", "_old", "_young")

    def __init__(self, size: int) -> None:
        self._half = size // 2
        self._young: dict[bytes, Meter] = {}
        self._old: dict[bytes, Meter] = {}

    def put(self, request_id: bytes, meter: Meter) -> None:
        if len(request_id) > _MAX_ID_BYTES:
            return
        if len(self._young) >= self._half:
            if not self._half:
                return
            self._old, self._young = self._young, {}
        self._young[request_id] = meter

    def take(self, request_id: bytes) -> Meter | None:
        """Forget a request."""
        return self._young.pop(request_id, None) or self._old.pop(request_id, None)

    def get(self, request_id: bytes) -> Meter | None:
        return self._young.get(request_id) or self._old.get(request_id)


class Meter:
    """Counts the outcomes of requests of one bucket of an arm's units; bucket None: of requests without a unit, which
    go to the other buckets in turn.

    A request changes the meter's own attributes, which `flush` moves to `counts`: a request touches one object.
    `recent` stores requests, for feedback.
    """

    __slots__ = ("_all", "_latency_bins", "_recent", "_size", "_timed", "_times", "_total", "_turn", "bucket", "counts")

    def __init__(self, counts: ArmCounts, recent: RecentAnswers, bucket: int | None = None) -> None:
        self.counts = counts
        self.bucket = bucket
        self._recent = recent
        self._latency_bins = counts.latency.bins
        self._total = 0  # requests
        self._size = 0  # bytes of their bodies
        self._timed = 0  # those that were answered well
        self._times = 0.0  # seconds that these took
        self._turn = 0
        self._all = [Meter(counts, recent, number) for number in range(NUM_BUCKETS)] if bucket is None else []

    def of_bucket(self, bucket: int) -> Meter:
        return self._all[bucket]

    def _next(self) -> Meter:
        """The meter of the next bucket, for a request without a unit."""
        self._turn = turn = (self._turn + 1) % NUM_BUCKETS
        return self._all[turn]

    def of_stream(self) -> Meter:
        """The meter of all messages of a stream: they are not independent of each other."""
        return self._next() if self._all else self

    def flush(self) -> None:
        for meter in self._all:
            meter.flush()
        bucket, counts = self.bucket, self.counts
        if bucket is None or not (self._total or self._size):
            return
        counts.requests[bucket] += self._total
        counts.request_bytes[bucket] += self._size
        counts.latency.count[bucket] += self._timed
        counts.latency.seconds[bucket] += self._times
        self._total = self._size = self._timed = 0
        self._times = 0.0

    def answered(self, request_id: bytes, status: int, size: int, seconds: float) -> None:
        """An engine has answered with this HTTP status; `size` is the length of the request's body, `seconds` run from
        its head to the end of the reply."""
        meter = self._next() if self._all else self
        meter._total += 1
        meter._size += size
        if status < 400:
            meter._timed += 1
            meter._times += seconds
            place = int(log(seconds / FIRST_SECONDS) * _PER_BIN) + 1 if seconds > FIRST_SECONDS else 0
            if place > LAST_BIN:
                place = LAST_BIN
            bins = self._latency_bins
            bins[place] = bins.get(place, 0) + 1
        elif status >= 500:
            self._count_errors(meter, str(status), 1)
        self._recent.put(request_id, meter)

    def answered_rpc(self, request_id: bytes, code: int | None, size: int, seconds: float) -> None:
        """The same with a gRPC status; None: there was none, which is a failure."""
        if code == OK:
            self.answered(request_id, 200, size, seconds)
        elif is_fault(code):
            self._fail(request_id, kind_of(code), size)
        else:
            self.answered(request_id, 400, size, seconds)

    def streamed(
        self, request_id: bytes, num_answered: int, num_failed: int, kind: str, size: int, seconds: float | None
    ) -> None:
        """Messages of one stream, which have one unit; `kind` is that of the failures. `seconds` are known where it was
        one message."""
        meter = self.of_stream()
        meter._total += num_answered + num_failed
        meter._size += size
        if num_failed:
            self._count_errors(meter, kind, num_failed)
        elif seconds is not None:
            meter._timed += 1
            meter._times += seconds
            place = bin_of(seconds)
            self._latency_bins[place] = self._latency_bins.get(place, 0) + 1
        self._recent.put(request_id, meter)

    def failed(self, request_id: bytes, error: ErrorKind, is_fault: bool, size: int) -> None:
        """No engine answered completely, and the gateway did; `is_fault`: with a 5xx."""
        if is_the_arms(error, is_fault):
            self._fail(request_id, error.value, size)
        else:
            self.kept_out(error.value)

    def kept_out(self, reason: str) -> None:
        """The request says nothing about the arm: its client has left, or was refused."""
        self.counts.kinds[reason] = self.counts.kinds.get(reason, 0) + 1

    def fell_back(self, request_id: bytes, status: int) -> None:
        """Another engine answers a request that the arm's has left with this status: it counts as the arm's failure,
        and feedback on the answer is not the arm's."""
        meter = self._recent.take(request_id) or (self._all[self._turn] if self._all else self)
        if 400 <= status < 500:  # others are counted as failures already
            self._count_errors(meter, str(status), 1)

    def _fail(self, request_id: bytes, kind: str, size: int) -> None:
        meter = self._next() if self._all else self
        meter._total += 1
        meter._size += size
        self._count_errors(meter, kind, 1)
        self._recent.put(request_id, meter)

    def _count_errors(self, meter: Meter, kind: str, number: int) -> None:
        assert meter.bucket is not None
        counts = self.counts
        counts.errors[meter.bucket] += number
        counts.kinds[kind] = counts.kinds.get(kind, 0) + number

    def _bucket(self) -> int:
        """The bucket of what is no request."""
        bucket = self._next().bucket if self.bucket is None else self.bucket
        assert bucket is not None
        return bucket

    def generated(self, prompt: int, output: int, first_token: float | None, per_token: float | None) -> None:
        """The tokens of a reply; times in seconds, of streamed ones."""
        counts = self.counts
        bucket = self._bucket()
        counts.generations[bucket] += 1
        counts.prompt_tokens[bucket] += prompt
        counts.output_tokens[bucket] += output
        if first_token is not None:
            counts.first_token.add(bucket, first_token)
        if per_token is not None:
            counts.per_token.add(bucket, per_token)

    def used_energy(self, joules: float) -> None:
        self.counts.joules += joules
        self.counts.joules_requests += 1

    def crossed(self) -> None:
        """Another arm's engine has answered."""
        self.counts.crossed += 1

    def exposed(self) -> None:
        """A unit has the arm from now on."""
        self.counts.units[self._bucket()] += 1

    def rated(self, name: str, value: float | None, label: str | None) -> None:
        """Count feedback.

        Raises: ValueError where there are too many names, or labels.
        """
        known = self.counts.feedback
        feedback = known.get(name)
        if feedback is None:
            if len(known) >= MAX_FEEDBACK_NAMES:
                raise ValueError(f"an arm takes feedback of {MAX_FEEDBACK_NAMES} names; {name!r} would be one more")
            feedback = Feedback()
        if label is not None and label not in feedback.labels and len(feedback.labels) >= MAX_LABELS:
            raise ValueError(f"{name!r} has {MAX_LABELS} labels; {label!r} would be one more")
        known[name] = feedback
        if value is not None:
            bucket = self._bucket()
            feedback.count[bucket] += 1
            feedback.total[bucket] += value
            feedback.squares += value * value
        if label is not None:
            feedback.labels[label] = feedback.labels.get(label, 0) + 1


def is_the_arms(error: ErrorKind, is_fault: bool) -> bool:
    """Whether a failure says something about the arm; `is_fault`: its status is a 5xx."""
    return is_fault and error not in _NOT_THE_ARMS


def is_fault(code: int | None) -> bool:
    """Whether a gRPC status, or none, is a server's fault."""
    return code is None or code in _RPC_FAILURES


def kind_of(code: int | None) -> str:
    """The kind of a failure with this gRPC status; None: a reply had none."""
    return ErrorKind.UPSTREAM_PROTOCOL.value if code is None else f"grpc_{code}"


class Arms:
    """All arms of one worker; their counts outlive the rules."""

    __slots__ = ("_meters", "recent")

    def __init__(self, num_recent: int) -> None:
        """`num_recent` requests are stored, for feedback."""
        self.recent = RecentAnswers(num_recent)
        # The second one of requests with a forced arm, the third of those with a guessed one
        self._meters: dict[ArmKey, tuple[Meter, Meter, Meter]] = {}

    def meter(self, experiment: str, arm: str, *, is_forced: bool = False) -> Meter:
        return self._of(experiment, arm)[is_forced]

    def guessed(self, experiment: str, arm: str) -> Meter:
        """That of requests whose session's arm is a guess: feedback on them is taken, and kept out as they are."""
        return self._of(experiment, arm)[2]

    def _of(self, experiment: str, arm: str) -> tuple[Meter, Meter, Meter]:
        key = ArmKey(experiment, arm)
        found = self._meters.get(key)
        if found is None:
            found = (
                Meter(ArmCounts(key), self.recent),
                Meter(ArmCounts(key), RecentAnswers(0)),
                Meter(ArmCounts(key), self.recent),
            )
            self._meters[key] = found
        return found

    def counted(self) -> dict[ArmKey, ArmCounts]:
        """The counts of all arms, in which counting continues. Of requests with a forced or guessed arm it is their
        number."""
        for meter, forced, guessed in self._meters.values():
            for each in (meter, forced, guessed):
                each.flush()
            counts = meter.counts
            counts.forced = sum(forced.counts.requests)
            counts.guessed = sum(guessed.counts.requests) + guessed.counts.crossed
            counts.guessed_errors = sum(guessed.counts.errors) + guessed.counts.crossed
            counts.guessed_units = sum(guessed.counts.units)
        return {key: meter.counts for key, (meter, _, _) in self._meters.items()}
