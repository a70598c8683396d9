"""Who may write to the data folder: whoever can, has the gateway's keys, rules and Redis, so a folder that others may
write to is refused at the start, as ssh does with its own (StrictModes)."""

from __future__ import annotations

import grp
import os
import pwd
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gateway.yaml.problems import Severity

FolderProblem = tuple[Severity, str]

_ERROR, _WARNING = Severity.ERROR, Severity.WARNING
_CURE = "or choose another with --data-dir"


@dataclass(frozen=True, slots=True)
class ProcessUser:
    """Whose process this is; `private_group` has no other member, so what it may write is nobody else's."""

    uid: int
    groups: frozenset[int]
    private_group: int | None = None

    @classmethod
    def current(cls) -> ProcessUser:
        uid = os.geteuid()
        return cls(uid, frozenset((os.getegid(), *os.getgroups())), _private_group(uid))


def _private_group(uid: int) -> int | None:
    """The group that a user has by the same name, alone."""
    try:
        user = pwd.getpwuid(uid)
        group = grp.getgrgid(user.pw_gid)
    except KeyError:
        return None
    return group.gr_gid if group.gr_name == user.pw_name and not {*group.gr_mem} - {user.pw_name} else None


def data_dir_problems(
    folder: Path, user: ProcessUser | None = None, is_mount: Callable[[Path], bool] = os.path.ismount
) -> list[FolderProblem]:
    """What is wrong with a data folder, the folders above it, and what is in it. One that is not there is judged by
    the folders above it; one that is empty and that this process cannot write is not used."""
    try:
        judge = _Judge(user or ProcessUser.current(), is_mount)
        return [*judge.problems(folder.absolute())]
    except OSError as error:
        return [(_ERROR, f"the data folder {folder} cannot be looked at: {error.strerror or error}; {_CURE[3:]}")]


class _Judge:
    """Judges files by their owners and modes."""

    def __init__(self, user: ProcessUser, is_mount: Callable[[Path], bool]) -> None:
        self._user = user
        self._is_mount = is_mount
        # Who has the root of the file system may change all: not uid 0 where a user namespace maps none to it
        self._trusted = {0, user.uid, Path("/").lstat().st_uid}

    def problems(self, folder: Path) -> Iterator[FolderProblem]:
        """Raises: OSError."""
        real = folder.resolve()
        above = [path for path in dict.fromkeys((folder, *folder.parents, *real.parents)) if os.path.lexists(path)]
        is_there = real.is_dir()
        entries = [*os.scandir(real)] if is_there and os.access(real, os.R_OK) else []
        if not entries and not os.access(real if is_there else above[0], os.W_OK):
            return
        for path in reversed(above):
            if path != real:
                yield from self._of_folder(path, is_above=True)
        if is_there:
            yield from self._of_folder(real, is_above=False)
            is_open = bool(real.stat().st_mode & 0o011)
            for entry in sorted(entries, key=lambda entry: entry.name):
                yield from self._of_file(Path(entry.path), entry.stat(follow_symlinks=False), is_open=is_open)

    def _of_folder(self, path: Path, *, is_above: bool) -> Iterator[FolderProblem]:
        status = path.lstat()
        what = f"{path}, which holds the data folder," if is_above else f"the data folder {path}"
        is_volume, mode = self._is_mount(path), status.st_mode
        if stat.S_ISLNK(mode):  # its mode says nothing
            mode &= ~0o022
        if status.st_uid not in self._trusted:
            # Kubernetes gives a volume with a group (fsGroup) to that group, and leaves its owner
            is_of_group = is_volume and mode & stat.S_ISGID and mode & 0o020 and status.st_gid in self._user.groups
            severity = _WARNING if is_of_group else _ERROR
            yield (
                severity,
                f"{what} belongs to user {status.st_uid}, who may replace what is in it: {self._chown(path)}",
            )
        is_sticky = bool(is_above and mode & stat.S_ISVTX)
        if mode & 0o002 and not is_sticky:
            if is_above and is_volume:  # as Kubernetes makes an emptyDir
                yield _WARNING, f"{what} is a volume that all users may write to, and so may replace the data folder"
            else:
                deeper = "" if is_above else f" a folder within it (--data-dir {path}/pointsman),"
                yield _ERROR, f"{what} can be written by all users: chmod o-w {path},{deeper} {_CURE}"
        elif mode & 0o020 and not is_sticky:
            yield from self._of_group(what, path, status.st_gid)

    def _of_file(self, path: Path, status: os.stat_result, *, is_open: bool) -> Iterator[FolderProblem]:
        """`is_open`: others can reach what is in the folder, so the modes of files count."""
        what = f"{path} in the data folder"
        if status.st_uid not in self._trusted:
            yield _ERROR, f"{what} belongs to user {status.st_uid}: {self._chown(path)}"
        if not is_open or stat.S_ISLNK(status.st_mode):
            return
        if status.st_mode & 0o002:
            yield _ERROR, f"{what} can be written by all users: chmod o-w {path}, {_CURE}"
        elif status.st_mode & 0o020:
            yield from self._of_group(what, path, status.st_gid)

    def _of_group(self, what: str, path: Path, group: int) -> Iterator[FolderProblem]:
        if group == self._user.private_group:
            return
        severity = _WARNING if group in self._user.groups else _ERROR
        yield severity, f"{what} can be written by group {group}: chmod g-w {path}, {_CURE}"

    def _chown(self, path: Path) -> str:
        return f"chown {self._user.uid} {path}, {_CURE}"
