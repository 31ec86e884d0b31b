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
LIVES = 12  # requests of each client, of which the first third is not counted
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
        ran = simulated(put.but(num_prompts=count, warmup=count // 3))
        form = closed_form(put.but(num_prompts=np.inf))
    except Refusal:
        return None
    middle = ran.columns["done_s"][count // 3 : count - count // 6]
    rate = (len(middle) - 1) / max(1e-12, float(np.max(middle) - np.min(middle)))
    ratios = ran.statistic("tpot_mean") / float(form.tpot_s), ran.statistic("ttft_mean") / float(form.ttft_s)
    each = float(str(words["concurrency"])) / put.plan.dp
    thrown = bool(np.sum(ran.columns["preemptions"]))
    waits = bool(float(form.running) < each) or each > step_limits(form.question)[1]
    return Pair(words, *ratios, rate / float(form.requests_per_s), waits, thrown, float(form.mixed_share))


def kind(pair: Pair) -> str:
    """How the engine schedules."""
    serves = catalog.engine(str(pair.words["engine"])).serves
    steps = "prompts first" if serves.prefill_first else "mixed steps, ahead" if serves.ahead else "mixed steps"
    return steps + (", reserved" if serves.kv_reserved else "")


def ratio(pair: Pair) -> str:
    """Prompt over output."""
    share = int(str(pair.words["input_len"])) / int(str(pair.words["output_len"]))
    return "prompt > 16 outputs" if share > 16 else "prompt 2 to 16 outputs" if share > 2 else "prompt < 2 outputs"


GROUPS: Mapping[str, Callable[[Pair], str]] = {
    "engine": kind,
    "clients": lambda pair: f"clients {'<= 4' if int(str(pair.words['concurrency'])) <= 4 else '5 to 48' if int(str(pair.words['concurrency'])) <= 48 else '> 48'}",
    "lengths": ratio,
    "spread": lambda pair: f"spread {pair.words['spread']}",
    "stages": lambda pair: f"pp {pair.words.get('pp', 1)}",
    "cache": lambda pair: "thrown out" if pair.full else "waiting" if pair.waiting else "all run",
    "prompts' share": lambda pair: "prompts < 10 %" if pair.load < 0.1 else "prompts < 50 %" if pair.load < 0.5 else "prompts > 50 %",
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
        worst = sorted(pairs, key=lambda pair: -abs(np.log(getattr(pair, figure))))[: options.worst]  # noqa: B023
        print(f"\nfurthest apart in {figure}", *worst, sep="\n")


if __name__ == "__main__":
    main()
