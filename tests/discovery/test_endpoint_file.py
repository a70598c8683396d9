"""Endpoints in a file."""

import os
from pathlib import Path

import pytest

from gateway.config.source_specs import SourceSpec
from gateway.discovery.endpoint_file import EndpointFile
from gateway.discovery.endpoint_list import read_endpoints
from gateway.discovery.source_state import SourceError

SOURCE = SourceSpec(file="/srv/endpoints.yaml")
WITH_GRPC = SourceSpec(file="/srv/endpoints.yaml", grpc="8001", zone="here")


def test_forms() -> None:
    """Entries are as in rules, or host:port, or Prometheus' targets with labels; JSON is YAML."""
    text = b"""
    - 10.0.0.1:8000
    - http://b:9000
    - {url: "http://[fd00::1]:8000", grpc: "[fd00::1]:9001", weight: 2, zone: z1, host: name.test}
    - targets: ["10.0.0.4:8000", "10.0.0.5:8000"]
      labels: {zone: z2, weight: 0.5, job: triton}
    """
    found = [each.spec for each in read_endpoints(text, WITH_GRPC)]
    assert [(each.url, each.grpc, each.weight, each.zone) for each in found] == [
        ("http://10.0.0.1:8000", "10.0.0.1:8001", 1.0, "here"),
        ("http://b:9000", "b:8001", 1.0, "here"),
        ("http://[fd00::1]:8000", "[fd00::1]:9001", 2.0, "z1"),
        ("http://10.0.0.4:8000", "10.0.0.4:8001", 0.5, "z2"),
        ("http://10.0.0.5:8000", "10.0.0.5:8001", 0.5, "z2"),
    ]
    assert found[2].host == "name.test"
    (endpoint,) = read_endpoints(b'[{"targets": ["a:1"], "labels": {}}]', SOURCE)
    assert endpoint.spec.url == "http://a:1"
    assert read_endpoints(b"[]", SOURCE) == []


@pytest.mark.parametrize(
    "text, error",
    [
        (b"a: 1", "expected a list of endpoints"),
        (b"- {url: 'ftp://a'}", "endpoints.yaml:1:9: error: URL 'ftp://a' must begin with"),
        (b"\n- a", "endpoints.yaml:2:3: error: address 'a' has no port"),
        (b"- {targets: [a]}", "address 'a' has no port"),
        (b"- {targets: ['a:1'], labels: {weight: heavy}}", "1:39: error: 'heavy' is not a number"),
        (b"- grpc://a:1", "is not what the source declares: scheme http, grpc none"),
        (b"- ${HOME}:1", "HOME"),
        (b"[", "not YAML"),
        (b"\xff", "it is no text in UTF-8"),
    ],
)
def test_errors_name_the_place(text: bytes, error: str) -> None:
    """A file with an error gives no endpoints, and an error with its line. It reads no variable."""
    with pytest.raises(SourceError) as caught:
        read_endpoints(text, SOURCE)
    assert error in str(caught.value)


def test_a_file_is_read_when_it_changes(tmp_path: Path) -> None:
    """A file is read again once it has changed; an error stays one until then; a missing file may come back."""
    path = tmp_path / "endpoints.yaml"
    file = EndpointFile(SourceSpec(file=str(path)))

    def write(text: str) -> None:
        (tmp_path / "new").write_text(text)
        (tmp_path / "new").rename(path)
        os.utime(path, (1.0, 1.0))  # settled

    with pytest.raises(SourceError, match="No such file"):
        file.read_changed()
    write("- a:1")
    assert [each.spec.url for each in file.read_changed() or ()] == ["http://a:1"]
    assert file.read_changed() is None
    write("- a")
    for _ in range(2):
        with pytest.raises(SourceError, match="has no port"):
            file.read_changed()
    write("- b:1")
    assert [each.spec.url for each in file.read_changed() or ()] == ["http://b:1"]
    path.unlink()
    with pytest.raises(SourceError, match="No such file"):
        file.read_changed()
    write("- b:1")
    assert file.read_changed() is not None
