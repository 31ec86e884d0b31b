"""The page, the terminal, the document and Python tell the same headline figures, the same verdict and the same plan.

A question is drawn as keys of the page. The command line is the page's own, or one that says no more than was drawn: so what
neither says has to be the same by default.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Iterator
from random import Random
from typing import Any

import commtax
from cli_run import Told, told_here
from commtax import catalog
from commtax.units import format_seconds
from commtax.verbs.comparing import parse_plan, replicas_in
from commtax.web.answering import write_answer

MODELS = ("llama-3.2-1b", "llama-3.2-3b", "qwen3-0.6b", "qwen3-8b", "llama-3.1-8b", "gpt-oss-20b", "qwen3-30b-a3b", "gemma-3-27b")
CLUSTERS = ("1xh100-sxm", "2xh100-sxm", "4xl40s", "2xh200-sxm", "4xa100-80-sxm", "2xmi300x", "2x2xh100-sxm", "1xb200-sxm")
ROUNDING = 1e-9
Drawn = dict[str, object]
"""Keys of the page."""
Difference = tuple[str, object, object]
FLAGS = {
    "c": "--cluster", "b": "--batch", "s": "--context", "dt": "--dtype", "kv": "--kv-dtype", "e": "--engine", "ph": "--phase",
    "ttft": "--ttft", "tpot": "--tpot", "il": "--input-len", "ol": "--output-len", "obj": "--objective", "usd": "--price",
    "len": "--max-model-len", "sure": "--confidence", "tp": "-tp", "pp": "-pp", "dp": "-dp", "rep": "--replicas",
}  # fmt: skip
UNITS = {"ttft": "ms", "tpot": "ms", "sure": "%"}


def _asked_page(name: str, drawn: Drawn) -> dict[str, Any] | None:
    """What the page's API answers; None where it refuses."""
    query = "&".join(f"{key}={value}" for key, value in drawn.items())
    status, body = write_answer(name, query.encode())
    return json.loads(body) if status == 200 else None


def _typed(verb: str, drawn: Drawn) -> Told:
    """The command of somebody who says the same and no more."""
    places = [place for place in str(drawn.get("cs", "")).split(",") if place]
    words = [word for key in FLAGS.keys() & drawn.keys() for word in (FLAGS[key], f"{drawn[key]}{UNITS.get(key, '')}")]
    return told_here(verb, drawn["m"], *words, *(word for place in places for word in ("--cluster", place)))


def _command(rng: Random, verb: str, drawn: Drawn, line: str) -> Told:
    return told_here(*shlex.split(line)[1:]) if rng.random() < 0.5 else _typed(verb, drawn)


def _maybe(rng: Random, **choices: tuple[object, ...]) -> Drawn:
    """Some keys, each said or left out."""
    return {key: rng.choice(values) for key, values in choices.items() if rng.random() < 0.5}


def _sized(rng: Random) -> Drawn:
    drawn: Drawn = {"m": rng.choice(MODELS), "c": rng.choice(CLUSTERS)}
    return drawn | _maybe(rng, tp=(1, 2, 4), pp=(1, 2), rep=(1, 2), e=("vllm", "sglang", "trtllm"), dt=("fp8",), kv=("fp8",))


def _verdict(differences: Iterator[Difference], drawn: Drawn, verb: str) -> str:
    for name, one, other in differences:
        close = isinstance(one, float) and isinstance(other, int | float) and math.isclose(one, other, rel_tol=ROUNDING)
        if one != other and not close:
            return f"{verb} {drawn}: {name} is {one!r} on the page or in Python, and {other!r} in the command's answer"
    return ""


def _words(text: str) -> str:
    return " ".join(text.split())


def _said(figure: str, told: Told) -> Difference:
    """Whether the terminal shows a figure, as it is printed."""
    return f"the terminal's {figure!r}", True, figure in _words(told.stdout)


def _same(page: dict[str, Any], told: dict[str, Any], *names: str) -> Iterator[Difference]:
    for name in names:
        yield name, page[name], told[name]


# One step, memory, techniques


