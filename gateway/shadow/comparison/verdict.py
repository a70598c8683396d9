"""One request's two answers, judged."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gateway.config.experiment_specs import ShadowSpec
from gateway.protocol.errors import GatewayError
from gateway.protocol.operations import ApiCall
from gateway.shadow.comparison import tensors, texts
from gateway.shadow.comparison.outputs import ParsedOutputs, read
from gateway.shadow.comparison.reply import ComparedReply
from gateway.shadow.comparison.tensors import TensorDifference
from gateway.shadow.comparison.texts import TextDifference

_UNREADABLE = "its answer cannot be read, or tells of a failure (how is told where the route allows excerpts)"
_LEAST_EXCERPT = 200


class ComparisonOutcome(Enum):
    """What two answers come to."""

    AGREES = "agreeing"
    DIFFERS = "differing"
    PRIMARY_FAILED = "primary_failed"
    CANDIDATE_FAILED = "candidate_failed"
    BOTH_FAILED = "both_failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`reason` says what failed, in words."""

    outcome: ComparisonOutcome
    tensors: tuple[TensorDifference, ...] = ()
    texts: tuple[TextDifference, ...] = ()
    reason: str = ""

    @property
    def badness(self) -> float:
        """How far the answers are apart, to find those that are furthest: what is missing or of another shape first,
        then by multiples of the tolerance; of texts by how early they part, from 1 to 2."""
        found = [float("inf") if each.problem else each.excess for each in self.tensors]
        found += [float("inf") if each.problem else 2.0 - each.prefix_share for each in self.texts if not each.agrees]
        return max(found, default=0.0)


def judge(primary: ComparedReply, candidate: ComparedReply, call: ApiCall, spec: ShadowSpec) -> Verdict:
    """Compare two answers to one call."""
    ours, why_ours = _said(primary, call, spec.excerpts)
    theirs, why_theirs = _said(candidate, call, spec.excerpts)
    if ours is None and theirs is None:
        return Verdict(ComparisonOutcome.BOTH_FAILED, reason=f"{why_ours}; candidate: {why_theirs}")
    if ours is None:
        return Verdict(ComparisonOutcome.PRIMARY_FAILED, reason=why_ours)
    if theirs is None:
        return Verdict(ComparisonOutcome.CANDIDATE_FAILED, reason=why_theirs)
    of_tensors = tuple(
        tensors.compare(name, ours.tensors.get(name), theirs.tensors.get(name), spec)
        for name in {**ours.tensors, **theirs.tensors}
    )
    of_texts = tuple(
        texts.compare(name, ours.texts.get(name), theirs.texts.get(name), spec.excerpts)
        for name in {**ours.texts, **theirs.texts}
    )
    agrees = all(each.agrees for each in of_tensors) and all(each.agrees for each in of_texts)
    return Verdict(ComparisonOutcome.AGREES if agrees else ComparisonOutcome.DIFFERS, of_tensors, of_texts)


def _said(answer: ComparedReply, call: ApiCall, excerpts: int) -> tuple[ParsedOutputs | None, str]:
    """What an answer says; None, and why, where it is no answer. Why it cannot be read may be told by parts of it."""
    if answer.failure:
        return None, answer.failure
    if not answer.is_good:
        return None, f"{'gRPC' if answer.is_call else 'HTTP'} status {answer.status}"
    try:
        return read(answer, call), ""
    except GatewayError as error:
        return None, error.message[: max(excerpts, _LEAST_EXCERPT)] if excerpts else _UNREADABLE
