"""Valid values of `--redis URL`, and errors for invalid ones."""

from pathlib import Path

import pytest

from gateway.redis.address import RedisAddress, RedisTls, RedisTopology, read_address

READ = [
    ("redis://localhost", RedisAddress((("localhost", 6379),))),
    ("redis://me:p%40ss@db:7000/3", RedisAddress((("db", 7000),), db=3, user="me", password="p@ss")),
    ("redis://:secret@db", RedisAddress((("db", 6379),), password="secret")),
    ("redis://[::1]:7000", RedisAddress((("::1", 7000),))),
    ("redis://[::1]", RedisAddress((("::1", 6379),))),
    ("rediss://db?verify=no", RedisAddress((("db", 6379),), tls=RedisTls(verify=False))),
    ("unix:///run/redis.sock?db=2", RedisAddress(socket="/run/redis.sock", db=2)),
    (
        "redis+sentinel://a,b:7/main/1?sentinel_user=s&sentinel_password=t",
        RedisAddress(
            (("a", 26379), ("b", 7)), None, RedisTopology.SENTINEL, "main", 1, sentinel_user="s", sentinel_password="t"
        ),
    ),
    ("redis+cluster://a:1,b", RedisAddress((("a", 1), ("b", 6379)), None, RedisTopology.CLUSTER)),
]
REFUSED = [
    ("localhost:6379", "begins with one of redis://"),
    ("http://localhost", "begins with one of"),
    ("redis://", "names no host"),
    ("redis://a,b", r"redis\+sentinel:// or redis\+cluster://"),
    ("redis://a:port", "no host and port"),
    ("redis://a/zero", "the database is a number"),
    ("redis://a?verify=no", "rediss:// has"),
    ("rediss://a?verify=maybe", "verify is yes or no"),
    ("rediss://a?ca=/no/such/file", "which is no file"),
    ("rediss://a?cipher=x", "not 'cipher'"),
    ("unix://socket", "absolute path"),
    ("redis+sentinel://a", "by a name"),
    ("redis+cluster://a/1", "one database"),
]


@pytest.mark.parametrize("url, address", READ)
def test_a_url_says_where_redis_is(url: str, address: RedisAddress) -> None:
    """Each part of a URL sets its field, and a missing part gets its default."""
    assert read_address(url) == address


@pytest.mark.parametrize("url, report", REFUSED)
def test_a_wrong_url_is_told_what_is_right(url: str, report: str) -> None:
    """The error for an invalid URL gives the valid form."""
    with pytest.raises(ValueError, match=report):
        read_address(url)


@pytest.mark.parametrize("password", ["hid/den", "hid?den", "hid#den", "hid[den", "hid\u2100den", "hid/@den"])
@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+sentinel", "redis+cluster"])
def test_a_password_that_is_not_encoded_is_not_repeated(scheme: str, password: str) -> None:
    """A password with unescaped delimiters splits the URL; the error contains no piece of it, and suggests escaping."""
    with pytest.raises(ValueError, match="%2F") as refused:
        read_address(f"{scheme}://me:{password}@db:1/2")
    assert "hid" not in str(refused.value) and "den" not in str(refused.value)


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    """Neither the repr nor the text of an address, nor an error, contains the password."""
    address = read_address("rediss://me:hidden@db:1/2")
    assert str(address) == "rediss://db:1/2"
    assert "hidden" not in repr(address)
    with pytest.raises(ValueError) as refused:
        read_address("redis://me:hidden@db:wrong")
    assert "hidden" not in str(refused.value)
