"""What is to be run: one record, from the command line, from torchrun, or from a test."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch

from commtax import catalog
from commtax.question import Question
from commtax.statement import Refusal
from commtax.verbs.settling import ask
from commtax_lab.measure import machine
from commtax_lab.measure.arch import Arch, arch
from commtax_lab.measure.comm import RankGroup, check_impl, wire
from commtax_lab.measure.weights import Checkpoint, RandomWeights, RankWeights, Source, load
from commtax_lab.measure.worker import RankPlace

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
TOLERANCE = {"fp32": 1e-4, "fp16": 2e-2, "bf16": 1e-1}
"""Largest difference of a logit from TP=1's, in standard deviations of the logits: rounding in another order of sums."""


@dataclass(frozen=True, slots=True)
class LiveJob:
    """One question to the live engine."""

    model: str
    tp: int = 2
    random: bool = False
    layers: int = 0  # 0: all
    batch: int = 1
    input_len: int = 128
    output_len: int = 32
    dtype: str = ""  # "": fp32 on CPU ranks, bf16 on CUDA
    device: str = ""  # "": cuda where there is one
    impl: str = ""  # "": nccl on CUDA; CPU ranks take shm, or gloo where shm is not to be had
    emulate_link: str = ""
    slow_rank: str = ""  # RANK:FACTOR
    break_rank: int = -1  # damage this rank's shard on purpose
    repeats: int = 1
    reference: bool = True  # run TP=1 and replicas of it too
    graphs: bool = True
    seed: int = 0
    cluster: str = ""  # for the prediction; "": as many of this machine's chips
    profile: str = ""  # for the prediction
    trace: str = ""  # a folder for each rank's profiler trace of one more run

    def settle(self) -> LiveJob:
        """Fill in defaults that depend on the machine, and refuse every mistake that can be seen beforehand."""
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        if device not in ("cpu", "cuda"):
            raise Refusal(f"device '{device}': cpu or cuda")
        if device == "cuda" and not torch.cuda.is_available():
            raise Refusal("device 'cuda': torch sees no CUDA device here; use --device cpu")
        impl = self.impl or ("nccl" if device == "cuda" else machine.carriers(machine.facts())[-1])
        return replace(self, device=device, dtype=self.dtype or machine.engine_dtype(device), impl=impl)._check()

    def _check(self) -> LiveJob:
        if self.dtype not in DTYPES:
            raise Refusal(f"dtype '{self.dtype}': one of {', '.join(DTYPES)}", "dtype")
        check_impl(self.impl)
        for name in ("tp", "batch", "input_len", "output_len", "repeats"):
            if getattr(self, name) < 1:
                raise Refusal(f"{name}={getattr(self, name)}: a whole number of at least 1 is needed", name)
        if self.output_len < 2:
            why = "the first token is the prefill's; at least 2 are needed to time a decode step"
            raise Refusal(f"output_len=1: {why}", "output_len")
        if self.emulate_link:
            catalog.link(self.emulate_link)
        rank, factor = self.slow
        if not (0 <= rank < self.tp or not self.slow_rank) or not 1 <= factor < 1000:
            form = f"write RANK:FACTOR with a rank below {self.tp} and a factor from 1"
            raise Refusal(f"slow_rank '{self.slow_rank}': {form}", "slow_rank")
        if self.slow_rank and self.device == "cuda":
            raise Refusal("slow_rank: the delay is the host's; it needs --device cpu", "slow_rank")
        if self.break_rank >= self.tp:
            raise Refusal(f"break_rank={self.break_rank}: ranks are 0 to {self.tp - 1}")
        self.plan(self.arch())
        self.source(None)  # headers only: a truncated or missing file is seen here
        return self

    @property
    def slow(self) -> tuple[int, float]:
        if not self.slow_rank:
            return -1, 1.0
        rank, _, factor = self.slow_rank.partition(":")
        try:
            return int(rank), float(factor)
        except ValueError:
            raise Refusal(f"slow_rank '{self.slow_rank}': write RANK:FACTOR, such as 1:2.0", "slow_rank") from None

    def arch(self) -> Arch:
        return arch(self.model, self.layers)

    def plan(self, a: Arch) -> Question:
        """Return the plan as the cost functions take it. Refuse a degree that does not divide the model."""
        place = self.cluster or f"{max(2, self.tp)}x{chip_here() if self.device == 'cuda' else 'cpu'}"
        return ask(a.model, place, tp=self.tp, engine="builtin", dtype=self.dtype).plain()

    @property
    def can_predict(self) -> bool:
        """Whether there are constants to predict with: a GPU's in the catalogue, a profile, or a cluster that was named. A CPU
        that nobody calibrated has none."""
        return bool(self.profile or self.cluster or self.device == "cuda")

    @property
    def captures(self) -> bool:
        """Whether decode steps are replayed from a graph."""
        return self.graphs and self.device == "cuda"

    def source(self, device: torch.device) -> Source:
        """Return where whole tensors come from."""
        if self.random:
            return RandomWeights(self.seed, DTYPES[self.dtype], device)
        return Checkpoint(Path(self.model).expanduser())

    def load(self, a: Arch, where: RankPlace, device: torch.device) -> RankWeights:
        """Load a rank's part of the weights."""
        return load(self.source(device), a, where.rank, where.size, DTYPES[self.dtype], device)

    def group(self, where: RankPlace) -> RankGroup:
        """Return the ranks as this one reaches them. One of them may be slow on purpose."""
        carrier = wire(self.impl, where.rank, where.size, self.device, self.emulate_link) if where.size > 1 else None
        slow_rank, factor = self.slow
        return RankGroup(where.rank, where.size, carrier, factor if slow_rank == where.rank else 1.0)


def chip_here() -> str:
    """Return this machine's GPU in the catalogue, by its name and memory."""
    name, memory = torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).total_memory
    key = machine.nearest_chip(name, memory)
    if not key:
        raise Refusal(f"cluster: {name} is not in the catalogue; name what it is like with --cluster", "cluster")
    return key
