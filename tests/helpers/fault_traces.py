"""Jobs of several ranks made by physics, with a fault put in or not, as Kineto writes them.

A rank has a compute stream and communication streams. A collective begins on a rank when it is issued and its stream is free, and
ends on all its ranks at one moment: when the last has begun, plus the wire. Nothing here knows how faults are looked for.
"""

import random
from collections import deque
from dataclasses import dataclass, field

NCCL = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
    "recv": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
KINDS = ("slow rank", "late rank", "slow link", "starved stage", "lost overlap")
JOBS = {
    "slow rank": ("tp", "tp-stream", "ddp", "fsdp", "tp-dp", "pp"),
    "late rank": ("tp", "tp-stream", "ddp", "fsdp", "tp-dp"),
    "slow link": ("tp", "tp-stream", "ddp", "fsdp", "tp-dp", "pp"),
    "starved stage": ("pp",),
    "lost overlap": ("ddp", "fsdp"),
}


@dataclass
class Op:
    """What a rank does next: compute | idle | call | wait."""

    kind: str
    name: str = ""
    us: float = 0.0
    group: tuple = ()
    lane: int = 7
    nbytes: int = 0
    handle: int = -1
    buffered: bool = False  # a send that leaves before its receiver is there


@dataclass
class Case:
    """What was made: the documents of all ranks, and what is wrong with them (None: nothing)."""

    documents: list
    kind: str | None
    ranks: tuple  # who may be named; (None,) for nobody in particular
    since_s: float
    step_s: float
    job: str = ""
    says: dict = field(default_factory=dict)


@dataclass
class Plan:
    """The random choices of a job."""

    rng: random.Random
    job: str
    ranks: int
    steps: int
    layers: int
    compute_us: float  # of a layer
    wire_us: float  # of a layer's collective
    jitter: float
    fault: str | None = None
    culprit: int = 0
    since: int = 0
    size: float = 0.0
    micro: int = 4
    width: int = 2  # of a tensor-parallel group in tp-dp
    everyone: bool = True
    flavour: int = 0
    stage_layers: tuple = ()
    moving: float = 0.0  # more work for one rank after another, as experts get it


class Rank:
    def __init__(self, rank):
        self.rank, self.at, self.events = rank, 0.0, []
        self.free, self.queues, self.ends = {}, {}, {}
        self.ops = deque()

    def run(self):
        """Go on until something must be waited for; whether anything happened."""
        moved = False
        while self.ops:
            op = self.ops[0]
            if op.kind == "compute":
                self.at = max(self.at, self.free.get(7, 0.0))
                self.events.append(("kernel", op.name, self.at, op.us, 7, op, self.at))
                self.at += op.us
                self.free[7] = self.at
            elif op.kind == "idle":
                self.at += op.us
            elif op.kind == "step":
                self.events.append(("step", op.name, self.at, 0.0, 0, op, self.at))
            elif op.kind == "call":
                self.queues.setdefault(op.lane, deque()).append((op, self.at))
            elif op.kind == "wait":
                if op.handle not in self.ends:
                    return moved
                self.at = max(self.at, self.ends[op.handle])
            self.ops.popleft()
            moved = True
        return moved


def meet(ranks):
    """Collectives that head their queue on all their ranks take place."""
    moved = False
    for r in ranks:
        for queue in r.queues.values():
            while queue:
                op = queue[0][0]
                others = [ranks[m] for m in op.group]
                heads = [next((q for q in o.queues.values() if q and q[0][0].handle == op.handle), None) for o in others]
                if any(h is None for h in heads):
                    break
                starts = [max(h[0][1], o.free.get(h[0][0].lane, 0.0)) for o, h in zip(others, heads, strict=True)]
                for o, h, start in zip(others, heads, starts, strict=True):
                    own = h[0][0]
                    own_end = start + own.us if own.buffered else max(starts) + own.us
                    o.events.append(("kernel", NCCL[own.name], start, own_end - start, own.lane, own, h[0][1]))
                    o.free[own.lane] = own_end
                    o.ends[own.handle] = own_end
                    h.popleft()
                moved = True
    return moved


def simulate(programs):
    ranks = [Rank(i) for i in range(len(programs))]
    for r, own in zip(ranks, programs, strict=True):
        r.ops.extend(own)
    moved = True
    while moved:
        ran = [r.run() for r in ranks]
        moved = meet(ranks) or any(ran)
    assert not any(r.ops for r in ranks), "a job that stands still"
    return ranks


