"""What this machine is, and what follows from it: how ranks meet in memory, and in which type they compute.

Facts are read once and are plain data; choices are pure functions of them, so that any machine's can be tested on any other.
"""

import math
import os
import platform
import secrets
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from commtax import catalog
from commtax_lab.measure.launch import SEMAPHORE, owner

CPU_CARRIERS = ("gloo", "shm")
CPUINFO = Path("/proc/cpuinfo")
MEMINFO, CGROUPS, OWN_CGROUPS = Path("/proc/meminfo"), Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
BF16 = {"avx512_bf16", "amx_bf16", "bf16", "FEAT_BF16"}
"""Instructions that multiply bf16: x86-64's two, ARM's on Linux, and Apple's name for it."""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """A machine's facts. ``no_semaphores`` says why processes cannot share POSIX semaphores, and is empty where they can."""

    system: str
    architecture: str
    features: frozenset[str]
    no_semaphores: str = ""

    @property
    def multiplies_bf16(self) -> bool:
        return bool(self.features & BF16)


@cache
def facts() -> MachineFacts:
    """Return this machine's facts."""
    apple, written = platform.system() == "Darwin", CPUINFO.read_text(errors="replace") if CPUINFO.exists() else ""
    features = apple_features(tool_output("sysctl", "hw.optional.arm")) if apple else linux_features(written)
    return MachineFacts(platform.system(), platform.machine().lower(), features, semaphore_fault())


def cores() -> list[int]:
    """Return the cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def cores_per_rank(ranks: int) -> int:
    """Return the cores of a rank where ``ranks`` divide the machine."""
    return max(1, len(cores()) // ranks)


def core_words(share: int) -> str:
    """Describe what CPU ranks run on."""
    return f"{os.cpu_count()} CPU cores, {share} per rank"


def free_bytes() -> float:
    """Return the bytes that this process may still take: what the system can give, and no more than its cgroups leave."""
    available = (
        meminfo_available(MEMINFO.read_text()) if MEMINFO.exists() else os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )
    return min(available, free_in_cgroups(OWN_CGROUPS.read_text(), CGROUPS) if OWN_CGROUPS.exists() else math.inf)


def meminfo_available(text: str) -> float:
    """Return what new programs can have without swapping, by ``/proc/meminfo``.

    >>> meminfo_available("MemTotal: 16 kB\\nMemAvailable: 8 kB\\n")
    8192.0
    """
    rows = (line.split() for line in text.splitlines())
    return next(float(row[1]) * 1024 for row in rows if row and row[0] == "MemAvailable:")


def free_in_cgroups(groups: str, root: Path) -> float:
    """Return bytes below the lowest limit of this process's cgroups (version 1 or 2), infinite where none has one.

    A container sees its own group at the root, under another path than ``/proc/self/cgroup`` names.
    """
    rows = [line.split(":", 2) for line in groups.splitlines() if line.count(":") >= 2]
    homes = [(root / ("" if not kinds else "memory"), path) for _, kinds, path in rows if not kinds or "memory" in kinds.split(",")]
    folders = [
        home / "/".join(parts[:n]) for home, path in homes for parts in [path.strip("/").split("/")] for n in range(len(parts) + 1)
    ]
    return min((_free_in_cgroup(folder) for folder in dict.fromkeys(folders)), default=math.inf)


def _free_in_cgroup(folder: Path) -> float:
    """Return a group's limit less its use, not counting cached files that can go at once."""
    for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        with suppress(OSError, ValueError):
            most, used = float((folder / limit).read_text()), float((folder / usage).read_text())  # without one: "max"
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            return max(0.0, most - used + float(stat.get("total_inactive_file", stat.get("inactive_file", 0))))
    return math.inf


def pin_to_cores(chosen: Sequence[int]) -> None:
    """Run this process on these cores only, where the system lets one choose."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, chosen)


def tool_output(*command: str, timeout_s: float = 20.0) -> str:
    """Return the output of a program of this machine, or nothing where it is missing, fails or takes too long."""
    if not shutil.which(command[0]):
        return ""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""


def nearest_chip(name: str, memory_bytes: float) -> str:
    """Return the chip whose words are in a GPU's name, the nearest by memory of several, or ""."""
    spelled = name.lower().replace("-", " ").split()
    scored = [(sum(part in spelled for part in key.split("-")), key) for key in catalog.keys("chips")]
    best = max(score for score, _ in scored)
    near = [catalog.chip(key) for score, key in scored if score == best > 0]
    return min(near, key=lambda c: abs(c.visible_bytes - memory_bytes)).key if near else ""


def carriers(f: MachineFacts) -> tuple[str, ...]:
    """Return the carriers for CPU ranks of one host, the fastest last: sockets, and shared memory if semaphores order it.

    The order of stores never decides: semaphores synchronise memory on every architecture (POSIX, Memory Synchronization).
    """
    return ("gloo",) if f.no_semaphores else CPU_CARRIERS


def carrier_note(f: MachineFacts) -> str:
    """Say why the faster wire is missing, for readers of a result, or "" where it is not."""
    return f"shared memory is not to be had here ({f.no_semaphores}): ranks use gloo" if f.no_semaphores else ""


def engine_dtype(device: str) -> str:
    """Return the small engine's type: on CPUs fp32, which every CPU multiplies in hardware and which shows wrong shards best."""
    return "bf16" if device == "cuda" else "fp32"


def served_dtype(f: MachineFacts, on_cpu: bool) -> str:
    """Return the type to start a serving engine in: bf16, except on CPUs without its instructions (slow, or SIGILL)."""
    return "fp32" if on_cpu and not f.multiplies_bf16 else "bf16"


def bf16_note(f: MachineFacts, dtype: str) -> str:
    """Say what to expect of bf16 where the CPU does not have it."""
    if dtype != "bf16" or f.multiplies_bf16:
        return ""
    return f"this CPU ({f.architecture}) has no bf16 instructions: products in bf16 are emulated, far slower than fp32"


def semaphore_fault() -> str:
    """Return why a named POSIX semaphore cannot be made here, or "" where it can."""
    try:
        from _multiprocessing import SemLock, sem_unlink

        name = f"/{SEMAPHORE}{owner()}-{secrets.token_hex(3)}-0"
        SemLock(1, 0, 1, name, False)
        sem_unlink(name)
    except (ImportError, OSError, ValueError) as error:
        return f"no POSIX semaphores: {error}"
    return ""


def linux_features(text: str) -> frozenset[str]:
    """Read ``/proc/cpuinfo``, whose first processor stands for all: x86-64 writes flags, ARM writes Features.

    >>> sorted(linux_features("processor : 0\\nFeatures\\t: fp asimd bf16\\n"))
    ['asimd', 'bf16', 'fp']
    """
    for line in text.splitlines():
        name, _, features = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(features.split())
    return frozenset()


def apple_features(text: str) -> frozenset[str]:
    """Read the features that are 1 in ``sysctl hw.optional.arm``.

    >>> sorted(apple_features("hw.optional.arm.FEAT_BF16: 1\\nhw.optional.arm.FEAT_SME: 0"))
    ['FEAT_BF16']
    """
    rows = (line.partition(": ") for line in text.splitlines())
    return frozenset(name.rpartition(".")[2] for name, _, value in rows if value.strip() == "1")
