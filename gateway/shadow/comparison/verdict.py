"""The verdict on two replies to one request."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gateway.config.experiment_specs import ShadowSpec
from gateway.protocol.errors import GatewayError
from gateway.protocol.operations import ApiCall
from gateway.shadow.comparison import tensors, texts
from gateway.shadow.comparison.outputs import ParsedOutputs, read_outputs
from gateway.shadow.comparison.reply import ComparedReply
from gateway.shadow.comparison.tensors import TensorDifference
from gateway.shadow.comparison.texts import TextDifference

_UNREADABLE = "its answer cannot be read, or tells of a failure (how is told where the route allows excerpts)"
_LEAST_EXCERPT = 200


class ComparisonOutcome(Enum):
    AGREES = "agreeing"
    DIFFERS = "differing"
    PRIMARY_FAILED = "primary_failed"
    CANDIDATE_FAILED = "candidate_failed"
    BOTH_FAILED = "both_failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` describes a failure."""

    outcome: ComparisonOutcome
    tensors: tuple[TensorDifference, ...] = ()
    texts: tuple[TextDifference, ...] = ()
    reason: str = ""

    @property
    def badness(self) -> float:
        """The size of the difference: infinite for missing or incomparable outputs, multiples of the tolerance for
        tensors, and from 1 to 2 for texts, by how early they diverge."""
        sizes = [float("inf") if each.problem else each.excess for each in self.tensors]
        sizes += [float("inf") if each.problem else 2.0 - each.prefix_share for each in self.texts if not each.agrees]
        return max(sizes, default=0.0)


def judge(primary: ComparedReply, candidate: ComparedReply, call: ApiCall, spec: ShadowSpec) -> Verdict:
    own, own_failure = _parsed(primary, call, spec.excerpts)
    other, other_failure = _parsed(candidate, call, spec.excerpts)
    if own is None and other is None:
        return Verdict(ComparisonOutcome.BOTH_FAILED, reason=f"{own_failure}; candidate: {other_failure}")
    if own is None:
        return Verdict(ComparisonOutcome.PRIMARY_FAILED, reason=own_failure)
    if other is None:
        return Verdict(ComparisonOutcome.CANDIDATE_FAILED, reason=other_failure)
    of_tensors = tuple(
        tensors.compare(name, own.tensors.get(name), other.tensors.get(name), spec)
        for name in {**own.tensors, **other.tensors}
    )
    of_texts = tuple(
        texts.compare(name, own.texts.get(name), other.texts.get(name), spec.excerpts)
        for name in {**own.texts, **other.texts}
    )
    agrees = all(each.agrees for each in of_tensors) and all(each.agrees for each in of_texts)
    return Verdict(ComparisonOutcome.AGREES if agrees else ComparisonOutcome.DIFFERS, of_tensors, of_texts)


def _parsed(reply: ComparedReply, call: ApiCall, excerpts: int) -> tuple[ParsedOutputs | None, str]:
    """The outputs of a reply; None and the reason where it failed. A reason that quotes the reply needs `excerpts`."""
    if reply.failure:
        return None, reply.failure
    if not reply.is_good:
        return None, f"{'gRPC' if reply.is_call else 'HTTP'} status {reply.status}"
    try:
        return read_outputs(reply, call), ""
    except GatewayError as error:
        return None, error.message[: max(excerpts, _LEAST_EXCERPT)] if excerpts else _UNREADABLE
