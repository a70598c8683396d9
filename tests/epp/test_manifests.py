"""docker/epp: the manifests of an InferencePool, as far as they can be checked without a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.cli.app import make_app
from gateway.config.rules import load_texts
from gateway.epp.rule_support import supported
from gateway.epp.settings import PickerSettings
from tests.support.child import REPOSITORY

PATH = REPOSITORY / "docker" / "epp" / "inference-pool.yaml"
MANIFESTS: list[dict[str, Any]] = list(yaml.safe_load_all(PATH.read_text()))
# Of APIs that are not Kubernetes' own
EXTENSIONS = {"InferencePool", "HTTPRoute"}


def named(kind: str, name: str = "pointsman-epp") -> dict[str, Any]:
    (found,) = (each for each in MANIFESTS if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


@pytest.mark.parametrize("version", ["1.25", "1.30"])
def test_manifests_follow_kubernetes_schemas(version: str) -> None:
    """Each manifest is valid, without unknown keys, by Kubernetes' schema of its kind."""
    schemas = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate")
    for manifest in MANIFESTS:
        if manifest["kind"] not in EXTENSIONS:
            schemas.validate(manifest, version, strict=True)


def test_a_picker_follows_the_rules() -> None:
    """The rules in the ConfigMap are rules of a picker, with nothing that it leaves out."""
    found = supported(load_texts(named("ConfigMap", "pointsman-epp-rules")["data"]))
    assert found.problems == ()
    assert found.rules is not None
    assert found.rules.engines["triton"].sources[0].kubernetes is not None


def test_pools_services_and_ports_fit_together() -> None:
    """The pools have the selector and the ports of the Service that the picker follows, and refer to the picker."""
    headless = named("Service", "triton")["spec"]
    ports = {port["name"]: port["targetPort"] for port in headless["ports"]}
    for name, port, protocol in (("triton-rest", "http", "http"), ("triton-grpc", "grpc", "kubernetes.io/h2c")):
        pool = named("InferencePool", name)
        assert pool["apiVersion"] == "inference.networking.k8s.io/v1"
        spec = pool["spec"]
        assert spec["selector"]["matchLabels"] == headless["selector"]
        assert [each["number"] for each in spec["targetPorts"]] == [ports[port]]
        assert spec.get("appProtocol", "http") == protocol
        picker = spec["endpointPickerRef"]
        service = named("Service", picker["name"])["spec"]
        assert service["ports"][0]["port"] == picker["port"]["number"] == PickerSettings().port
        assert picker["failureMode"] == "FailClose"
    backends = {ref["name"] for rule in named("HTTPRoute", "triton")["spec"]["rules"] for ref in rule["backendRefs"]}
    assert backends == {"triton-rest", "triton-grpc"}


def test_the_deployment_names_real_options() -> None:
    """Variables are options of `pointsman epp`, ports are its defaults, and the grace period is long enough."""
    import typer.main

    group: Any = typer.main.get_command(make_app("epp"))
    variables = {param.envvar for param in group.commands["epp"].params}
    pod = named("Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {each["name"] for each in container["env"]} <= variables
    assert container["args"][0] == "epp"
    settings = PickerSettings()
    assert [port["containerPort"] for port in container["ports"]] == [settings.port, settings.metrics_port]
    assert {container[probe]["grpc"]["service"] for probe in ("livenessProbe", "readinessProbe")} == {
        "liveness",
        "readiness",
    }
    assert pod["terminationGracePeriodSeconds"] >= 10 + settings.drain_timeout + 10


def test_the_example_of_envoy_has_the_pickers_port() -> None:
    """docker/epp/envoy.yaml refers to the picker's default port; `test_envoy.py` runs the rest of it."""
    text = Path(REPOSITORY / "docker" / "epp" / "envoy.yaml").read_text()
    assert json.dumps(PickerSettings().port) in text
