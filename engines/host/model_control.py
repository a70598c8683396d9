"""What models may do to models: `pb_utils.load_model`, `unload_model`, `is_model_ready`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from engines.core.errors import EngineError
from engines.repository import Repository

if TYPE_CHECKING:
    from engines.host.model import HostedModel


class RepositoryControl:
    """The repository as models reach it. It is made before the repository, which needs it to load anything."""

    def __init__(self) -> None:
        self.repository: Repository | None = None

    def model(self, name: str, version: str) -> HostedModel:
        """Raises: EngineError where it does not serve."""
        found: HostedModel = self._repository.get(name, version)  # type: ignore[assignment]
        return found

    def is_ready(self, name: str, version: str) -> bool:
        try:
            self.model(name, version)
        except EngineError:
            return False
        return True

    def is_decoupled(self, name: str, version: str) -> bool:
        try:
            return self.model(name, version).is_decoupled
        except EngineError:
            return False

    async def load(self, name: str, config: str | None, files: Mapping[str, bytes]) -> None:
        """Raises: EngineError."""
        await self._repository.load(name, config, files)

    async def unload(self, name: str, unload_dependents: bool) -> None:
        """Raises: EngineError."""
        await self._repository.unload(name, unload_dependents)

    @property
    def _repository(self) -> Repository:
        assert self.repository is not None
        return self.repository
