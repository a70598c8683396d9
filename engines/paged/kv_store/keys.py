"""Keys of stored blocks: pointsman:1:kv:{fingerprint}:{block}.

The fingerprint covers what a block depends on beside its tokens; the block's name is the prefix cache's chain of
sha256, with tenant and adapter at its root. Both are the same in each process and on each machine. Pure.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass

from engines.paged.base.types import GenerateRequest
from engines.state.sealed_value import tenant_secret

PREFIX = "pointsman:1:kv"
# Of the arrays in a value: keys, then values, [layers, S, G, D] each; behind them a draft model's.
LAYOUT_VERSION = 1


@dataclass(frozen=True, slots=True)
class BlockIdentity:
    """What a block's content depends on. `model` is the fingerprint of weights, config (with rope), dtype and
    quantization; `draft` a draft model's. Deterministic engines share only among themselves."""

    model: str
    dtype: str
    block_size: int
    codec: str
    deterministic: bool = False
    draft: str | None = None

    def fingerprint(self, adapter: str | None) -> str:
        """Hexadecimal sha256; `adapter` is the fingerprint of a LoRA adapter's weights."""
        facts = [LAYOUT_VERSION, self.model, self.dtype, self.block_size, self.codec, self.deterministic, self.draft]
        return hashlib.sha256(json.dumps([*facts, adapter]).encode()).hexdigest()


class BlockKeys:
    """Keys of one engine's blocks."""

    def __init__(self, identity: BlockIdentity, adapters: Mapping[str, str], secret: bytes | None) -> None:
        """`adapters`: fingerprints by the names in requests. With a secret the keys do not reveal which texts were
        seen."""
        self._fingerprints = {name: identity.fingerprint(each) for name, each in adapters.items()}
        self._plain = identity.fingerprint(None)
        self._secret = secret

    def __repr__(self) -> str:
        return f"<BlockKeys {PREFIX}:{self._plain[:12]}…>"

    def of(self, request: GenerateRequest, name: bytes) -> str:
        """The key of the block with this name, for requests of this adapter and salt."""
        fingerprint = self._plain if request.adapter is None else self._fingerprints[request.adapter]
        if self._secret is not None:
            name = hmac.digest(tenant_secret(self._secret, request.cache_salt), name, "sha256")
        return f"{PREFIX}:{fingerprint}:{name.hex()}"