class Writer:
    """Programs of all ranks, with jitter, and the fault."""

    def __init__(self, plan):
        self.plan, self.programs, self.handle, self.step = plan, [[] for _ in range(plan.ranks)], 0, 0
        self.busy = 0
        self.pace = [1.0] * plan.ranks

    def is_at_fault(self, kind):
        return self.plan.fault == kind and self.step >= self.plan.since

    def begin(self, step):
        p = self.plan
        self.step = step
        warm = p.rng.choice([1.0, 1.6]) if step == 0 else 1.0
        self.busy = p.rng.randrange(p.ranks)
        self.pace = [warm * (1 + p.jitter * 0.3 * p.rng.uniform(-1, 1)) for _ in range(p.ranks)]
        for r in range(p.ranks):
            self.programs[r].append(Op("step", f"ProfilerStep#{step}"))
        if p.rng.random() < 0.04 and step > 0:
            self.programs[p.rng.randrange(p.ranks)].append(Op("idle", us=p.rng.uniform(0.2, 0.8) * p.layers * p.compute_us))
        if self.is_at_fault("late rank") and p.flavour == 0:
            self.programs[p.culprit].append(Op("idle", us=p.size * p.layers * p.compute_us * self.passes()))

    def passes(self):
        return 3 if self.plan.job in ("ddp", "fsdp", "tp-dp") else 1

    def compute(self, r, name, us):
        p = self.plan
        if self.is_at_fault("late rank") and p.flavour == 1 and r == p.culprit:
            self.programs[r].append(Op("idle", us=p.size * us))
        slow = 1 + p.size if self.is_at_fault("slow rank") and r == p.culprit else 1.0
        slow *= 1 + p.moving * (r == self.busy)
        for part, share in ((f"{name}_gemm", 0.7), (f"{name}_elementwise", 0.3)):
            self.programs[r].append(Op("compute", part, us * share * slow * self.pace[r] * (1 + p.jitter * p.rng.uniform(-1, 1))))

    def call(self, group, name, us, nbytes, lane):
        """Issue a collective on all ranks of a group; its handle."""
        p = self.plan
        if self.is_at_fault("slow link") and (p.everyone or p.culprit in group):
            us *= 1 + p.size
        us *= 1 + p.jitter * 0.5 * p.rng.uniform(-1, 1)
        self.handle += 1
        for r in group:
            self.programs[r].append(Op("call", name, us, tuple(group), lane, nbytes, self.handle))
            if self.is_at_fault("lost overlap") and (p.everyone or r == p.culprit):
                self.wait(r, self.handle)
        return self.handle

    def wait(self, r, handle):
        self.programs[r].append(Op("wait", handle=handle))


def tensor_parallel(w, lane):
    p = w.plan
    group = range(p.ranks)
    for _ in range(p.layers):
        for half in ("attn", "mlp"):
            for r in group:
                w.compute(r, half, p.compute_us / 2)
            h = w.call(group, "allreduce", p.wire_us / 2, 1 << 20, lane)
            for r in group:
                w.wait(r, h)
    for r in group:
        w.compute(r, "lm_head", p.compute_us / 2)
    h = w.call(group, "_allgather_base", p.wire_us / 2, 1 << 18, lane)
    for r in group:
        w.wait(r, h)


def ddp(w):
    p = w.plan
    group, handles = range(p.ranks), []
    for _ in range(p.layers):
        for r in group:
            w.compute(r, "forward", p.compute_us)
    for i in range(p.layers):
        for r in group:
            w.compute(r, "backward", 2 * p.compute_us)
        if i % 2 == 1 or i == p.layers - 1:
            handles.append(w.call(group, "allreduce", p.wire_us, 25 << 20, 20))
    for r in group:
        for h in handles:
            w.wait(r, h)
        w.compute(r, "adam", p.compute_us / 2)


def fsdp(w):
    """The gather of the next layer runs under the compute of this one; gradients are scattered under the next layer's backward."""
    p = w.plan
    group, scattered = range(p.ranks), []
    for name, cost in (("forward", 1.0), ("backward", 2.0)):
        coming = w.call(group, "_allgather_base", p.wire_us, 64 << 20, 20)
        for i in range(p.layers):
            for r in group:
                w.wait(r, coming)
            if i < p.layers - 1:
                coming = w.call(group, "_allgather_base", p.wire_us, 64 << 20, 20)
            for r in group:
                w.compute(r, name, cost * p.compute_us)
            if name == "backward":
                scattered.append(w.call(group, "_reduce_scatter_base", p.wire_us, 64 << 20, 24))
    for r in group:
        for h in scattered:
            w.wait(r, h)
        w.compute(r, "adam", p.compute_us / 2)


def tp_dp(w):
    p = w.plan
    everyone = range(p.ranks)
    groups = [range(i, i + p.width) for i in range(0, p.ranks, p.width)]
    across = [range(i, p.ranks, p.width) for i in range(p.width)]
    for name, cost in (("forward", 1.0), ("backward", 2.0)):
        for _ in range(p.layers):
            for r in everyone:
                w.compute(r, name, cost * p.compute_us)
            for g in groups:
                h = w.call(g, "allreduce", p.wire_us / 2, 8 << 20, 20)
                for r in g:
                    w.wait(r, h)
    for g in across:
        h = w.call(g, "allreduce", p.wire_us * p.layers / 2, 200 << 20, 24)
        for r in g:
            w.wait(r, h)
    for r in everyone:
        w.compute(r, "adam", p.compute_us / 2)


