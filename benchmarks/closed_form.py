"""The closed form of a closed loop against the simulation of its scheduler, over random questions.

python benchmarks/closed_form.py 200 [--seed 0] [--only vllm] [--worst 12]

Both are asked for the same clients, lengths, engine and plan; the simulation runs long enough that its first requests, which no
figure counts, do not matter. Printed: geometric means and 10th to 90th percentiles of simulated over closed form, by kind.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from random import Random

import numpy as np

from commtax import catalog
from commtax.question import Question
from commtax.statement import Refusal
from commtax.verbs.asking import unsettled
from commtax.verbs.fitting import step_limits
from commtax.verbs.requests import serve as simulated
from commtax.verbs.serving import serve as closed_form

MODELS = ("llama-3.1-8b", "qwen3-14b", "gemma-3-27b", "llama-3.1-70b", "gpt-oss-120b", "qwen3-30b-a3b", "mixtral-8x7b")
CLUSTERS = ("8xh100-sxm", "8xh200-sxm", "8xa100-80-sxm", "8xb200-sxm")
ENGINES = ("vllm", "vllm@0.11", "sglang", "trtllm")
LIVES = 12  # requests of each client, of which the first third and the last sixth are not counted
FIGURES = ("tpot", "ttft", "rate")


@dataclass(frozen=True, slots=True)
class Pair:
    """One question, simulated over closed form."""

    words: Mapping[str, object]
    tpot: float
    ttft: float
    rate: float
    waiting: bool  # for a slot or the cache
    full: bool  # requests were thrown out
    load: float  # share of the time that goes to prompts, in the closed form

    def __str__(self) -> str:
        asked = ", ".join(f"{name} {value}" for name, value in self.words.items())
        return f"tpot {self.tpot:5.2f}  ttft {self.ttft:5.2f}  rate {self.rate:5.2f}  {asked}"


def drawn(rng: Random) -> dict[str, object]:
    """A closed loop, legal or not."""
    engine, model = rng.choice(ENGINES), rng.choice(MODELS)
    tp = rng.choice((1, 2, 4, 8))
    clients = round(2 ** rng.uniform(0, 8.5))
    words: dict[str, object] = {"model": model, "cluster": rng.choice(CLUSTERS), "engine": engine, "tp": tp}
    lengths = {"input_len": round(2 ** rng.uniform(5, 13)), "output_len": round(2 ** rng.uniform(3, 10))}
    spread = rng.choice((0.0, 0.1, 0.5, 0.5))
    pp = {"pp": 2} if rng.random() < 0.15 and tp <= 4 else {}
    return {**words, **pp, "concurrency": clients, **lengths, "spread": spread}


def question(words: Mapping[str, object]) -> Question:
    options = {name: value for name, value in words.items() if name not in ("model", "cluster")}
    return unsettled(str(words["model"]), str(words["cluster"]), options)


def asked(seed: str) -> Pair | None:
    """Both answers; None where the question is refused."""
    words = drawn(Random(seed))
    count = max(120, LIVES * int(str(words["concurrency"])))
    try:
        put = question(words)
        ran = simulated(put.but(num_prompts=count))
        form = closed_form(put.but(num_prompts=np.inf))
    except Refusal:
        return None
    middle = slice(count // 3, count - count // 6)
    done = np.sort(ran.columns["done_s"])[middle]
    rate = (len(done) - 1) / max(1e-12, float(done[-1] - done[0]))
    tpot, ttft = (float(np.nanmean(ran.columns[name][middle])) for name in ("tpot_s", "ttft_s"))
    ratios = tpot / float(form.tpot_s), ttft / float(form.ttft_s)
    each = float(str(words["concurrency"])) / put.plan.dp
    thrown = bool(np.sum(ran.columns["preemptions"]))
    waits = bool(float(form.running) < each) or each > step_limits(form.question)[1]
    return Pair(words, *ratios, rate / float(form.requests_per_s), waits, thrown, float(form.mixed_share))


def kind(pair: Pair) -> str:
    """How the engine schedules."""
    serves = catalog.engine(str(pair.words["engine"])).serves
    steps = "prompts first" if serves.prefill_first else "mixed steps, ahead" if serves.ahead else "mixed steps"
    return steps + (", reserved" if serves.kv_reserved else "")


def _below(value: float, limits: tuple[int, int], what: str) -> str:
    low, high = limits
    return f"{what} <= {low}" if value <= low else f"{what} <= {high}" if value <= high else f"{what} > {high}"


GROUPS: Mapping[str, Callable[[Pair], str]] = {
    "engine": kind,
    "clients": lambda pair: _below(int(str(pair.words["concurrency"])), (4, 48), "clients"),
    "lengths": lambda pair: _below(
        int(str(pair.words["input_len"])) / int(str(pair.words["output_len"])), (2, 16), "prompt/output"
    ),
    "spread": lambda pair: f"spread {pair.words['spread']}",
    "stages": lambda pair: f"pp {pair.words.get('pp', 1)}",
    "cache": lambda pair: "thrown out" if pair.full else "waiting" if pair.waiting else "all run",
    "prompts' share": lambda pair: _below(100 * pair.load, (10, 50), "prompts %"),
}


def lines(pairs: list[Pair]) -> Iterator[str]:
    yield f"{'':24}{'':>5}" + "".join(f"{name:>22}" for name in FIGURES)
    for group in ({"all": lambda _: "all"} | dict(GROUPS)).values():
        for name in sorted({group(pair) for pair in pairs}):
            own = [pair for pair in pairs if group(pair) == name]
            yield f"{name:24}{len(own):5}" + "".join(_spread([getattr(p, figure) for p in own]) for figure in FIGURES)


def _spread(ratios: list[float]) -> str:
    values = np.array(ratios)[np.isfinite(ratios)]
    if not values.size:
        return f"{'-':>22}"
    low, high = np.quantile(values, (0.1, 0.9))
    return f"{np.exp(np.mean(np.log(values))):8.3f} ({low:4.2f}-{high:5.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="engines whose name begins so")
    parser.add_argument("--worst", type=int, default=12)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    seeds = (f"{options.seed}-{n}" for n in range(options.count))
    with multiprocessing.Pool(options.jobs) as pool:
        pairs = [pair for pair in pool.imap_unordered(asked, seeds, chunksize=4) if pair]
    pairs = [pair for pair in pairs if str(pair.words["engine"]).startswith(options.only)]
    print("\n".join(lines(pairs)))
    for figure in FIGURES:
        worst = sorted(pairs, key=lambda pair: -abs(np.log(getattr(pair, figure))))[: options.worst]
        print(f"\nfurthest apart in {figure}", *worst, sep="\n")


if __name__ == "__main__":
    main()
