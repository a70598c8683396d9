"""Log settings change what is logged."""

import logging
from pathlib import Path

import pytest

from engines.core.errors import EngineError
from engines.host.logs import LOGGER, LogSettings
from gateway.protocol.protobuf import message

pytestmark = pytest.mark.usefixtures("restored_logs")


def sent(**values: object) -> object:
    request = message("inference.LogSettingsRequest")()
    for name, value in values.items():
        kind = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
        setattr(request.settings[name], kind, value)
    return request.settings


def lines(path: Path) -> list[str]:
    return [line.partition("] ")[2] for line in path.read_text().splitlines()]


def test_levels_are_turned_on_and_off(tmp_path: Path) -> None:
    """Verbose lines are logged from level 1 on, other lines until their level is turned off."""
    path = tmp_path / "log"
    settings = LogSettings(log_file=str(path))
    settings.install()
    log = logging.getLogger(f"{LOGGER}.part")

    def write(about: str) -> None:
        log.debug("verbose %s", about)
        log.info("info %s", about)
        log.warning("warning %s", about)
        log.error("error %s", about)

    write("1")
    settings.update(sent(log_info=False, log_verbose_level=1))  # type: ignore[arg-type]
    write("2")
    settings.update(sent(log_info=True, log_warning=False, log_error=False, log_verbose_level=0))  # type: ignore[arg-type]
    write("3")
    assert lines(path) == ["info 1", "warning 1", "error 1", "verbose 2", "warning 2", "error 2", "info 3"]


def test_settings_are_reported() -> None:
    """Settings are reported with Triton's types."""
    settings = LogSettings(log_verbose_level=2)
    settings.update(sent(log_format="ISO8601"))  # type: ignore[arg-type]
    response = message("inference.LogSettingsResponse")()
    settings.write(response.settings)
    reported = {name: getattr(value, value.WhichOneof("parameter_choice")) for name, value in response.settings.items()}
    assert reported == {
        "log_file": "",
        "log_info": True,
        "log_warning": True,
        "log_error": True,
        "log_verbose_level": 2,
        "log_format": "ISO8601",
    }


REFUSED = [
    ({"log_file": "x"}, "log file location can not be updated through network protocol"),
    ({"log_info": "x"}, "expect boolean for 'log_info'"),
    ({"log_verbose_level": True}, "expect int32 for 'log_verbose_level'"),
    ({"log_format": 1}, "expect string for 'log_format'"),
    ({"log_format": "x"}, "invalid argument for log_format, got: x"),
]


@pytest.mark.parametrize("values, text", REFUSED)
def test_wrong_settings_are_refused(values: dict[str, object], text: str) -> None:
    """Wrong settings are refused with Triton's texts."""
    with pytest.raises(EngineError) as raised:
        LogSettings().update(sent(**values))  # type: ignore[arg-type]
    assert raised.value.message == text


def test_times_are_written_in_two_ways(tmp_path: Path) -> None:
    """Times are written in Triton's own form, or as ISO 8601."""
    path = tmp_path / "log"
    settings = LogSettings(log_file=str(path))
    settings.install()
    log = logging.getLogger(LOGGER)
    log.info("a")
    settings.update(sent(log_format="ISO8601"))  # type: ignore[arg-type]
    log.info("b")
    first, second = path.read_text().splitlines()
    assert first[0] == "I" and first[1:5].isdigit() and first.endswith("] a")
    assert second[10] == "T" and "Z I " in second and second.endswith("] b")
