"""Folders of runs, and what a killed run leaves: removed when its launcher ends, by its ranks when the launcher is
killed, and by the next start when everything was killed at once.

A run's folder holds a file that its launcher has locked: whose lock can be had is nobody's any more, in whichever container or on
whichever host its process was. Names in shared memory last for moments, until all ranks have them open; an old one is nobody's.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHARED = Path("/dev/shm")
OWNER = "owner.lock"
OLD_S = 3600.0
RUN, MAPPED, SEMAPHORE = "commtax-run-", "commtax-map-", "commtax-sem-"
_FOLDER = re.compile(rf"{RUN}[a-z0-9_]{{8}}")
_NAME = re.compile(rf"(?:{MAPPED}[a-z0-9_]{{8}}|sem\.{SEMAPHORE}[0-9a-f]{{8}}-\d+)")


@contextmanager
def run_folder() -> Iterator[Path]:
    """A folder of this process, gone at the end; what dead processes left goes first."""
    sweep(Path(tempfile.gettempdir()), SHARED)
    folder = Path(tempfile.mkdtemp(prefix=RUN))
    try:
        with (folder / OWNER).open("wb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(folders: Path, names: Path) -> None:
    """Remove what runs of this user left behind: folders that nobody holds, old names in shared memory."""
    for left in _ours(folders, _FOLDER):
        if left.is_dir() and _unowned(left / OWNER):
            shutil.rmtree(left, ignore_errors=True)
    for left in _ours(names, _NAME):
        with suppress(OSError):
            if left.is_file() and time.time() - left.stat().st_mtime > OLD_S:
                left.unlink()


def _ours(place: Path, named: re.Pattern[str]) -> list[Path]:
    with suppress(OSError):
        return [p for p in place.iterdir() if named.fullmatch(p.name) and p.lstat().st_uid == os.getuid()]
    return []


def _unowned(owner: Path) -> bool:
    """Whether the lock of a run's folder can be had; a folder without one is being made, or is not ours."""
    try:
        with owner.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
