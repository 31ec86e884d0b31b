"""Damaged files by the thousand: ``commtax audit`` must read or refuse each, in words, in time and within 1 GB.

    python benchmarks/mutated_files.py                    # 10,000 of each kind: about an hour on two cores
    python benchmarks/mutated_files.py --each 200 --kind NCCL

Seeds are ``mutated_seeds.py``'s, of every format and of each tool that it reads; ``hostile_files.py`` damages them, and one in
``SELDOM`` may become large. Every third file is audited against a claim, every fourth is shown on a screen; now and then the page,
the comparison with the sound file and the trace without names are made too.
Counted are anything but an answer or a refusal of one line (a traceback), more than ``LONG_S``, and more than ``MOST_BYTES``.
``hostile_files.py`` runs whole commands, a process each; this one calls what they call, so that it can try many more.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import Pool
from pathlib import Path

import hostile_files
from mutated_seeds import Seed, seeds
from rich.console import Console

from commtax.runs.audit import audit_read
from commtax.runs.audit.anonymising import write_anonymous
from commtax.runs.audit.read_files import ReadFiles, read_all
from commtax.runs.evidence.finding import Audit, Claim
from commtax.runs.report import audit_differences, audit_words, auditing
from commtax.runs.report.audit_page import audit_page, difference_page
from commtax.runs.traces.run_differences import difference
from commtax.statement import Refusal
from commtax.verbs.settling import resolve_question

LONG_S = 20
MOST_BYTES = 2**30
LONGEST_REFUSAL = 2000
NOW_AND_THEN = 0.1
PROGRAM = "no-such-program"  # that would open reports of Nsight Systems
BATCH = 100
SELDOM, SMALL, LARGE = 40, 2**17, 4 * 2**20  # bytes of a damaged file


@lru_cache(maxsize=2)
def claim(trains: bool) -> Claim:
    """What the user might say ran."""
    phase = {"phase": "train"} if trains else {}
    return Claim(resolve_question("llama-3.1-8b", "8xh100-sxm", {"tp": 8, **phase}))


@dataclass
class Tally:
    """What became of the files of a kind."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    longest: str = ""
    memory_bytes: int = 0

    def add(self, other: Tally) -> None:
        self.ends += other.ends
        self.wrong += other.wrong
        self.memory_bytes = max(self.memory_bytes, other.memory_bytes)
        if other.longest_s > self.longest_s:
            self.longest_s, self.longest = other.longest_s, other.longest


class TooLong(BaseException):
    """No ``Exception``: nothing on the way may take it for one of its own."""


def _ring(*_: object) -> None:
    raise TooLong


def _screen() -> Console:
    return Console(file=io.StringIO(), width=120, highlight=False, markup=False, emoji=False)


def _shown(told: Audit, on_screen: bool) -> None:
    json.dumps(audit_words.audit_document(told), allow_nan=False)
    if on_screen:
        auditing.show_audit(_screen(), told)


def _more(rng: random.Random, folder: Path, read: ReadFiles, told: Audit, sound: Audit | None) -> None:
    """What is asked for now and then."""
    if rng.random() < NOW_AND_THEN:
        json.dumps(audit_page(told, "audit"), allow_nan=False)
    if rng.random() < NOW_AND_THEN and sound:
        for pair in ((sound, told), (told, sound)):
            found = difference(*pair)
            json.dumps(audit_differences.difference_document(found), allow_nan=False)
            audit_differences.show_difference(_screen(), found)
            difference_page(found, "audit")
    if rng.random() < NOW_AND_THEN and read.traces:
        with suppress(Refusal):
            write_anonymous([trace for _, trace in read.traces], folder / "shared")


@lru_cache(maxsize=256)
def _sound(seed: Seed, claimed: Claim | None) -> Audit | None:
    with tempfile.TemporaryDirectory() as folder, suppress(Refusal):
        return audit_read(read_all(seed.written(Path(folder), seed.raw), PROGRAM), claimed)
    return None


def _peak_bytes() -> int:
    """The most memory since ``_forget_peak``."""
    status = Path("/proc/self/status").read_text()
    return next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM")), 0)


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _damaged(rng: random.Random, raw: bytes) -> bytes:
    hostile_files.LARGEST = SMALL if rng.randrange(SELDOM) else LARGE
    return hostile_files.mutated(rng, raw)[0]


