"""Fleet files: their values, and problems of invalid ones."""

from __future__ import annotations

import sys
from pathlib import Path
from textwrap import dedent

import pytest

from engines.fleet.config import load_fleet
from engines.fleet.spec import BackoffSpec, Power
from gateway.protocol.engine_protocols import EngineProtocol


def load(tmp_path: Path, text: str, environment: dict[str, str] | None = None):  # type: ignore[no-untyped-def]
    path = tmp_path / "fleet.yaml"
    path.write_text(dedent(text))
    return load_fleet(path, environment or {})


def test_a_whole_file(tmp_path: Path) -> None:
    """Every key is read, and a missing one has its default."""
    loaded = load(
        tmp_path,
        """
        version: 1
        directory: state
        rules: rules/fleet.yaml
        ports: 21000-21099
        x-slow: &slow {stop_timeout: 2m}
        agents:
          vision:
            <<: *slow
            host: {model_repository: [models/vision, "s3://bucket/models"], options: ["--strict"]}
            replicas: 2
            memory: 2GiB
            power: background
            models: "resnet-*"
          llm:
            command: [llama-server, --port, "{http_port}", --model, "${WEIGHTS}", --grammar, '{"a": 1}']
            protocol: openai
            environment: {METRICS: "{metrics_port}"}
            ports: {http: 8080}
            backoff: {first: 1s, longest: 5m}
        """,
        {"WEIGHTS": "/w.gguf"},
    )
    assert [str(problem) for problem in loaded.problems] == []
    vision, second, llm = loaded.fleet.agents
    assert loaded.fleet.directory == tmp_path / "state"
    assert loaded.fleet.rules == tmp_path / "rules/fleet.yaml"
    assert loaded.fleet.port_range == (21000, 21099)
    assert (vision.name, second.name, second.agent, second.engine, second.replica) == (
        "vision-0",
        "vision-1",
        "vision",
        "vision",
        1,
    )
    assert vision.command == (
        sys.executable,
        *("-m", "engines", "host"),
        f"--model-repository={tmp_path}/models/vision",
        "--model-repository=s3://bucket/models",
        *("--host={address}", "--http-port={http_port}", "--grpc-port={grpc_port}", "--metrics-port={metrics_port}"),
        "--strict",
    )
    assert vision.ready == "http://{address}:{http_port}/v2/health/ready"
    assert (vision.memory_bytes, vision.power, vision.stop_timeout) == (2 * 2**30, Power.BACKGROUND, 120.0)
    assert vision.models == ("resnet-*",)
    assert llm.command[4:] == ("/w.gguf", "--grammar", '{"a": 1}')
    assert (llm.ports, llm.fixed_ports, llm.protocol) == (("http", "metrics"), {"http": 8080}, EngineProtocol.OPENAI)
    assert llm.ready == "http://{address}:{http_port}/health"
    assert llm.backoff == BackoffSpec(first=1.0, longest=300.0)
    assert llm.working_directory == tmp_path


