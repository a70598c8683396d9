"""The interface between the admin API and the control process, which implements it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from gateway.config.rules import LoadedRules
from gateway.config.settings import Settings
from gateway.config.specs import RulesSpec
from gateway.dry_run.recording import Recording
from gateway.experiments.controller import ExperimentController
from gateway.observability.exposition import ExpositionState
from gateway.observability.stats import LiveRequest
from gateway.redis.bounded_client import Store
from gateway.rule_versions.editor import Edit
from gateway.rule_versions.version import Version

Json = dict[str, Any]

# The address by which this host reaches a port that listens on every address.
_LOOPBACKS = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class DrainedSince:
    """When an endpoint was drained, in seconds since 1970, and by whom."""

    since: float
    by: str


@dataclass(frozen=True, slots=True)
class Replica:
    """A gateway that shares its Redis with others: its name and the rules that it has in force."""

    name: str
    digest: str
    number: int
    base: str = ""  # digest of its rule files, which its rules may differ from

    @property
    def follows_its_files(self) -> bool:
        return self.base in ("", self.digest)


@dataclass(frozen=True, slots=True)
class InferencePort:
    """This gateway's own inference port, as its host reaches it."""

    url: str
    requires_certificates: bool = False  # of its clients

    @classmethod
    def of(cls, settings: Settings, port: int) -> InferencePort:
        """The port that is open by these settings."""
        host = _LOOPBACKS.get(settings.host, settings.host)
        scheme = "http" if settings.tls is None else "https"
        bracketed = f"[{host}]" if ":" in host else host
        return cls(f"{scheme}://{bracketed}:{port}", settings.tls is not None and settings.tls.client_ca is not None)


class RuleControl(Protocol):
    """The rules in force and their versions."""

    @property
    def rules(self) -> RulesSpec: ...

    @property
    def number(self) -> int: ...

    @property
    def files(self) -> Sequence[str]: ...

    @property
    def texts(self) -> dict[str, str]:
        """The files in force as they are written, by name and in order."""
        ...

    @property
    def problems(self) -> Sequence[str]:
        """Findings of the last reading of the rule files, a line each, and differences to other gateways."""
        ...

    @property
    def replicas(self) -> Sequence[Replica]:
        """The gateways that share its Redis, itself first."""
        ...

    @property
    def in_force(self) -> Version: ...

    @property
    def is_shared(self) -> bool:
        """Whether the gateways that share its Redis know what was put in force here."""
        ...

    def versions(self) -> Sequence[Version]:
        """Oldest first."""
        ...

    def version(self, number: int) -> Version:
        """Raises: NoSuchVersion."""
        ...

    def texts_of(self, number: int) -> dict[str, str]:
        """The files of a version, as they are written, by name and in order.

        Raises: NoSuchVersion.
        """
        ...

    async def judge(self, files: Mapping[str, str]) -> LoadedRules:
        """Check candidate files.

        Raises: RulesRefused where their names are invalid.
        """
        ...

    async def activate(
        self, files: Mapping[str, str] | int, author: str, reason: str = "", source: str = "api"
    ) -> Version:
        """Put these files, or those of a version, in force.

        Raises: RulesRefused, NoSuchVersion.
        """
        ...

    async def change(self, edit: Edit, author: str, reason: str = "", source: str = "api") -> Version:
        """Put the edited files in force.

        Raises: EditError, RulesRefused.
        """
        ...

    async def roll_back(self, author: str, reason: str = "") -> Version:
        """Put the previous rules in force again.

        Raises: RulesRefused, NoSuchVersion.
        """
        ...


class ShadowReports(Protocol):
    """Reports of mirrored routes."""

    def reports(self) -> list[Json]: ...

    def report(self, route: str) -> Json | None:
        """A route's report; None where it has neither a report nor a shadow."""
        ...

    def forget(self, route: str) -> bool:
        """Reset a route's report; False where there is none."""
        ...


class Recorder(Protocol):
    """Recordings of traffic."""

    def start(
        self, name: str | None, by: str, *, share: float, seconds: float, max_facts: int, rules: RulesSpec, number: int
    ) -> Recording:
        """Raises: RecordingError."""
        ...

    def all(self) -> Sequence[Recording]: ...

    def get(self, name: str) -> Recording:
        """Raises: NoRecordingError."""
        ...

    def path(self, name: str) -> Path:
        """Raises: NoRecordingError."""
        ...

    def stop_or_delete(self, name: str) -> bool:
        """Stop a recording that runs, or delete one that has ended; returns whether it was deleted.

        Raises: NoRecordingError.
        """
        ...


class ControlPlane(Protocol):
    """What the admin API reads and does."""

    @property
    def rule_manager(self) -> RuleControl: ...

    @property
    def experiments(self) -> ExperimentController: ...

    @property
    def shadows(self) -> ShadowReports: ...

    @property
    def recordings(self) -> Recorder: ...

    @property
    def store(self) -> Store | None:
        """None where the gateway has no Redis."""
        ...

    @property
    def inference(self) -> InferencePort: ...

    @property
    def drained(self) -> Mapping[tuple[str, str], DrainedSince]:
        """By engine and URL; the rules need not name the endpoint any more."""
        ...

    async def drain(self, engine: str, url: str, is_draining: bool, by: str) -> bool:
        """Drain an endpoint, or put it in use again; returns whether the other replicas will know."""
        ...

    async def exposition(self) -> ExpositionState:
        """All counters, as recent as the workers answer."""
        ...

    async def count(self) -> None:
        """Bring all counters and reports up to date."""
        ...

    async def requests(self, limit: int) -> Sequence[LiveRequest]:
        """The oldest requests under way, `limit` at most, the oldest first."""
        ...

    async def cancel_request(self, id: str) -> int:
        """Cancel all requests with this id; returns how many there were."""
        ...

    @property
    def log_level(self) -> str: ...

    def set_log_level(self, level: str) -> None: ...
