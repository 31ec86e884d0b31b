"""How much each constant has to do with a latency: d ln(latency) / d ln(constant), read off the priced steps of a closed loop.

TPOT and TTFT are sums of a decode step D, of a step with prompts P, and of what prompts add to shared steps, P - D; the steps are
sums of lines, and each line goes by one constant. Nothing is priced again.
"""

from collections.abc import Mapping

import numpy as np

from commtax.cost.closed_form import ClosedLoopMeans, Steps
from commtax.cost.kernel import Kernel
from commtax.cost.kernels import pace_of
from commtax.ledger import Bill
from commtax.records import dataclass
from commtax.spec import Engine, Number

LEAST_S = 1e-12
Slopes = Mapping[str, Number]


@dataclass(frozen=True, slots=True)
class PricedLoop:
    """A closed loop as far as its slopes are read off it."""

    engine: Engine
    steps: Steps
    served: ClosedLoopMeans
    bills: tuple[Bill, Bill]
    seqs: Number  # that run at once
    decodes: Number  # steps of a request after its first token
    apart: bool  # prompts have workers of their own


def latency_slopes(loop: PricedLoop) -> dict[str, Slopes]:
    """Of ``tpot`` and ``ttft``, by the names of an engine's constants."""
    decode, prompt = step_shares(loop.bills[0], loop.engine, loop.seqs), step_shares(loop.bills[1], loop.engine, loop.seqs, True)
    served, first, stretched = loop.served, _added(loop.served.ahead_s, loop), _added(loop.served.stretch_s, loop)
    each = stretched | {"decode": stretched["decode"] + served.tpot_s - served.stretch_s}
    own = {
        "prompt": first["prompt"] + served.prefill_s,
        "decode": first["decode"] + served.boundary_s,
        "request": first["request"] + served.request_s,
    }
    life = served.request_s + served.boundary_s + served.prefill_s + served.ahead_s + loop.decodes * served.tpot_s
    waited = served.slot_s / np.maximum(LEAST_S, life)
    first_token_parts = {name: part + waited * (part + loop.decodes * each[name]) for name, part in own.items()}
    # Who waits for a slot waits for whole lives of requests.
    parts = {"tpot": (each, served.tpot_s), "ttft": (first_token_parts, loop.served.ttft_s)}
    return {
        metric: {
            name: (part["decode"] * decode.get(name, 0.0) + part["prompt"] * prompt.get(name, 0.0)) / whole
            for name in dict.fromkeys([*decode, *prompt])
        }
        | {"request_s": part["request"] / whole, "pace_prompt_steps": part["prompt"] / whole}
        for metric, (part, whole) in parts.items()
    }


def step_shares(bill: Bill, engine: Engine, seqs: Number, prompts: bool = False) -> dict[str, Number]:
    """Shares of a step by the constant that they go by."""
    return {name: part / bill.step_s for name, part in step_seconds(bill, engine, seqs, prompts).items()}


def step_seconds(bill: Bill, engine: Engine, seqs: Number, prompts: bool = False) -> dict[str, Number]:
    """Seconds of a step by the constant that they go by."""
    host = engine.host
    seconds: dict[str, Number] = {"host_s": host.host_s, "host_s_per_seq": host.host_s_per_seq * seqs}
    seconds["prompt_s"] = host.prompt_s if prompts else 0.0
    for line in bill.lines:
        if line.kind == "compute" and isinstance(line.priced_from, Kernel):
            name = pace_of(line.priced_from)
            seconds[name] = seconds.get(name, 0.0) + line.exposed_s
        elif line.kind == "comm":
            left = line.exposed_s / np.maximum(line.each_s, LEAST_S)
            for name, part in (("pace_latency", line.fixed_s), ("pace_wire", line.moving_s)):
                seconds[name] = seconds.get(name, 0.0) + left * part
    return seconds


def _added(seconds: Number, loop: PricedLoop) -> dict[str, Number]:
    """Seconds that go as P - D does, or as P where prompts run in steps of their own."""
    beside = 0.0 if loop.apart or loop.engine.serves.prefill_first else loop.steps.decode_s
    added = np.maximum(LEAST_S, loop.steps.prompt_s - beside)
    return {"prompt": seconds * loop.steps.prompt_s / added, "decode": -seconds * beside / added, "request": 0.0 * seconds}
