"""Tables that ship with the package: TOML, parsed once and kept as JSON, which is read thirty times as fast.

What is kept of a table counts as long as its file has the length and the times (of its text and of its inode) that it had then;
a file that was touched in the last seconds is not kept, for its next change might have the same ones. So a changed file counts at
once. All tables are kept in one file, replaced as a whole: beside the package's bytecode, or where that is not wanted or not
allowed in the user's cache. Where neither can be written, each process parses a table once.
"""

import atexit
import json
import os
import sys
import time
from contextlib import suppress
from functools import lru_cache
from typing import Any

PACKAGE = os.path.dirname(os.path.abspath(__file__))
NAME = "commtax-tables.json"
YOUNG_NS = 2_000_000_000  # two changes may follow each other within a tick of a file system's clock: of the coarsest, two seconds
Stamp = list[int]
Shelf = dict[str, tuple[Stamp, bytes]]
_new: Shelf = {}


def table(path: str) -> dict[str, Any]:
    """Return a table by its path in the package. One that lies elsewhere is not kept."""
    where = os.path.join(PACKAGE, path)
    seen = os.stat(where)  # before it is read: what changes meanwhile has another stamp
    stamp = [seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size]
    kept_stamp, text = _new.get(path) or _shelf().get(path, ([], b""))
    if kept_stamp == stamp:
        with suppress(ValueError):
            kept: dict[str, Any] = json.loads(text)
            return kept
    import tomllib  # not for those who find all tables kept

    with open(where, "rb") as file:
        made = tomllib.load(file)
    with suppress(TypeError):  # JSON has no dates
        text = json.dumps(made, separators=(",", ":")).encode()
        if where.startswith(PACKAGE) and time.time_ns() - max(stamp[:2]) > YOUNG_NS:
            if not _new:
                atexit.register(_save)
            _new[path] = (stamp, text)
    return made


def room_table(module: str, name: str) -> Any:
    """Return what a module has in the table of that name that its room, the nearest folder above it with one, keeps."""
    *rooms, section = module.removeprefix("commtax.").split(".")
    while rooms and not os.path.exists(os.path.join(PACKAGE, *rooms, name)):
        rooms.pop()
    return table("/".join([*rooms, name]))[section]


@lru_cache(maxsize=1)
def _shelf() -> Shelf:
    """Read all kept tables from the first place that has any."""
    for place in _places():
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError), open(os.path.join(place, NAME), "rb") as file:
            if not (place.startswith(PACKAGE) or not hasattr(os, "getuid") or os.fstat(file.fileno()).st_uid == os.getuid()):
                continue
            about = json.loads(file.readline())
            if about["package"] == PACKAGE:
                texts = file.read()
                return {path: (stamp, texts[begin:end]) for path, (*stamp, begin, end) in about["tables"].items()}
    return {}


def _places() -> list[str]:
    beside = [] if sys.dont_write_bytecode else [os.path.join(PACKAGE, "__pycache__")]
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return [*beside, os.path.join(home, "commtax")] if os.path.isabs(home) else beside


def _save() -> None:
    tables, begin = {}, 0
    shelf = {**_shelf(), **_new}
    for path, (stamp, text) in shelf.items():
        tables[path] = [*stamp, begin, begin + len(text)]
        begin += len(text)
    head = json.dumps({"package": PACKAGE, "tables": tables}).encode()
    whole = b"\n".join([head, b"".join(text for _, text in shelf.values())])
    for place in _places():
        with suppress(OSError):
            if not place.startswith(PACKAGE):
                os.makedirs(place, mode=0o700, exist_ok=True)
            part = os.path.join(place, f".{NAME}-{os.getpid()}-{os.urandom(4).hex()}")
            try:
                with open(part, "xb") as file:
                    file.write(whole)
                os.replace(part, os.path.join(place, NAME))
            except BaseException:
                with suppress(OSError):
                    os.unlink(part)
                raise
            return
