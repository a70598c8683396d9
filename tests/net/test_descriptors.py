"""The limit on file descriptors, and the warning when few are left."""

import logging
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.net import descriptors
from tests.support.child import REPOSITORY
from tests.support.descriptors import MAC_SOFT_LIMIT, soft_limit


@pytest.fixture
def few() -> Iterator[list[int]]:
    """A limit of 20 descriptors above those open now; yields a list for those that the test opens."""
    opened: list[int] = []
    with soft_limit(descriptors.num_open() + 20):
        yield opened
        for descriptor in opened:
            os.close(descriptor)


def limits_of_a_new_process(before: str) -> list[str]:
    """The soft and hard limit of a new process after `raise_limit`, started with macOS's soft limit."""
    code = f"import resource; from gateway.net import descriptors; {before}; descriptors.raise_limit(); "
    code += "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    with soft_limit(MAC_SOFT_LIMIT):
        done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_the_soft_limit_is_raised_to_what_macos_allows_a_program() -> None:
    """The soft limit rises to 10,240, or to a lower hard limit, which does not change."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert limits_of_a_new_process("pass") == [str(min(hard, 10_240)), str(hard)]
    assert limits_of_a_new_process("resource.setrlimit(resource.RLIMIT_NOFILE, (256, 300))") == ["300", "300"]


@pytest.mark.parametrize("is_listed", [False, True])
def test_open_descriptors_are_counted(few: list[int], is_listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each open descriptor counts, with and without a directory that lists them; at the limit the count is the
    limit."""
    counted = descriptors.num_open()
    if is_listed:
        monkeypatch.setattr(descriptors, "Path", lambda _: Path("/nowhere"))
    assert descriptors.num_open() == counted
    before = descriptors.num_open()
    few += [os.dup(2) for _ in range(3)]
    assert descriptors.num_open() == before + 3
    with pytest.raises(OSError):
        while True:
            few.append(os.dup(2))
    assert descriptors.num_open() == descriptors.limit()


def test_few_descriptors_are_reported_once(few: list[int], caplog: pytest.LogCaptureFixture) -> None:
    """The warning comes once when nine tenths are open, with both numbers and the remedy; again only after some were
    closed."""
    watch = descriptors.DescriptorWatch()
    watch.look()
    assert not caplog.messages
    with pytest.raises(OSError):
        while True:
            few.append(os.dup(2))
    with caplog.at_level(logging.WARNING):
        watch.look()
        watch.look()
    (line,) = caplog.messages
    most = descriptors.limit()
    assert f"has {most} of {most} file descriptors open" in line and "ulimit -n" in line
    os.close(few.pop())
    watch.look()
    few.append(os.dup(2))
    watch.look()
    assert len(caplog.messages) == 1
    held = [few.pop() for _ in range(len(few))]
    for descriptor in held:
        os.close(descriptor)
    watch.look()
    few += [os.dup(2) for _ in range(len(held))]
    watch.look()
    assert len(caplog.messages) == 2
