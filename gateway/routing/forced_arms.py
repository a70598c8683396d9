"""Arms that somebody chooses for a request of his own, with a key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

from gateway.config.experiment_specs import ExperimentSpec, ForcingSpec
from gateway.protocol.body_facts import BodyFacts
from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.yaml.problems import suggest


class Forced(NamedTuple):
    """An arm of an experiment."""

    experiment: str
    arm: str


@dataclass(frozen=True, slots=True)
class Forcing:
    """Who may choose arms, and which ones there are."""

    spec: ForcingSpec
    experiments: Mapping[str, ExperimentSpec]

    @property
    def is_open(self) -> bool:
        """Whether anybody may."""
        return bool(self.spec.keys)

    @property
    def asks_bodies(self) -> bool:
        """Whether a body may choose."""
        return self.is_open and self.spec.parameter is not None

    def of_body(self, body: BodyFacts) -> Forced | None:
        """The arm that a body's parameters ask for; None where they ask for none.

        Raises: GatewayError (FORBIDDEN, BAD_REQUEST), whose message does not have the key.
        """
        at, key_at = self.spec.parameter, self.spec.key_parameter
        said = body.parameters.get(at) if at is not None else None
        if at is None or said is None:
            return None
        return self._read(str(said), str(body.parameters.get(key_at, "")), at, key_at)

    def read(self, said: str, key: str) -> Forced:
        """The arm that a request's head asks for: EXPERIMENT=ARM.

        Raises: GatewayError (FORBIDDEN, BAD_REQUEST), whose message does not have the key.
        """
        return self._read(said, key, self.spec.header, self.spec.key_header)

    def _read(self, said: str, key: str, at: str, key_at: str) -> Forced:
        """What stands there, if its key is right.

        Raises: GatewayError (FORBIDDEN, BAD_REQUEST), whose message does not have the key.
        """
        hashed = sha256(key.encode(errors="surrogatepass")).hexdigest()
        # All are compared, so that the time tells nothing
        if not sum(compare_digest(hashed, known) for known in self.spec.keys):
            what = "is not one that may choose arms" if key else "is missing"
            raise GatewayError(ErrorKind.FORBIDDEN, f"an arm is asked for, and the key ({key_at}) {what}")
        name, separator, arm = said.partition("=")
        if not separator:
            raise GatewayError(ErrorKind.BAD_REQUEST, f"{at} {said!r} is not EXPERIMENT=ARM")
        experiment = self.experiments.get(name)
        if experiment is None:
            told = f"{at}: unknown experiment {name!r}{suggest(name, self.experiments)}"
            raise GatewayError(ErrorKind.BAD_REQUEST, told)
        arms = [each.name for each in experiment.arms]
        if arm not in arms:
            told = f"{at}: experiment {name!r} has no arm {arm!r}{suggest(arm, arms)}"
            raise GatewayError(ErrorKind.BAD_REQUEST, told)
        return Forced(name, arm)
