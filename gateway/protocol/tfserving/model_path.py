"""A model as TF Serving names it: by its name, and a version's number or label.

V2 knows numbers alone, so a label is told in one of these ways: as the model's name at the engine (`half:stable`, in a
route's `model` or by the client itself; TF Serving's own names have no colon), as the request parameter
`version_label`, or, by gRPC, as a version that is no number.
Source: TF Serving `model_servers/http_rest_api_util.cc` (its paths), `apis/model.proto`.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from gateway.protocol.errors import ErrorKind, GatewayError

_MAX_VERSION = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ModelPath:
    """A model; of its latest version where neither `version` nor `label` is told."""

    name: str
    version: str = ""  # digits
    label: str = ""

    @property
    def path(self) -> str:
        """Where REST has it; `:predict` or `/metadata` follow, and its status stands at the path itself."""
        path = f"/v1/models/{_segment(self.name)}"
        if self.version:
            return f"{path}/versions/{self.version}"
        return f"{path}/labels/{_segment(self.label)}" if self.label else path

    @property
    def metadata_path(self) -> str:
        return f"{self.path}/metadata"


def target(model: str, version: str = "", label: str = "") -> ModelPath:
    """The model that a V2 request means. `model` is the name at the engine, with or without `:label`.

    Raises: GatewayError(BAD_REQUEST) where it names no model, several versions, or one that is too large.
    """
    name, _, own = model.partition(":")
    numeric = version.isascii() and version.isdigit()
    labels = {found for found in (own, label, "" if numeric else version) if found}
    if not name:
        raise _malformed("the request names no model")
    if len(labels) + numeric > 1:
        told = ", ".join(sorted(labels) + [version] * numeric)
        raise _malformed(f"model '{name}' is asked for in several versions: {told}")
    if numeric and (len(version) > 40 or int(version) > _MAX_VERSION):
        raise _malformed(f"failed to get model version from specified version string '{version[:80]}'")
    return ModelPath(name, str(int(version)) if numeric else "", labels.pop() if labels else "")


def _segment(name: str) -> str:
    return quote(name, safe="!$&'()*+,;=@")


def _malformed(message: str) -> GatewayError:
    return GatewayError(ErrorKind.BAD_REQUEST, message)
