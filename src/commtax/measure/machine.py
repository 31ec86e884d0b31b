"""What this machine is, and what follows from it: how ranks meet in memory, and in which type they compute.

Facts are read once and are plain data; choices are pure functions of them, so that any machine's can be tested on any other.
"""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from commtax.measure.litter import SEMAPHORE
from commtax.statement import Refusal

CPUINFO = Path("/proc/cpuinfo")
BF16 = {"avx512_bf16", "amx_bf16", "bf16", "FEAT_BF16"}
"""Instructions that multiply bf16: x86-64's two, ARM's on Linux, and Apple's name for it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """One machine. ``no_semaphores`` says why processes cannot share POSIX semaphores; empty where they can."""

    system: str
    architecture: str
    features: frozenset[str]
    no_semaphores: str = ""

    @property
    def multiplies_bf16(self) -> bool:
        return bool(self.features & BF16)


@cache
def facts() -> Facts:
    """This machine's."""
    return Facts(platform.system(), platform.machine().lower(), _features(platform.system()), semaphores_missing())


def cores() -> list[int]:
    """The cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def share(ranks: int) -> int:
    """Cores of a rank where ``ranks`` divide the machine."""
    return max(1, len(cores()) // ranks)


def carrier(f: Facts) -> str:
    """What carries tensors among CPU ranks of one host: shared memory where semaphores order it, else sockets.

    The order of stores never decides: semaphores synchronise memory on every architecture (POSIX, Memory Synchronization).
    """
    return "gloo" if f.no_semaphores else "shm"


def carriers(f: Facts) -> tuple[str, ...]:
    """All that CPU ranks have here."""
    return ("gloo",) if f.no_semaphores else ("gloo", "shm")


def check_carrier(impl: str) -> None:
    """Refuse shared memory where it cannot be had."""
    missing = facts().no_semaphores
    if impl == "shm" and missing:
        raise Refusal(f"impl 'shm': {missing}; use gloo")


def carrier_note(f: Facts) -> str:
    """Why the faster wire is not there, for whoever reads a result; empty where it is."""
    return f"shared memory is not to be had here ({f.no_semaphores}): ranks use gloo" if f.no_semaphores else ""


def own_dtype(device: str) -> str:
    """The small engine's type: on CPUs fp32, which every CPU multiplies in hardware and which shows a wrong shard best."""
    return "bf16" if device == "cuda" else "fp32"


def served_dtype(f: Facts, on_cpu: bool) -> str:
    """The type to start a serving engine in: bf16, except on CPUs without its instructions (slow at best, SIGILL at worst)."""
    return "fp32" if on_cpu and not f.multiplies_bf16 else "bf16"


def bf16_note(f: Facts, dtype: str) -> str:
    """What to expect of bf16 where the CPU does not have it."""
    if dtype != "bf16" or f.multiplies_bf16:
        return ""
    return f"this CPU ({f.architecture}) has no bf16 instructions: products in bf16 are emulated, far slower than fp32"


def semaphores_missing() -> str:
    """Why a named POSIX semaphore cannot be made here; empty where it can."""
    try:
        from _multiprocessing import SemLock, sem_unlink

        name = f"/{SEMAPHORE}{secrets.token_hex(4)}-0"
        SemLock(1, 0, 1, name, False)
        sem_unlink(name)
    except (ImportError, OSError, ValueError) as error:
        return f"no POSIX semaphores: {error}"
    return ""


def _features(system: str) -> frozenset[str]:
    if system == "Darwin":
        return apple_features(_sysctl())
    return linux_features(CPUINFO.read_text(errors="replace")) if CPUINFO.exists() else frozenset()


def linux_features(text: str) -> frozenset[str]:
    """``/proc/cpuinfo``: x86-64 writes flags, ARM writes Features; the first processor stands for all.

    >>> sorted(linux_features("processor : 0\\nFeatures\\t: fp asimd bf16\\n"))
    ['asimd', 'bf16', 'fp']
    """
    for line in text.splitlines():
        name, _, words = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(words.split())
    return frozenset()


def apple_features(text: str) -> frozenset[str]:
    """``sysctl hw.optional.arm``: the features that are 1.

    >>> sorted(apple_features("hw.optional.arm.FEAT_BF16: 1\\nhw.optional.arm.FEAT_SME: 0"))
    ['FEAT_BF16']
    """
    rows = (line.partition(": ") for line in text.splitlines())
    return frozenset(name.rpartition(".")[2] for name, _, value in rows if value.strip() == "1")


def _sysctl() -> str:
    tool = shutil.which("sysctl")
    if not tool:
        return ""
    try:
        return subprocess.run([tool, "hw.optional.arm"], capture_output=True, text=True, check=False, timeout=10).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
