"""Plain searches, one plan and one load at a time, that the planner must agree with.

Plans, places and kinds are written here once more, from their descriptions: nothing is the planner's own but the number of the
margin. Loads are drawn, so that they fall beside the grid that a search goes by.
"""

import itertools
import math
from dataclasses import dataclass, replace

import commtax
from commtax import catalog
from commtax.judgement.margins import margin
from commtax.verbs.fitting import fits

SAME = 1e-3
"""Of a request: what more prompt workers may shorten it by and still be left out, where GPUs are not what counts."""
CLOSE = 1e-6
EACH = 1024  # clients of a rank at most
ROUNDS = 4  # of looking closer at what does best
SIZES = ("tp", "pp", "dp", "ep")
WIDE = 8  # ranks from which experts are also reached by DeepEP, with and without redundant ones
DENSE = ("llama-3.2-1b", "llama-3.1-8b", "qwen2.5-7b", "gemma-3-27b", "llama-3.1-70b")
MIXTURES = ("gpt-oss-20b", "qwen3-30b-a3b", "mixtral-8x7b")
CLUSTERS = (
    *("1xh200-sxm", "2xh100-pcie", "3xa100-80-sxm", "4xh100-sxm", "4xb200-sxm", "6xh200-sxm", "8xl40s", "8xh100-sxm"),
    *("2x2xl40s", "2x2xh100-sxm", "2x4xa100-80-sxm", "3x2xh200-sxm"),
)
MANY = ("2x8xh100-sxm", "16xh200-sxm", "4x4xgb200")  # experts over 16 ranks


@dataclass(frozen=True)
class Layout:
    """Workers of one kind, or with ``ahead`` (tp, dp, how many) those that decode."""

    sizes: tuple[int, int, int, int]
    copies: int
    words: tuple  # dtype, and how experts are reached
    ahead: tuple[int, int, int] = ()

    @property
    def group(self):
        return math.prod(self.sizes[:3])

    @property
    def gpus(self):
        return self.copies * self.group + math.prod(self.ahead or (0,))


@dataclass(frozen=True)
class Point:
    """A layout at a load."""

    layout: Layout
    load: int  # clients of a rank
    tokens_per_s: float
    run: object  # as ``simulate`` has it

    @property
    def request_s(self):
        return float(self.run.ttft_s) + (float(self.run.requests.output_len) - 1) * float(self.run.tpot_s)