def one(kind: str, number: int, of_kind: list[Seed], folder: Path, tally: Tally) -> None:
    """Damage one file, and count what becomes of it."""
    rng = random.Random(f"{kind}/{number}")
    seed = rng.choice(of_kind)
    claimed = claim(kind.startswith("training")) if number % 3 == 0 else None
    sound = _sound(seed, claimed)
    paths = seed.written(folder, _damaged(rng, seed.raw))
    _forget_peak()  # of the damaging
    begun = time.perf_counter()
    signal.alarm(LONG_S)
    try:
        read = read_all(paths, PROGRAM)
        told = audit_read(read, claimed)
        _shown(told, number % 4 == 0)
        _more(rng, folder, read, told, sound)
        end = "read"
    except Refusal as error:
        short = len(str(error)) < LONGEST_REFUSAL and "\n" not in str(error)
        end = "refused" if short else "refused at length"
        if not short:
            tally.wrong.append(f"{kind}/{number} ({seed.name}): {str(error)[:300]!r}")
    except TooLong:
        end = "hung"
        tally.wrong.append(f"{kind}/{number} ({seed.name}): {traceback.format_exc(limit=-6)}")
    except Exception:
        end = "traceback"
        tally.wrong.append(f"{kind}/{number} ({seed.name}): {traceback.format_exc(limit=-5)}")
    finally:
        signal.alarm(0)
    tally.memory_bytes = max(tally.memory_bytes, _peak_bytes())
    took = time.perf_counter() - begun
    if took > tally.longest_s:
        tally.longest_s, tally.longest = took, f"{kind}/{number}"
    tally.ends[end] += 1


def tried(work: tuple[str, list[Seed], int, int]) -> tuple[str, Tally]:
    """How many were read and refused, what went wrong, the longest and the most memory."""
    kind, of_kind, first, count = work
    signal.signal(signal.SIGALRM, _ring)
    warnings.simplefilter("error", RuntimeWarning)  # of numpy: a value that is none was reckoned with
    tally = Tally()
    with tempfile.TemporaryDirectory() as name:
        for number in range(first, first + count):
            folder = Path(name) / str(number)
            folder.mkdir()
            one(kind, number, of_kind, folder, tally)
            shutil.rmtree(folder)
    if tally.memory_bytes > MOST_BYTES:
        tally.wrong.append(f"{kind}/{first}…{first + count}: {tally.memory_bytes / 2**20:.0f} MiB")
    return kind, tally


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=10_000, help="files of each kind")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--kind", default="", help="kinds with this in their name alone")
    parser.add_argument("--show", type=int, default=5, help="failures that are shown in full")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=600.0, help="stop then, and say how far it came")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    kinds = {kind: of_kind for kind, of_kind in seeds().items() if given.kind in kind}
    end = given.first + given.each
    work = [(k, s, at, min(BATCH, end - at)) for at in range(given.first, end, BATCH) for k, s in kinds.items()]
    tallies = {kind: Tally() for kind in kinds}
    stop = time.monotonic() + 60 * given.minutes
    with Pool(given.jobs, maxtasksperchild=40) as pool:
        for kind, tally in pool.imap_unordered(tried, work):
            tallies[kind].add(tally)
            wrong = sum(len(t.wrong) for t in tallies.values())
            sys.stderr.write("".join(f"\n{failure}\n" for failure in tally.wrong))
            sys.stderr.write(f"\r{kind}: {tallies[kind].ends.total():,} of {given.each:,}; {wrong} wrong\x1b[K")
            if time.monotonic() > stop:
                break
    sys.stderr.write("\n")
    print(f"{'kind':36} {'seeds':>5} {'read':>7} {'refused':>7} {'wrong':>6} {'longest s':>9} {'most MiB':>8}")
    for kind, t in tallies.items():
        figures = f"{len(kinds[kind]):5} {t.ends['read']:7,} {t.ends['refused']:7,} {len(t.wrong):6}"
        print(f"{kind:36} {figures} {t.longest_s:9.2f} {t.memory_bytes / 2**20:8.0f}  {t.longest}")
    wrong = [failure for t in tallies.values() for failure in t.wrong]
    most = max((t.memory_bytes for t in tallies.values()), default=0)
    print(f"{sum(t.ends.total() for t in tallies.values()):,} files; {len(wrong)} wrong; most memory {most / 2**20:.0f} MiB")
    for failure in wrong[: given.show]:
        print(failure)
    print(f"peak of this process and its children {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