def bills_are_told_alike(rng: Random) -> str | None:
    """The step, its communication and the sentence that sums it up."""
    drawn = _sized(rng) | _maybe(rng, b=(1, 8, 64), s=(128, 2048), ph=("decode", "prefill"))
    page = _asked_page("view", drawn)
    if page is None:
        return None
    told = _command(rng, "bill", drawn, page["commands"]["commtax"])
    document = json.loads(told.document)
    names = ("step_s", "low_s", "high_s", "compute_s", "exposed_comm_s", "comm_fraction", "tokens_per_s")
    found = [*_same(page["totals"], document, *names), ("fits", page["memory"]["fits"], document["fits"])]
    found += [("sentence", page["sentence"], document["verdict"])]
    found += [_said(part.strip("."), told) for part in page["sentence"].split(". ")]  # notes may stand between
    return _verdict(iter([*found, _said(f"step {format_seconds(document['step_s'])}", told)]), drawn, "bill")


def memory_is_told_alike(rng: Random) -> str | None:
    """Whether it fits, and what is left for caches."""
    drawn = _sized(rng) | {"tp": rng.choice((1, 2, 4)), "len": rng.choice((1152, 8192, 32768))}
    page = _asked_page("memory", drawn)
    if page is None:
        return None
    told = _command(rng, "fit", drawn, page["command"])
    document = json.loads(told.document)
    names = ("fits", "shortfall_bytes", "weights_bytes_per_rank", "kv_tokens", "max_model_len", "max_concurrency", "advice")
    word = "fits" if document["fits"] else "does not fit"
    found = [*_same(page, document, *names), _said(word, told), ("sentence", True, word in page["sentence"])]
    return _verdict(iter([*found, ("exit code", int(not page["fits"]), told.returncode)]), drawn, "fit")


def techniques_are_told_alike(rng: Random) -> str | None:
    """What is worth setting for a step, and by how much."""
    drawn = _sized(rng) | {"b": rng.choice((1, 16, 128))} | _maybe(rng, s=(128, 2048))
    page = _asked_page("worth", drawn)
    if page is None:
        return None
    told = _typed("worth", drawn)
    document = json.loads(told.document)
    found = [*_same(page, document, "verdict", "step_s", "tokens_per_s", "fits"), _said(_words(page["verdict"]), told)]
    for one, other in zip(page["weighed"], document["weighed"], strict=True):
        found += _same(one, other, "name", "verdict", "gain", "low", "high")
    return _verdict(iter(found), drawn, "worth")


# Whole requests and plans beside each other, which the page has no single answer for: Python's


def requests_are_told_alike(rng: Random) -> str | None:
    """TTFT, TPOT and tokens/s of a closed loop."""
    drawn = {"m": rng.choice(MODELS), "c": rng.choice(CLUSTERS)} | _maybe(rng, tp=(1, 2), il=(128, 4096), ol=(16, 512))
    clients = rng.choice((1, 7, 64, 300))
    long = {"tp": "tp", "il": "input_len", "ol": "output_len"}
    options = {long[key]: value for key, value in drawn.items() if key in long}
    try:
        found = commtax.simulate(str(drawn["m"]), str(drawn["c"]), concurrency=clients, **options)
    except ValueError:
        return None
    words = [word for key in long if key in drawn for word in (FLAGS[key], drawn[key])]
    told = told_here("simulate", drawn["m"], "-c", drawn["c"], "--concurrency", clients, *words)
    document = json.loads(told.document)
    run = document["runs"][0]
    names = ("ttft_s", "tpot_s", "tokens_per_s")
    shown = [f"TPOT {format_seconds(run['tpot_s'])}", f"TTFT {format_seconds(run['ttft_s'])}", f"{run['tokens_per_s']:,.0f} output"]
    if not document["fits"]:  # what would be is no headline then
        shown = ["does not fit"]
    checks = [(name, float(getattr(found, name)), run[name]) for name in names]
    return _verdict(iter([*checks, *(_said(figure, told) for figure in shown)]), drawn | {"clients": clients}, "simulate")


