"""Start one process a rank on this machine, watch them, and end them all together.

A rank that dies takes the run down within a second; its number and the end of its traceback become the error. A rank that is
stopped does so after ``lost_s``. Nothing is left behind: ranks and the run's folder go with the launcher, whether it returns,
fails or is interrupted; its ranks take the folder along when it is killed, and the next start does when all were killed at once.

A run's folder holds a file that its launcher has locked: whose lock can be had is nobody's any more, in whichever container or on
whichever host its process was. Names in shared memory last for moments, until all ranks have them open, and say whose they are:
those of a process that is gone, and old ones, are nobody's.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

from commtax.statement import Refusal

POLL_S = 0.02
LOOK_S = 0.5
LOST_S = 20.0
GRACE_S = {signal.SIGTERM: 1.0, signal.SIGKILL: 1.0}
KEPT_LINES = 12
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
OUT_OF_TIME, REFUSED = 124, 65  # exit codes: ended by us, and a rank that refuses what it was asked
FOLDER, PARENT = "COMMTAX_FOLDER", "COMMTAX_PARENT"
TASK, RESULT, NEWS, REFUSAL, LOG = "task", "result", "news-{}", "refusal-{}", "rank-{}.log"
"""Files of a run's folder. All but the logs are pickled: one program talks to itself, in a folder that nobody else may enter."""
SHARED = Path("/dev/shm")
OWNER = "owner.lock"
OLD_S = 3600.0
RUN, MAPPED, SEMAPHORE = "commtax-run-", "commtax-map-", "commtax-sem-"
_FOLDER = re.compile(rf"{RUN}[a-z0-9_]{{8}}")
_NAME = re.compile(
    rf"(?:{MAPPED}|sem\.{SEMAPHORE})(?:([0-9a-f]{{1,8}})-([0-9a-f]{{1,16}})-)?(?:[a-z0-9_]{{8}}|[0-9a-f]{{6,8}}-\d+)"
)
Progress = Callable[[Any], None]
Launching = TypedDict("Launching", {"timeout_s": float, "lost_s": float, "progress": Progress}, total=False)  # noqa: UP013
_NOISE = re.compile(r"\[[WIE]\d+ |.*Warning: ")  # torch's log lines are not part of a traceback


class RankError(RuntimeError):
    """A rank ended before its time. ``rank`` says which, ``trace`` holds the end of what it wrote."""

    def __init__(self, rank: int, code: int, trace: str) -> None:
        self.rank, self.code, self.trace = rank, code, trace
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        super().__init__(f"rank {rank} {ended}" + (f":\n{trace}" if trace else ""))


def run(
    target: str,
    payload: object,
    ranks: int,
    *,
    device: str = "cpu",
    timeout_s: float = 3600.0,
    lost_s: float = LOST_S,
    progress: Progress | None = None,
    watch: Callable[[list[int]], None] | None = None,
) -> Any:
    """Call ``module:function`` with ``payload`` in ``ranks`` processes and return what rank 0 returned.

    ``device`` is where its tensors are: which backends the ranks meet with. ``progress`` receives what rank 0 tells with
    ``report`` while it works; ``watch`` the process ids once they run. What a rank refuses is refused here.
    """
    if not lost_s > 0:
        raise Refusal(f"lost_after={lost_s:g}: a time above 0 is needed")
    with EndedBySignal() as ended, run_folder() as folder:
        leave_value(folder / TASK, (target, payload, device))
        processes: list[subprocess.Popen[bytes]] = []
        try:
            processes.extend(_start(rank, ranks, folder) for rank in range(ranks))
            if watch:
                watch([p.pid for p in processes])
            _wait(processes, folder, time.monotonic() + timeout_s, lost_s, progress)
        except RankError as error:
            if error.code == REFUSED:
                raise take(folder / REFUSAL.format(error.rank)) from None
            raise
        finally:
            end(processes, GRACE_S, ended)
            sweep_names(SHARED)  # of ranks that were killed while they had some
        return take(folder / RESULT)


@contextmanager
def run_folder() -> Iterator[Path]:
    """Make a folder for this process, removed at the end, after removing what dead processes left."""
    sweep(Path(tempfile.gettempdir()), SHARED)
    folder = Path(tempfile.mkdtemp(prefix=RUN))
    try:
        with (folder / OWNER).open("wb") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(folders: Path, names: Path) -> None:
    """Remove what runs of this user left behind: folders that nobody holds, names in shared memory whose process is gone."""
    for left in _user_files(folders, _FOLDER):
        if left.is_dir() and _is_unowned(left / OWNER):
            shutil.rmtree(left, ignore_errors=True)
    sweep_names(names)


def sweep_names(place: Path) -> None:
    for left in _user_files(place, _NAME):
        with suppress(OSError):
            if left.is_file() and (time.time() - left.stat().st_mtime > OLD_S or _is_orphaned(left.name)):
                left.unlink()


def owner() -> str:
    """Name the owner of a name in shared memory: this process, among those that one container sees."""
    return f"{os.getpid():x}-{_pid_space():x}"


def _pid_space() -> int:
    with suppress(OSError):
        return os.stat("/proc/self/ns/pid").st_ino
    return 0


def _is_orphaned(name: str) -> bool:
    """Return whether the process that made it is gone. Those of other containers cannot be judged here."""
    match = _NAME.fullmatch(name)
    pid, space = match.groups(default="") if match else ("", "")
    if not pid or int(space, 16) != _pid_space():
        return False
    try:
        os.kill(int(pid, 16), 0)
    except (OSError, OverflowError) as error:
        return isinstance(error, ProcessLookupError)
    return False


