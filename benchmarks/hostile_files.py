"""20,000 damaged files of every kind that is read: no traceback, no hang, none over 5 s of CPU or 1 GB.

python benchmarks/hostile_files.py [--count 20000] [--seed 1] [--jobs 2] [--only CASE]. Exit code 1: a bar is broken.

Real files (``hostile_samples.py``, and ``hostile_seeds.py`` of every kind that is audited) lose, double and swap parts, get values
of another type, other encodings, deep nesting and long lines, or are packed and damaged; each goes to a command that reads it.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import sys
import tomllib
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import hostile
from hostile import Case
from hostile_seeds import Seed, seeds

LARGEST = 4 * 2**20
"""Bytes of a damaged file, on disk."""
READ_BY: dict[str, dict[str, list[str]]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
DIFFER = 0.1  # of the seeds: compared with themselves before they were damaged
NUMBERS = (0, -1, 1, 1.5, 1e300, -1e300, 10**30, 10**400, 2**63, 1e-320, 7)
OTHERS = (
    None, True, False, "", "x", "1", "[red]x[/red]", "\x1b[31m", "é" * 50, "y" * 20_000, [], {}, [[]], [1, "2", None],
    {"a": {"b": 1}}, *NUMBERS,
)  # fmt: skip


@lru_cache(maxsize=1)
def readers() -> list[tuple[str, str]]:
    """Every pair of a sample and a command that reads it."""
    tables = (READ_BY["file"], READ_BY["folder"])
    return [(name, words) for table in tables for name, all_words in table.items() for words in all_words]


@lru_cache(maxsize=1)
def audited() -> list[tuple[str, list[Seed]]]:
    """Seeds of every kind that is audited, by kind."""
    return sorted(seeds().items())


def case(seed: int, number: int, samples: Path) -> Case:
    rng = random.Random(f"{seed}:{number}")
    if rng.random() < 0.5:
        return _damaged_seed(rng)
    name, words = rng.choice(readers())
    content, note = mutated(rng, (samples / name).read_bytes())
    if name in READ_BY["file"]:
        return Case((*words.split(), f"given/{name}"), ((f"given/{name}", content),), note)
    folder = name.split("/")[0]
    beside = [f for f in (samples / folder).iterdir() if f.name != Path(name).name and folder != "tables"]
    files = ((f"given/{Path(name).name}", content), *((f"given/{f.name}", f.read_bytes()) for f in beside))
    return Case((*words.split(), "given"), files, note)


def _damaged_seed(rng: random.Random) -> Case:
    """A seed damaged, with the sound files beside it."""
    kind, of_kind = rng.choice(audited())
    seed = rng.choice(of_kind)
    content, note = mutated(rng, seed.raw)
    named = ((seed.name, content), *seed.beside)
    files, note = tuple((f"given/{name}", raw) for name, raw in named), f"{kind}: {note}"
    if rng.random() < DIFFER:
        sound = tuple((f"sound/{name}", raw) for name, raw in ((seed.name, seed.raw), *seed.beside))
        return Case((*rng.choice(READ_BY["seed"]["differ"]).split(), "sound", "given"), (*sound, *files), note)
    words = rng.choice(READ_BY["seed"]["training" if kind.startswith("training") else "any"]).split()
    return Case((*words, *(name for name, _ in files)), files, note)


def mutated(rng: random.Random, content: bytes) -> tuple[bytes, str]:
    """A file with one to three things wrong, and their names."""
    packed = content[:2] == b"\x1f\x8b"
    content = gzip.decompress(content) if packed and rng.random() < 0.8 else content
    notes = []
    for _ in range(rng.choice((1, 1, 2, 3))):
        change = rng.choice(JSON_CHANGES if content[:1] in b"{[" and rng.random() < 0.6 else CHANGES)
        content = change(rng, content)[:LARGEST]
        notes.append(change.__name__.strip("_"))
    if packed and content[:2] != b"\x1f\x8b" and rng.random() < 0.8:
        content = gzip.compress(content, 1, mtime=0)
        notes.append("packed")
    return content, ", ".join(notes)


def _span(rng: random.Random, size: int) -> tuple[int, int]:
    start = rng.randrange(size + 1)
    return start, min(size, start + int(10 ** rng.uniform(0, 4)))


def _flipped(rng: random.Random, raw: bytes) -> bytes:
    out = bytearray(raw)
    for _ in range(rng.choice((1, 5, 100)) if out else 0):
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _cut(rng: random.Random, raw: bytes) -> bytes:
    return raw[: rng.randrange(len(raw) + 1)]


def _lost(rng: random.Random, raw: bytes) -> bytes:
    start, end = _span(rng, len(raw))
    return raw[:start] + raw[end:]


def _doubled(rng: random.Random, raw: bytes) -> bytes:
    start, end = _span(rng, len(raw))
    return raw[:end] + raw[start:end] * rng.choice((1, 2, 1000)) + raw[end:]


def _moved(rng: random.Random, raw: bytes) -> bytes:
    (start, end), at = _span(rng, len(raw)), rng.randrange(len(raw) + 1)
    rest = raw[:start] + raw[end:]
    return rest[:at] + raw[start:end] + rest[at:]


def _inserted(rng: random.Random, raw: bytes) -> bytes:
    at = rng.randrange(len(raw) + 1)
    many, signs = (b"\0" * 100, b"\n" * 1000, b" " * 100_000), (b"\xff\xfe", "\u2028💥é".encode(), b"[/red]", b"\x1b[2J")
    what = rng.choice((rng.randbytes(20), *many, *signs))
    return raw[:at] + what + raw[at:]


def _numbered(rng: random.Random, raw: bytes) -> bytes:
    """One to twenty numbers are others."""
    found = list(re.finditer(rb"\d+(\.\d+)?", raw[:200_000]))
    for match in sorted(rng.sample(found, min(len(found), rng.choice((1, 3, 20)))), key=lambda m: -m.start()):
        odd = ["0", "-1", "1e308", "1e999", "NaN", "0x1", "1e-320", "٣", "1.2.3"]
        new = rng.choice((*odd, "", "9" * 30, "9" * 6000, str(rng.randrange(10**6))))
        raw = raw[: match.start()] + new.encode() + raw[match.end() :]
    return raw


def _lines(rng: random.Random, raw: bytes) -> bytes:
    """A line many times, lines in another order, or all of it in one line."""
    lines = raw.splitlines(keepends=True)
    if not lines:
        return raw
    one = rng.choice(lines)
    many = min(20_000, LARGEST // 4 // len(one))
    return rng.choice((
        lambda: raw + one * many,
        lambda: b"".join(rng.sample(lines, len(lines))),
        lambda: raw.replace(b"\n", rng.choice((b" ", b"\r\n", b"\r", b""))),
        lambda: b"".join(line for line in lines if rng.random() < 0.7),
    ))()  # fmt: skip


def _encoded(rng: random.Random, raw: bytes) -> bytes:
    text = raw.decode("utf-8", "replace")
    encoded = (text.encode(name) for name in ("utf-16", "utf-32", "utf-7"))
    return rng.choice((*encoded, b"\xef\xbb\xbf" + raw, raw + b"\xe9\xe8"))


def _packed(rng: random.Random, raw: bytes) -> bytes:
    """Packed whole, packed and damaged, or a small file that unpacks to gigabytes."""
    whole = gzip.compress(raw[: 2**20], 1, mtime=0)
    twice = gzip.compress(whole, mtime=0)
    return rng.choice((whole, twice, _cut(rng, whole), _flipped(rng, whole), whole + b"x", whole[:10], bomb()))


@lru_cache(maxsize=1)
def bomb() -> bytes:
    """Two megabytes that unpack to two gigabytes."""
    return gzip.compress(b"[" * 2**24, mtime=0) * 128


CRAFTED = (
    *(b"", b"\n", b"{}", b"[]", b"null", b"[" * 2**20, b'{"a":' * 2**18, b"9" * 2**20, b"\0" * 2**20, b"a," * 2**20),
    b"".join(f"{a}='{f'${b} ' * 1000}'\n".encode() for a, b in ("XY", "YZ", "ZZ")) + b"vllm serve llama-3.1-8b $X\n",
    *(b"a=( " * 100_000, b"cat > x <<E\n" * 30_000, b"LLM(model=" + b"-" * 100_000 + b"1)", b"LLM(" * 50_000),
    *(b"#  Rank  0\n" * 100_000, b"GPU0\tX\n" * 100_000, b'"' * 2**20, b"a\\\n" * 2**18),
)
"""Whole files that a reader of some kind of file may choke on."""


def _replaced(rng: random.Random, raw: bytes) -> bytes:
    """Something else altogether."""
    return rng.choice((*CRAFTED, rng.randbytes(1000), raw * 20))


def _json_change(change: Callable[[random.Random, Any, Any, Any], None]) -> Callable[[random.Random, bytes], bytes]:
    """A change of one value of a document, or of one line of many; what is no document stays."""

    def changed(rng: random.Random, raw: bytes) -> bytes:
        lines = [raw]
        at = 0
        try:
            document = json.loads(raw)
        except (ValueError, RecursionError):
            lines = raw.splitlines()
            at = rng.randrange(len(lines)) if lines else 0
            try:
                document = json.loads(lines[at]) if lines else None
            except (ValueError, RecursionError):
                return raw
        if not isinstance(document, (dict, list)) or not document:
            return raw
        for _ in range(rng.choice((1, 1, 3))):
            places: list[tuple[Any, Any]] = []
            todo = [document]
            while todo and len(places) < 20_000:
                node = todo.pop()
                for key, inner in node.items() if isinstance(node, dict) else enumerate(node):
                    places.append((node, key))
                    if isinstance(inner, (dict, list)):
                        todo.append(inner)
            if places:
                change(rng, *(place := rng.choice(places)), rng.choice(places)[0] if place else None)
        try:
            lines[at] = json.dumps(document, ensure_ascii=rng.random() < 0.5).encode("utf-8", "replace")
        except (ValueError, RecursionError):
            return raw
        return b"\n".join(lines)

    changed.__name__ = change.__name__
    return changed


def _other_value(rng: random.Random, node: Any, key: Any, _: Any) -> None:
    found: Any = 1
    for _depth in range(rng.choice((50, 900, 3000))):
        found = [found] if rng.random() < 0.5 else {"a": found}
    node[key] = rng.choice((*OTHERS, float("nan"), float("inf"), found))


def _without(_rng: random.Random, node: Any, key: Any, _: Any) -> None:
    del node[key]


def _scaled(rng: random.Random, node: Any, key: Any, _: Any) -> None:
    if isinstance(node[key], (int, float)):
        with suppress(OverflowError):  # an integer beyond all floats
            node[key] *= rng.choice((-1, 0, 2, 1000, 10**12, 0.5))
    else:
        small = len(str(node[key])) < 10_000  # what is large already stays so
        node[key] = [node[key]] * rng.choice((1, 3, 300 if small else 2))


def _renamed(rng: random.Random, node: Any, key: Any, _: Any) -> None:
    if isinstance(node, dict):
        node[rng.choice((f"{key}x", "", str(key).upper(), "💥"))] = node.pop(key)


def _swapped(rng: random.Random, node: Any, key: Any, other: Any) -> None:
    there = rng.choice(list(other) if isinstance(other, dict) else range(len(other))) if other else None
    if there is not None and not isinstance(node[key], (dict, list)):
        node[key] = other[there] if not isinstance(other[there], (dict, list)) else None


CHANGES = (_flipped, _cut, _lost, _doubled, _moved, _inserted, _numbered, _numbered, _lines, _encoded, _packed, _replaced)
JSON_CHANGES = tuple(_json_change(change) for change in (_other_value, _other_value, _without, _scaled, _renamed, _swapped))


if __name__ == "__main__":
    sys.exit(hostile.main(__doc__ or "", 20_000, case))