def compared_plans_are_told_alike(rng: Random) -> str | None:
    """Steps of plans beside each other, as each is priced alone, and from where on which is faster."""
    drawn, batch = {"m": rng.choice(MODELS), "c": rng.choice(CLUSTERS)}, rng.choice((1, 8, 96))
    plans = rng.sample(("tp1", "tp2", "tp4", "tp2pp2", "tp1dp2ep2", "2xtp1", "2xtp2"), 2)
    told = told_here("compare", drawn["m"], "-c", drawn["c"], "--plans", ",".join(plans), "--batches", batch)
    if told.returncode == 2:
        return None
    document = json.loads(told.document)
    rows = [row for row in document["rows"] if not row["refused"]]
    checks = list[Difference]()
    for row in rows:
        one = _alone(drawn, row["plan"], batch)
        checks += [("batch", float(one.question.batch), row["batch"]), ("step_s", float(one.step_s), row["step_s"])]
        if batch >= replicas_in(row["plan"]):  # else some of them idle
            rate = batch * float(one.tokens_per_s) / (float(one.question.batch) * replicas_in(row["plan"]))
            checks.append(("tokens_per_s", rate, row["tokens_per_s"]))
        checks.append(_said(format_seconds(row["step_s"]), told))
    for swap in document["break_even"]:
        if swap["axis"] == "sequences":
            ends = [[float(_alone(drawn, swap[x], at).step_s) for x in ("below", "from")] for at in (1, int(swap["at"]))]
            checks += [
                ("the one below is faster at 1", True, ends[0][0] < ends[0][1]),
                ("the other from there", True, ends[1][1] < ends[1][0]),
            ]
    return _verdict(iter(checks), drawn | {"plans": plans, "batch": batch}, "compare") if rows else None


