"""Why plans are behind: no reason speaks for the loser, and none is told that explains next to nothing of the loss."""

import re

import numpy as np
import pytest

import commtax
from commtax import plan
from commtax.planner.columns import objective_value
from commtax.planner.reasons import TELLING, telling_reasons
from commtax.units import parse_seconds
from tables import tables

DATA = tables(__file__)

TIME = r"([\d.,]+ (?:s|ms|µs))"
QUESTIONS = DATA["questions"]


def against(reason):
    """The loser's figure and the other's, larger is worse: of the figures that a reason sets beside each other."""
    if found := re.search(rf"(?:takes|wait) {TIME}.* instead of {TIME}", reason):
        return tuple(parse_seconds(text.replace(" ", ""), "time") for text in found.groups())
    if found := re.search(r"([\d,.]+) clients?(?: per GPU)? instead of ([\d,.]+)", reason):
        return tuple(-float(text.replace(",", "")) for text in found.groups())
    if found := re.search(r"(\d+)% of its decode step is .* against (\d+)%", reason):
        return tuple(int(text) for text in found.groups())
    return None


@pytest.mark.parametrize("asked", QUESTIONS, ids=lambda asked: "-".join([asked["model"], *sorted({*asked} - {"model", "cluster"})]))
def test_no_reason_speaks_for_the_loser(asked):
    answer = plan(**asked)
    rows, value = answer.plans, objective_value(answer.question, answer.plans)
    shares, compared = answer.comm_fractions(rows), 0
    for first, i in [(own, i) for own in {0, answer.recommended} for i in range(own + 1, min(len(rows), 14))]:
        loss = 1 - float(value[i] / value[first])
        if loss < 0.01:
            continue
        told = telling_reasons(answer, i, float(shares[i]), float(shares[first]), first)
        assert told[0].code != "loss-unknown", "a loss has a reason"
        for reason in told:
            if figures := against(reason):
                compared += 1
                assert figures[0] > figures[1], (answer.layout(rows, i), reason)
            if found := re.search(r"for ([\d,]+) requests? instead of .* for ([\d,]+)$", reason):
                for text, j in zip(found.groups(), (i, first), strict=True):  # Little's law: of a replica, all its ranks together
                    decoding = float(rows.tokens_per_s[j] * rows.tpot_s[j] / rows.replicas[j])
                    assert int(text.replace(",", "")) == pytest.approx(decoding, rel=0.15), (answer.layout(rows, j), reason)
            if "exposed communication" in reason:
                assert shares[i] - shares[first] >= TELLING * loss, (loss, reason)
    assert compared


def test_prompt_workers_that_fall_behind_are_the_reason():
    """The runner-up's decode step is the faster one: what it lacks are prompts."""
    answer = plan("qwen3-32b", "4xh100-sxm", tpot_s=0.03, margin=0, workload="batch", input_len=1024, output_len=128)
    beside = next(line for line in answer.why if "the runner-up" in line)
    assert "for a first token instead of" in beside
    assert "a decode step" not in beside


@pytest.mark.parametrize(
    "asked",
    [
        {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "tpot_s": 0.012},
        {"model": "gpt-oss-120b", "cluster": "8xh100-sxm", "tpot_s": 0.01, "ttft_s": 0.3},
        {"model": "llama-3.1-70b", "cluster": "2x8xh100-sxm"},
    ],
    ids=lambda asked: asked["model"],
)
def test_throughput_is_said_to_peak_only_where_more_clients_get_no_more(asked):
    """Else what ends it is named: a limit that is broken by a load with more tokens/s."""
    answer = plan(**asked, disaggregated=False)
    rows, said = answer.plans, 0
    shares = answer.comm_fractions(rows)
    for i in range(1, min(len(rows), 25)):
        told = [one for one in telling_reasons(answer, i, float(shares[i]), float(shares[0]), 0) if "instead of" in one]
        ended = next((one for one in told if re.search("peaks|limit at", one)), "")
        if not ended:
            continue
        said += 1
        copies = int(rows.replicas[i])
        each = int(rows.concurrency[i]) // copies
        busy = commtax.simulate(
            asked["model"],
            asked["cluster"],
            **{axis: int(getattr(rows, axis)[i]) for axis in ("tp", "pp", "dp", "ep")},
            **answer.exchanges[int(rows.exchange[i])].changes,
            concurrency=each * np.array([2, 4, 8]),
        )
        grows = bool(np.any(busy.tokens_per_s * copies > 1.01 * rows.tokens_per_s[i]))
        assert grows == ("peaks" not in ended), (answer.layout(rows, i), ended)
    assert said


def test_a_limit_that_one_more_client_would_break_is_the_reason():
    """TP 4 steps 8 requests in 17 ms and 9 in 20 ms, as graphs are padded: it stops well below a limit that it cannot pass, though
    four times the clients would have twice the tokens/s."""
    answer = plan("deepseek-v3", "8xgb200", tpot_s=0.02)
    rows = answer.plans
    i = next(i for i in range(len(rows)) if answer.layout(rows, i) == "2 replicas x TP 4")
    eight, nine, many = (answer.simulation(rows, i, 2 * each) for each in (8, 9, 32))
    assert rows.concurrency[i] == 16
    assert rows.sure_tpot_s[i] < 0.95 * 0.02 < float(nine.range_of("tpot_s")[1])
    assert many.tokens_per_s > 2 * eight.tokens_per_s
    assert "it reaches the TPOT limit at 16 clients" in " ".join(telling_reasons(answer, i, 0.0, 0.0, 0))
