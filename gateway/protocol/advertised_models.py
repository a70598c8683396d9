"""The models that an endpoint lists: OpenAI's GET /models and its variants, TorchServe's, V2's repository index."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

# A model's name and its version, as a request names them; an empty version is any.
ModelName = tuple[str, str]

# A longer list is no knowledge of an endpoint: choosing by it would cost more than the attempt that it saves.
_MAX_MODELS = 20_000
# Of the entries of one list; the names of all others are kept.
_MAX_ENTRY_BYTES = 8 * 1024
_MAX_ENTRIES_BYTES = 256 * 1024
# A longer index is not kept as it came.
_MAX_INDEX_BYTES = 64 * 1024

# Where the list stands and what has a model's name in it: OpenAI's form first, then Ollama's, as /api/tags has it, and
# that of TorchServe's management API.
_FORMS = (("data", ("id",)), ("models", ("name", "model", "id", "modelName")))
# Beside a list that is not whole: TorchServe's pages have 100 models.
_NEXT_PAGE = "nextPageToken"
# What vLLM writes into each list anew: the time of the request.
_VOLATILE = ("created",)
_READY = "READY"


@dataclass(frozen=True, slots=True)
class AdvertisedModels:
    """The models that an endpoint can serve now. `versions` are those of V2's models that have some; `entries` are
    OpenAI's entries as JSON, as far as their bytes are bounded; `index` is V2's repository index as it came, empty
    where it is too long."""

    names: frozenset[str] = frozenset()
    versions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    entries: Mapping[str, bytes] = field(default_factory=dict, compare=False)
    fingerprint: int = field(default=0, repr=False)  # of the entries without what is volatile; of one process
    index: bytes = field(default=b"", repr=False)

    def serves(self, model: ModelName) -> bool:
        """Whether a request of this name and version can be served; Ollama's names have a tag, `latest` by default."""
        name, version = model
        if name not in self.names:
            name = f"{name}:latest"
            if name not in self.names:
                return False
        versions = self.versions.get(name)
        return not version or versions is None or version in versions


def read_model_list(body: bytes) -> AdvertisedModels | None:
    """The answer to GET /v1/models; None where it is no such list, or a part of one."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if isinstance(document, list):  # as Together's
        document = {"data": document}
    if not isinstance(document, dict) or document.get(_NEXT_PAGE):
        return None
    for key, names in _FORMS:
        listed = document.get(key, "")
        if listed is None:  # Ollama has no models yet
            return AdvertisedModels()
        if isinstance(listed, list):
            return _of_entries(list(_named(listed, names)))
    return None


def read_index(body: bytes) -> AdvertisedModels | None:
    """The models of a V2 repository index that are ready; None where it is no such index. Triton lists a model that
    it has not tried to load by its name alone."""
    try:
        listed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        return None
    versions: dict[str, set[str]] = {}
    for entry in listed:
        name, version = entry.get("name"), entry.get("version")
        if isinstance(name, str) and name and entry.get("state") == _READY:
            versions.setdefault(name, set()).add(version if isinstance(version, str) else "")
    if len(versions) > _MAX_MODELS:
        return None
    known = {name: frozenset(each) for name, each in versions.items() if "" not in each}
    index = body if len(body) <= _MAX_INDEX_BYTES else b""
    return AdvertisedModels(frozenset(versions), known, index=index)


def _named(listed: list[Any], keys: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    for model in listed:
        if isinstance(model, dict):
            name = next((model[key] for key in keys if isinstance(model.get(key), str)), "")
            if name:
                yield name, model


def _of_entries(named: list[tuple[str, dict[str, Any]]]) -> AdvertisedModels | None:
    if len(named) > _MAX_MODELS:
        return None
    entries: dict[str, bytes] = {}
    steady: list[bytes] = []
    left = _MAX_ENTRIES_BYTES
    for name, entry in named:
        entry.pop("permission", None)  # an object that OpenAI has removed, and vLLM fills with random ids
        text = orjson.dumps(entry)
        if len(text) > min(left, _MAX_ENTRY_BYTES):
            continue
        left -= len(text)
        entries[name] = text
        steady.append(orjson.dumps({key: value for key, value in entry.items() if key not in _VOLATILE}))
    return AdvertisedModels(frozenset(name for name, _ in named), {}, entries, hash(frozenset(steady)))
