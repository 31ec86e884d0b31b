"""What ``plan`` promises against what its ``--emit`` starts: written, read back as ``--from`` reads it, and simulated in time."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import numpy as np

import commtax
from closed_loops import FAR
from commtax import catalog
from commtax.judgement.closed_loops import LEFT_OUT
from commtax.launch.deployment import FORMS, start_commands
from commtax.launch.launch_options import implied_options, options_of
from commtax.launch.read_command import parse
from commtax.planner import plan
from commtax.planner.fleets import fleet_servers, plan_fleet, servers_of
from commtax.planner.layouts import lengths_of_run
from commtax.verbs.requests import RequestsInTime

Question = dict[str, Any]
MODELS = (
    "llama-3.2-1b", "llama-3.1-8b", "qwen2.5-7b", "gpt-oss-20b", "gemma-3-27b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b",
)  # fmt: skip
CHIPS = ("h100-sxm", "h200-sxm", "a100-80-sxm", "b200-sxm", "l40s", "mi300x")
FEWEST = 400  # requests that are simulated at least
ROUNDED = 1e-6  # what the same requests may take longer
SURE = 3.0  # standard errors of a mean of so many requests that are no contradiction


def emitted_plans_keep_their_promise(rng: Random) -> str | None:
    """The promised clients, at servers that are started as written, get the promised TTFT, TPOT and tokens/s. A promise is broken
    where the mean in time lies on the worse side of the plan's 80 % range by more than ``SURE`` standard errors of its requests,
    where a note says what its means leave out of 1.5 times that range; being better breaks none. The first and the last request
    of each client do not count: a closed loop has no beginning and no end."""
    goal, places = _goal(rng)
    try:
        found = plan(goal["model"], places[-1], **{k: v for k, v in goal.items() if k != "model"})
    except ValueError:
        return None
    if not len(found.plans):
        return None
    rows, i = found.answered if rng.random() < 0.6 else (found.plans, rng.randrange(len(found.plans)))
    own, form = goal["engine"], rng.choice(FORMS)
    word = form if rng.random() < 0.4 else own
    try:
        text = _written(found, rows, i, word)
    except ValueError:
        return None  # a form that cannot start such a plan
    clients, spread = int(rows.concurrency[i]), found.question.requests.spread
    load = {"input_len": goal["input_len"], "output_len": goal["output_len"], "concurrency": clients, "spread": spread}
    load |= {"num_prompts": max(FEWEST, 8 * clients), "seed": rng.randrange(100)}
    if len(places) > 1:
        load["prefill_cluster"] = places[0]
    options = _read_back(text, goal["model"])
    promise = {x: found.range_of(rows, i, f"{x}_s" if x != "tokens_per_s" else x) for x in ("ttft", "tpot", "tokens_per_s")}
    if any(note.code in LEFT_OUT for note in found.simulation(rows, i).notes):
        promise = {name: (low / math.exp(FAR), high * math.exp(FAR)) for name, (low, high) in promise.items()}
    try:
        served = commtax.serve(goal["model"], places[-1], **options, **load)
    except ValueError as refused:
        return f"what {word} starts is refused: {refused}; {_told(found, rows, i, places, options, load)}"
    if not (broken := _broken(served, clients, promise)):
        return ""
    limit = options.pop("max_num_seqs", 0)
    unlimited = _broken(commtax.serve(goal["model"], places[-1], **options, **load), clients, promise)
    cause = "closed form and time disagree" if unlimited else f"max_num_seqs {limit} breaks it"
    return f"{cause}: {broken}; {_told(found, rows, i, places, options, load)}, ttft={goal['ttft_s']:.3g} tpot={goal['tpot_s']:.3g}"


def emitted_fleets_keep_their_promise(rng: Random) -> str | None:
    """The same requests at the promised rate, at servers that are started as written, have the times of the simulated fleet."""
    model, cluster = rng.choice(MODELS[:6]), f"{rng.choice((1, 2, 4))}x{rng.choice(CHIPS)}"
    engine, load = rng.choice(("vllm", "sglang", "trtllm")), {"request_rate": rng.choice((0.5, 2.0, 8.0)), "num_prompts": 120}
    load |= {"input_len": rng.choice((128, 1024, 3000)), "output_len": rng.choice((16, 64))}
    slo = {"p95_ttft": rng.choice((0.5, 3.0)), "p99_itl": rng.choice((0.05, 0.3))}
    try:
        found = plan_fleet(model, cluster, slo=slo, engine=engine, processes=1, **load)
        trial = found.plans[found.recommended] if found.plans else None
        servers = fleet_servers(trial) if trial else None
        text = start_commands(servers.question, engine, servers.copies, servers.prompts)["launch"] if servers else ""
    except ValueError:
        return None
    if not trial or not servers:
        return None
    options = _read_back(text, model)
    warmup = lengths_of_run(trial.layout.question, servers.copies)[1]
    served = commtax.serve(model, cluster, **options, **load, warmup=warmup)
    worse = [name for name in ("ttft_mean", "tpot_mean", "itl_p99") if served.statistic(name) > trial.figures[name] * (1 + ROUNDED)]
    told = ", ".join(f"{name} {served.statistic(name):.4g} s, promised {trial.figures[name]:.4g}" for name in worse)
    return f"{told}; {model} on {cluster}: {options | load}" if worse else ""


def _goal(rng: Random) -> tuple[Question, list[str]]:
    """A search whose answers are simulated quickly, and its clusters: of one pool, of two, with data-parallel attention."""
    chip, two = rng.choice(CHIPS), rng.random() < 0.2
    places = [f"{rng.choice((1, 2, 4, 8))}x{chip}"]
    if two:
        places = [f"{rng.choice((1, 2, 4))}x{rng.choice(CHIPS)}", *places]
    goal: Question = {
        "model": rng.choice(MODELS),
        "engine": rng.choice(("vllm", "vllm", "sglang", "trtllm")),
        "input_len": rng.choice((128, 512, 1024, 3000)),
        "output_len": rng.choice((16, 64, 128, 300)),
        "ttft_s": math.inf if rng.random() < 0.4 else 10 ** rng.uniform(-1.3, 0.7),
        "tpot_s": math.inf if rng.random() < 0.3 else 10 ** rng.uniform(-2.3, -1),
        "max_concurrency": rng.choice((8, 32, 100, 256)),
        "kv_dtype": rng.choice(("", "", "", "fp8")),
    }
    if two:
        goal["prefill_cluster"] = places[0]
    return goal, places


def _written(found: Any, rows: Any, i: int, word: str) -> str:
    from dataclasses import replace

    servers = servers_of(replace(found, plans=rows), i)
    return start_commands(servers.question, word, servers.copies, servers.prompts)["launch"]


def _read_back(text: str, model: str) -> Question:
    launch = parse(text)
    return dict(options_of(launch, several=True)) | dict(implied_options(launch, catalog.model(model), []))


def _broken(served: RequestsInTime, clients: int, promise: dict[str, tuple[float, float]]) -> str:
    """Which figures are worse than promised."""
    columns, count = served.columns, len(served.stream)
    some = slice(clients, count - clients)
    said = []
    for name in ("ttft", "tpot"):
        values = columns[f"{name}_s"][some]
        values = values[np.isfinite(values)]
        if not values.size:
            continue
        mean, error = float(values.mean()), float(values.std()) / math.sqrt(values.size)
        if mean - SURE * error > promise[name][1]:
            said.append(f"{name} {mean:.4g} s, promised to {promise[name][1]:.4g}")
    done = np.sort(columns["done_s"])[some]
    outputs = served.stream.output_len[some]
    rate = (len(done) - 1) / float(done[-1] - done[0]) * float(outputs.mean())
    error = float(outputs.std() / outputs.mean()) / math.sqrt(len(outputs))
    if rate * (1 + SURE * error) < promise["tokens_per_s"][0]:
        said.append(f"{rate:,.0f} tokens/s, promised from {promise['tokens_per_s'][0]:,.0f}")
    return ", ".join(said)


def _told(found: Any, rows: Any, i: int, places: list[str], options: Question, load: Question) -> str:
    return f"{found.question.model.key}, {found.layout(rows, i)} on {' and '.join(places)}: {options | load}"


LAWS = {law.__name__: (law, 1) for law in (emitted_plans_keep_their_promise, emitted_fleets_keep_their_promise)}
