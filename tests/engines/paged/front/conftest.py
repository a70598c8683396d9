"""One server of a tiny model for all tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engines.paged.front.llm_process import MAX_CONTEXT, LLMProcess, tiny_folder
from tests.support.waiting import eventually


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder."""
    return tiny_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def llm(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLMProcess]:
    server = LLMProcess.start(tiny, tmp_path_factory.mktemp("llm"), extra_args=["--max-context", str(MAX_CONTEXT)])
    try:
        yield server.wait_ready()
        eventually(server.is_idle)  # no request or block remains after any of the tests
        server.stop()
    finally:
        server.kill()
