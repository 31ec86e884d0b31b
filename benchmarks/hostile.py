"""What the hostile benchmarks share: one command in a child of its own, how it is judged, and what is told in the end.

commtax is imported once; every command then runs in a fork of that process, in an empty folder of its own, with limits on
CPU, memory, time and the files it writes. A child may start no process and reach no network.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import multiprocessing
import os
import re
import resource
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import hostile_samples

CPU_S, MEMORY_BYTES = 5.0, 1e9
"""The bars: CPU seconds and resident bytes of any one command."""
WALL_S = 30
LARGEST = 4 * 2**30
"""Where a child is ended: seconds on the clock, and bytes of address space."""
UNDECIDED = 3  # expect: the range is only assumed
STARTS, NETWORK = 100, 101
"""Exit codes of a child that was stopped: it was about to start a process (as ``measure`` should), or to use a network."""
PYTHONS_OWN = re.compile(
    r"out of range|not JSON compliant|invalid literal|could not convert|cannot convert|math domain|not subscriptable|object is not|"
    r"values to unpack|cannot unpack|has no attribute|can't multiply|unsupported operand|no len|NoneType|unhashable|codec can't|"
    r"not supported between|Exceeds the limit|too large to convert|operands could not|zero-size|Maximum allowed|array is too big|"
    r"embedded null|int too big|division by zero|Unable to allocate|cannot reshape|must be real number|Result too large|Errno"
)
"""Words that an interpreter says to programmers; a refusal has its own."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command line, the files that have to lie in its folder, and what was done to them."""

    words: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    number: int
    case: Case
    code: int
    told: str
    cpu_s: float
    peak_bytes: int
    broken: str

    @property
    def command(self) -> str:
        text = shlex.join(["commtax", *self.case.words])
        return (text if len(text) < 600 else f"{text[:400]} … {text[-100:]}") + (f"  ({self.case.note})" if self.case.note else "")


Make = Callable[[int], Case]


def outcomes(make: Make, count: int, samples: Path, jobs: int) -> Iterator[Outcome]:
    """Every case in a child; which process runs it changes nothing."""
    _import_everything()
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        fork = multiprocessing.get_context("fork")
        with fork.Pool(jobs, initializer=_settle, initargs=(make, samples, folder)) as pool:
            yield from pool.imap_unordered(_outcome, range(count), chunksize=4)


