"""Under which keys blocks are kept: pointsman:1:kv:{fingerprint}:{block}.

The fingerprint says what a block's numbers depend on beside its tokens; the block's name is the prefix cache's own
chain of sha256, which has tenant and adapter at its root. Both are the same in each process and on each machine. The
weights' part is their whole content, hashed in the background while they are loaded (`weights.fingerprint`). Pure.
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
# Of how a block's arrays stand in a value: keys, then values, [layers, S, G, D] each; behind them a draft model's.
LAYOUT_VERSION = 1


@dataclass(frozen=True, slots=True)
class BlockIdentity:
    """What a block's numbers depend on. `model` is the fingerprint of weights, config (rope is in it), dtype and
    quantization; `draft` a draft model's. Deterministic engines share with their like alone."""

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
        """`adapters`: fingerprints by the names that requests give. With a secret the keys tell nobody without it
        which texts were seen."""
        self._fingerprints = {name: identity.fingerprint(each) for name, each in adapters.items()}
        self._plain = identity.fingerprint(None)
        self._secret = secret

    def __repr__(self) -> str:
        return f"<BlockKeys {PREFIX}:{self._plain[:12]}…>"

    def of(self, request: GenerateRequest, name: bytes) -> str:
        """Of the block with this name, as a request of this adapter and salt computes it."""
        fingerprint = self._plain if request.adapter is None else self._fingerprints[request.adapter]
        if self._secret is not None:
            name = hmac.digest(tenant_secret(self._secret, request.cache_salt), name, "sha256")
        return f"{PREFIX}:{fingerprint}:{name.hex()}"
