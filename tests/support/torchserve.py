"""A real TorchServe as a child process, with the models of `torchserve_models`."""

import importlib.metadata
import importlib.util
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from tests.support.outsiders import NotHereError, Outsider, environment, fetch
from tests.support.ports import free_port

MODELS = ("plain", "texts", "enveloped")
VERSION = "1.0"
REQUIREMENTS = ("torchserve>=0.12",)
HANDLERS = Path(__file__).parent / "torchserve_models" / "handlers.py"


def python() -> Path:
    """A Python that has TorchServe: the project's, or a separate one with the project's torch.

    Raises: NotHereError.
    """
    if shutil.which("java") is None:
        raise NotHereError("TorchServe needs Java 17, and there is no java")
    if importlib.util.find_spec("torch") is None:
        raise NotHereError("TorchServe needs torch: pip install 'pointsman[torch]'")
    try:
        importlib.metadata.version("torchserve")
        return Path(sys.executable)
    except importlib.metadata.PackageNotFoundError:
        return environment("torchserve", REQUIREMENTS, ours_behind=True)


class TorchServe(Outsider):
    """One TorchServe with a worker for each model. Ports: http, management, metrics, grpc, grpc_management."""

    what = "torchserve"
    _models: tuple[str, ...] = ()
    _token_auth = False

    @classmethod
    def start(cls, *, models: Iterable[str] = MODELS, token_auth: bool = False) -> Self:
        """Start one; `wait_ready` returns once it answers.

        Raises: NotHereError.
        """
        interpreter = python()
        # Short, because it holds the workers' sockets, whose paths have at most 107 bytes.
        directory = Path(tempfile.mkdtemp(prefix="ts-", dir="/tmp"))
        names = ("http", "management", "metrics", "grpc", "grpc_management")
        ports = {name: free_port() for name in names}
        store = directory / "store"
        store.mkdir()
        for model in models:
            write_archive(store, model)
        (directory / "config.properties").write_text(
            f"inference_address=http://127.0.0.1:{ports['http']}\n"
            f"management_address=http://127.0.0.1:{ports['management']}\n"
            f"metrics_address=http://127.0.0.1:{ports['metrics']}\n"
            "grpc_inference_address=127.0.0.1\ngrpc_management_address=127.0.0.1\n"
            f"grpc_inference_port={ports['grpc']}\ngrpc_management_port={ports['grpc_management']}\n"
            f"disable_token_authorization={str(not token_auth).lower()}\n"
            "default_workers_per_model=1\nnumber_of_netty_threads=2\ndisable_system_metrics=true\n"
            f"model_store={store}\nload_models=all\nvmargs=-Xmx256m\n"
        )
        command = [str(interpreter), "-m", "ts.model_server", "--start", "--foreground", "--ncs"]
        command += ["--ts-config", "config.properties"]
        here = str(directory)
        variables = {"TEMP": here, "TMPDIR": here, "LOG_LOCATION": here, "METRICS_LOCATION": here}
        server = cls.run(command, directory, ports, variables)
        server._models = tuple(models)
        server._token_auth = token_auth
        return server

    @property
    def inference_key(self) -> str:
        """The token of its inference API, where it requires one."""
        return str(self._keys()["inference"]["key"])

    def is_ready(self) -> bool:
        """Whether every model has a worker that has loaded it; `/ping` requires less."""
        headers = {}
        if self._token_auth:
            if not self._keys():
                return False
            headers["authorization"] = f"Bearer {self._keys()['management']['key']}"
        for model in self._models:
            url = f"http://127.0.0.1:{self.ports['management']}/models/{model}"
            status, _, body = fetch(url, headers=headers)
            if status != 200 or json.loads(body)[0]["workers"][0]["status"] != "READY":
                return False
        return True

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _keys(self) -> dict:
        """The content of its key file; empty while the file is being written."""
        try:
            return json.loads((self.directory / "key_file.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return {}


def write_archive(store: Path, model: str) -> None:
    """A model's archive, as `torch-model-archiver` makes it except for its date."""
    about = {"modelName": model, "modelVersion": VERSION, "handler": f"handlers.py:{model}"}
    manifest = {"createdOn": "01/01/2026 00:00:00", "runtime": "python", "model": about, "archiverVersion": "0.12.0"}
    with zipfile.ZipFile(store / f"{model}.mar", "w") as archive:
        archive.write(HANDLERS, "handlers.py")
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
