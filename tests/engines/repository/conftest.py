"""A repository of this host, and a real Triton, to try the same on both."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.demo.triton import TritonProcess
from tests.engines.repository.scenes import RepositoryServer, Server, TritonServer


@pytest.fixture(scope="session")
def triton_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("repositories")
    (root / "models").mkdir()
    (root / "more").mkdir()
    return root


@pytest.fixture(scope="session")
def explicit_triton(triton_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonProcess]:
    """A Triton of two repositories in which nothing is loaded."""
    arguments = [f"--model-repository={triton_root / 'more'}", "--model-control-mode=explicit"]
    log = tmp_path_factory.mktemp("triton") / "triton.log"
    process = TritonProcess.start(triton_root / "models", extra_args=arguments, log_path=log)
    yield process.wait_ready()
    process.kill()


@pytest.fixture(params=["repository", pytest.param("triton", marks=pytest.mark.triton)])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    created: RepositoryServer | TritonServer
    if request.param == "repository":
        created = RepositoryServer(tmp_path)
    else:
        process = request.getfixturevalue("explicit_triton")
        created = TritonServer(request.getfixturevalue("triton_root"), process)
    yield created
    created.close()