def _import_everything() -> None:
    """What commands load on first use, all but torch: a child must not pay for it again."""
    import importlib
    import pkgutil

    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.dont_write_bytecode = True
    import commtax

    for module in pkgutil.walk_packages(commtax.__path__, "commtax."):
        if not module.name.startswith("commtax_lab.measure") and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("matplotlib.backends.backend_svg", "matplotlib.pyplot", "rich.table"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


_make: Make
_samples: Path
_folder: Path


def _settle(make: Make, samples: Path, folder: str) -> None:
    """A worker: an interrupt is the parent's affair, and its memory is shared with the children."""
    global _make, _samples, _folder
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _make, _samples, _folder = make, samples, Path(folder)
    gc.collect()
    gc.freeze()


def _outcome(number: int) -> Outcome:
    found = run(number, _make(number), _samples, _folder)[0]
    return replace(found, case=replace(found.case, files=()))  # too much to send


def run(number: int, case: Case, samples: Path, folder: Path) -> tuple[Outcome, str]:
    """One command, judged; with what it printed."""
    place = folder / f"case-{number}"
    place.mkdir()
    (place / "samples").symlink_to(samples)
    for name, content in case.files:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(content)
    try:
        with (folder / f"{number}.out").open("w+b") as out, (folder / f"{number}.err").open("w+b") as err:
            pid = os.fork()
            if pid == 0:
                _child(case.words, place, out, err)
            _, status, used = os.wait4(pid, 0)
            printed, told = _text(out), _text(err)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        for kind in ("out", "err"):
            (folder / f"{number}.{kind}").unlink()
    code = os.waitstatus_to_exitcode(status)
    cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    broken = complaint(case.words, code, printed, told, cpu, peak)
    return Outcome(number, case, code, told, cpu, peak, broken), printed


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read(32 * 2**20).decode("utf-8", "replace")


def _child(words: tuple[str, ...], place: Path, out: BinaryIO, err: BinaryIO) -> None:
    """The command, as the installed one would run it; never returns."""
    code = 1
    try:
        with open(os.devnull, "rb") as nothing:
            for file, number in ((nothing, 0), (out, 1), (err, 2)):
                os.dup2(file.fileno(), number)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        sys.stderr = os.fdopen(2, "w", errors="backslashreplace")
        _limit(place)
        from commtax.cli import main

        try:
            main(list(words))
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _limit(place: Path) -> None:
    """CPU, memory, time and files; a child that is ended for its time says where it was."""
    os.chdir(place)
    os.environ.update(HOME=str(place), TMPDIR=str(place), COLUMNS="160")
    tempfile.tempdir = None
    for number in (signal.SIGXCPU, signal.SIGALRM):
        faulthandler.register(number, chain=True)
    resource.setrlimit(resource.RLIMIT_CPU, (int(CPU_S) + 2, int(CPU_S) + 4))
    resource.setrlimit(resource.RLIMIT_AS, (LARGEST, LARGEST))
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 2**20, 64 * 2**20))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(WALL_S)

    def watch(event: str, words: tuple[object, ...]) -> None:
        if event in ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system", "os.fork"):
            sys.stdout.flush()
            os._exit(STARTS)
        if event in ("socket.connect", "socket.getaddrinfo", "socket.bind"):
            os._exit(NETWORK)
        if event == "open" and isinstance(words[0], (str, bytes)) and isinstance(words[2], int):
            path = os.path.realpath(os.fsdecode(words[0]))
            if words[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and not path.startswith((str(place.resolve()), "/dev/")):
                raise PermissionError(13, "Permission denied", os.fsdecode(words[0]))

    sys.addaudithook(watch)


def complaint(words: tuple[str, ...], code: int, printed: str, told: str, cpu_s: float, peak_bytes: float) -> str:
    """What is wrong with an outcome, named by its cause so that equal ones count together; "": nothing."""
    frames = re.findall(r'File "[^"]*?/?(commtax/[^"]+)", line (\d+)(?:, in| in) (\w+)', told)
    if "Traceback (most" in told:
        last = next((line for line in reversed(told.splitlines()) if line and not line.startswith(" ")), "")
        where = "{}:{} {}".format(*frames[-1]) if frames else ""
        return f"traceback: {last.split(':')[0]} in {where}"
    if code < 0:
        where = " < ".join("{}:{}".format(*frame[:2]) for frame in frames[:3])  # faulthandler tells the innermost first
        return f"ended by {signal.Signals(-code).name} in {where or words[:1]}"
    if code == 70:
        return f"unforeseen: {_plain(told)}"
    if code == NETWORK:
        return "reached for a network"
    if code not in (0, 1, 2, UNDECIDED, STARTS):
        return f"exit code {code}"
    if cpu_s > CPU_S:
        return f"more than {CPU_S:g} s of CPU: {' '.join(words[:1])}, exit code {code}"
    if peak_bytes > MEMORY_BYTES:
        return f"more than {MEMORY_BYTES / 1e9:g} GB: {' '.join(words[:1])}, exit code {code}"
    if warned := re.search(r"(\S+):(\d+): (\w*Warning): (.*)", told):
        return f"warning: {warned[3]} in {warned[1].rsplit('commtax/', 1)[-1]}:{warned[2]}: {warned[4][:60]}"
    lines = told.removesuffix("\n").split("\n")
    if code == 2 and (len(lines) != 1 or not lines[0].startswith("error: ")):
        return f"a refusal of {len(lines)} lines: {_plain(told)}"
    bare = re.sub(r"\(.*\)", "()", lines[0])  # a reason in brackets may be anybody's, after what is wrong has been named
    if code == 2 and PYTHONS_OWN.search(bare):
        return f"a refusal in Python's own words: {_plain(bare)[:90]}"
    if code in (0, 1, UNDECIDED) and "--json" in words and "-h" not in words and "--help" not in words:
        try:
            json.loads(printed, parse_constant=lambda name: json.loads(f"not {name}"))
        except ValueError:
            return f"an answer that is no JSON document: {words[0]}"
    return f"an empty answer: {words[0]}" if code in (0, 1, UNDECIDED) and not printed.strip() else ""


def _plain(text: str) -> str:
    """A message without what differs from case to case."""
    text = re.sub(r"'[^']*'|\"[^\"]*\"", "'…'", text.strip().replace("\n", " "))
    return re.sub(r"[-+]?\d[\d.,e+-]*", "#", text)[:160]


class Book:
    """Counts, worst ones and distinct failures of a run."""

    def __init__(self) -> None:
        from commtax.cli import VERBS

        self.verbs = set(VERBS)
        self.codes: Counter[tuple[str, int]] = Counter()
        self.failures: Counter[str] = Counter()
        self.first: dict[str, Outcome] = {}
        self.slow: list[Outcome] = []
        self.large: list[Outcome] = []

    def enter(self, found: Outcome) -> bool:
        """Whether it is broken in a way that is new."""
        verb = found.case.words[0] if found.case.words else ""
        self.codes[verb if verb in self.verbs else "(no verb)", found.code] += 1
        self.slow = sorted([*self.slow, found], key=lambda o: -o.cpu_s)[:5]
        self.large = sorted([*self.large, found], key=lambda o: -o.peak_bytes)[:3]
        if not found.broken:
            return False
        self.failures[found.broken] += 1
        first = self.first.setdefault(found.broken, found)
        self.first[found.broken] = min(first, found, key=lambda o: o.number)
        return self.failures[found.broken] == 1

    @property
    def total(self) -> int:
        return sum(self.codes.values())

    def line(self) -> str:
        """Where the run stands."""
        answers = sum(n for (_, code), n in self.codes.items() if code in (0, 1)) / max(1, self.total)
        worst = f"{self.slow[0].cpu_s:.1f} s, {self.large[0].peak_bytes / 1e6:.0f} MB" if self.slow else ""
        broken = f"{sum(self.failures.values()):,} broken in {len(self.failures)} ways"
        return f"{self.total:,} run, {answers:.0%} answered, {broken}; worst {worst}"

    def show(self) -> None:
        """Everything, the distinct failures first."""
        for what, count in self.failures.most_common():
            found = self.first[what]
            print(f"\n{count:,} x {what}\n  case {found.number}: {found.command}\n  {found.told.strip()[-300:]!r}")
        codes = sorted({code for _, code in self.codes})
        print("\n" + "verb".ljust(12) + "".join(f"{_code(code):>10}" for code in codes))
        for verb in sorted({verb for verb, _ in self.codes}):
            print(f"{verb:12}" + "".join(f"{self.codes[verb, code]:>10,}" for code in codes))
        print("\nmost CPU:")
        for found in self.slow:
            print(f"  {found.cpu_s:.2f} s, case {found.number}: {found.command}")
        print("most memory:")
        for found in self.large:
            print(f"  {found.peak_bytes / 1e6:.0f} MB, case {found.number}: {found.command}")
        print(f"\n{self.line()}")


def _code(code: int) -> str:
    return {STARTS: "starts", NETWORK: "network"}.get(code, f"exit {code}" if code >= 0 else signal.Signals(-code).name)


def drive(make: Make, samples: Path, count: int, jobs: int, only: int = -1) -> int:
    """Run all cases, or one of them with all that it prints; 1 when one is broken."""
    if only >= 0:
        return _one(make, samples, only)
    book, start = Book(), time.monotonic()
    for number in (signal.SIGINT, signal.SIGTERM):  # both print what there is, also where a shell left an interrupt ignored
        signal.signal(number, signal.default_int_handler)
    try:
        for found in outcomes(make, count, samples, jobs):
            if book.enter(found):
                print(f"case {found.number}: {found.broken}", file=sys.stderr, flush=True)
            if book.total % 500 == 0:
                print(f"{time.monotonic() - start:6.0f} s: {book.line()}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print(f"interrupted after {book.total:,} of {count:,}")
    finally:
        book.show()
    return 1 if book.failures else 0


def _one(make: Make, samples: Path, number: int) -> int:
    _import_everything()
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        found, printed = run(number, make(number), samples, Path(folder))
    print(f"{found.command}\n{printed[:4000]}\n{found.told[:8000]}")
    print(f"{_code(found.code)}, {found.cpu_s:.2f} s, {found.peak_bytes / 1e6:.0f} MB: {found.broken or 'as it should be'}")
    return 1 if found.broken else 0


def main(text: str, count: int, case: Callable[[int, int, Path], Case]) -> int:
    """A benchmark of such cases, with the options that all of them have."""
    given = argparse.ArgumentParser(description=text)
    given.add_argument("--count", type=int, default=count)
    given.add_argument("--seed", type=int, default=1)
    given.add_argument("--jobs", type=int, default=2)
    given.add_argument("--only", type=int, default=-1, metavar="CASE", help="Run one case, and print all it says.")
    words = given.parse_args()
    with tempfile.TemporaryDirectory(prefix="hostile-samples-") as folder:
        samples = hostile_samples.make(Path(folder))
        return drive(lambda number: case(words.seed, number, samples), samples, words.count, words.jobs, words.only)