def _alone(drawn: Drawn, plan: str, sequences: int) -> Any:
    """The bill of one plan with its replicas' share of so many sequences."""
    sizes = {axis: n for axis, n in parse_plan(plan).items() if n != 1}
    return commtax.bill(str(drawn["m"]), str(drawn["c"]), **sizes, batch=-(-sequences // replicas_in(plan)))


LINKS = ("nvlink4", "nvlink3", "pcie4", "pcie5", "ib-ndr", "ib-hdr", "roce-200", "10gbe")


def overlaps_that_break_even_do(rng: Random) -> str | None:
    """What ``compare`` says must be hidden for a slow link's step to match the fastest: ``bill --overlap`` takes that step."""
    model, tp, batch = rng.choice(MODELS), rng.choice((2, 4, 8)), rng.choice((1, 8, 64, 512))
    links, size = rng.sample(LINKS, 2), ["-tp", tp, "--batch", batch]
    told = told_here("compare", model, "-c", f"{tp}xh100-sxm", *size, "--over", f"link={','.join(links)}")
    if told.returncode == 2:
        return None
    rows = [row for row in json.loads(told.document)["rows"] if not row["refused"]]
    if len(rows) < 2:
        return None
    share = max((row["breakeven_overlap"], row["step_s"], row["link"]) for row in rows)
    fastest = min(row["step_s"] for row in rows)
    place = ["-c", f"{tp}xh100-sxm", "--intra", share[2]] if catalog.link(share[2]).scope == "intra" else None
    hidden = told_here("bill", model, *(place or ["-c", f"{tp}x1xh100-sxm", "--inter", share[2]]), *size, "--overlap", share[0])
    if hidden.returncode == 2:
        return f"bill refuses {share}: {hidden.stderr}"
    found = [("step_s", json.loads(hidden.document)["step_s"], fastest), *([_said(f"{share[0]:.0%}", told)] if share[0] else [])]
    return _verdict(iter(found), {"m": model, "tp": tp, "b": batch, "links": links, "share": share}, "compare")


# Plans


def _wanted(rng: Random) -> Drawn:
    drawn: Drawn = {"m": rng.choice(MODELS[:6]), "c": rng.choice(CLUSTERS)}
    limits = _maybe(rng, ttft=(100, 500, 3000), tpot=(5, 15, 40), il=(128, 4096), ol=(16, 512), sure=(50, 80))
    return drawn | limits | _maybe(rng, dt=("fp8",), obj=("latency", "cost", "gpus"), usd=(2.0, 7.5))


FIGURES = ("verdict", "concurrency", "ttft_s", "tpot_s", "tokens_per_s", "usd_per_million_tokens")


def _rows_agree(page: dict[str, Any], document: dict[str, Any], told: Told) -> Iterator[Difference]:
    """What is recommended and what is best: in both documents, in the table, in the picture and in the page's sentence."""
    for role in ("recommended", "best"):
        one, other = page[role], document[role]
        yield f"{role} is there", one is not None, other is not None
        if one is None:
            continue
        yield from ((f"{role} {name}", *pair[1:]) for name, pair in zip(FIGURES, _same(one, other, *FIGURES), strict=True))
        yield f"rows that are {role}", [one["verdict"]], [r["name"] for r in page["table"]["rows"] if role in r["roles"]]
    own_words = {"(--confidence)": "(‘Limits hold’)"}  # the page names its control
    why = [line.replace(flag, label) for line in document["why"][1:2] for flag, label in own_words.items()]
    yield "why", why, page["why"][1:2]
    if own := document["recommended"]:
        yield "points that are recommended", [own["verdict"]], [point["name"] for point in page["front"] if point["best"]]
        yield "sentence", True, own["verdict"] in page["sentence"]
        yield _said(own["verdict"], told)
        yield _said(f"{own['tokens_per_s']:,.0f}", told)
    yield "exit code", int(document["recommended"] is None), told.returncode


def plans_are_told_alike(rng: Random) -> str | None:
    """The recommended plan and the best, their figures, why, and where to run when nobody says who waits."""
    drawn = _wanted(rng)
    page = _asked_page("plan", drawn)
    if page is None:
        return None
    told = _command(rng, "plan", drawn, page["command"])
    document = json.loads(told.document)
    found = list(_rows_agree(page, document, told))
    own = [(point["row"]["name"], point["row"]["values"]["tokens_per_s"]) for point in page["points"]]
    found.append(("points", own, [(p["recommended"]["verdict"], p["recommended"]["tokens_per_s"]) for p in document["places"]]))
    return _verdict(iter(found), drawn, "plan")


def several_clusters_are_told_alike(rng: Random) -> str | None:
    """The same of several clusters, and what each card of the page names: the cluster's own recommended plan."""
    drawn = _wanted(rng)
    drawn["cs"] = ",".join(rng.sample([place for place in CLUSTERS if place != drawn["c"]], rng.choice((1, 1, 2))))
    drawn.pop("usd", None)  # which is of the first cluster alone
    page = _asked_page("several", drawn)
    if page is None:
        return None
    told = _command(rng, "plan", drawn, page["command"])
    document = json.loads(told.document)
    found = [check for check in _rows_agree(page, document, told) if check[0] != "why"]
    for side, answer in zip(page["sides"], document["answers"], strict=True):
        card, own = (one and one[name] for one, name in ((side["row"], "name"), (answer["recommended"], "verdict")))
        listed = [r["name"] for r in page["table"]["rows"] if r["cluster"] == side["cluster"]]
        found += [(f"card of {side['cluster']}", card, own), ("the card's plan is listed", card in listed, bool(card))]
    first = next(iter(page["table"]["rows"]), None)
    found.append(("the first row leads", bool(first), bool(first) and "best" in first["roles"]))
    return _verdict(iter(found), drawn, "plan")


LAWS = {
    law.__name__: (law, share)
    for law, share in (
        (bills_are_told_alike, 2),
        (memory_is_told_alike, 2),
        (techniques_are_told_alike, 1),
        (requests_are_told_alike, 2),
        (compared_plans_are_told_alike, 2),
        (overlaps_that_break_even_do, 2),
        (plans_are_told_alike, 1),
        (several_clusters_are_told_alike, 1),
    )
}
