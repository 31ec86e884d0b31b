"""What techniques and settings are worth, held to what simulate, diff and plan say of the same change."""

from __future__ import annotations

import math
from random import Random

import commtax
from commtax.catalog.models import bundled_model
from commtax.judgement.gains import is_worth_telling, verdict_on_gain
from commtax.launch.launch_options import implied_options, options_of, read_pasted
from commtax.launch.writing import launch_command
from commtax.options import taken_by
from commtax.planner.technique_reasons import untried_techniques
from commtax.verbs.costly_settings import SettingWorth, costly_settings
from commtax.verbs.explained_step import ExplainedStep
from commtax.verbs.settling import resolve_question, settle
from commtax.verbs.worth import Scale, TechniqueWorth
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


def _ratio(asked: Question, row: TechniqueWorth) -> float:
    """What simulate says that a technique gains, per GPU."""
    bare = commtax.simulate(**asked, technique=row.beside)
    served = commtax.simulate(**asked, technique=row.asked)
    return float(served.tokens_per_s / bare.tokens_per_s * bare.num_gpus / served.num_gpus)


def techniques_gain_what_simulate_says(rng: Random) -> str | None:
    """A technique gains what requests gain, simulated with and without it, and is judged by that, also where a batch is asked."""
    asked, batch, context = _deployment(rng), _number(rng, 1, 512), _number(rng, 64, 16384)
    output_len = rng.choice((16, 128, 128, 1024))
    loop = _loop(asked, batch, context, output_len)
    try:
        weighed = commtax.worth(**asked, batch=batch, context=context, output_len=output_len)
    except ValueError:
        return None
    able = [row for row in weighed.rows if not row.refused]
    if not able:
        return None
    for row in rng.sample(able, min(2, len(able))):
        gain = _ratio(loop, row)
        if not math.isclose(gain, row.gain, rel_tol=CLOSE):
            return f"{row.asked}: worth says {row.gain:.6f}, simulate {gain:.6f}: batch={batch}, {_asked(loop)}"
        if row.verdict != verdict_on_gain(gain, row.low, row.high, row.fits) and abs(gain - 1) > CLOSE:
            return f"{row.asked} {row.verdict}, but simulate says {gain:.6f} in {row.low:.4f} to {row.high:.4f}: {_asked(loop)}"
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
    words = row.flag.split(" ", 1) if "=" in row.flag.split(" ", 1)[0] else ["", row.flag]
    text = f"{words[0]} {command} {words[-1] if words[0] != words[-1] else ''}"
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
    gain = _ratio(loop, row)
    if not math.isclose(gain, row.gain, rel_tol=CLOSE) or gain <= 1:
        return f"{row.asked}: the bill says {row.gain:.6f}, simulate {gain:.6f}: batch={batch}, {_asked(loop)}"
    return ""


SETTINGS = (
    ("--enforce-eager", {"eager": True}),
    ("--max-num-seqs 8", {"max_num_seqs": 8}),
    ("--max-num-batched-tokens 512", {"max_num_batched_tokens": 512}),
    ("--gpu-memory-utilization 0.6", {"gpu_memory_utilization": 0.6}),
)


def pasted_settings_gain_what_simulate_says(rng: Random) -> str | None:
    """Of settings that were pasted, those cost whose engine's own serves more requests in a simulation beside them, and as much."""
    pasted = rng.sample(SETTINGS, rng.choice((1, 2)))
    model, cluster, tp = rng.choice(SMALL), f"4x{rng.choice(CHIPS)}", rng.choice((1, 2, 4))
    asked: Question = {"model": model, "cluster": cluster, "tp": tp, "input_len": _number(rng, 64, 4096)}
    asked |= {"output_len": 128, "concurrency": _number(rng, 1, 256)}
    fields = {name: value for _, field in pasted for name, value in field.items()}
    words = f"vllm serve {model} -tp {tp} {' '.join(flag for flag, _ in pasted)}"
    try:
        launch = read_pasted(words).options
        weighed = settings_of(asked | fields)
        base = commtax.simulate(**asked, **fields)
    except ValueError:
        return None
    if read := {name for name in fields if launch.get(name) != fields[name]}:
        return f"{words}: {read} are not read"
    if _lacks_room(base):  # nothing is worth dropping from what does not start
        return None
    told = {row.option: row.gain for row in weighed}
    for name in fields:
        kept = {other: value for other, value in fields.items() if other != name}
        without = commtax.simulate(**asked, **kept)
        gain = float(without.tokens_per_s / base.tokens_per_s)
        gains = is_worth_telling(gain) and not _lacks_room(without)
        if gains != (name in told) or (name in told and not math.isclose(told[name], gain, rel_tol=CLOSE)):
            return f"{name}: simulate says {gain:.6f}, worth {told.get(name)}: {_asked(asked | fields)}"
    return ""


def _lacks_room(loop: commtax.ClosedLoop) -> bool:
    return any(note.code == "too-small" for note in loop.notes)


def settings_of(asked: Question) -> tuple[SettingWorth, ...]:
    """What worth says of settings, without weighing techniques beside them."""
    given = dict(asked)
    put = resolve_question(given.pop("model"), given.pop("cluster"), given)
    weigh = Scale(settle(put), True, flips=False)
    return costly_settings(weigh.question, weigh.figures)


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
    loop = commtax.simulate(**asked, **sizes, **load, **{k: v for k, v in found.exchanges[int(rows.exchange[0])].told.items() if v})
    rate = float(loop.tokens_per_s) * copies
    gain = rate / float(found.plans.tokens_per_s[found.recommended])
    if not math.isclose(rate, float(rows.tokens_per_s[0]), rel_tol=CLOSE) or not math.isclose(gain, told.gain, rel_tol=CLOSE):
        return f"{told.techniques}: plan says {told.gain:.6f}, simulate {gain:.6f}: {_asked(asked | goal)}"
    over = float(loop.ttft_s) > limits[0] or float(loop.tpot_s) > limits[1]
    return f"{told.techniques}: a limit is broken: {_asked(asked | goal)}" if over else ""


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
