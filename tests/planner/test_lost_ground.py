"""Why plans are behind: no reason speaks for the loser, and none is told that explains next to nothing of the loss."""

import re

import pytest

from commtax import plan
from commtax.planner.columns import objective_value
from commtax.planner.lost_ground import NOTHING, TELLING, telling_reasons
from commtax.units import parse_seconds

TIME = r"([\d.,]+ (?:s|ms|µs))"
QUESTIONS = (
    {"model": "qwen3-32b", "cluster": "4xh100-sxm", "tpot_s": 0.03},
    {"model": "llama-3.1-70b", "cluster": "8xh100-sxm", "ttft_s": 1.0, "tpot_s": 0.03},
    {"model": "llama-3.1-8b", "cluster": "2x8xh100-sxm", "objective": "cost"},
    {"model": "llama-3.1-8b", "cluster": "8xl40s", "objective": "latency"},
    {"model": "gpt-oss-120b", "cluster": "4xh100-sxm", "engine": "trtllm"},
    {"model": "gpt-oss-120b", "cluster": "4xh100-sxm", "tpot_s": 0.03},
)


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
        assert told[0] != NOTHING, "a loss has a reason"
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
    answer = plan("qwen3-32b", "4xh100-sxm", tpot_s=0.03, margin=0)
    beside = next(line for line in answer.why if "the runner-up" in line)
    assert "for a first token instead of" in beside
    assert "a decode step" not in beside
