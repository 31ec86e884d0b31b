"""Start one process a rank on this machine, watch them, and end them all together.

A rank that dies takes the run down within a second; its number and the end of its traceback become the error. Nothing is
left behind: ranks end with the launcher, whether it returns, fails, is interrupted or is killed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

POLL_S = 0.02
GRACE_S = 1.0
KEPT_LINES = 12
TARGET, PAYLOAD, FOLDER, PARENT = "COMMTAX_TARGET", "COMMTAX_PAYLOAD", "COMMTAX_FOLDER", "COMMTAX_PARENT"


_NOISE = re.compile(r"\[[WIE]\d+ |.*Warning: ")  # torch's log lines are not part of a traceback


class RankError(RuntimeError):
    """A rank ended before its time. ``rank`` says which, ``trace`` holds the end of what it wrote."""

    def __init__(self, rank: int, code: int, trace: str) -> None:
        self.rank, self.code, self.trace = rank, code, trace
        ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        super().__init__(f"rank {rank} {ended}" + (f":\n{trace}" if trace else ""))

    @property
    def reason(self) -> str:
        """The last line of the traceback: the exception itself."""
        lines = [line for line in self.trace.splitlines() if line.strip()]
        return lines[-1].strip() if lines else str(self)


def run(
    target: str,
    payload: Mapping[str, Any],
    ranks: int,
    *,
    timeout_s: float = 3600.0,
    progress: Callable[[Mapping[str, Any]], None] | None = None,
    watch: Callable[[list[int]], None] | None = None,
    path: str = "",
) -> Any:
    """Call ``module:function`` with ``payload`` in ``ranks`` processes and return what rank 0 returned.

    ``progress`` receives what rank 0 tells with ``report`` while it works; ``watch`` the process ids once they run;
    ``path`` is put before the ranks' module search path.
    """
    with tempfile.TemporaryDirectory(prefix="commtax-") as name:
        folder = Path(name)
        (folder / "payload.json").write_text(json.dumps(dict(payload)), encoding="utf-8")
        with _terminated_as_interrupt():
            processes: list[subprocess.Popen[bytes]] = []
            try:
                processes += [_start(target, rank, ranks, folder, path) for rank in range(ranks)]
                if watch:
                    watch([p.pid for p in processes])
                _wait(processes, folder, time.monotonic() + timeout_s, progress)
            finally:
                _end(processes)
        return json.loads((folder / "result.json").read_text(encoding="utf-8"))


def _start(target: str, rank: int, ranks: int, folder: Path, path: str) -> subprocess.Popen[bytes]:
    """One rank, with torchrun's own variables; its standard error is kept for the error message."""
    search = os.pathsep.join(p for p in (path, os.environ.get("PYTHONPATH", "")) if p)
    environment = {
        "OMP_NUM_THREADS": "1",  # before torch loads; the worker then takes its share of the cores
        "GLOO_SOCKET_IFNAME": "lo",  # all ranks are here, and the host's name may not resolve
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "PYTHONPATH": search,
        "PYTHONUNBUFFERED": "1",
        TARGET: target,
        PAYLOAD: str(folder / "payload.json"),
        FOLDER: str(folder),
        PARENT: str(os.getpid()),
    }
    with (folder / f"rank-{rank}.log").open("wb") as log:
        command = [sys.executable, "-m", "commtax.measure.worker"]
        # A session of its own: an interrupt reaches the launcher alone, which then ends the ranks in order.
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _wait(processes: list[subprocess.Popen[bytes]], folder: Path, deadline: float, progress: Any) -> None:
    """Until every rank has ended well; the first that did not is the error."""
    told = 0
    while True:
        codes = [p.poll() for p in processes]
        bad = [rank for rank, code in enumerate(codes) if code]
        if bad:
            raise _first_failure(processes, folder)
        if progress:
            told = _tell(folder / "progress.jsonl", told, progress)
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            raise RankError(codes.index(None), 124, "the run took longer than it may")
        time.sleep(POLL_S)


def _first_failure(processes: list[subprocess.Popen[bytes]], folder: Path) -> RankError:
    """The rank that failed by itself: others fail a moment later because their peer is gone."""
    time.sleep(0.1)
    failed = [(rank, code) for rank, p in enumerate(processes) if (code := p.poll())]
    written = {rank: (folder / f"rank-{rank}.log") for rank, _ in failed}

    def order(found: tuple[int, int]) -> tuple[bool, float]:
        rank, code = found
        return (code > 0, written[rank].stat().st_mtime if code > 0 else 0.0)

    rank, code = min(failed, key=order)
    text = written[rank].read_text(encoding="utf-8", errors="replace")
    lines = [re.sub(r"^\[rank\d+\]:\s?", "", line) for line in text.splitlines()]  # torch's own prefix
    lines = [line for line in lines if line.strip() and not _NOISE.match(line)]
    return RankError(rank, code, "\n".join(lines[-KEPT_LINES:]))


def _tell(file: Path, told: int, progress: Callable[[Mapping[str, Any]], None]) -> int:
    if not file.exists():
        return told
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    whole = [line for line in lines if line.endswith("\n")]
    for line in whole[told:]:
        progress(json.loads(line))
    return len(whole)


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    """No rank outlives the run: ask, wait a second, insist. Each leads its own session, so its children go too."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for p in processes:
            if p.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(p.pid, sign)
        until = time.monotonic() + GRACE_S
        while time.monotonic() < until and any(p.poll() is None for p in processes):
            time.sleep(POLL_S)
    for p in processes:
        p.wait()


class _terminated_as_interrupt:  # noqa: N801
    """While ranks run, SIGTERM to the launcher is an interrupt, so that they are ended and not orphaned."""

    def __enter__(self) -> None:
        self.before: Any = None
        with suppress(ValueError):  # not the main thread: whoever owns it decides
            self.before = signal.signal(signal.SIGTERM, self._raise)

    def __exit__(self, *_error: object) -> None:
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)

    @staticmethod
    def _raise(*_ignored: object) -> None:
        raise KeyboardInterrupt
