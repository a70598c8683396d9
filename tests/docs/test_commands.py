"""Every command of the pages is run: here, as a reader would, or by the test that a table names, or has a reason."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.docs.pages import Command, NamedFile, pages, parts
from tests.support import plain_http
from tests.support.canned_llm import CannedLLM
from tests.support.canned_llm.v2 import VLLM
from tests.support.child import REPOSITORY
from tests.support.command_line import pointsman
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

MODELS = ("meta-llama/Llama-3.1-8B-Instruct", "Qwen/Qwen2.5-7B-Instruct")
PAGED, COMPILE = "engines/paged", "scripts/test_compile.py"
RAY = "engines/ray_app"
CONVERSATION = f"{PAGED}/kv_store/test_conversation.py"

# What the beginning of a command says: the test that runs it, or more of it. The longest beginning counts.
ELSEWHERE = {
    "pip install .": "docker/test_images.py::test_the_gateways_image_serves_and_stops",
    'pip install ".[': "test_resolution.py::test_every_extra_has_wheels",
    'pip install "pointsman[': "test_resolution.py::test_every_extra_has_wheels",
    "pip install 'pointsman[": "test_resolution.py::test_every_extra_has_wheels",
    "serve run engines.ray_app": f"{RAY}/test_ray_cluster.py::test_requests_reach_replicas_that_the_gateway_finds",
    "curl localhost:8000/endpoints": f"{RAY}/test_arguments.py::test_the_list_answers",
    "pointsman samples": "docker/test_images.py::test_what_compose_starts_works_together",
    "pointsman host": "engines/host/test_host_process.py::test_clients_are_answered_on_both_fronts",
    "pointsman fleet": "engines/fleet/test_fleet.py::test_a_fleet_lives",
    "pointsman serve --rules models/rules": "engines/fleet/test_fleet.py::test_the_gateway_routes_to_the_fleet",
    "pointsman serve --rules rules/": "engines/fleet/test_macos_page.py::test_the_rules_are_right",
    "pointsman check rules/": "engines/fleet/test_macos_page.py::test_the_rules_are_right",
    "pointsman analyze": "engines/analyze/test_analyze.py::test_a_quick_analysis",
    "pointsman convert": "engines/convert/test_convert.py::test_what_was_converted_is_served",
    "pointsman llm": "macos/test_programs.py::test_a_language_model",
    "pointsman llm --model DIR --kv-store": f"{CONVERSATION}::test_a_conversation_goes_on_elsewhere",
    "pointsman llm bench": f"{PAGED}/bench/test_command.py::test_it_prints_and_writes",
    "pointsman doctor": "engines/doctor/test_command.py::test_findings_as_json_and_as_a_file",
    "pointsman serve --rules rules.yaml --redis redis://db": "redis/test_client.py::test_a_user_of_its_own",
    "pointsman service": "service/test_service.py::test_the_command",
    "sudo .venv/bin/pointsman service": "engines/fleet/test_macos_page.py::test_the_services_arguments_are_right",
    "curl http://MAC:8000": "macos/test_programs.py::test_a_gateway_before_an_engine_host",
    "curl -s localhost:8000/v2/models/adder/infer": "docker/test_images.py::test_what_compose_starts_works_together",
    "scripts/export_trtllm.py": "scripts/test_export_trtllm.py::test_the_commands_are_in_order",
    "python scripts/make_demo_llm.py --output": f"{PAGED}/demo/test_training.py::test_the_script_makes_a_whole_folder",
    "python scripts/make_demo_llm.py --show": f"{PAGED}/demo/test_training.py::test_the_script_teaches",
    "docker run --rm pointsman keys add": "cli/test_keys.py::test_keys_are_made_listed_and_removed",
    "docker build": "docker/test_images.py::test_the_gateways_image_serves_and_stops",
    "docker run --rm -p": "docker/test_images.py::test_the_gateways_image_serves_and_stops",
    "docker compose": "docker/test_images.py::test_what_compose_starts_works_together",
    "helm install": "docker/test_helm.py::test_the_command_of_the_page_renders",
    "pointsman keys add prometheus": "cli/test_keys.py::test_keys_are_made_listed_and_removed",
    "pointsman epp": "epp/test_envoy.py::test_each_model_goes_to_an_engine_that_has_it",
    "envoy -c docker/epp/envoy.yaml": "epp/test_envoy.py::test_each_model_goes_to_an_engine_that_has_it",
    "python scripts/examples/inference_client.py": "api_description/test_inference.py::test_the_example_client_runs",
    "prometheus --config.file": "docker/test_monitoring.py::test_panels_show_a_running_gateway",
    "scripts/homebrew/formula.py": "scripts/test_homebrew.py::test_a_formula_of_an_sdist",
    ".venv/bin/python scripts/compile.py --wheel": f"{COMPILE}::test_a_compiled_module_behaves_as_its_source",
}
MINUTES = "takes minutes of CPU, or peers that are not installed; its options exist"
NOT_HERE = {
    "kubectl": "needs a cluster",
    'echo "REDIS_PASSWORD': "writes docker/.env, which Compose reads",
    "xcode-select": "needs a Mac",
    "brew": "needs a Mac",
    "python3.13 -m venv": "needs a Mac with Homebrew's Python",
    "~/pointsman/.venv/bin/pip": "needs a Mac with Homebrew's Python",
    "cd ~/pointsman": "needs a Mac with Homebrew's Python",
    "app=": "needs a Mac",
    "sudo /usr/libexec": "needs a Mac",
    "cp pointsman.rb": "needs a Mac",
    "python -m build": "the same build as of scripts/test_packages.py, in an environment of its own",
    "apt install": "changes the machine",
    "pip install openapi-python-client": "would install other releases of typer beneath the tests that run",
    "openapi-python-client generate": "the same; tried by hand, as the page says",
    ".venv/bin/pip install py-spy": "a tool of developers",
    ".venv/bin/py-spy": "a tool of developers",
    "redis-server --port 6380": "Redis' own options",
    "POINTSMAN_STATE_STORE": "a model of torch; engines/state has its tests",
    "curl http://127.0.0.1:8100/v2/models/mamba": "the same",
    "python scripts/models": MINUTES,
    "python scripts/bench": MINUTES,
    ".venv/bin/python scripts/bench": MINUTES,
    ".venv/bin/python scripts/compile.py --test": MINUTES,
    "scripts/test": "all tests",
    "pytest": "all tests, or some",
    'python -c "from pathlib': "the stand of tests/conformance",
}
PAGES = [page for page in pages() if any(isinstance(part, Command) for part in parts(page))]
# The pages whose other commands are run here.
HERE = ["README.md", "gateway/README.md", *(page for page in PAGES if page.startswith("gateway/guides/"))]
ON_A_MAC = ("engines/MACOS.md", "pointsman engines")  # run from other pages


def excuse(command: Command) -> str:
    """The beginning in the tables that a command has; '' if it is run here."""
    found = [start for start in (*ELSEWHERE, *NOT_HERE) if command.text.startswith(start)]
    return max(found, key=len, default="")


def commands(page: str) -> list[Command]:
    return [part for part in parts(page) if isinstance(part, Command)]


def test_the_tables_name_what_there_is() -> None:
    """Each beginning is that of a command of some page, and each test exists."""
    texts = [command.text for page in PAGES for command in commands(page)]
    assert [start for start in (*ELSEWHERE, *NOT_HERE) if not any(text.startswith(start) for text in texts)] == []
    for place in ELSEWHERE.values():
        name, _, function = place.partition("::")
        assert re.search(rf"^(async )?def {function}\(", (REPOSITORY / "tests" / name).read_text(), re.MULTILINE), place


@pytest.mark.parametrize("page", [page for page in PAGES if page not in HERE])
def test_other_pages_have_no_command_that_nothing_runs(page: str) -> None:
    """All of their commands are in a table."""
    missing = [command.text for command in commands(page) if not excuse(command)]
    assert [text for text in missing if (page, text) != ON_A_MAC] == []


@pytest.mark.parametrize("page", ["scripts/README.md", "scripts/bench/README.md", "scripts/models/README.md"])
def test_the_options_of_scripts_exist(page: str) -> None:
    """A script that a page starts is there; its options stand in the sources beside it."""
    for command in commands(page):
        script = next((word for word in command.words if word.startswith("scripts/") and word != "scripts/test"), None)
        if script is not None:
            path = REPOSITORY / script
            sources = "".join(each.read_text() for each in (path, *sorted(path.parent.glob("*.py"))))
            options = [word.partition("=")[0] for word in command.words if word.startswith("--")]
            declared = {option: rf'"{option}"|\b{option[2:].replace("-", "_")}: ' for option in options}  # typer's too
            assert [option for option in options if not re.search(declared[option], sources)] == [], command.text


# The reader


@dataclass
class Reader:
    """Does in a folder what pages say: writes their files and runs their commands, before stand-ins of the engines."""

    folder: Path
    triton: CannedLLM
    vllm: CannedLLM
    gateway: GatewayProcess | None = None
    ran: list[str] = field(default_factory=list)

    def follow(self, page: str) -> None:
        for part in parts(page):
            if isinstance(part, NamedFile):
                self.write(part)
            else:
                for text in part.text.split(" && "):
                    if not excuse(Command(page, text)):
                        self.run(text)

    def write(self, file: NamedFile) -> None:
        engine = self.vllm if "protocol: openai" in file.text else self.triton
        text = re.sub(r', grpc: "[^"]*"', "", file.text)
        text = re.sub(r"http://(?:(?:gpu|cuda)-1:8000|127\.0\.0\.1:8100)", engine.http_url, text)
        text = re.sub(r"http://(?:gpu|cuda)-2:8000", engine.http_url.replace("127.0.0.1", "localhost"), text)
        (self.folder / file.name).write_text(text)
        (self.folder / "candidate.yaml").write_text(text.replace("weight: 90", "weight: 80"))
        if "\nexperiments:" in text and self.gateway is not None:
            self.gateway.use(text)

    def run(self, text: str) -> None:
        words = shlex.split(text)
        if words[:2] == ["pointsman", "serve"]:
            self.serve(words[words.index("--rules") + 1])
        else:
            assert self.gateway is not None, f"{text}: nothing serves yet"
            self.command(text, words)
        self.ran.append(text)

    def serve(self, rules: str) -> None:
        text = (self.folder / rules).read_text()
        if self.gateway is None:
            # in a folder of its own, where no page replaces its rules
            self.gateway = GatewayProcess.start(text, self.folder / "gateway").wait_ready()
        else:
            self.gateway.use(text)
        gateway = self.gateway
        eventually(lambda: plain_http.get(f"{gateway.http_url}/v2/health/ready").status_code == 200)

    def command(self, text: str, words: list[str]) -> None:
        assert self.gateway is not None
        if words[0] == "pointsman":
            admin = {"POINTSMAN_ADMIN": self.gateway.admin_url, "POINTSMAN_DATA_DIR": str(self.gateway.data_dir)}
            done = pointsman(*words[1:], env=admin)
            if words[1:3] == ["recordings", "start"]:
                self.ask()
        else:
            done = subprocess.run(
                ["bash", "-c", f"set -o pipefail; {self.placed(text)}"],
                cwd=self.folder,
                env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        shown = done.stdout + done.stderr
        assert shown.strip() or "health" in text, f"{text} shows nothing"
        assert not done.stdout.lstrip().startswith(('{"error"', '{"type":"error"')), f"{text}\n{done.stdout}"

    def placed(self, text: str) -> str:
        """With the addresses and paths of this test."""
        assert self.gateway is not None
        state, admin = str(self.gateway.data_dir), str(self.gateway.admin_port)
        text = text.replace("~/.local/state/pointsman", state).replace("admin-8002.sock", f"admin-{admin}.sock")
        text = text.replace("localhost:8000", f"127.0.0.1:{self.gateway.http_port}").replace(":8002", f":{admin}")
        return text.replace("MODEL", VLLM)

    def ask(self) -> None:
        """Requests that a recording may have."""
        assert self.gateway is not None
        for number in range(20):
            plain_http.get(f"{self.gateway.http_url}/v2/models/llama-{number}", headers={"x-session-id": f"s{number}"})


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader")
    triton = CannedLLM.start(folder / "triton", v2=True)
    vllm = CannedLLM.start(folder / "vllm", extra_args=["--models", ",".join(MODELS)])
    with triton.running(), vllm.running():
        made = Reader(folder, triton, vllm)
        yield made
        if made.gateway is not None:
            made.gateway.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", HERE)
def test_a_reader_follows_the_page(reader: Reader, page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command that no table excuses succeeds and shows something, with the files that the page has."""
    monkeypatch.chdir(reader.folder)
    if page != "README.md" and reader.gateway is None:
        reader.follow("README.md")
    before = len(reader.ran)
    reader.follow(page)
    expected = [text for each in commands(page) for text in each.text.split(" && ") if not excuse(Command(page, text))]
    assert reader.ran[before:] == expected
