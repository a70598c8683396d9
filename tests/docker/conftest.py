"""The images, built once for each test run."""

from __future__ import annotations

import pytest

from tests.docker.bare import REPOSITORY, Image, build
from tests.support.llm import canned, canned_process

__all__ = ["canned", "canned_process"]


@pytest.fixture(scope="session")
def gateway_image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return build(REPOSITORY / "docker" / "gateway.Dockerfile", tmp_path_factory.mktemp("gateway-image"))


@pytest.fixture(scope="session")
def host_image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return build(REPOSITORY / "docker" / "engine-host.Dockerfile", tmp_path_factory.mktemp("host-image"))