def pipeline(w):
    """Forward passes only (serving), or forward then backward (GPipe): stages are ranks; sends do not hold the sender up."""
    p = w.plan
    for backward in (False, True) if p.flavour >= 3 else (False,):
        order = list(range(p.ranks))[:: -1 if backward else 1]
        for _ in range(p.micro):
            for at, r in enumerate(order):
                if at:
                    hop(w, order[at - 1], r)
                for _ in range(p.stage_layers[r]):
                    w.compute(r, "backward" if backward else "forward", p.compute_us * (1 + backward))
    h = w.call(range(p.ranks), "allreduce", 10.0, 64, 24)  # a norm, or the sampled tokens
    for r in range(p.ranks):
        w.wait(r, h)


def hop(w, a, b):
    """One message: the sender issues it on a stream of its own, the receiver waits for it."""
    p = w.plan
    wire = p.wire_us * (1 + p.jitter * 0.5 * p.rng.uniform(-1, 1))
    if w.is_at_fault("slow link") and (a, b) in ((p.culprit, p.culprit + 1), (p.culprit + 1, p.culprit)):
        wire *= 1 + p.size
    starving = w.is_at_fault("starved stage") and b == p.culprit and a < b
    late = p.size * p.compute_us * p.stage_layers[b] * p.rng.uniform(0.9, 1.1) if starving else 0.0
    if starving and p.flavour % 3 == 0:  # the one that feeds it hands over late
        w.programs[a].append(Op("idle", us=late))
    if starving and p.flavour % 3 == 1:  # its host asks late for what it was sent
        w.programs[b].append(Op("idle", us=late))
    w.handle += 1
    buffered = starving and p.flavour % 3 == 2  # the sender is done, and the data do not come
    w.programs[a].append(Op("call", "send", wire, (a, b), 30 + b, 4 << 20, w.handle, buffered=buffered))
    w.programs[b].append(Op("call", "recv", wire + (late if buffered else 0), (a, b), 30 + b, 4 << 20, w.handle))
    w.wait(b, w.handle)


def program(plan):
    w = Writer(plan)
    made = {"tp": lambda w: tensor_parallel(w, 7), "tp-stream": lambda w: tensor_parallel(w, 20), "ddp": ddp, "fsdp": fsdp,
            "tp-dp": tp_dp, "pp": pipeline}[plan.job]  # fmt: skip
    for step in range(plan.steps):
        w.begin(step)
        made(w)
    return w.programs


