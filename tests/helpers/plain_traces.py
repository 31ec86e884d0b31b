"""Faults in traces as somebody else would make them: few facts, often no launches, few steps, one kernel for all of compute.

``fault_traces`` makes jobs as frameworks run them; here a step is compute, a collective, and again, or a microbatch handed on, and
the times are written down. What a reader expects of a profiler beyond that is missing: an answer may not depend on it.
"""

import random

from fault_traces import NCCL, Case, x

COLLECTIVES, PIPELINES = ("slow rank", "late rank", "slow link", "lost overlap"), ("starved stage",)


class Sheet:
    """The events of all ranks, with or without launches and facts, as chance has it."""

    def __init__(self, rng):
        self.rng, self.ranks, self.steps = rng, rng.choice([2, 4, 8]), rng.choice([6, 8, 12, 20])
        self.jitter, self.launched, self.told = rng.choice([0, 0.01, 0.03]), rng.random() < 0.5, rng.random() < 0.5
        self.compute_us, self.who = rng.uniform(200, 2000), rng.randrange(self.ranks)
        self.events, self.begins = [[] for _ in range(self.ranks)], []

    def add(self, rank, name, at, us, stream, op="", others=()):
        args = {"device": rank, "stream": stream, "correlation": len(self.events[rank])}
        if op and self.told:
            args |= {"Collective name": op, "In msg nelems": 1 << 22, "Out msg nelems": 1 << 22, "dtype": "BFloat16"}
            args |= {"Group size": len(others), "Process Group Name": str(len(others)), "Process Group Ranks": str(list(others))}
        if self.launched:
            asked = max(at - 20, self.begins[-1] + 1)
            self.events[rank].append(x("cuda_runtime", "cudaLaunchKernel", asked, 1, 1, correlation=args["correlation"]))
        self.events[rank].append(x("kernel", name, at, us, stream, **args))

    def length(self, us):
        return us * max(0.3, 1 + self.rng.gauss(0, self.jitter))

    def named(self, step, until):
        begin = self.begins[-1]
        for rank, events in enumerate(self.events):
            events.append(x("user_annotation", f"ProfilerStep#{step}", begin, until[rank] - begin, 1))


def collectives(rng, fault):
    """Layers of compute and an all-reduce behind each, which the next layer waits for or not."""
    sheet, layers, size = Sheet(rng), rng.choice([2, 4, 8]), rng.uniform(0.3, 1.5)
    ranks, since = range(sheet.ranks), _since(rng, sheet.steps, fault in ("slow link", "lost overlap"))
    wire_us, gaps = sheet.compute_us * rng.uniform(0.2, 0.6), rng.random() < 0.5
    hides = fault == "lost overlap" or (fault is None and rng.random() < 0.3)
    free, sent, named = [0.0] * sheet.ranks, [0.0] * sheet.ranks, rng.random() < 0.8
    for step in range(sheet.steps):
        on, begin = step >= since and fault, max(*free, *sent) + 5
        sheet.begins.append(begin - 2)
        free, sent = [begin] * sheet.ranks, [begin] * sheet.ranks
        for layer in range(layers):
            for r in ranks:
                at_fault = on and r == sheet.who
                if at_fault and fault == "late rank" and (gaps or not layer):
                    free[r] += sheet.compute_us * size * (1 if gaps else layers)
                us = sheet.length(sheet.compute_us) * (1 + size if at_fault and fault == "slow rank" else 1)
                sheet.add(r, "gemm", free[r], us, 7)
                free[r] += us
            came = [max(free[r], sent[r]) for r in ranks]
            end = max(came) + sheet.length(wire_us) * (1 + 2 * size if on and fault == "slow link" else 1)
            for r in ranks:
                sheet.add(r, NCCL["allreduce"], came[r], end - came[r], 20, "allreduce", ranks)
            sent = [end] * sheet.ranks
            free = free if hides and not (on and fault == "lost overlap") else [end] * sheet.ranks
        if named:
            sheet.named(step, [max(f, s) for f, s in zip(free, sent, strict=True)])
    return sheet, since, sheet.who if fault in ("slow rank", "late rank") else None


def pipeline(rng, fault):
    """Microbatches from rank to rank, and back in half of the jobs; receives wait on the device, or begin when data are there. From
    some step on one rank's input is late: it comes late, it is taken late, or the rank before hands it over late."""
    sheet, micro, how = Sheet(rng), rng.choice([1, 2, 4, 8]), rng.choice(["comes", "taken", "handed"])
    since, both, blocks = _since(rng, sheet.steps, True), rng.random() < 0.5, rng.random() < 0.5
    who, wire_us, free = rng.randrange(1, sheet.ranks), sheet.compute_us * rng.uniform(0.02, 0.1), [0.0] * sheet.ranks
    late_us = sheet.compute_us * rng.uniform(0.1, 0.4) * (micro + sheet.ranks - 1) * (3 if both else 1)
    for step in range(sheet.steps):
        on, begin = step >= since and fault, max(free) + 10
        sheet.begins.append(begin - 2)
        free = [begin] * sheet.ranks
        for back in (False, True)[: 1 + both]:
            order = range(sheet.ranks)[:: -1 if back else 1]
            done = {}
            for _ in range(micro):
                for feeder, r in zip([None, *order], order, strict=False):
                    starved = on and not back and r == who
                    if feeder is not None:
                        ready = done[feeder] + (late_us if starved and how == "comes" else 0)
                        began = free[r] if blocks else max(free[r], ready)
                        end = max(began, ready) + wire_us
                        sheet.add(r, NCCL["recv"], began, end - began, 20, "recv", (feeder, r))
                        free[r] = end + (late_us if starved and how == "taken" else 0)
                    us = sheet.length(sheet.compute_us) * (1 + back)
                    sheet.add(r, "backward" if back else "forward", free[r], us, 7)
                    free[r] += us + (late_us if on and not back and r == who - 1 and how == "handed" else 0)
                    done[r] = free[r]
                    if r != order[-1]:
                        sheet.add(r, NCCL["send"], free[r], wire_us, 21, "send", (r, r + 1))
        free = [f + wire_us for f in free]
        sheet.named(step, free)
    return sheet, since, who


def _since(rng, steps, later):
    return rng.randint(2, steps - 3) if later or rng.random() < 0.5 else 0


def case(seed, fault=None, skew_ms=0.0):
    """One random case."""
    rng = random.Random(f"{seed} {fault} {skew_ms}")
    piped = fault in PIPELINES or (fault is None and rng.random() < 0.4)
    sheet, since, who = (pipeline if piped else collectives)(rng, fault)
    documents = []
    for rank, events in enumerate(sheet.events):
        skew = rng.uniform(-skew_ms, skew_ms) * 1e3 + 1e6
        moved = [{**e, "ts": round(e["ts"] + skew, 3)} for e in events]
        info = {"backend": "nccl", "rank": rank, "world_size": sheet.ranks}
        documents.append({"schemaVersion": 1, "distributedInfo": info, "traceEvents": moved})
    long = (sheet.begins[-1] - sheet.begins[0]) / (sheet.steps - 1)
    says = {"ranks": sheet.ranks, "steps": sheet.steps, "since": since, "jitter": sheet.jitter, "launched": sheet.launched}
    first = sheet.begins[since] - sheet.begins[0]
    return Case(documents, fault, (who,), first * 1e-6, long * 1e-6, "pp" if piped else "tp", says)
