"""TF Serving's model paths."""

import pytest

from gateway.protocol.errors import ErrorKind, GatewayError
from gateway.protocol.tfserving.model_info import ModelPath, target


@pytest.mark.parametrize(
    "written, path",
    [
        (("half",), "/v1/models/half"),
        (("half", "123"), "/v1/models/half/versions/123"),
        (("half", "007"), "/v1/models/half/versions/7"),
        (("half", "", "stable"), "/v1/models/half/labels/stable"),
        (("half:stable",), "/v1/models/half/labels/stable"),
        (("half:stable", "", "stable"), "/v1/models/half/labels/stable"),
        (("half", "stable"), "/v1/models/half/labels/stable"),
        (("a b/c", "", "x:y/z"), "/v1/models/a%20b%2Fc/labels/x%3Ay%2Fz"),
    ],
)
def test_paths(written: tuple[str, ...], path: str) -> None:
    """A version may be a number or a label; a label may follow the model's name, be a parameter, or replace the
    version."""
    found = target(*written)
    assert (found.path, found.metadata_path) == (path, f"{path}/metadata")


def test_fields() -> None:
    """The version is normalized to the shortest form of an int64."""
    assert target("half", "0123") == ModelPath("half", "123")
    assert target("half:canary") == ModelPath("half", "", "canary")


@pytest.mark.parametrize(
    "written, text",
    [
        (("",), "names no model"),
        ((":stable",), "names no model"),
        (("half:stable", "3"), "asked for in several versions: stable, 3"),
        (("half:stable", "", "canary"), "asked for in several versions: canary, stable"),
        (("half", "3", "canary"), "asked for in several versions: canary, 3"),
        (("half", str(2**63)), "failed to get model version"),
        (("half", "9" * 5000), "failed to get model version"),
    ],
)
def test_what_names_no_model(written: tuple[str, ...], text: str) -> None:
    """A missing name, conflicting versions, or a version that is too large is a bad request."""
    with pytest.raises(GatewayError, match=text) as refused:
        target(*written)
    assert refused.value.kind is ErrorKind.BAD_REQUEST
