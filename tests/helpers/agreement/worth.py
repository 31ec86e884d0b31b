"""What techniques and settings are worth, held to what simulate, diff and plan say of the same change."""

from __future__ import annotations

import json
import math
import re
from itertools import takewhile
from random import Random

import commtax
from cli_run import told_here
from commtax.catalog.models import bundled_model
from commtax.judgement.gains import is_worth_telling
from commtax.launch.launch_options import implied_options, options_of, read_pasted
from commtax.launch.writing import launch_command
from commtax.options import taken_by
from commtax.planner.technique_sets import UntriedTechniques, untried_gain, untried_techniques
from commtax.verbs.explained_step import ExplainedStep
from laws import LARGE, SMALL, Law, Question, _asked, _axes, _number

CLOSE = 1e-6
CLUSTERS = ("1x{}", "2x{}", "4x{}", "8x{}", "2x8x{}")
CHIPS = ("h100-sxm", "h200-sxm", "a100-80-sxm", "b200-sxm", "mi300x", "l40s")


def _deployment(rng: Random) -> Question:
    model = rng.choice(SMALL + LARGE)
    cluster = rng.choice(CLUSTERS).format(rng.choice(CHIPS))
    return {"model": model, "cluster": cluster, "engine": rng.choice(("vllm", "sglang", "trtllm")), **_axes(rng, model)}


def _loop(asked: Question, batch: int, context: int, output_len: int) -> Question:
    """The load of the clients who keep a batch running: as many for each replica."""
    return asked | {"concurrency": batch * asked.get("dp", 1), "input_len": context, "output_len": output_len}


def _typed(asked: Question) -> list[object]:
    """A deployment and its load as options of a command."""
    named = {f"{'-' if len(name) == 2 else '--'}{name.replace('_', '-')}": value for name, value in asked.items()}
    words = [asked["model"], *(word for flag, value in named.items() if flag not in ("--model", "-ep") for word in (flag, value))]
    return words + ["-ep"] * (asked.get("ep") == -1)


def _ratio(asked: Question, technique: str, beside: str = "") -> float:
    """What simulate says that a technique gains, per GPU."""
    bare = commtax.simulate(**asked, technique=beside)
    served = commtax.simulate(**asked, technique=technique)
    return float(served.tokens_per_s / bare.tokens_per_s * bare.num_gpus / served.num_gpus)


def _printed(gain: float, told: str) -> bool:
    """Whether a percentage, as it is printed, is this gain."""
    return abs((gain - 1) * 100 - float(told)) <= (0.051 if "." in told else 0.51)


def techniques_gain_what_simulate_says(rng: Random) -> str | None:
    """What worth prints of a technique is what requests gain, simulated with and without it, also where a batch is asked: its gain,
    in its sentence too, where "worth setting" are those that surely gain."""
    asked, batch, context = _deployment(rng), _number(rng, 1, 512), _number(rng, 64, 16384)
    output_len = rng.choice((16, 128, 128, 1024))
    loop = _loop(asked, batch, context, output_len)
    step = asked | {"batch": batch, "context": context, "output_len": output_len}
    told = told_here("worth", *_typed(loop if rng.random() < 0.5 else step))
    if told.returncode == 2:
        return None
    document = json.loads(told.document)
    able = {row["name"]: row for row in document["weighed"] if not row.get("refused")}
    sentence = document["verdict"].partition(" A loss once")[0]
    said = dict(re.findall(r"(\S+) \(([+-][\d.]+)%(?: here, [^)]*)?\)", sentence))
    first = re.search(r"Worth setting [^:]*: ([^.]*(?:\.\d[^.]*)*)\.", sentence)
    sure = {name for name, row in able.items() if row["verdict"] == "gains" and row["fits"]}
    if bool(first) != bool(sure) or (first and not any(name.split()[0] in first[1] for name in sure)):
        return f"worth setting: {first and first[1]}, but {sure or 'nothing'} surely gains: {_asked(step)}"
    for name in rng.sample(list(able), min(2, len(able))):
        row = able[name]
        gain = _ratio(loop, row["asked"], row.get("on_top_of") or "")
        if not math.isclose(gain, row["gain"], rel_tol=CLOSE) or (name in said and not _printed(gain, said[name])):
            return f"{name}: worth says {row['gain']:.6f} ({said.get(name)}), simulate {gain:.6f}: batch={batch}, {_asked(loop)}"
        if gain < 1 - CLOSE and row["verdict"] == "gains":
            return f"{name} gains, but simulate says {gain:.6f}: {_asked(loop)}"
    return ""


WORTH_LOAD = (("concurrency", "concurrency"), ("context", "input_len"), ("output_len", "output_len"))


