from gateway.auth.api_keys import ApiKeys, make_key
from gateway.config.auth_specs import ApiKeySpec, key_hash


def test_a_key_is_known_by_its_hash() -> None:
    """A made key identifies its tenant; the same id with another secret, and other texts, do not."""
    key, id, digest = make_key()
    keys = ApiKeys([ApiKeySpec(id, "acme", key_hash(digest))])
    found = keys.identify(key.encode())
    assert found is not None and found.principal is not None
    assert (found.principal.tenant, found.principal.key) == ("acme", id)
    other = keys.identify(f"pmi-{id}-{'A' * 43}".encode())
    assert other is not None and other.principal is None and other.error is not None
    assert keys.identify(b"sk-something-else") is None


def test_keys_differ_and_hashes_reveal_nothing() -> None:
    """Each key has 256 random bits of its own; neither its id nor its hash has a part of the secret."""
    made = [make_key() for _ in range(100)]
    assert len({key for key, _, _ in made}) == len({id for _, id, _ in made}) == 100
    key, id, digest = made[0]
    assert len(key) == 4 + 12 + 1 + 43
    assert key[17:] not in id + digest
