"""Damaged files by the thousand: ``commtax audit`` must read or refuse each, in words, in time and within 1 GB.

    python benchmarks/mutated_files.py                    # 10,000 of each kind: about a quarter of an hour on two cores
    python benchmarks/mutated_files.py --each 200 --kind nccl

Seeds are the files of ``tests/fixtures`` and the excerpts beside them, by the format that the readers find; ``hostile_files.py``
damages them. Counted are anything but an answer or a refusal (a traceback), more than ``LONG_S``, and more than ``MOST_BYTES``.
``hostile_files.py`` runs whole commands, a process each; this one calls what they call, so that it can try many more.
"""

import argparse
import gzip
import io
import json
import random
import resource
import signal
import sys
import tempfile
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from hostile_files import mutated
from rich.console import Console

from commtax.audit import audit
from commtax.files import opened
from commtax.readers import formats
from commtax.report import auditing
from commtax.statement import Refusal

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures"
LONG_S = 20
MOST_BYTES = 2**30
MOST_SEED = 200_000  # bytes of a seed: a damaged file need not be a large one


def seeds() -> dict[str, list[tuple[str, bytes]]]:
    """Files by kind: (name, bytes)."""
    found: dict[str, list[tuple[str, bytes]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, raw in _candidates():
            path = Path(folder) / name
            path.write_bytes(raw)
            try:
                with opened(path) as stream:
                    fitting = formats.formats_of(formats.Source(stream))
            except Refusal:
                continue
            for one in fitting:
                found.setdefault(one.described, []).append((name, raw))
    return found


def _candidates():
    for path in sorted(FIXTURES.rglob("*")):
        if path.is_file() and path.stat().st_size <= MOST_SEED:
            raw = path.read_bytes()
            yield path.name.removesuffix(".gz"), gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
    for path in sorted((FIXTURES / "audit").glob("*.json")):
        listed = json.loads(path.read_text(encoding="utf-8"))
        for number, entry in enumerate(listed if isinstance(listed, list) else []):
            text = entry.get("text") or "\n".join(entry.get("lines", ())) or json.dumps(entry.get("document", ""))
            yield entry.get("file") or f"{path.stem}-{number}.txt", text.encode()


def _ring(*_):
    raise TimeoutError


def tried(work: tuple[str, list[tuple[str, bytes]], int, int]) -> tuple[str, Counter, list[str], int]:
    """How many were read and refused, what went wrong, and the most memory."""
    kind, files, first, count = work
    signal.signal(signal.SIGALRM, _ring)
    ends, wrong = Counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + count):
            rng = random.Random(f"{kind}/{number}")
            name, raw = rng.choice(files)
            path = Path(folder) / name
            path.write_bytes(mutated(rng, raw)[0])
            signal.alarm(LONG_S)
            try:
                told = audit([path])
                json.dumps(auditing.audit_document(told), default=str)
                auditing.show_audit(Console(file=io.StringIO(), width=120), told)
                ends["read"] += 1
            except Refusal as error:
                ends["refused" if len(str(error)) < 2000 and "\n" not in str(error) else "refused at length"] += 1
            except TimeoutError:
                ends["hung"] += 1
                wrong.append(f"{kind}/{number}: more than {LONG_S} s")
            except Exception:
                ends["traceback"] += 1
                wrong.append(f"{kind}/{number} ({name}): " + traceback.format_exc(limit=-3))
            finally:
                signal.alarm(0)
                path.unlink()
    return kind, ends, wrong, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=10_000, help="files of each kind")
    parser.add_argument("--kind", default="", help="this kind alone")
    parser.add_argument("--show", type=int, default=5, help="failures that are shown in full")
    given = parser.parse_args()
    kinds = {kind: files for kind, files in seeds().items() if given.kind in kind}
    batch = min(250, given.each)
    work = [(kind, files, at, min(batch, given.each - at)) for kind, files in kinds.items() for at in range(0, given.each, batch)]
    totals: dict[str, Counter] = {kind: Counter() for kind in kinds}
    most, wrong = 0, []
    with ProcessPoolExecutor(2, max_tasks_per_child=40) as pool:
        for kind, ends, failures, memory in pool.map(tried, work):
            totals[kind] += ends
            most = max(most, memory)
            wrong += failures
            sys.stderr.write(f"\r{kind}: {sum(totals[kind].values()):,} of {given.each:,}; {len(wrong)} wrong\x1b[K")
    sys.stderr.write("\n")
    for kind, ends in totals.items():
        print(f"{kind:60} {len(kinds[kind]):3} seeds  " + ", ".join(f"{n:,} {word}" for word, n in sorted(ends.items())))
    print(f"most memory {most / 2**20:.0f} MiB; {len(wrong)} wrong")
    for failure in wrong[: given.show]:
        print(failure)
    return 1 if wrong or most > MOST_BYTES else 0


if __name__ == "__main__":
    sys.exit(main())