def printed_flags_are_read_back(rng: Random) -> str | None:
    """The flags that worth prints, behind the launch command, are read as that technique by every verb."""
    asked = _deployment(rng)
    loop = asked | {"concurrency": _number(rng, 1, 256), "input_len": _number(rng, 64, 4096), "output_len": 128}
    try:
        weighed = commtax.worth(**asked, **{own: loop[name] for own, name in WORTH_LOAD})
    except ValueError:
        return None
    able = [row for row in weighed.rows if not row.refused]
    if not able:
        return None
    row, command = rng.choice(able), launch_command(weighed.question, asked["engine"])
    ahead = list(takewhile(lambda word: word[0] != "-", row.flag.split()))  # variables stand before the command, all of them
    text = " ".join([*ahead, command, row.flag.removeprefix(" ".join(ahead)).strip()]).strip()
    try:
        if asked["engine"] == "trtllm" or "\n" in command or not _is_close(_read_back(command, loop), commtax.simulate(**loop)):
            return None  # of several lines, or of a plan that no command says
        return "" if _is_close(_read_back(text, loop), commtax.simulate(**loop, technique=row.asked)) else f"read otherwise: {text}"
    except ValueError as error:
        return f"{row.asked}: {error}: {text}"


def _read_back(text: str, loop: Question) -> commtax.ClosedLoop:
    """What simulate says of a command; fit and bill take the same."""
    launch = read_pasted(text)
    read = options_of(launch, several=True) | implied_options(launch, bundled_model(loop["model"]), [])
    for verb in (commtax.fit, commtax.bill):
        verb(loop["model"], loop["cluster"], **{n: v for n, v in read.items() if n in taken_by(f"{verb.__name__}()")})
    return commtax.simulate(**loop | {n: v for n, v in read.items() if n in taken_by("simulate()")})


def _is_close(one: commtax.ClosedLoop, other: commtax.ClosedLoop) -> bool:
    return math.isclose(float(one.tokens_per_s), float(other.tokens_per_s), rel_tol=CLOSE)


def a_batch_is_judged_as_its_clients(rng: Random) -> str | None:
    """A batch, and the clients who keep it running, have the same verdict and gain for each technique."""
    asked, batch, context = _deployment(rng), _number(rng, 1, 512), _number(rng, 64, 16384)
    clients = batch * asked.get("dp", 1)
    try:
        sides = [commtax.worth(**asked, context=context, **load) for load in ({"batch": batch}, {"concurrency": clients})]
    except ValueError:
        return None
    for one, other in zip(*(w.rows for w in sides), strict=True):
        same = (one.asked, one.verdict, one.advice, one.flag) == (other.asked, other.verdict, other.advice, other.flag)
        if not same or not (one.refused or math.isclose(one.gain, other.gain, rel_tol=CLOSE)):
            told = [f"{row.asked} {row.verdict} {row.gain:.6f}" for row in (one, other)]
            return f"batch {batch}: {told[0]}; {clients} clients: {told[1]}: context={context}, {_asked(asked)}"
    return ""


def a_bill_hints_at_what_requests_gain(rng: Random) -> str | None:
    """A technique that a bill names gains whole requests what simulate says."""
    asked, batch, context = _deployment(rng), _number(rng, 1, 512), _number(rng, 64, 16384)
    try:
        told = ExplainedStep(commtax.bill(**asked, batch=batch, context=context)).techniques
    except ValueError:
        return None
    if not told:
        return None
    row, loop = rng.choice(told), _loop(asked, batch, context, 128)
    gain = _ratio(loop, row.asked, row.beside)
    if not math.isclose(gain, row.gain, rel_tol=CLOSE) or gain <= 1:
        return f"{row.asked}: the bill says {row.gain:.6f}, simulate {gain:.6f}: batch={batch}, {_asked(loop)}"
    return ""


SETTINGS = (
    ("--enforce-eager", "eager"),
    ("--max-num-seqs 8", "max_num_seqs"),
    ("--max-num-batched-tokens 512", "max_num_batched_tokens"),
    ("--gpu-memory-utilization 0.6", "gpu_memory_utilization"),
    ("--disable-custom-all-reduce", "library"),
)


