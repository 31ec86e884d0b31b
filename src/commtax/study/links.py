"""What went over the links, by the counters of the machine: NVLink (nvidia-smi), InfiniBand (sysfs), network interfaces (/proc)."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from commtax.measure.machine import tool

WORD_BYTES = 4  # InfiniBand's port counters count 32-bit words
SYS_INFINIBAND = Path("/sys/class/infiniband")
PROC_NET = Path("/proc/net/dev")
_NVLINK = re.compile(r"Link (\d+): Data (Tx|Rx): (\d+) KiB")
Counters = dict[str, float]


def snapshot() -> Counters:
    """All counters that there are, in bytes since the machine started; none is no error."""
    return {**nvlink(tool("nvidia-smi", "nvlink", "-gt", "d")), **infiniband(SYS_INFINIBAND), **interfaces(PROC_NET)}


def moved(before: Counters, after: Counters) -> Counters:
    """Bytes between two snapshots, of counters that moved."""
    return {name: after[name] - before.get(name, 0.0) for name in after if after[name] > before.get(name, 0.0)}


def nvlink(text: str) -> Counters:
    """``nvidia-smi nvlink -gt d``: data of each GPU, its links together.

    >>> nvlink("GPU 0: NVIDIA H100\\n\\t Link 0: Data Tx: 2 KiB\\n\\t Link 1: Data Tx: 3 KiB")
    {'NVLink of GPU 0 sent': 5120.0}
    """
    counters: Counters = {}
    gpu = "0"
    for line in text.splitlines():
        if head := re.match(r"GPU (\d+):", line):
            gpu = head[1]
        if row := _NVLINK.search(line):
            name = f"NVLink of GPU {gpu} {'sent' if row[2] == 'Tx' else 'received'}"
            counters[name] = counters.get(name, 0.0) + float(row[3]) * 1024
    return counters


def infiniband(root: Path) -> Counters:
    """Port counters of every adapter."""
    counters: Counters = {}
    for name, word in (("port_xmit_data", "sent"), ("port_rcv_data", "received")):
        for file in sorted(root.glob(f"*/ports/*/counters/{name}")):
            port = f"{file.parts[-5]} port {file.parts[-3]} {word}"
            with suppress(OSError, ValueError):
                counters[port] = float(file.read_text()) * WORD_BYTES
    return counters


def interfaces(file: Path) -> Counters:
    """Bytes of every network interface, loopback included (ranks that use sockets on one host go through it)."""
    counters: Counters = {}
    for line in file.read_text().splitlines()[2:] if file.exists() else ():
        name, _, numbers = line.partition(":")
        columns = numbers.split()
        if len(columns) >= 9:
            counters[f"{name.strip()} received"], counters[f"{name.strip()} sent"] = float(columns[0]), float(columns[8])
    return counters
