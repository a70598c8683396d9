"""The real gateway as a child process: `pointsman serve` with a rule file."""

import contextlib
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Self

import psutil

from tests.support import plain_http
from tests.support.child import REPOSITORY, STOP_TIMEOUT_SECONDS, Child

SAMPLE_MODELS = REPOSITORY / "engines" / "samples" / "models"


class GatewayProcess(Child):
    """One `pointsman serve`."""

    what = "gateway"

    def __init__(self, process: subprocess.Popen[bytes], directory: Path):
        super().__init__(process, directory)
        self._orphans: list[psutil.Process] = []  # left by a crashed one
        self.data_dir = directory / "state"
        self._has_keys_file = False

    @classmethod
    def start(
        cls,
        rules: str,
        directory: Path,
        *,
        workers: int = 1,
        redis: str = "off",
        data_dir: Path | None = None,
        extra_args: Sequence[str] = (),
    ) -> Self:
        """Start a gateway with these rules, written to rules.yaml in the directory. An embedded Redis stores its file
        there too, unless `data_dir` is set."""
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "rules.yaml").write_text(rules)
        command = ["gateway", "serve", "--rules", "rules.yaml", "--workers", str(workers)]
        # On a busy machine a worker may get no time for seconds, which is no reason to kill it.
        command += ["--http-port", "0", "--grpc-port", "0", "--admin-port", "0", "--hang-timeout", "120s", *extra_args]
        command += ["--redis", redis, "--data-dir", str(data_dir or "state")]
        gateway = cls.start_module(command, directory)
        gateway.data_dir = directory / (data_dir or "state")
        gateway._has_keys_file = "--admin-keys" in extra_args
        return gateway

    def use(self, rules: str) -> None:
        """Put rules in force, in all workers when this returns."""
        reply = plain_http.post(f"{self.admin_url}/rules/activate", json={"files": {"rules.yaml": rules}})
        assert reply.status_code == 200, reply.text

    @property
    def rules_path(self) -> Path:
        return self.ready_path.with_name("rules.yaml")

    @property
    def admin_port(self) -> int:
        return self.port("admin")

    @property
    def admin_key(self) -> str:
        """The key that it has made."""
        return (self.data_dir / "admin.key").read_text().strip()

    @property
    def admin_url(self) -> str:
        """With its key, which httpx sends; without where the test has a keys file."""
        user = "" if self._has_keys_file else f"test:{self.admin_key}@"
        return f"http://{user}127.0.0.1:{self.admin_port}"

    @property
    def page_url(self) -> str:
        return f"http://127.0.0.1:{self.admin_port}"

    def crash(self) -> None:
        """Kill its control process at once; its workers, in sessions of their own, serve until `kill`."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self._orphans += psutil.Process(self.process.pid).children(recursive=True)
        super().kill()

    def kill(self) -> None:
        """Kill it and its workers."""
        self.crash()
        for child in self._orphans:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._orphans.clear()

    def stop(self, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> None:
        """Stop it, and check that its log has no traceback."""
        super().stop(timeout_seconds)
        assert "Traceback" not in self.log(), self.log()
