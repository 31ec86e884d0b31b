"""Laws that every answer keeps, each as one function of a random source: it draws a question, prices it twice and compares.

The suite draws a few of each under hypothesis (``test_laws.py``), ``benchmarks/laws.py`` many thousands. A law returns "" where it
holds, None where its question is refused (an illegal plan, a model that does not fit), else what is broken.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

import commtax
from commtax import catalog
from commtax.cost.collectives import ring_factor
from commtax.cost.kernels import NARROW_ROUNDING
from commtax.judgement.margins import ratio_error
from commtax.planner import plan, plan_training
from commtax.verbs.expecting import OPS
from commtax.verbs.fitting import step_limits

Question = dict[str, Any]
Law = Callable[[Random], str | None]
EXACT = 1e-9
"""What floating point may leave between two sums of the same parts."""
ENGINES = ("vllm", "sglang", "trtllm", "fused", "torch")
SERVERS = ("vllm", "sglang", "trtllm", "vllm@0.10", "sglang@0.4", "trtllm@1.0")
SMALL = ("llama-3.2-1b", "llama-3.1-8b", "qwen2.5-7b", "gpt-oss-20b", "gemma-3-27b", "qwen3-30b-a3b", "mixtral-8x7b")
LARGE = ("llama-3.1-70b", "llama-3.1-405b", "gpt-oss-120b", "deepseek-v3", "qwen3-235b-a22b")
HOSTS = ("h100-sxm", "h200-sxm", "a100-80-sxm", "b200-sxm", "gb200", "l40s", "h100-nvl", "h100-pcie", "mi300x", "rtx-4090")


# What is drawn


def _cluster(rng: Random) -> str:
    chip = rng.choice([k for k in catalog.keys("chips") if k != "cpu"])
    return rng.choice(("{}", "2x{}", "4x{}", "8x{}", "2x8x{}", "4x8x{}")).format(chip)


def _axes(rng: Random, model: str) -> Question:
    axes: Question = {"tp": rng.choice((1, 1, 2, 4, 8)), "pp": rng.choice((1, 1, 1, 2, 3, 4))}
    if catalog.model(model).experts:
        axes["dp"] = rng.choice((1, 1, 2, 4))
        axes["ep"] = rng.choice((1, -1))
    return axes


def _served(rng: Random, engines: tuple[str, ...]) -> Question:
    """A model, a cluster, an engine and a plan; legal or not."""
    model = rng.choice(catalog.keys("models"))
    kinds: Question = {"kv_dtype": rng.choice(("", "", "fp8")), "dtype": rng.choice(("", "", "fp8"))}
    return {"model": model, "cluster": _cluster(rng), "engine": rng.choice(engines), **_axes(rng, model), **kinds}


def _number(rng: Random, low: int, high: int) -> int:
    """Whole, evenly over the powers of two, and often next to one of them: limits lie there."""
    near = round(2 ** rng.uniform(math.log2(low), math.log2(high)))
    if rng.random() < 0.4:
        near = 2 ** round(math.log2(near)) + rng.choice((-1, 0, 1))
    return min(high, max(low, near))


def _more(rng: Random, value: int, most: int) -> int:
    """Larger: by one, or by any factor."""
    return min(most, value + 1 if rng.random() < 0.5 else _number(rng, value, most))


def _asked(question: Question) -> str:
    return ", ".join(f"{k}={v!r}" for k, v in question.items())


def _order(question: Question, what: str, small: float, large: float, change: str) -> str:
    """``small`` must not exceed ``large``."""
    if small <= large * (1 + EXACT):
        return ""
    more = small / large - 1 if large else math.inf
    return f"{what} {large:.6g} -> {small:.6g} ({more:+.2%}) against the order, {change}: {_asked(question)}"


# One step


def step_in_batch_and_context(rng: Random) -> str | None:
    """More sequences or more context never make a step shorter."""
    asked = _served(rng, ENGINES) | {"phase": rng.choice(("decode", "prefill", "mixed")), "eager": rng.random() < 0.2}
    batch, context = _number(rng, 1, 1024 if asked["phase"] == "decode" else 16), _number(rng, 1, 32768)
    least, most = (batch, context), (_more(rng, batch, 2048), context)
    if rng.random() < 0.5:
        most = batch, _more(rng, context, 65536)
    try:
        few, many = (float(commtax.bill(**asked, batch=b, context=c).step_s) for b, c in (least, most))
    except ValueError:
        return None
    return _order(asked, "step", few, many, f"batch and context {least} -> {most}")


def graphs_are_no_slower_than_eager(rng: Random) -> str | None:
    """Where a graph pads no rows, replaying it never takes longer than launching its kernels one by one."""
    asked = _served(rng, ENGINES) | {"batch": _number(rng, 1, 512), "context": _number(rng, 1, 32768)}
    try:
        graphs, eager = commtax.bill(**asked), commtax.bill(**asked, eager=True)
    except ValueError:
        return None
    if float(graphs.rows) > float(eager.rows):
        return None
    return _order(asked, "step", float(graphs.step_s), float(eager.step_s), "graphs against eager")


def smaller_cache_types_are_no_slower(rng: Random) -> str | None:
    """A cache in fp8 is half to read; where its kernels were measured to take longer, the bill names the table."""
    asked = _served(rng, ENGINES) | {"batch": _number(rng, 1, 512), "context": _number(rng, 1, 65536)}
    asked.pop("kv_dtype")
    try:
        narrow, wide = (commtax.bill(**asked, kv_dtype=kind) for kind in ("fp8", "bf16"))
    except ValueError:
        return None
    if any(line.why.code == "narrow-slower" for line in narrow.lines):
        return ""
    return _order(asked, "step", float(narrow.step_s), float(wide.step_s) * (1 + NARROW_ROUNDING), "fp8 against bf16 cache")


def _links(rng: Random, scope: str) -> tuple[str, str]:
    """Two links of which the second is at least as good in both ways."""
    links = [catalog.link(k) for k in catalog.keys("links") if k != "shm"]
    links = [x for x in links if x.scope == scope]
    while True:
        a, b = rng.sample(links, 2)
        slow, fast = (a, b) if a.bandwidth_Bps < b.bandwidth_Bps else (b, a)
        if slow.latency_s >= fast.latency_s and slow.nic_per_gpu <= fast.nic_per_gpu and slow.switched <= fast.switched:
            return slow.key, fast.key


def faster_links_are_no_slower(rng: Random) -> str | None:
    """A step over a link that is better in bandwidth and latency; a library that takes another protocol for it may err by 1 %."""
    scope = rng.choice(("intra", "inter"))
    asked = _served(rng, ENGINES) | {"phase": rng.choice(("decode", "prefill")), "batch": _number(rng, 1, 64)}
    cluster, links = asked.pop("cluster"), _links(rng, scope)
    try:
        places = [catalog.cluster(cluster, **{scope: key}) for key in links]
        if places[0].nics_per_host > places[1].nics_per_host:
            return None
        slow, fast = (float(commtax.bill(cluster=place, **asked).step_s) for place in places)
    except ValueError:
        return None
    return _order(asked | {"cluster": cluster}, "step", fast * 0.99, slow, f"{scope} {links[0]} -> {links[1]}")


# Collectives


def collectives_keep_to_their_link(rng: Random) -> str | None:
    """A collective takes at least its least bytes over the link: a switch that reduces sends each byte once and a share twice."""
    # The textbook's forms give every rank a NIC of its own, by definition.
    op, library = rng.choice(OPS), rng.choice([key for key in catalog.keys("libraries") if key != "textbook"])
    link, cluster = rng.choice(("", *catalog.keys("links"))), _cluster(rng)
    try:
        place = catalog.cluster(cluster, **({catalog.link(link).scope: link} if link else {}))
        ranks = rng.choice((0, 2, 3, 4, 8))
        nbytes = np.array([_number(rng, 1, 2**36) for _ in range(8)])
        found = commtax.expect(op, place, nbytes=nbytes, ranks=ranks, library=library)
    except ValueError:
        return None
    words = f"{op} of {library} on {cluster} {link}, {found.ranks} ranks"
    inside = place.as_pairs.intra if found.ranks == 2 else place.intra
    if found.link == inside.key:
        factor = ring_factor(op, found.ranks)
        factor = min(factor, 1 + 1 / found.ranks) if inside.switched else factor
        least = factor * nbytes / inside.bandwidth_Bps
    else:
        hosts = math.ceil(found.ranks / place.domain) if op != "send-recv" else 2
        nics = place.inter.bandwidth_Bps * place.nics_per_host * (place.domain / place.gpus_per_host)
        if op == "send-recv":
            nics /= min(place.domain, place.nics_per_host * place.domain / place.gpus_per_host)
        each = min(found.ranks, place.domain) if op == "all-to-all" else 1
        least = ring_factor(op, hosts) * each * nbytes / nics
    short = np.flatnonzero(np.asarray(found.seconds) < least * (1 - EXACT))
    if not len(short):
        return ""
    i = short[0]
    return f"{words}, {nbytes[i]:,} bytes: {float(found.seconds[i]):.3e} s, and the wire alone takes {float(least[i]):.3e} s"


def more_bytes_take_no_less(rng: Random) -> str | None:
    """Of one collective; libraries change their algorithm with the size."""
    op, library, cluster = rng.choice(OPS), rng.choice(catalog.keys("libraries")), _cluster(rng)
    few = _number(rng, 1, 2**34)
    many = _more(rng, few, 2**36)
    try:
        found = commtax.expect(op, cluster, nbytes=np.array([few, many]), ranks=rng.choice((0, 2, 4, 8)), library=library)
    except ValueError:
        return None
    words = {"op": op, "cluster": cluster, "library": library, "ranks": found.ranks}
    return _order(words, "collective", *map(float, found.seconds), f"{few:,} -> {many:,} bytes")


# Serving


def _loop(rng: Random) -> Question:
    asked = _served(rng, SERVERS) | {"input_len": _number(rng, 1, 32768), "output_len": _number(rng, 1, 2048)}
    return asked | {"spread": rng.choice((0.0, 0.5, 0.5, 1.0)), "concurrency": _number(rng, 1, 512)}


def _room(found: Any, input_len: int, output_len: int, clients: float) -> bool:
    """Whether the cache holds all clients' requests at once."""
    return float(found.kv_tokens) >= (input_len + output_len) * max(1.0, clients)


