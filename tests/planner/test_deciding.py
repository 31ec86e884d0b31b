"""Which runs would settle a decision, and when none does."""

import numpy as np
import pytest

from commtax.planner import plan
from commtax.planner.deciding import LEVEL, settle_decision
from measured import CLUSTER, MODEL, measured, profile

CLOSE = {"tpot_s": "10ms", "disaggregated": False}


@pytest.fixture(scope="module")
def close():
    """A search whose plans are worth about the same."""
    return plan("llama-3.1-8b", CLUSTER, **CLOSE)


def test_a_decision_that_is_sure_needs_no_run():
    """Without a limit the plan with the most tokens/s wins by far."""
    found = settle_decision(plan(MODEL, CLUSTER, disaggregated=False, objective="latency"), 3)
    assert found.right >= LEVEL.sure or found.loss < LEVEL.least_loss
    assert found.settled
    assert not found.runs


def test_runs_save_what_they_are_said_to(close):
    found = settle_decision(close, 3)
    assert found.recommended == close.layout(close.plans, close.recommended)
    assert 0 <= found.right <= 1
    losses = [found.loss, *(run.loss for run in found.runs)]
    assert losses == sorted(losses, reverse=True)
    named = {close.layout(close.plans, i) for i in range(len(close.plans))}
    assert all(run.plan in named and f"--max-concurrency {run.clients}" in run.command for run in found.runs)
    assert sum(share for _, share in found.rivals) == pytest.approx(1 - found.right, abs=1e-9)


def test_the_same_question_has_the_same_answer(close):
    assert settle_decision(close, 1) == settle_decision(close, 1)


def test_a_margin_that_forgives_all_makes_the_recommendation_right():
    strict, mild = (settle_decision(plan("llama-3.1-8b", CLUSTER, margin=m, **CLOSE), 0) for m in ("1%", "50%"))
    assert mild.right >= strict.right


def test_what_was_measured_makes_the_decision_surer():
    """Runs of each plan at its own load leave less to lose."""
    before = plan(MODEL, CLUSTER, tpot_s="30ms", disaggregated=False)
    loads = [(int(clients), 1024, 128) for clients in (8, 32, 96)]
    runs = [run for tp in (2, 4, 8) for run in measured(loads, tp=tp)]
    after = plan(MODEL, CLUSTER, tpot_s="30ms", disaggregated=False, profile=profile(runs))
    losses = [settle_decision(one, 0).loss for one in (before, after)]
    assert losses[1] <= losses[0] + 0.005
    assert np.all(np.isfinite(losses))
