"""Options of the host with a format of their own."""

import pytest
import typer

from engines.cli.options import PER_DEVICE, boolean, by_name, resources
from engines.scheduling.rate_limiter import PER_DEVICE as OF_THE_LIMITER


def test_settings_have_names() -> None:
    """A setting without a name applies to all backends."""
    texts = ["python,shm-size=64", "cmdline=x=y", "python,timeout=3"]
    assert by_name("backend-config", texts) == {"python": {"shm-size": "64", "timeout": "3"}, "": {"cmdline": "x=y"}}


@pytest.mark.parametrize("text", ["python", "python,x", ",x=1", "=1"])
def test_wrong_settings_are_reported(text: str) -> None:
    """The message shows the option's form."""
    with pytest.raises(ValueError, match="--backend-config is"):
        by_name("backend-config", [text])


def test_resources_have_a_device_or_none() -> None:
    """A resource without a device is per device, as in the rate limiter."""
    assert resources(["R:4", "S:2:1"]) == {(OF_THE_LIMITER, "R"): 4, (1, "S"): 2}
    assert PER_DEVICE == OF_THE_LIMITER


@pytest.mark.parametrize("text", ["R", "R:x", ":3", "R:1:2:3"])
def test_wrong_resources_are_reported(text: str) -> None:
    """The message shows the option's form."""
    with pytest.raises(ValueError, match="--rate-limit-resource is"):
        resources([text])


def test_booleans_are_triton_s() -> None:
    """Booleans are true and false, 1 and 0, on and off, in any case."""
    assert [boolean("x", text) for text in ("true", "1", "ON", "False", "0", "off")] == [True] * 3 + [False] * 3
    with pytest.raises(typer.BadParameter):
        boolean("x", "maybe")