def pasted_settings_gain_what_simulate_says(rng: Random) -> str | None:
    """Of a pasted command's settings, those cost without which the command serves more requests in a simulation, and as much."""
    pasted = rng.sample(SETTINGS, rng.choice((1, 2, 3)))
    model, tp = rng.choice(SMALL), rng.choice((1, 2, 4))
    load: list[object] = ["-c", f"4x{rng.choice(CHIPS)}", "--input-len", _number(rng, 64, 4096), "--output-len", 128]
    load += ["--concurrency", _number(rng, 1, 256)]

    def command(*settings: tuple[str, str]) -> str:
        return f"vllm serve {model} -tp {tp} {' '.join(flag for flag, _ in settings)}"

    weighed = told_here("worth", "--from", command(*pasted), *load)
    base, starts = _served(command(*pasted), load)
    if weighed.returncode or not starts:  # nothing is worth dropping from what does not start
        return None
    document = json.loads(weighed.document)
    told = {row["option"]: row["gain"] for row in document.get("settings", ())}
    for flag, name in pasted:
        without, still = _served(command(*(one for one in pasted if one[1] != name)), load)
        gain, lost = without / base, f"Without {flag} vLLM would not start"
        if name in told and still == (lost in document["verdict"]):
            return f"{flag}: starts without it: {still}, worth says {document['verdict']!r}: {command(*pasted)} {load}"
        if is_worth_telling(gain) != (name in told) or (name in told and not math.isclose(told[name], gain, rel_tol=CLOSE)):
            return f"{flag}: simulate says {gain:.6f}, worth {told.get(name)}: {command(*pasted)} {load}"
        said = re.search(rf"dropping {re.escape(flag)} gains ([+-][\d.]+)%", document["verdict"])
        if name in told and not (said and _printed(gain, said[1])):
            return f"{flag}: simulate says {gain:.6f}, the sentence is {document['verdict']!r}: {command(*pasted)} {load}"
    full = document.get("settings_when_full", {"weighed": ()})
    for flag, name in pasted:
        row = next((row for row in full["weighed"] if row["option"] == name), None)
        crowd = [*load[:-1], full.get("clients")]
        others = command(*(one for one in pasted if one[1] != name))
        if row and not math.isclose(row["gain"], _served(others, crowd)[0] / _served(command(*pasted), crowd)[0], rel_tol=CLOSE):
            return f"{flag}: worth on a full server {row['gain']}: {command(*pasted)} {crowd}"
    return ""


def _served(command: str, load: list[object]) -> tuple[float, bool]:
    """Tokens/s of a pasted command, 0 where it does not fit; and whether it starts, too, with the model's own length."""
    told = told_here("simulate", "--from", command, *load)
    fits = not told.returncode or (told.returncode == 1 and "would not start with the checkpoint's own" in told.stdout)
    return float(json.loads(told.document)["runs"][0]["tokens_per_s"]) if fits else 0.0, not told.returncode


def plans_tell_what_techniques_bring(rng: Random) -> str | None:
    """What a plan says that techniques would bring on it is what a search with them finds on that layout, and simulate says."""
    asked: Question = {"model": rng.choice(SMALL), "cluster": f"{rng.choice((1, 2, 4))}x{rng.choice(CHIPS)}"}
    goal = {"tpot_s": rng.choice((0.01, 0.02, 0.03, 0.05)), "ttft_s": rng.choice((0.5, 2.0)), "disaggregated": False}
    goal |= {"input_len": rng.choice((256, 1024, 4096)), "output_len": rng.choice((128, 512))}
    try:
        found = commtax.plan(**asked, **goal)
    except ValueError:
        return None
    if not len(found.plans) or (told := untried_techniques(found)) is None:
        return None
    rows, copies = told.rows, int(told.rows.replicas[0])
    sizes = {axis: int(getattr(rows, axis)[0]) for axis in ("tp", "pp", "dp", "ep")}
    lengths, limits = ("input_len", "output_len"), (goal["ttft_s"], goal["tpot_s"])
    load = {"concurrency": int(rows.concurrency[0]) // copies, "technique": told.techniques, **{x: goal[x] for x in lengths}}
    ways = {name: value for name, value in found.exchanges[int(rows.exchange[0])].stated.items() if value}
    loop = commtax.simulate(**asked, **sizes, **load, **ways)
    rate = float(loop.tokens_per_s) * copies
    gain = rate / float(found.plans.tokens_per_s[found.recommended])
    if not math.isclose(rate, float(rows.tokens_per_s[0]), rel_tol=CLOSE) or not math.isclose(gain, told.gain, rel_tol=CLOSE):
        return f"{told.techniques}: plan says {told.gain:.6f}, simulate {gain:.6f}: {_asked(asked | goal)}"
    if float(loop.ttft_s) > limits[0] or float(loop.tpot_s) > limits[1]:
        return f"{told.techniques}: a limit is broken: {_asked(asked | goal)}"
    return _less_than_searched(asked | goal, told, [*untried_gain(found)][-1])


def _less_than_searched(asked: Question, told: UntriedTechniques, said: str) -> str:
    """``--techniques auto`` finds at least what the plain answer's line says of one layout, and that line says what was priced."""
    every = commtax.plan(**asked, techniques="auto")
    best, own = float(every.plans.tokens_per_s[0]), float(told.rows.tokens_per_s[0])
    named = f"with {told.techniques} ", f" {int(told.rows.concurrency[0])} client", f"{own:,.0f} tokens/s instead of"
    if not all(words in said for words in named):
        return f"{said!r} does not say {named}: {_asked(asked)}"
    wrong = f"{told.techniques}: {own:,.0f} tokens/s, all plans with techniques {best:,.0f}: {_asked(asked)}"
    return wrong if best < own * (1 - CLOSE) else ""


LAWS: dict[str, tuple[Law, int]] = {
    law.__name__: (law, share)
    for law, share in (
        (techniques_gain_what_simulate_says, 1),
        (printed_flags_are_read_back, 1),
        (a_batch_is_judged_as_its_clients, 1),
        (a_bill_hints_at_what_requests_gain, 2),
        (pasted_settings_gain_what_simulate_says, 2),
        (plans_tell_what_techniques_bring, 1),
    )
}