class Search:
    """One question, its layouts, and the points that were priced so far."""

    def __init__(self, asked):
        self.asked = {"objective": "throughput", "engine": "vllm", "dtypes": ("",), **asked}
        self.asked |= {name: self.asked.get(name, math.inf) for name in ("ttft_s", "tpot_s")}
        self.model, self.cluster = catalog.model(asked["model"]), catalog.cluster(asked["cluster"])
        self.engine = catalog.engine(self.asked["engine"])
        self.most, self.known, self.rooms, self.good = asked["max_concurrency"], {}, {}, {}

    # What there is to try

    def shared(self):
        """Layouts without workers of their own for prompts, of as many copies as fit or fewer; for fewest GPUs of one."""
        for dtype, (sizes, way) in itertools.product(self.asked["dtypes"], [*self._usual(), *self._wide()]):
            if ("low" in way[0]) != (self.asked["engine"].startswith("sglang")) and way[0]:  # SGLang changes by step
                continue
            most = min(1, self.copies(sizes)) if self.asked["objective"] == "gpus" else self.copies(sizes)
            every = (Layout(sizes, copies, (dtype, *way)) for copies in range(1, most + 1))
            yield from (layout for layout in every if self.last(layout))

    def _usual(self):
        gpus, mixture = self.cluster.num_gpus, self.model.experts is not None
        ranks = [2**i for i in range(gpus.bit_length())] if mixture else [1]
        for tp, pp, dp in itertools.product(range(1, gpus + 1), range(1, min(gpus, self.model.num_layers) + 1), ranks):
            for ep in {1, tp} if mixture and dp == 1 else {tp * dp if dp > 1 else 1}:
                if tp * pp * dp <= gpus:
                    yield (tp, pp, dp, ep), ("", 0)

    def _wide(self):
        """Attention data parallelism with experts over many ranks, by DeepEP, with none and an eighth of them redundant."""
        experts = self.model.experts.num_experts if self.model.experts else 0
        for more in {0, experts // 8 if experts % 8 == 0 else 0} if experts else ():
            for ep, tp in itertools.product(range(WIDE, self.cluster.num_gpus + 1), range(1, 9)):
                if (experts + more) % ep == ep % tp == self.model.attention.num_heads % tp == 0 and ep > tp:
                    for mode in ("low_latency", "high_throughput"):
                        yield (tp, 1, ep // tp, ep), (f"deepep_{mode}", more)

    def workers(self):
        """What splits are made of: tp alone inside a fast domain, or attention data parallelism alone."""
        domain, gpus = self.cluster.domain, self.cluster.num_gpus
        for dtype, (sizes, way) in itertools.product(self.asked["dtypes"], [*self._usual(), *self._wide()]):
            if "high" in way[0]:  # for servers with prompts and decodes, where one way serves both
                continue
            tp, pp, dp, ep = sizes
            plain = tp <= domain if dp == ep == 1 else tp == 1 and dp > 1
            if plain and pp == 1 and tp * dp < gpus and self.copies(sizes) and self.room(sizes, (dtype, *way)):
                yield sizes, (dtype, *way)

    def splits(self):
        """All pairs of workers, in all numbers that fit beside each other."""
        if self.asked["output_len"] == 1:
            return
        kinds = list(self.workers())
        for (sizes, words), (tp, dp) in itertools.product(kinds, sorted({(s[0], s[2]) for s, _ in kinds})):
            ep = tp * dp if sizes[3] > 1 or dp > 1 else 1
            if not self.room((tp, 1, dp, ep), (words[0], words[1].replace("low_latency", "high_throughput"), words[2])):
                continue
            group, ahead = sizes[0] * sizes[2], tp * dp
            for copies in range(1, (self.cluster.num_gpus - ahead) // group + 1):
                for count in range(1, self.beside(copies, group, ahead) + 1):
                    if self.last(layout := Layout(sizes, copies, words, (tp, dp, count))):
                        yield layout

    # Where it fits

    def domains(self):
        whole, left = divmod(self.cluster.num_gpus, self.cluster.domain)
        return [self.cluster.domain] * whole + [left] * (left > 0)

    def copies(self, sizes):
        """Copies laid down one after the other: in the first domain with room, or on whole domains of their own."""
        tp, group, free, count = sizes[0], math.prod(sizes[:3]), self.domains(), 0
        if group <= self.cluster.domain:
            return sum(size // group for size in free)
        used = self.cluster.domain // tp * tp or self.cluster.domain
        while free:
            rest = group
            while rest > 0 and free:
                rest -= min(rest, used, free.pop(0))
            count += rest <= 0
        return count

    def beside(self, copies, group, ahead):
        """Workers of ``ahead`` GPUs beside copies of ``group``, by trying every way to share the copies out."""
        size, places = self.cluster.domain, self.domains()
        if group > size:
            taken = copies * -(-group // size)
            whole = sum(place == size for place in places)
            return self._room(places[taken:], ahead) if taken <= whole else 0
        shares = itertools.product(*(range(place // group + 1) for place in places))
        lefts = ([d - n * group for d, n in zip(places, share, strict=True)] for share in shares if sum(share) == copies)
        return max((self._room(left, ahead) for left in lefts), default=0)

    def _room(self, places, ahead):
        size = self.cluster.domain
        return sum(p // ahead for p in places) if ahead <= size else sum(p == size for p in places) // -(-ahead // size)

    def room(self, sizes, words):
        """Clients of a rank: what its cache holds of requests in the middle of their lives; 0: illegal, or holds no request."""
        if (sizes, words) not in self.rooms:
            self.rooms[sizes, words] = self._judged(sizes, words)
        return self.rooms[sizes, words]

    def _judged(self, sizes, words):
        asked = self.asked
        try:
            one = self._simulate(sizes, words, sizes[2])
        except ValueError:
            return 0
        kept = asked["input_len"] + asked["output_len"] * (1.0 if self.engine.serves.kv_reserved else 0.5) + float(one.state_tokens)
        kv = float(one.kv_tokens)
        whole = asked["input_len"] + asked["output_len"] + float(one.state_tokens)
        return int(max(1, min(EACH, kv // kept))) if kv >= whole else 0

    # What it does

    def _simulate(self, sizes, words, concurrency, **more):
        names = dict(zip(SIZES, sizes, strict=True)) | dict(zip(("dtype", "ep_backend", "redundant_experts"), words, strict=True))
        names |= {name: self.asked[name] for name in ("input_len", "output_len", "spread") if name in self.asked}
        return commtax.simulate(self.model, self.cluster, engine=self.engine, concurrency=concurrency, **names, **more)

    def last(self, layout):
        """Clients of a rank at most: what its cache holds, and its share of those that there are."""
        return min(self.room(layout.sizes, layout.words), self.most // (layout.copies * layout.sizes[2]))

    def filled(self, layout, load, there):
        """The layout with as many copies as there are clients for at a load."""
        several = (replace(layout, copies=n) for n in range(self.most // (load * layout.sizes[2]), 0, -1))
        return layout if layout.ahead else next((x for x in several if x in there), layout)

    def at(self, layout, load):
        """The point, priced alone."""
        if (layout, load) not in self.known:
            each = load * layout.sizes[2]
            if layout.ahead:
                tp, dp, count = layout.ahead
                ahead = {"prefill_tp": tp, "prefill_dp": dp, "prefill_workers": count, "decode_workers": layout.copies}
                run = self._simulate(layout.sizes, layout.words, each * layout.copies, disaggregated=True, **ahead)
                rate = float(run.tokens_per_s)
            else:
                run = self._simulate(layout.sizes, layout.words, each)
                rate = float(run.tokens_per_s) * layout.copies
            self.known[layout, load] = Point(layout, load, rate, run)
        return self.known[layout, load]

    # What it is worth

    def keeps(self, p):
        key = p.layout, p.load
        if key not in self.good:
            self.good[key] = all(self.sure(p, name) <= self.asked[name] for name in ("ttft_s", "tpot_s"))
        return self.good[key]

    def sure(self, p, name):
        """A time as long as it is with the confidence that is wanted: Student's, two degrees of freedom, about the range."""
        value = float(getattr(p.run, name))
        if math.isinf(self.asked[name]) or self.asked["confidence"] == 0.5:
            return value
        t, end = ((2 * c - 1) / math.sqrt(2 * c * (1 - c)) for c in (self.asked["confidence"], 0.9))
        return value * (float(p.run.range_of(name)[1]) / value) ** (t / end)

    def worth(self, p, place=""):
        """What the objective counts, larger is better, or what a place does that no limit decides."""
        rate = p.tokens_per_s / p.layout.gpus if self.asked["objective"] == "cost" else p.tokens_per_s
        by = place or self.asked["objective"]
        values = {"latency": 1 / p.request_s, "fastest": 1 / p.request_s, "balanced": rate / p.request_s, "gpus": 1 / p.layout.gpus}
        return values.get(by, rate)

    def complexity(self, layout):
        """How much there is to set up: the kind, the fast domains that a copy spans or the kind of two pools, and shared hosts."""
        host, groups = self.cluster.gpus_per_host, [layout.group, math.prod(layout.ahead[:2])] if layout.ahead else [layout.group]
        shared = sum(group % host > 0 and host % group > 0 for group in groups)
        if layout.ahead:
            tp, dp, _ = layout.ahead
            spread = dp > 1 or layout.sizes[3] > 1
            return 6, max(self._kind((tp, 1, dp, tp * dp if spread else 1)), self._kind(layout.sizes)), shared
        return self._kind(layout.sizes), max(0, math.ceil(math.log2(layout.group / self.cluster.domain))), shared

    def _kind(self, sizes):
        (tp, pp, dp, ep), domain = sizes, self.cluster.domain
        if tp > domain:
            return 5
        if tp * dp > domain:
            return 4
        if pp > 1 and tp * pp * dp > domain:
            return 3
        return 2 if dp > 1 else int(pp > 1 or ep > 1)


# Questions


def question(rng):
    """Limits are about what some plan takes under some load: some bind, some do not, some nothing can meet."""
    mixture = rng.random() < 0.5
    asked = {
        "model": rng.choice(MIXTURES if mixture else DENSE),
        "cluster": rng.choice(MANY if mixture and rng.random() < 0.5 else CLUSTERS),
        "engine": rng.choice(("vllm", "sglang", "trtllm")), "input_len": rng.choice((128, 777, 1024, 8192)),
        "output_len": rng.choice((1, 2, 64, 128, 512)), "objective": rng.choice(("throughput", "latency", "cost", "gpus")),
        "confidence": rng.choice((0.5, 0.8, 0.8, 0.9)), "dtypes": rng.choice((("",), ("",), ("",), ("fp8",), ("bf16", "fp8"))),
        "margin": rng.choice((None, None, 0.0, 0.02, 0.2)), "max_concurrency": rng.choice((7, 40, 150, 600)),
    }  # fmt: skip
    return asked | (limits(asked, rng) if rng.random() < 0.7 else {})


def limits(asked, rng):
    s = Search(asked)
    plans = list(s.shared())
    if not plans:
        return {"ttft_s": 1.0}
    layout = rng.choice(plans)
    run = s.at(layout, rng.randint(1, s.last(layout))).run
    times = {"ttft_s": float(run.ttft_s), "tpot_s": float(run.tpot_s)}
    some = ["ttft_s"] if asked["output_len"] == 1 else rng.choice((["ttft_s"], ["tpot_s"], list(times)))
    return {name: times[name] * rng.uniform(0.8, 2.5) for name in some}


# Where a search and its answer disagree


def disagreements(asked, answer, rng, points=100):
    """Sentences on each way in which some of all points beat an answer; ``points`` are drawn about evenly of both modes."""
    s = Search(asked)
    layouts = [dict.fromkeys(s.shared()), dict.fromkeys(s.splits())]
    _draw(s, layouts, rng, points)
    rows = _shown(answer)
    hints = [_layout_of(answer, *row) for row in rows]
    _look_around(s, layouts, [p for p in hints if p[0] in layouts[bool(p[0].ahead)]], rng)
    found = [p for p in s.known.values() if s.keeps(p)]
    if not len(answer.plans):
        return [f"nothing is said to be good: {told(s, p)}" for p in found[:1]]
    wrong = list[str]()
    for row, hint in zip(rows, hints, strict=True):
        wrong += _reproduced(s, layouts, row, *hint)
    for i, place in enumerate(("", *(place.name for place in answer.places))):
        wrong += _beaten(
            s,
            found,
            (margin(answer.question), margin(answer.question, pools=True)),
            [s.at(*hint) for hint in hints[2 * i : 2 * i + 2]],
            place,
        )
    return wrong


def _shown(answer):
    """(columns, row) of the best and the recommended one, of the whole and of each place."""
    if not len(answer.plans):
        return []
    both = [(answer.plans, 0), (answer.plans, answer.recommended)]
    return both + [(place.plans, i) for place in answer.places for i in (0, place.recommended)]


def _layout_of(answer, rows, i):
    """A row as it is called here, and its clients of a rank."""
    sizes, copies = tuple(int(getattr(rows, x)[i]) for x in SIZES), int(rows.replicas[i])
    by = answer.exchanges[int(rows.exchange[i])]
    words = answer.question.goal.dtypes[int(rows.dtype[i])], by.backend, by.redundant
    ahead = tuple(int(getattr(rows, f"prefill_{x}")[i]) for x in ("tp", "dp", "replicas")) if rows.mode[i] else ()
    return Layout(sizes, copies, words, ahead), int(rows.concurrency[i]) // (copies * sizes[2])


def _draw(s, layouts, rng, points):
    """Layouts of both modes, as many as there is time for, without load, with most, and with some between."""
    plain = [x for x in layouts[0] if x.copies == 1]
    for some, there in ((plain, layouts[0]), (list(layouts[1]), layouts[1])):
        for layout in rng.sample(some, min(len(some), points // 4)):
            for load in {rng.choice((1, s.last(layout))), rng.randint(1, s.last(layout))}:
                s.at(s.filled(layout, load, there), load)


def _look_around(s, layouts, hints, rng):
    """More loads of the layouts that do best and of those that are shown; of splits, also with workers more or less."""
    there, free = layouts[0] | layouts[1], all(math.isinf(s.asked[name]) for name in ("ttft_s", "tpot_s"))
    for layout, load in dict.fromkeys(hints):
        for other in (load - 1, load + 1, load + 2, rng.randint(1, s.last(layout))):
            if 1 <= other <= s.last(layout):
                s.at(layout, other)
        for more in _neighbours(layout, there):
            s.at(more, min(s.last(more), load))
    for place, apart, _ in itertools.product(("", "fastest", "balanced") if free else ("",), (False, True), range(ROUNDS)):
        _climb(s, place, apart, there, rng)


def _climb(s, place, apart, there, rng):
    """The best two layouts of a mode, somewhere between the priced loads around their best; of splits, a neighbour of theirs."""
    best = {}
    for p in s.known.values():
        if (
            bool(p.layout.ahead) == apart
            and s.keeps(p)
            and s.worth(p, place) > s.worth(best.get(p.layout, p), place) * (p.layout in best)
        ):
            best[p.layout] = p
    for p in sorted(best.values(), key=lambda p: -s.worth(p, place))[:2]:
        loads = sorted(load for layout, load in s.known if layout == p.layout)
        low = max((n for n in loads if n < p.load), default=1)
        high = min((n for n in loads if n > p.load), default=s.last(p.layout))
        load = rng.randint(low, high)
        s.at(s.filled(p.layout, load, there), load)
        for more in _neighbours(p.layout, there)[:1]:
            s.at(more, rng.randint(1, s.last(more)))


def _neighbours(layout, there):
    if not layout.ahead:
        return []
    tp, dp, count = layout.ahead
    moved = [(layout.copies + i, count + j) for i, j in ((0, 1), (1, 0), (0, -1), (-1, 0), (1, -1), (-1, 1))]
    return [x for x in (Layout(layout.sizes, c, layout.words, (tp, dp, n)) for c, n in moved) if x in there and x != layout]


def _reproduced(s, layouts, row, layout, load):
    """Whether a row is one of the layouts, within its room, and what ``simulate`` says of it."""
    rows, i = row
    if layout not in layouts[bool(layout.ahead)]:
        return [f"no such plan: {layout}"]
    p = s.at(layout, load)
    pairs = {"ttft_s": p.run.ttft_s, "tpot_s": p.run.tpot_s, "tokens_per_s": p.tokens_per_s, "gpus": layout.gpus}
    shown = [(n, float(getattr(rows, n)[i]), float(x)) for n, x in pairs.items()]
    wrong = [f"{n} {a} is {b}: {told(s, p)}" for n, a, b in shown if not math.isclose(a, b, rel_tol=CLOSE)]
    if not all(s.sure(p, name) <= s.asked[name] * (1 + CLOSE) for name in ("ttft_s", "tpot_s")):
        wrong.append(f"breaks a limit: {told(s, p)}")
    return wrong + [f"{load} clients are more than {s.last(layout)}: {told(s, p)}"] * (load > s.last(layout))


def _beaten(s, found, margins, shown, place):
    """Points that beat the best, are simpler than the recommended one and within the margin, or as simple and better. Where the
    best has two pools, one that has not is recommended unless pools gain more than predictions of them err; the margin is then
    that of the best with one pool."""
    within, pools = ((1 + margin) ** (2 if place == "balanced" else 1) for margin in margins)
    best, chosen = (s.worth(p, place) for p in shown)
    first, own = (bool(p.layout.ahead) for p in shown)
    rivals = [p for p in found if bool(p.layout.ahead) == own] if first else found
    leader = best if first == own else max([chosen, *(s.worth(p, place) for p in rivals)])
    wrong = [] if leader <= chosen * within * (1 + CLOSE) else [f"recommended beyond the margin: {told(s, shown[1])}"]
    if first != own and best > leader * pools * (1 + CLOSE):
        wrong.append(f"pools surely gain: {told(s, shown[0])}")
    plain = s.complexity(shown[1].layout)
    for p in found:
        worth, close = s.worth(p, place), _close(s, p, place)
        told_ = f"{place or 'best'} {told(s, shown[0])}, recommended {told(s, shown[1])}: {told(s, p)}"
        if worth > best * (1 + close):
            wrong.append(f"beaten by {worth / best - 1:.2g}: {told_}")
        if first and own and not p.layout.ahead and worth * pools > best * (1 + close):
            wrong.append(f"pools may gain nothing: {told_}")
        near = p in rivals and worth * within > leader * (1 + close)
        if near and (s.complexity(p.layout) < plain or (s.complexity(p.layout) == plain and worth > chosen * (1 + close))):
            wrong.append(f"simpler or better by {worth / chosen - 1:.2g}: {told_}")
    return wrong[:2]


def _close(s, p, place):
    """Prompt workers that hardly help are left out, where GPUs are not counted."""
    counted = s.asked["objective"] in ("cost", "gpus")
    return CLOSE if not p.layout.ahead or counted else (4 if place == "balanced" else 2) * SAME


def told(s, p):
    load = f"at {p.load} of {s.last(p.layout)}, {p.tokens_per_s:.6g} tokens/s, request {p.request_s:.4g} s"
    return f"{p.layout} {load}, complexity {s.complexity(p.layout)}"


def fastest_training(model, cluster, global_batch, seq, kinds, engine="megatron"):
    """Seconds of the fastest training plan that fits, by trying all of them; infinite where none does."""
    known, place = catalog.model(model), catalog.cluster(cluster)
    gpus, least = place.num_gpus, math.inf
    sizes, replicas = [2**i for i in range(6) if 2**i <= gpus], [d for d in range(1, global_batch + 1) if global_batch % d == 0]
    stages = range(1, min(gpus, known.num_layers) + 1)
    for kind, tp, pp, dp, micro in itertools.product([kind.plan for kind in kinds], sizes, stages, replicas, (1, 2, 4, 8)):
        if tp * pp * dp > gpus or global_batch % (dp * micro) or seq % tp or (kind.schedule != "1f1b" and pp == 1):
            continue
        if kind.zero in (0, 1) and (kind.zero == 0) != (dp == 1):
            continue
        for ep in _experts(known, dp):
            try:
                b = commtax.train_bill(
                    known, place, engine=engine, tp=tp, pp=pp, dp=dp, ep=ep, batch=global_batch // dp, micro_batch=micro,
                    context=seq, zero=kind.zero, recompute=kind.recompute, schedule=kind.schedule, chunks=kind.chunks,
                    sequence_parallel=True,
                )  # fmt: skip
            except ValueError:
                continue
            if fits(b):
                least = min(least, float(b.step_s))
    return least


def _experts(model, dp):
    if model.experts is None:
        return [1]
    return [e for e in (2**i for i in range(10)) if dp % e == 0 and model.experts.num_experts % e == 0]