def chosen(rng, fault, job=None, ranks=0):
    """A job by chance, large enough for its fault to cost something: at least a twelfth of a step."""
    job = job or rng.choice(JOBS[fault] if fault else ("tp", "tp-stream", "ddp", "fsdp", "tp-dp", "pp"))
    width = rng.choice([2, 4, 8, 16]) if job != "tp-dp" else rng.choice([4, 8])
    if job == "pp":
        width = rng.choice([2, 4, 8])
    width = ranks or width
    steps = rng.randint(6, 40 if width <= 4 and not ranks else 14)
    compute = rng.choice([60.0, 300.0, 1500.0]) * rng.uniform(0.7, 1.5)
    share = rng.uniform(0.1, 0.6)  # of the wire, beside compute
    jitter = rng.choice([0.0, 0.01, 0.03, 0.1])
    p = Plan(rng, job, width, steps, rng.randint(3, 6), compute, compute * share, jitter, fault)
    p.culprit = rng.randrange(width)
    p.since = rng.choice([0, rng.randint(2, steps - 3)])
    p.flavour = rng.randrange(6) if job == "pp" else rng.randrange(2)
    p.width = rng.choice([2, width // 2])
    p.micro = rng.choice([4, 8])
    p.stage_layers = tuple(rng.choice([3, 3, 3, 4]) if job == "pp" else 1 for _ in range(width))
    if not fault and job != "pp" and rng.random() < 0.3:
        p.moving = rng.uniform(0.1, 0.6)
    _sized(p)
    return p


def _sized(p):
    """How large a fault is, whom it strikes and since when it can be seen."""
    rng = p.rng
    least = 0.15 if p.jitter <= 0.03 else 0.4
    p.size = rng.uniform(least, 2.0) if rng.random() < 0.5 else rng.uniform(least, 0.5)
    if p.job == "pp":
        p.size = max(p.size, 0.3)
    if p.fault == "slow link":
        p.everyone = p.job not in ("tp-dp", "pp")
        if p.everyone or p.ranks == 2:  # the same everywhere and always is nobody's fault
            p.since = rng.randint(2, p.steps - 3)
        if p.job == "pp":
            p.culprit = rng.randrange(p.ranks - 1)
        cost = {"tp": 1.0, "tp-stream": 1.0, "tp-dp": 0.5, "pp": 0.3}.get(p.job, 1.0)
        share = p.wire_us / p.compute_us
        p.size = max(p.size, 0.15 * (1 + share) / share / cost)
        if p.job in ("ddp", "fsdp"):  # what compute hides costs nothing: it must be longer than that
            p.size = max(2 * p.size, 2.6 / share)
    if p.fault == "starved stage":
        p.culprit = rng.randrange(1, p.ranks)
        p.size = max(p.size, 0.4, 0.1 * (p.micro + p.ranks - 1) * (3 if p.flavour >= 3 else 1) / p.micro)
    if p.fault == "lost overlap":
        p.everyone = rng.random() < 0.5
        p.since = rng.randint(2, p.steps - 3) if p.everyone else p.since
        buckets = -(-p.layers // 2)
        whole = (3 * p.layers + 0.5) * p.compute_us
        p.wire_us = rng.uniform(0.1, 0.25) * whole / (buckets - 1 if p.job == "ddp" else 3 * p.layers - 3)


def document(rank, plan, rng, skew_us, base_us, told, named):
    """One rank's events as Kineto writes them."""
    events, correlation = [], 0
    by_step = [e for e in rank.events if e[0] == "step"]
    shift = base_us + skew_us
    begins = [at for _, _, at, *_ in by_step]
    finish = max(e[2] + e[3] for e in rank.events)
    if named:
        for (_, name, at, *_), until in zip(by_step, [*begins[1:], finish + 20], strict=True):
            label = name if named == "profiler" else "execute_context_0(0)_generation_8(8)"
            events.append(x("user_annotation", label, at + shift - 10, max(until - at - 1, 1), 1))
    for kind, name, at, us, lane, op, issued in rank.events:
        if kind != "kernel":
            continue
        correlation += 1
        args = {"device": rank.rank % 8, "stream": lane, "correlation": correlation}
        if op.kind == "call" and told:
            args |= {"Collective name": op.name, "In msg nelems": op.nbytes // 2, "Out msg nelems": op.nbytes // 2}
            args |= {"dtype": "BFloat16", "Group size": len(op.group)}
            args |= {"Process Group Name": "-".join(map(str, op.group)), "Process Group Ranks": str(list(op.group))}
        events.append(x("cuda_runtime", "cudaLaunchKernel", issued + shift - 9, 1, 1, correlation=correlation))
        events.append(x("kernel", name, at + shift, us, lane, **args))
    if plan.job in ("ddp", "fsdp", "tp-dp") and named == "profiler":
        events += [x("user_annotation", "Optimizer.step#AdamW.step", at + shift, 3, 1) for at in begins]
    rng.shuffle(events)
    info = {"backend": "nccl", "rank": rank.rank, "world_size": plan.ranks}
    return {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}


def x(cat, name, ts, dur, tid, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": round(ts, 3), "dur": round(dur, 3), "args": args}


def case(seed, fault=None, skew_ms=0.0, job=None, ranks=0):
    """One random case; of so many ranks, in few steps, where they are told."""
    rng = random.Random(seed)
    plan = chosen(rng, fault, job, ranks)
    ranks = simulate(program(plan))
    told, named = rng.random() < 0.5, rng.choice(["profiler", "engine", None])
    if plan.job in ("ddp", "fsdp", "tp-dp"):
        named = rng.choice(["profiler", None])
    base = rng.uniform(1e9, 1e12)
    documents = []
    for r in ranks:
        skew = rng.uniform(-skew_ms, skew_ms) * 1e3
        epoch = rng.randrange(0, 10**9) if rng.random() < 0.5 else 0  # told beside the times, in microseconds
        made = document(r, plan, rng, skew, base - epoch, told, named)
        documents.append(made | {"baseTimeNanoseconds": epoch * 1000} if epoch else made)
    first = min(min(e[2] for e in r.events if e[0] == "kernel") for r in ranks)
    steps = [e[2] for e in ranks[plan.culprit].events if e[0] == "step"]
    who = (None,) if plan.fault in ("slow link", "lost overlap") and plan.everyone else (plan.culprit,)
    if plan.fault == "slow link" and plan.job == "tp-dp":
        who = (plan.culprit,)
    told_of = ("ranks", "steps", "since", "size", "jitter", "flavour", "everyone", "moving")
    says = {"told": told, "named": named, **{name: getattr(plan, name) for name in told_of}}
    span = max(e[2] + e[3] for e in ranks[0].events)
    return Case(documents, fault, who, (steps[plan.since] - first) * 1e-6, span / plan.steps * 1e-6, plan.job, says)
