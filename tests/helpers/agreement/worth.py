"""What techniques and settings are worth, held to what simulate, diff and plan say of the same change."""

from __future__ import annotations

import math
from random import Random

import commtax
from commtax.judgement.gains import verdict_on_gain
from commtax.verbs.explained_step import ExplainedStep
from commtax.verbs.worth import TechniqueWorth
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


LAWS: dict[str, tuple[Law, int]] = {
    law.__name__: (law, share)
    for law, share in (
        (techniques_gain_what_simulate_says, 1),
        (a_batch_is_judged_as_its_clients, 1),
        (a_bill_hints_at_what_requests_gain, 2),
    )
}