def _user_files(place: Path, named: re.Pattern[str]) -> list[Path]:
    with suppress(OSError):
        return [p for p in place.iterdir() if named.fullmatch(p.name) and p.lstat().st_uid == os.getuid()]
    return []


def _is_unowned(owner: Path) -> bool:
    """Return whether the lock of a run's folder is free. A folder without one is being made, or is not ours."""
    try:
        with owner.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def leave_value(file: Path, value: object) -> None:
    """Leave a value for another process, whole or not at all."""
    part = file.with_suffix(".part")
    part.write_bytes(pickle.dumps(value))
    part.replace(file)


def take(file: Path) -> Any:
    """Read a value that another process of this run left."""
    return pickle.loads(file.read_bytes())


def _start(rank: int, ranks: int, folder: Path) -> subprocess.Popen[bytes]:
    """Start one rank with torchrun's variables, keeping its standard error for the error message."""
    environment = {
        "OMP_NUM_THREADS": "1",  # before torch loads; the worker then takes its share of the cores
        "GLOO_SOCKET_IFNAME": LOOPBACK,  # all ranks are here, and the host's name may not resolve
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "PYTHONUNBUFFERED": "1",
        FOLDER: str(folder),
        PARENT: str(os.getpid()),
    }
    return start_process([sys.executable, "-m", "commtax_lab.measure.rank"], folder / LOG.format(rank), environment)


def start_process(command: Sequence[str], log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a process with all its output in a file. It leads a session, so that interrupts reach us alone and we end it."""
    with log.open("wb") as file:
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True)


def _wait(
    processes: list[subprocess.Popen[bytes]], folder: Path, deadline: float, lost_s: float, progress: Progress | None
) -> None:
    """Wait until every rank has ended well, and raise the error of the first that did not. A rank that computes for minutes is
    not lost, one that was suspended is."""
    num_news, looked_s = 0, 0.0
    since: dict[int, float] = {}  # when a rank was first seen stopped
    while True:
        codes, now = [p.poll() for p in processes], time.monotonic()
        if any(codes):
            raise _first_failure(processes, folder)
        if progress:
            while (news := folder / NEWS.format(num_news)).exists():
                progress(take(news))
                num_news += 1
        if all(code == 0 for code in codes):
            return
        if now > deadline:
            raise RankError(codes.index(None), OUT_OF_TIME, "the run took longer than it may")
        if now - looked_s >= LOOK_S:
            stopped = [rank for rank, p in enumerate(processes) if codes[rank] is None and is_stopped(p.pid)]
            looked_s, since = now, {rank: since.get(rank, now) for rank in stopped}
            lost = next((rank for rank, first_s in since.items() if now - first_s > lost_s), None)
            if lost is not None:
                raise RankError(lost, OUT_OF_TIME, f"stopped for more than {lost_s:g} s (--lost-after): somebody suspended it")
        time.sleep(POLL_S)


def is_stopped(pid: int) -> bool:
    """Return whether a child is suspended (SIGSTOP, a debugger), without collecting it."""
    if hasattr(os, "waitid"):
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT) is not None
        return False
    shown = subprocess.run(["ps", "-o", "state=", "-p", str(pid)], capture_output=True, text=True, check=False)  # macOS
    return shown.stdout.strip().startswith("T")


def _first_failure(processes: list[subprocess.Popen[bytes]], folder: Path) -> RankError:
    """Return the error of the rank that failed by itself. Others fail a moment later because their peer is gone."""
    time.sleep(0.1)
    failed = [(rank, code) for rank, p in enumerate(processes) if (code := p.poll())]
    logs = {rank: folder / LOG.format(rank) for rank, _ in failed}
    rank, code = min(failed, key=lambda one: (one[1] > 0, logs[one[0]].stat().st_mtime if one[1] > 0 else 0.0))
    text = logs[rank].read_text(encoding="utf-8", errors="replace")
    lines = [re.sub(r"^\[rank\d+\]:\s?", "", line) for line in text.splitlines()]  # torch's own prefix
    lines = [line for line in lines if line.strip() and not _NOISE.match(line)]
    return RankError(rank, code, "\n".join(lines[-KEPT_LINES:]))


def end(processes: Sequence[subprocess.Popen[bytes]], grace_s: Mapping[signal.Signals, float], ended: EndedBySignal) -> None:
    """End all processes: signal, wait (not once urgent), then kill. Each leads a session, so its children end too."""
    for sign, patience in grace_s.items():
        for p in processes:
            with suppress(ProcessLookupError):
                os.killpg(p.pid, sign)
        until = time.monotonic() + patience
        while time.monotonic() < until and any(p.poll() is None for p in processes) and not ended.urgent:
            time.sleep(POLL_S)
    for p in processes:
        p.wait()


class EndedBySignal:
    """While others run for us, SIGTERM and SIGHUP are an interrupt, so that they are ended and not orphaned.

    Only the first one interrupts: whoever cleans up is not interrupted again, but told that it is ``urgent``.
    """

    def __init__(self) -> None:
        self.came = self.urgent = False
        self.before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def __enter__(self) -> EndedBySignal:
        with suppress(ValueError):  # not the main thread: whoever owns it decides
            for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(sign) is not signal.SIG_IGN:  # nohup, or a shell's background job
                    self.before[sign] = signal.signal(sign, self._interrupt)
        return self

    def __exit__(self, *_error: object) -> None:
        for sign, handler in self.before.items():
            signal.signal(sign, handler)

    def _interrupt(self, *_ignored: object) -> None:
        self.came, self.urgent = True, self.came
        if not self.urgent:
            raise KeyboardInterrupt