def times_in_prompts(rng: Random) -> str | None:
    """A longer prompt never brings the first token, or the last, earlier. Where a front end holds requests up, longer ones relieve
    its queue: there only the last token counts. Long prompts keep other requests from decoding, and steps with fewer of them are
    shorter; where prompts run first, fewer of them share a step and the first need not wait for the others. Both were seen to
    gain up to half a percent."""
    asked = _loop(rng)
    less, more = asked["input_len"], _more(rng, asked["input_len"], 65536)
    try:
        short, long = (commtax.simulate(**{**asked, "input_len": n}) for n in (less, more))
    except ValueError:
        return None
    if not all(_room(x, more, asked["output_len"], asked["concurrency"]) for x in (short, long)):
        return None
    change = f"input_len {less} -> {more}"
    last = _order(asked, "E2E", float(short.e2e_s) * 0.99, float(long.e2e_s), change)
    engine = short.question.engine
    if engine.host.frontend_request_s or engine.host.frontend_token_s:
        return last
    return last or _order(asked, "TTFT", float(short.ttft_s) * 0.99, float(long.ttft_s), change)


def tokens_in_clients(rng: Random) -> str | None:
    """Until the cache is full a further client makes no request quicker, and twice as many clients get no fewer tokens. Rows come
    in captured sizes and in tiles of 64, so one client more may open a new one; over a doubling that was seen to cost 8 % at
    most (with a single output token), and one more was seen to shorten requests by 0.1 %."""
    asked = _loop(rng)
    whole = asked["pp"] * asked.get("dp", 1)
    few = asked["concurrency"] = whole * max(1, asked["concurrency"] // whole)
    twice = rng.random() < 0.5
    many = 2 * few if twice else few + whole
    try:
        one, two = (commtax.simulate(**{**asked, "concurrency": n}) for n in (few, many))
    except ValueError:
        return None
    if many > step_limits(two.question)[1] or not _room(two, asked["input_len"], asked["output_len"], many):
        return None
    change = f"concurrency {few} -> {many}"
    rates = _order(asked, "tokens/s", float(one.tokens_per_s) * 0.92, float(two.tokens_per_s), change) if twice else ""
    return rates or _order(asked, "E2E", float(one.e2e_s) * 0.998, float(two.e2e_s), change)


def times_are_positive(rng: Random) -> str | None:
    """Every part of every time, with workers of their own for prompts too."""
    asked = _loop(rng)
    if rng.random() < 0.7:
        workers = {"prefill_workers": rng.choice((None, 1, 2, 5)), "decode_workers": rng.choice((None, 1, 2, 4))}
        asked |= {"disaggregated": True, "prefill_tp": rng.choice((None, 1, 2, 4)), **workers}
    try:
        found = commtax.simulate(**asked)
    except ValueError:
        return None
    parts = ("request_s", "boundary_s", "prefill_s", "ahead_s", "slot_s", "frontend_s", "moved_s", "stretch_s", "tpot_s")
    negative = [name for name in parts if not 0 <= float(getattr(found.served, name)) < math.inf]
    negative += [name for name in ("ttft_s", "tokens_per_s") if not 0 < float(getattr(found, name)) < math.inf]
    return f"{', '.join(negative)} out of bounds: {_asked(asked)}" if negative else ""


def ranges_hold_their_parts(rng: Random) -> str | None:
    """What is simulated is never surer than the step it is made of."""
    asked = _loop(rng)
    lengths = asked["input_len"], asked["output_len"]
    try:
        found = commtax.simulate(**asked)
        plain = {k: v for k, v in asked.items() if k not in ("input_len", "output_len", "spread", "concurrency")}
        stages = found.question.plan.pp
        seqs = math.ceil(float(found.running) / stages) * stages
        step = commtax.bill(**plain, batch=max(1, seqs), context=lengths[0] + max(0, lengths[1] // 2 - 1))
    except ValueError:
        return None
    if not math.isclose(float(step.step_s), float(found.steps.decode_s), rel_tol=0.03):
        return None  # not that step: fewer decode than run where prompts cannot keep up
    low, high = (float(x) for x in found.range_of("tpot_s"))
    whole = high / low
    part = float(step.high_s) / float(step.low_s)
    # The step is rebuilt from rounded lengths, so a percent is left between the two.
    return "" if whole >= part * 0.99 else f"TPOT within a factor {whole:.3f}, its step within {part:.3f}: {_asked(asked)}"


# Training


def zero_saves_memory(rng: Random) -> str | None:
    """Each stage of ZeRO shards more than the one before it."""
    model = rng.choice((*SMALL, *LARGE))
    asked: Question = {
        "model": model,
        "cluster": "64x8xh100-sxm",
        "engine": rng.choice(("megatron", "deepspeed", "fsdp", "torchtitan")),
    }
    asked |= {"tp": rng.choice((1, 2, 4, 8)), "pp": rng.choice((1, 2, 3, 4, 8)), "dp": rng.choice((1, 2, 8, 16))}
    asked |= {
        "batch": _number(rng, 1, 64),
        "context": rng.choice((512, 2048, 8192)),
        "recompute": rng.choice(("none", "selective", "full")),
    }
    asked |= rng.choice(({}, {"schedule": "interleaved", "chunks": 2}, {"schedule": "zb-h1"}, {"schedule": "gpipe"}))
    used = []
    for stage in range(4):
        try:
            used.append((stage, float(commtax.train_fit(**asked, zero=stage).memory.total)))
        except ValueError:
            continue
    if len(used) < 2:
        return None
    for (a, more), (b, less) in itertools.pairwise(used):
        if wrong := _order(asked, "memory", less, more, f"ZeRO {a} -> {b}"):
            return wrong
    return ""


# Plans


def _goal(rng: Random) -> Question:
    """Limits are drawn around what such models take: some bind, some do not, some nothing can meet."""
    free = rng.random(), rng.random()
    return {
        "model": rng.choice(SMALL if rng.random() < 0.8 else LARGE),
        "engine": rng.choice(("vllm", "sglang", "trtllm")),
        "input_len": rng.choice((128, 1024, 8000)),
        "output_len": rng.choice((1, 2, 128, 500)),
        "ttft_s": math.inf if free[0] < 0.3 else 10 ** rng.uniform(-2, 0.7),
        "tpot_s": math.inf if free[1] < 0.3 else 10 ** rng.uniform(-2.7, -1),
        "objective": rng.choice(("throughput", "throughput", "latency", "cost", "gpus")),
        "max_concurrency": rng.choice((8, 32, 128)),
    }


def _worth(found: Any, goal: Question) -> float:
    """What the objective counts, larger is better; nothing good is worth nothing."""
    rows = found.plans
    if not len(rows):
        return 0.0
    return {
        "throughput": lambda: float(rows.tokens_per_s[0]),
        "latency": lambda: 1 / float(rows.ttft_s[0] + (goal["output_len"] - 1) * rows.tpot_s[0]),
        "cost": lambda: float(rows.tokens_per_s_per_gpu[0]),
        "gpus": lambda: 1 / float(rows.gpus[0]),
    }[goal["objective"]]()


def _better(
    goal: Question, clusters: tuple[Any, Any], change: str, looser: Question | None = None, slack: bool = False
) -> str | None:
    """The second question's best is at least as good as the first's; with ``slack`` less one client of a disaggregated one."""
    try:
        found = plan(cluster=clusters[0], **goal)
        first = _worth(found, goal)
        second = _worth(plan(cluster=clusters[1], **{**goal, **(looser or {})}), goal)
    except ValueError:
        return None
    if slack and len(found.plans) and found.plans.mode[0]:
        first *= 1 - 1 / int(found.plans.concurrency[0])
    return _order(goal | {"cluster": getattr(clusters[0], "key", clusters[0])}, "the best plan's worth", first, second, change)


def plans_gain_from_gpus(rng: Random) -> str | None:
    """More hosts, or larger ones."""
    chip, hosts, gpus = rng.choice(HOSTS), rng.choice((1, 1, 2, 3)), rng.choice((1, 2, 3, 4, 6, 8))
    more = (hosts + rng.choice((1, 2)), gpus) if rng.random() < 0.6 else (hosts, min(8, gpus + rng.choice((1, 2))))
    clusters = f"{hosts}x{gpus}x{chip}", f"{more[0]}x{more[1]}x{chip}"
    return _better(_goal(rng), clusters, f"{clusters[0]} -> {clusters[1]}")


def plans_gain_from_looser_limits(rng: Random) -> str | None:
    goal = _goal(rng)
    factor = rng.choice((1.01, 1.3, 4.0))
    name = rng.choice(("ttft_s", "tpot_s"))
    place = f"{rng.choice((1, 2))}x{rng.choice((2, 4, 8))}x{rng.choice(HOSTS)}"
    if goal["output_len"] == 1 or math.isinf(goal[name]):
        return None
    return _better(goal, (place, place), f"{name} x {factor}", {name: goal[name] * factor})


def plans_gain_from_faster_links(rng: Random) -> str | None:
    """Where decoding is quicker prompts come sooner, and their workers are full with a client less: clients are whole."""
    scope = rng.choice(("intra", "inter"))
    links, text = _links(rng, scope), f"{rng.choice((1, 2))}x{rng.choice((2, 4, 8))}x{rng.choice(HOSTS)}"
    try:
        slow, fast = (catalog.cluster(text, **{scope: key}) for key in links)
    except ValueError:
        return None
    if slow.nics_per_host > fast.nics_per_host:
        return None
    return _better(_goal(rng), (slow, fast), f"{scope} {links[0]} -> {links[1]}", slack=True)


def listed_plans_are_what_simulate_says(rng: Random) -> str | None:
    """Times, tokens/s and memory of plans of both kinds, priced again one by one."""
    goal, text = _goal(rng), f"{rng.choice((1, 2, 3))}x{rng.choice((2, 4, 8))}x{rng.choice(HOSTS)}"
    try:
        found = plan(cluster=text, **goal)
    except ValueError:
        return None
    rows = found.plans
    if not len(rows):
        return None
    for i in {0, rng.randrange(len(rows)), rng.randrange(len(rows))}:
        if wrong := _differs(found, i, goal):
            return f"plan {i + 1} {wrong}: cluster={text!r}, {_asked(goal)}"
    return ""


def _differs(found: Any, i: int, goal: Question) -> str:
    rows, asked = found.plans, found.question
    apart, copies = bool(rows.mode[i]), int(rows.replicas[i])
    words = {axis: int(getattr(rows, axis)[i]) for axis in ("tp", "pp", "dp", "ep")}
    if apart:
        workers = {"prefill_workers": rows.prefill_replicas, "prefill_tp": rows.prefill_tp, "prefill_dp": rows.prefill_dp}
        workers["decode_workers"] = rows.replicas
        words |= {"disaggregated": True, **{name: int(column[i]) for name, column in workers.items()}}
    one = commtax.simulate(
        asked.model, asked.cluster, engine=asked.engine, input_len=goal["input_len"], output_len=goal["output_len"],
        concurrency=int(rows.concurrency[i]) // (1 if apart else copies), **words, **found.exchanges[int(rows.exchange[i])].changes,
    )  # fmt: skip
    again = (float(one.ttft_s), float(one.tpot_s), float(one.tokens_per_s) * (1 if apart else copies))
    listed = (float(rows.ttft_s[i]), float(rows.tpot_s[i]), float(rows.tokens_per_s[i]))
    if not np.allclose(again, listed, rtol=1e-6):
        return f"lists {listed}, simulate says {again}"
    over = listed[0] > goal["ttft_s"] or listed[1] > goal["tpot_s"] or int(rows.gpus[i]) > asked.cluster.num_gpus
    return "breaks a limit or uses GPUs that are not there" if over else ""


def training_gains_from_gpus(rng: Random) -> str | None:
    """The fastest step never takes longer on more hosts; a plan that uses more GPUs may lead that is as fast as far as is known."""
    asked: Question = {"model": rng.choice(("llama-3.2-1b", "llama-3.1-8b", "qwen3-30b-a3b", "llama-3.1-70b"))}
    asked |= {"global_batch": rng.choice((8, 24, 48, 64, 256)), "seq": rng.choice((1024, 4096, 16384))}
    asked |= {"engine": rng.choice(("megatron", "fsdp", "torchtitan"))}
    chip, hosts = rng.choice(("h100-sxm", "a100-80-sxm", "h200-sxm", "l40s")), rng.choice((1, 2, 3, 4, 8))
    gpus = rng.choice((2, 4, 8))
    clusters = f"{hosts}x{gpus}x{chip}", f"{hosts + rng.choice((1, 2))}x{gpus}x{chip}"
    try:
        few, found = plan_training(cluster=clusters[0], **asked).plans, plan_training(cluster=clusters[1], **asked)
    except ValueError:
        return None
    if not len(few):
        return None
    many, change = found.plans, f"{clusters[0]} -> {clusters[1]}"
    fastest_s = float(many.step_s.min(initial=math.inf))
    if wrong := _order(asked, "fastest step", fastest_s, float(few.step_s.min()), change):
        return wrong
    far = ratio_error(found.question) if many.gpus[0] > many.gpus[np.argmin(many.step_s)] else 0.0
    return _order(asked, "step of the fastest and of the first plan", float(many.step_s[0]), fastest_s * (1 + far), clusters[1])


LAWS: dict[str, tuple[Law, int]] = {
    law.__name__: (law, share)
    for law, share in (
        (step_in_batch_and_context, 3),
        (graphs_are_no_slower_than_eager, 2),
        (smaller_cache_types_are_no_slower, 2),
        (faster_links_are_no_slower, 3),
        (collectives_keep_to_their_link, 2),
        (more_bytes_take_no_less, 2),
        (times_in_prompts, 3),
        (tokens_in_clients, 3),
        (times_are_positive, 2),
        (ranges_hold_their_parts, 2),
        (zero_saves_memory, 2),
        (plans_gain_from_gpus, 1),
        (plans_gain_from_looser_limits, 1),
        (plans_gain_from_faster_links, 1),
        (listed_plans_are_what_simulate_says, 1),
        (training_gains_from_gpus, 1),
    )
}
"""By name, with its share of a benchmark's questions: quick ones are asked more often."""