ONE = 'command: [server, "{http_port}"]'
# name, text, the findings
WRONG = [
    (
        "no YAML",
        "version: 1\nagents: " + "[" * 65,
        ["2:72: error: not YAML: nested too deeply"],
    ),
    ("empty", "", ["1:1: error: the file is empty: a fleet file begins with 'version: 1'"]),
    ("no agents", "version: 1", ["1:1: error: a fleet file needs 'agents'"]),
    ("a list", "- version", ["1:1: error: expected a fleet file (a map), found a list"]),
    (
        "a misspelt key",
        f"version: 1\nagents:\n  llm:\n    {ONE}\n    memmory: 8GiB",
        ["5:5: error: unknown key 'memmory' in an agent: did you mean 'memory'?"],
    ),
    (
        "a misspelt required key",
        "version: 1\nagents:\n  llm:\n    host: {model_repositry: models}",
        ["4:12: error: unknown key 'model_repositry' in a host: did you mean 'model_repository'?"],
    ),
    (
        "a misspelt value",
        f"version: 1\nagents:\n  llm:\n    {ONE}\n    power: backgroud",
        ["5:12: error: unknown value 'backgroud': did you mean 'background'?"],
    ),
    (
        "several at once",
        f"version: 1\nports: 80\nagents:\n  llm:\n    {ONE}\n    memory: much\n    replicas: 0",
        [
            "2:8: error: '80' is not a range of ports: write 20000-20999",
            "6:13: error: 'much' is not a size: write 64MiB, 1MB or a number of bytes",
            "7:15: error: 0 is out of range: 1 to 64",
        ],
    ),
    (
        "neither host nor command",
        "version: 1\nagents:\n  llm: {power: default}",
        ["3:3: error: agent 'llm' has neither of 'host' and 'command': give one of the two"],
    ),
    (
        "an unknown placeholder",
        'version: 1\nagents:\n  llm:\n    command: [server, "{http_prot}"]\n    engine: none',
        ["4:5: error: unknown placeholder {http_prot} in agent 'llm': did you mean 'http_port'?"],
    ),
    (
        "a port that nobody uses",
        f"version: 1\nagents:\n  llm:\n    {ONE}\n    ports: {{grpc: 1}}",
        ["4:5: error: agent 'llm' fixes port 'grpc', but nothing in it says {grpc_port}"],
    ),
    (
        "one fixed port for two",
        f"version: 1\nagents:\n  llm:\n    {ONE}\n    ports: {{http: 8000}}\n    replicas: 2",
        ["4:5: error: agent 'llm' has 2 replicas: they cannot share fixed ports"],
    ),
    (
        "engines that differ",
        f"version: 1\nagents:\n  a:\n    {ONE}\n  b:\n    {ONE}\n    engine: a\n    protocol: openai",
        [
            "1:1: error: agents 'a' and 'b' share engine 'a', but differ in protocol or ports: "
            "give each an engine of its own"
        ],
    ),
    (
        "two of a name",
        f"version: 1\nagents:\n  a:\n    {ONE}\n    replicas: 2\n  a-1:\n    {ONE}",
        ["1:1: error: two agents are called 'a-1': replicas are numbered from 0, so another name is needed"],
    ),
    (
        "a key twice",
        f"version: 1\nagents:\n  a:\n    {ONE}\n  a:\n    {ONE}",
        ["5:3: error: key 'a' is given twice: first at {file}:3:3"],
    ),
    (
        "a variable that is not set",
        "version: 1\nagents:\n  a:\n    command: ['${SERVER}']",
        ["4:15: error: environment variable SERVER is not set; ${SERVER:-default} gives a default"],
    ),
    (
        "a variable that is not set, and what else is wrong",
        "version: 1\nports: 80\nagents:\n  a:\n    command: [server, '${SERVER}']\n    environment: {1A: ''}",
        [
            "2:8: error: '80' is not a range of ports: write 20000-20999",
            "5:23: error: environment variable SERVER is not set; ${SERVER:-default} gives a default",
            "6:19: error: '1A' is not the name of an environment variable",
        ],
    ),
    (
        "an argument that cannot be",
        'version: 1\nagents:\n  a:\n    command: [server, "a\\0b"]',
        ["4:23: error: the text has a NUL, which no argument can carry"],
    ),
    (
        "agents in a list",
        "version: 1\nagents: [a]",
        ["2:9: error: expected a map from agents' names to agents, found a list"],
    ),
    ("no agent at all", "version: 1\nagents: {}", ["1:1: error: there are no agents: nothing would run"]),
    (
        "out of the gateway's reach",
        "version: 1\nagents:\n  a: {command: worker}",
        [
            "3:6: warning: the gateway cannot reach agent 'a': its command has neither {http_port} nor {grpc_port}; "
            "'engine: none' says that this is meant"
        ],
    ),
    (
        "an unknown version",
        f"version: 2\nagents:\n  a:\n    {ONE}",
        ["1:1: error: version '2' is not known: this program reads version 1"],
    ),
]


@pytest.mark.parametrize(("what", "text", "findings"), WRONG, ids=[row[0] for row in WRONG])
def test_findings(tmp_path: Path, what: str, text: str, findings: list[str]) -> None:
    """Each finding has its place and the correction. A file with only warnings loads."""
    loaded = load(tmp_path, text)
    assert [str(problem) for problem in loaded.problems] == [
        f"{tmp_path}/fleet.yaml:{finding.replace('{file}', f'{tmp_path}/fleet.yaml')}" for finding in findings
    ]
    assert (loaded.fleet is None) == any(": error: " in finding for finding in findings)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing file is one finding without a traceback."""
    loaded = load_fleet(tmp_path / "none.yaml")
    assert [str(problem) for problem in loaded.problems] == [
        f"{tmp_path}/none.yaml:1:1: error: cannot be read: No such file or directory"
    ]


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    """The page's example is a valid file."""
    page = (Path(__file__).parents[3] / "engines/fleet/README.md").read_text()
    loaded = load(tmp_path, page.partition("```yaml\n")[2].partition("```")[0])
    assert loaded.problems == ()
    assert [agent.name for agent in loaded.fleet.agents] == ["vision-0", "vision-1", "llm", "mine"]
