"""The server under test: this host's repository with a fake loader, or a real Triton. The same test runs on both."""

import asyncio
import contextlib
import json
import py_compile
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import tritonclient.http
from tritonclient.utils import InferenceServerException

from engines.core.errors import EngineError
from engines.repository import Mode, Repository
from gateway.demo.triton import TritonProcess
from tests.engines.repository.fakes import PYTHON, FakeLoader, brief, write_model
from tests.support.waiting import eventually

OK = "ok"

# A Python model's failure comes with its stack.
_STACK = re.compile(r"(ValueError: broken)\s+At:\n.*?\n(?=;|$)", re.DOTALL)


class Server(Protocol):
    """A model repository of its own, in explicit mode; models are written, changed and removed in it by name."""

    def write(self, name: str, config: str | None = PYTHON, versions: tuple[str, ...] = ("1",)) -> Path: ...

    def write_twice(self, name: str) -> None: ...

    def remove(self, name: str) -> None: ...

    def load(self, name: str, config: Mapping[str, Any] | str | None = None, **files: bytes) -> str:
        """OK, or the HTTP status and the error's text. In a file's name "__" stands for "/"."""
        ...

    def unload(self, name: str, *, unload_dependents: bool = False) -> str: ...

    def index(self) -> list[str]:
        """The index entries of the written models, once no version is unloading."""
        ...

    def dims(self, name: str) -> list[int]:
        """The dims of the first input in the configuration in use."""
        ...

    def status(self, name: str, version: str = "") -> str:
        """OK, or the error of a request for this version."""
        ...

    @property
    def is_ready(self) -> bool: ...


class Roots:
    def __init__(self, root: Path) -> None:
        self.root, self.other = root / "models", root / "more"
        self.root.mkdir(exist_ok=True)
        self.other.mkdir(exist_ok=True)
        self.written: set[str] = set()

    def write(self, name: str, config: str | None = PYTHON, versions: tuple[str, ...] = ("1",)) -> Path:
        self.written.add(name)
        return write_model(self.root, name, config, versions)

    def write_twice(self, name: str) -> None:
        self.write(name)
        write_model(self.other, name)

    def remove(self, name: str) -> None:
        shutil.rmtree(self.root / name)

    def of_ours(self, entries: list[str]) -> list[str]:
        return [_STACK.sub(r"\1", entry) for entry in entries if entry.split()[0] in self.written]


class RepositoryServer(Roots):
    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.loader = FakeLoader()
        self.runner = asyncio.Runner()
        self.repository: Repository = self.runner.run(self._start())

    async def _start(self) -> Repository:
        repository = Repository([self.root, self.other], self.loader, mode=Mode.EXPLICIT)
        assert await repository.start() == {}
        return repository

    def close(self) -> None:
        self.runner.run(self.repository.close())
        assert not self.loader.alive
        self.runner.close()

    def load(self, name: str, config: Mapping[str, Any] | str | None = None, **files: bytes) -> str:
        text = json.dumps(config) if isinstance(config, Mapping) else config
        given = {f"file:{path.replace('__', '/')}": data for path, data in files.items()}
        with _refusal() as outcome:
            self.runner.run(self.repository.load(name, text, given))
        return outcome[0]

    def unload(self, name: str, *, unload_dependents: bool = False) -> str:
        with _refusal() as outcome:
            self.runner.run(self.repository.unload(name, unload_dependents))
        self.runner.run(self.repository._lifecycle.wait_for_unloads())
        return outcome[0]

    def index(self) -> list[str]:
        self.runner.run(self.repository._lifecycle.wait_for_unloads())
        return self.of_ours(brief(self.repository.index()))

    def dims(self, name: str) -> list[int]:
        return list(self.repository.get(name).config.input[0].dims)

    def status(self, name: str, version: str = "") -> str:
        with _refusal() as outcome:
            self.repository.get(name, version)
        return outcome[0]

    @property
    def is_ready(self) -> bool:
        return self.repository.is_ready


@contextlib.contextmanager
def _refusal() -> Iterator[list[str]]:
    outcome = [OK]
    try:
        yield outcome
    except EngineError as error:
        outcome[0] = f"{error.status.http} {error.message}"


class TritonServer(Roots):
    def __init__(self, root: Path, process: TritonProcess) -> None:
        super().__init__(root)
        self.client = tritonclient.http.InferenceServerClient(process.http_url.removeprefix("http://"))

    def write(self, name: str, config: str | None = PYTHON, versions: tuple[str, ...] = ("1",)) -> Path:
        """Write Python's bytecode as well: without it, Triton would later see the new file as a change."""
        directory = super().write(name, config, versions)
        for path in directory.glob("*/model.py"):
            py_compile.compile(str(path))
        return directory

    def close(self) -> None:
        for name in self.written:
            self.client.unload_model(name)
        self.index()
        for name in self.written:  # the next test finds the repository unchanged
            shutil.rmtree(self.root / name, ignore_errors=True)
            shutil.rmtree(self.other / name, ignore_errors=True)
        self.client.close()

    def load(self, name: str, config: Mapping[str, Any] | str | None = None, **files: bytes) -> str:
        text = json.dumps(config) if isinstance(config, Mapping) else config
        given = {f"file:{path.replace('__', '/')}": data for path, data in files.items()}
        return self._try(self.client.load_model, name, config=text, files=given or None)

    def unload(self, name: str, *, unload_dependents: bool = False) -> str:
        return self._try(self.client.unload_model, name, unload_dependents=unload_dependents)

    def index(self) -> list[str]:
        def entries() -> list[str] | None:
            found = self.client.get_model_repository_index()
            if any(model.get("state") == "UNLOADING" for model in found):
                return None
            order = ("name", "version", "state", "reason")
            return [" ".join(model[key] for key in order if key in model) for model in found] or [""]

        return self.of_ours([entry for entry in eventually(entries) or [] if entry])

    def dims(self, name: str) -> list[int]:
        return self.client.get_model_config(name)["input"][0]["dims"]

    def status(self, name: str, version: str = "") -> str:
        return self._try(self.client.get_model_config, name, version)

    @property
    def is_ready(self) -> bool:
        return self.client.is_server_ready()

    def _try(self, call: Any, *args: Any, **options: Any) -> str:
        try:
            call(*args, **options)
        except InferenceServerException as error:
            return f"{error.status()} {_STACK.sub(chr(92) + '1', error.message())}"
        return OK
