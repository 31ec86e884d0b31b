"""Folders of runs, and what a killed run leaves: removed when its launcher ends, by its ranks when the launcher is
killed, and by the next start when everything was killed at once.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHARED = Path("/dev/shm")
_NAMED = re.compile(r"(?:sem\.)?commtax-(\d+)-\w+")


@contextmanager
def run_folder() -> Iterator[Path]:
    """A folder of this process, gone at the end; what dead processes left goes first."""
    sweep(Path(tempfile.gettempdir()))
    sweep(SHARED)
    name = tempfile.mkdtemp(prefix=f"commtax-{os.getpid()}-")
    try:
        yield Path(name)
    finally:
        shutil.rmtree(name, ignore_errors=True)


def sweep(place: Path) -> None:
    """Remove our own leavings whose process is gone: run folders, mapped files, semaphores."""
    if not place.is_dir():
        return
    for left in place.iterdir():
        owner = _NAMED.match(left.name)
        if owner and not _alive(int(owner[1])) and _ours(left):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                with suppress(OSError):
                    left.unlink()


def _ours(path: Path) -> bool:
    try:
        return path.lstat().st_uid == os.getuid()
    except OSError:
        return False


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
