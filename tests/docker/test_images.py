"""docker/: the images' commands run in bare directories, and the services of compose.yaml together."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import redis
import yaml

from gateway.admin.api_keys import Role, entry_fields, make_key
from tests.docker.bare import REPOSITORY, Image
from tests.docker.test_files import COMPOSE, SERVICES
from tests.support import plain_http
from tests.support.ports import free_port
from tests.support.redis_server import program
from tests.support.waiting import eventually

# A build installs everything that an image contains.
pytestmark = pytest.mark.timeout(600)

PASSWORD = "0a1b2c"
STOP_SECONDS = 30


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    """Processes that a test starts end with it."""
    with ExitStack() as stack:
        yield stack


def started(ends: ExitStack, process: subprocess.Popen[bytes]) -> subprocess.Popen[bytes]:
    def end() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with its child processes
        process.wait()

    ends.callback(end)
    return process


def contents(image: Image) -> set[str]:
    """The first two levels of the paths of the image's files."""
    files = (path.relative_to(image.root) for path in image.root.rglob("*") if not path.is_dir())
    return {"/".join(path.parts[:2]) for path in files}


def stops(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(STOP_SECONDS)


def test_the_gateways_image_serves_and_stops(gateway_image: Image, ends: ExitStack) -> None:
    """The image runs with its default arguments and other ports: it is healthy once it serves, and stops on SIGTERM. It
    has the installed package, and neither sources nor pip."""
    image = gateway_image
    assert contents(image) == {"opt/pointsman"} and (image.root / "opt/pointsman/sbom.cdx.json").stat().st_size
    assert not list(image.root.glob("opt/pointsman/lib/*/site-packages/pip"))
    assert image.ports == ["8000", "8001", "8002"]
    rules = image.root / "etc/pointsman/rules"
    rules.mkdir(parents=True)
    (rules / "rules.yaml").write_text((REPOSITORY / "docker/rules/rules.yaml").read_text())
    port, others = free_port(), ["--grpc-port", "0", "--admin-port", "0"]
    assert not image.is_healthy("8000", port)
    gateway = started(ends, image.start(*image.command, "--http-port", str(port), *others))
    eventually(lambda: image.is_healthy("8000", port))
    assert stops(gateway) == 0
    assert list((image.root / "var/lib/pointsman").iterdir())  # its own Redis stores its data here


def test_what_compose_starts_works_together(gateway_image: Image, host_image: Image, ends: ExitStack) -> None:
    """Redis with its configuration file, the written samples, the host that serves them and the gateway work together,
    each with its service's command and environment."""
    redis_port, http_port, grpc_port, gateway_port = (free_port() for _ in range(4))
    started(ends, start_redis(host_image.folder, redis_port))
    admin_port = free_port()

    samples = started(ends, host_image.start(*SERVICES["samples"]["command"]))
    assert samples.wait(120) == 0
    moved = ["--http-port", str(http_port), "--grpc-port", str(grpc_port), "--metrics-port", "0"]
    host = started(ends, host_image.start(*SERVICES["engine"]["command"], *moved))
    eventually(lambda: host_image.is_healthy("8100", http_port), 60)

    rules = gateway_image.root / "etc/pointsman/rules"
    rules.mkdir(parents=True, exist_ok=True)
    text = (REPOSITORY / "docker/rules/rules.yaml").read_text()
    (rules / "rules.yaml").write_text(
        text.replace("engine:8100", f"127.0.0.1:{http_port}").replace("engine:8101", f"127.0.0.1:{grpc_port}")
    )
    url = filled(SERVICES["gateway"]["environment"]["POINTSMAN_REDIS"]).replace("redis:6379", f"127.0.0.1:{redis_port}")
    command = [filled(word) for word in SERVICES["gateway"]["command"]]
    ports = ["--http-port", str(gateway_port), "--grpc-port", "0", "--admin-port", str(admin_port)]
    key, entry = make_key("me", Role.viewer)
    (gateway_image.folder / "keys.yaml").write_text(yaml.safe_dump([dict(entry_fields(entry))]))
    keys = str(gateway_image.folder / "keys.yaml")
    gateway = started(ends, gateway_image.start(*command, *ports, POINTSMAN_REDIS=url, POINTSMAN_ADMIN_KEYS=keys))
    eventually(lambda: gateway_image.is_healthy("8000", gateway_port))

    def answers() -> bool:
        inputs = [{"name": name, "shape": [1, 2], "datatype": "INT32", "data": [1, 2]} for name in "ab"]
        requested = plain_http.post(f"http://127.0.0.1:{gateway_port}/v2/models/adder/infer", json={"inputs": inputs})
        return requested.status_code == 200 and requested.json()["outputs"][0]["data"] == [2, 4]

    eventually(answers)
    limits = f"http://127.0.0.1:{admin_port}/limits"
    assert plain_http.get(limits).status_code == 401
    [limit] = plain_http.get(limits, headers={"authorization": f"Bearer {key}"}).json()["limits"]
    assert limit["admitted"] >= 1
    assert limit["shared"] is True
    assert [stops(each) for each in (gateway, host)] == [0, 0]


def start_redis(folder: Path, port: int) -> subprocess.Popen[bytes]:
    """Redis with compose.yaml's file: it has the configured settings, and requires the password."""
    (folder / "data").mkdir()
    text = filled(COMPOSE["configs"]["redis"]["content"]).replace("dir /data", f"dir {folder / 'data'}")
    (folder / "redis.conf").write_text(text)
    command = [str(program()), str(folder / "redis.conf"), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)

    def asks(password: str) -> Any:
        try:
            return redis.Redis(port=port, password=password).config_get("maxmemory-policy")
        except redis.RedisError:
            return None

    assert eventually(lambda: asks(PASSWORD)) == {"maxmemory-policy": "volatile-ttl"}
    assert asks("wrong") is None
    return process


def filled(text: str) -> str:
    """The text with `${NAME:-default}` and `${NAME:?error}` replaced as Compose does."""
    given = {"REDIS_PASSWORD": PASSWORD}

    def value(found: re.Match[str]) -> str:
        return given[found[1]] if found[2] == "?" else given.get(found[1], found[3])

    return re.sub(r"\$\{(\w+):([-?])(.*?)\}", value, text)
