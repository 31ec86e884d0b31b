"""Jobs whose ranks are in several groups, on several hosts, or not all here: hand-counted rows, and words that fit."""

import numpy as np
import pytest

from commtax.runs.traces.accounts import TracedJob
from commtax.runs.traces.causes import microbatches
from commtax.runs.traces.meeting import coinciding_offset
from commtax.runs.traces.profilers import kineto
from commtax.runs.traces.trace_audit import audit_traces
from fault_traces import NCCL
from made_traces import document, event, kernel, launch

H100 = {"name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85017493504, "numSms": 132}
REDUCE, GATHER, SCATTER, MESSAGE = (NCCL[key] for key in ("allreduce", "_allgather_base", "_reduce_scatter_base", "send"))


class Rank:
    """One rank's kernels one after the other, each launched; steps are named."""

    def __init__(self, rank):
        self.rank, self.at, self.events = rank, 1000.0, []

    def ran(self, name, us, stream=7, begin=None, **args):
        begin = self.at if begin is None else begin
        number = len(self.events)
        self.events += [launch(begin - 3, number), kernel(name, begin, us, number, stream, **args)]
        self.at = max(self.at, begin + us)

    def sent(self, name, us, members, nbytes, **where):
        told = {"Collective name": "send" if name == MESSAGE else "allreduce", "dtype": "BFloat16", "Group size": len(members)}
        told |= {"In msg nelems": nbytes // 2, "Out msg nelems": nbytes // 2}
        told |= {"Process Group Name": str(members), "Process Group Ranks": str(list(members))}
        self.ran(name, us, **told, **where)

    def shown(self, told, name, us, members, **where):
        """A collective of 4 kB, with or without what PyTorch tells of it."""
        self.sent(name, us, members, 4096, **where) if told else self.ran(name, us, **where)

    def step(self, number, begin):
        self.events.append(event("user_annotation", f"ProfilerStep#{number}", begin - 4, self.at - begin - 1))

    def trace(self, world, devices=0):
        listed = [{"id": i, **H100} for i in range(devices)]
        head = {"distributedInfo": {"backend": "nccl", "rank": self.rank, "world_size": world}}
        return kineto.parse(document(self.events, self.rank, world, **head, **({"deviceProperties": listed} if devices else {})))


def two_by_two(devices=4, inside_us=60.0, across_us=300.0):
    """Four ranks: pairs that meet thrice a step, and pairs across them that meet once."""
    ranks = [Rank(r) for r in range(4)]
    for r in ranks:
        for step in range(4):
            begin = r.at
            for _ in range(3):
                r.ran("gemm", 200.0)
                r.sent(REDUCE, inside_us, (0, 1) if r.rank < 2 else (2, 3), 8 << 20)
            r.sent(REDUCE, across_us, (r.rank % 2, r.rank % 2 + 2), 64 << 20)
            r.step(step, begin)
    return audit_traces([r.trace(4, devices) for r in ranks], None, "abcd")


def test_rows_of_collectives_add_up_to_what_one_rank_has():
    rows = two_by_two().collectives
    assert [(r.group, r.ranks, r.count) for r in sorted(rows, key=lambda r: r.count)] == [
        ("(0, 2) and 1 more", 2, 4),
        ("(0, 1) and 1 more", 2, 12),
    ]
    assert sum(r.nbytes for r in rows) == 4 * (3 * (8 << 20) + (64 << 20))
    assert sum(r.wire_s for r in rows) == pytest.approx(4 * (3 * 60e-6 + 300e-6))


def test_one_collective_is_of_those_that_the_first_rank_is_in():
    (found,) = [f for f in two_by_two().findings if f.code == "collective"]
    assert found.measured == pytest.approx(60e-6)  # three of its four


@pytest.mark.parametrize(("devices", "told"), [(4, True), (2, False)])
def test_only_groups_inside_a_host_are_held_against_its_links(devices, told):
    """64 MiB in 3 ms are a twentieth of NVLink, and may be a good network; what the link costs is summed message by message."""
    (link,) = [c for c in two_by_two(devices, 600.0, 3000.0).causes if c.code == "link"]
    usual = 0.8 * 450e9
    lost = 3 * (600e-6 - (8 << 20) / usual) + told * (3000e-6 - (64 << 20) / usual)
    assert link.cost_s == pytest.approx(lost, rel=1e-6)


def test_waiting_for_ranks_that_are_not_here_is_said():
    ranks = [Rank(r) for r in range(2)]
    for r in ranks:
        for step in range(4):
            begin = r.at
            r.ran("gemm", 100.0)
            r.sent(REDUCE, 50.0, tuple(range(8)), 1 << 20)
            r.step(step, begin)
    section = audit_traces([r.trace(8) for r in ranks], None, "ab")
    (found,) = [c for c in section.causes if c.code == "exposed"]
    assert found.said.endswith("; waiting for the 6 ranks that are not here included")
    assert "none of it hides" in found.said


def test_gathers_that_begin_where_compute_ends_come_too_late():
    ranks = [Rank(r) for r in range(2)]
    for r in ranks:
        for step in range(4):
            begin = r.at
            for _ in range(3):
                r.ran(GATHER, 60.0, stream=20)
                r.ran("gemm", 200.0)
            r.ran(SCATTER, 40.0, stream=20)
            r.events.append(event("user_annotation", "Optimizer.step#AdamW.step", r.at - 9, 1))
            r.step(step, begin)
    section = audit_traces([r.trace(2) for r in ranks], None, "ab")
    (found,) = [c for c in section.causes if c.code == "prefetch"]
    assert found.said == "3 of 3 all-gathers per step begin only when compute waits for them"
    assert found.cost_s == pytest.approx(180e-6)


@pytest.mark.parametrize(("counts", "found"), [((11, 21, 19, 9), 8), ((16, 32, 32, 16), 8), ((12, 24, 24, 12), 6)])
def test_microbatches_are_counted_where_both_ways_share_a_kernel(counts, found):
    """1F1B of 8 microbatches in 4 stages: m + 3 kernels on the first stage and m + 1 on the last, or one each way: 2 m."""
    traces = []
    for rank, count in enumerate(counts):
        r = Rank(rank)
        for step in range(3):
            begin = r.at
            for _ in range(count):
                r.ran("gemm", 30.0)
                r.ran(MESSAGE, 5.0, stream=20)
            r.events.append(event("user_annotation", "Optimizer.step#AdamW.step", r.at - 9, 1))
            r.step(step, begin)
        traces.append(r.trace(4))
    assert microbatches(TracedJob.of(traces), [[0], [1], [2], [3]]) == found


def test_short_pauses_are_launches_though_a_step_has_few_kernels():
    """Nobody named steps, and what repeats is a layer of three kernels."""
    r = Rank(0)
    for _ in range(60):
        for name, us in (("triton_tem_fused_mm_0", 50.0), ("triton_red_fused_norm_1", 12.0), ("triton_poi_fused_add_2", 5.0)):
            r.ran(name, us)
            r.at += 3
    section = audit_traces([r.trace(1)], None, "a")
    (found,) = section.causes
    assert found.code == "launch-bound"
    assert found.share == pytest.approx(9 / 76, abs=0.01)


@pytest.mark.parametrize(("told", "messages"), [(True, 40), (False, 80 / 3)])
def test_messages_between_stages_of_several_ranks_are_not_matched_inside_a_stage(told, messages):
    """Three stages of two ranks: both of a stage hand on at one moment, and those of the next have waited; the wire is 12 us."""
    ranks = [Rank(r) for r in range(6)]
    for r in ranks:
        stage, lane = r.rank // 2, r.rank % 2
        own, before, behind = (2 * stage, 2 * stage + 1), (r.rank - 2, r.rank), (r.rank, r.rank + 2)
        for step in range(5):
            begin = 1000.0 + step * 480.0
            for k in range(4):
                less = [0, 0, (3 * k + step) % 7, (3 * k + step) % 7 + (2 * k + step) % 5]  # so much earlier than usual
                at = begin + k * 120.0 + 102 * stage
                if stage:
                    r.shown(told, MESSAGE, 40.0 - less[stage] - lane, before, stream=20, begin=at - 20 + lane)
                first = at + 20 - less[stage] if stage else at - 10  # nobody hands anything to the first stage: it is always busy
                r.ran("gemm", at + 100 - less[stage + 1] - first, begin=first)
                r.shown(told, REDUCE, 10.0, own, begin=at + 100 - less[stage + 1])
                if stage < 2:
                    r.shown(told, MESSAGE, 12.0, behind, stream=21, begin=at + 110 - less[stage + 1])
            r.events.append(event("user_annotation", f"ProfilerStep#{step}", begin + 82 * stage - 4, 480.0))
    section = audit_traces([r.trace(6) for r in ranks], None, "abcdef")
    assert section.culprit is None
    assert sum(r.wire_s for r in section.collectives if r.op == "send-recv") == pytest.approx(messages * 12e-6)


def test_short_messages_close_together_do_not_move_a_clock():
    """Each stage hands on 12 us after it was handed something: nearly as many ends are 12 us apart as are together."""
    handed = np.cumsum(np.full(48, 400e-6) + np.arange(48) % 5 * 1e-6)
    ours, theirs = np.sort(np.append(handed, handed + 12e-6)), np.sort(np.append(handed + 12e-6, handed + 24e-6))
    assert coinciding_offset(ours, theirs) == pytest.approx(0.0, abs=1e-9)


def test_a_collective_of_all_that_nobody_told_is_no_slow_link():
    """Two pairs of ranks, and at the end of a step all four, on one stream and without groups: the first pair has waited."""
    ranks = [Rank(r) for r in range(4)]
    for r in ranks:
        for step in range(6):
            begin, slower = 1000.0 + step * 1000.0, 20.0 * (r.rank > 1)
            for k in range(6):
                less = (3 * k + step * (1 + r.rank // 2)) % 7
                r.ran("gemm", 100.0 + slower - less, begin=begin + k * (110.0 + slower))
                r.ran(REDUCE, 10.0, begin=begin + k * (110.0 + slower) + 100.0 + slower - less)
            r.ran(REDUCE, begin + 800.0 - r.at, begin=r.at)
            r.step(step, begin)
    section = audit_traces([r.trace(4) for r in ranks], None, "abcd")
    assert section.culprit is None or section.culprit.kind != "slow link"
    (row,) = section.collectives
    last = 800.0 - 6 * 130.0  # of the slower pair, but for what its last layer was shorter
    assert row.count == 42
    assert row.wire_s == pytest.approx(1e-6 * (36 * 10 + sum(last + (15 + 2 * step) % 7 for step in range(6))), rel=0.01)
