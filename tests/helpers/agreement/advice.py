"""What plans are advised by, held to what simulate says: settings that a pasted command keeps, first tokens that come late."""

from __future__ import annotations

import json
import math
import re
from random import Random
from typing import Any

from agreement.worth import CLOSE, SETTINGS, _printed
from cli_run import told_here
from commtax.judgement.leading import BATCH, bearable_ttft_s
from commtax.units import format_seconds, parse_seconds
from commtax.verbs.settling import ask
from laws import LARGE, SMALL

CHIPS = ("h100-sxm", "h200-sxm", "a100-80-sxm", "b200-sxm", "mi300x", "l40s")
COSTS = re.compile(r"(--[a-z-]+(?: [\d.]+)?): ([+-][\d.]+)% tokens/s at ([\d,]+) client")


def settings_that_plans_keep_cost_what_simulate_says(rng: Random) -> str | None:
    """A plan of a pasted command names what it would gain without a setting: as simulate does of the command without it."""
    pasted, model = rng.sample(SETTINGS, rng.choice((1, 2))), rng.choice(SMALL)
    place = ["-c", f"{rng.choice((1, 2, 4))}x{rng.choice(CHIPS)}"]
    lengths = ["--input-len", rng.choice((128, 1024, 3000)), "--output-len", rng.choice((64, 256))]
    limits = ["--tpot", rng.choice(("20ms", "50ms", "100ms")), "--ttft", rng.choice(("500ms", "3s"))]
    flags = [flag for flag, _ in pasted]
    told = told_here("plan", "--from", f"vllm serve {model} {' '.join(flags)}", *place, *lengths, *limits)
    if told.returncode:
        return None
    document = json.loads(told.document)
    own = document["recommended"]
    if own["mode"] != "together":
        return None
    sizes = [word for axis in ("tp", "pp", "dp", "ep") for word in (f"-{axis}", own[axis])] + ["--replicas", own["replicas"]]
    said = {flag: (percent, int(clients.replace(",", ""))) for flag, percent, clients in COSTS.findall(" ".join(document["why"]))}
    if not set(said) <= set(flags):
        return f"{sorted(said)} cost, of {flags}: {model} {place} {lengths} {limits}"
    for flag, (percent, clients) in said.items():
        command = f"vllm serve {model} {' '.join(one for one in flags if one != flag)}"
        served = told_here("simulate", "--from", command, *place, *sizes, *lengths, "--concurrency", clients)
        run = json.loads(served.document)["runs"][0] if served.document else None
        gain = run["tokens_per_s"] / own["tokens_per_s"] if run else math.nan
        if (served.returncode == 1) != ("would not start" in " ".join(document["why"])):
            return f"{flag}: simulate exits {served.returncode} without it: {model} {place} {sizes} {lengths} {limits} {flags}"
        if not _printed(gain, percent):
            return f"{flag}: the plan says {percent}%, simulate {gain:.4f}: {model} {place} {sizes} {lengths} {limits} {flags}"
        if run and (run["ttft_s"] > document["ttft_limit_s"] or run["tpot_s"] > document["tpot_limit_s"]):
            return f"{flag}: a limit is broken without it: {model} {place} {sizes} {lengths} {limits} {flags}"
    return ""


def late_first_tokens_lead_nothing(rng: Random) -> str | None:
    """Where no TTFT is asked for, the plan that leads brings first tokens in time, as simulate says, or none that is checked does;
    what is ahead of it and late is said to be."""
    model, workload = rng.choice(SMALL + LARGE), rng.choice(("", "", BATCH))
    chip = rng.choice(CHIPS)
    place = f"{rng.choice((2, 4, 8))}x{chip}" if rng.random() < 0.7 else f"2x{rng.choice((4, 8))}x{chip}"
    asked = ["--tpot", rng.choice(("20ms", "50ms", "100ms")), "--input-len", rng.choice((512, 2048, 8000))]
    asked += ["--output-len", rng.choice((16, 128, 500)), *(["--workload", workload] if workload else [])]
    told = told_here("plan", model, "-c", place, *asked)
    if told.returncode:
        return None
    document, said = json.loads(told.document), f"{model} -c {place} {' '.join(map(str, asked))}"
    own, q = document["recommended"], ask(model, place).but(input_len=document["input_len"])
    bearable = bearable_ttft_s(q.but(workload=workload, tpot_s=document["tpot_limit_s"]))
    if f"TTFT {format_seconds(own['ttft_s'])}" not in told.stdout:
        return f"{said}: the TTFT of the plan that leads is not told"
    if own["mode"] == "together" and (wrong := _unlike(own, model, place, document)):
        return f"{said}: {wrong}"
    soon = [row["verdict"] for row in document["plans"] if row["mode"] == "together" and row["ttft_s"] <= bearable]
    if own["ttft_s"] > bearable and soon:
        return f"{said}: {own['verdict']} leads with {own['ttft_s']:.2f} s, and {soon[0]} has first tokens in time"
    for line in document["why"]:
        later = re.search(r"is predicted at .* more .*TTFT \S+ \S+ -> (\S+ \S+?)[,)]", line)
        if later and parse_seconds(later[1], "ttft") > bearable * 1.01 and "later than" not in line:
            return f"{said}: {line}"
    return ""


def _unlike(own: dict[str, Any], model: str, place: str, document: dict[str, Any]) -> str:
    """What simulate says otherwise of the plan that leads; "" where nothing."""
    if own["ep"] > 1 or own["dp"] > 1:  # whose exchange the search chose
        return ""
    sizes = ["-tp", own["tp"], "-pp", own["pp"], "--replicas", own["replicas"], "--concurrency", own["concurrency"]]
    lengths = ["--input-len", document["input_len"], "--output-len", document["output_len"]]
    run = json.loads(told_here("simulate", model, "-c", place, *sizes, *lengths).document)["runs"][0]
    unlike = [name for name in ("ttft_s", "tpot_s", "tokens_per_s") if not math.isclose(run[name], own[name], rel_tol=CLOSE)]
    return ", ".join(f"{name} {own[name]} in the plan, {run[name]} in simulate" for name in unlike)


LAWS = {law.__name__: (law, 1) for law in (settings_that_plans_keep_cost_what_simulate_says, late_first_tokens_lead_nothing)}
