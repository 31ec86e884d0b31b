"""The table of steps against the bill that it stands for, over random steps of every kind of attention and plan."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax.cost.closed_form import ClosedLoopLoad
from commtax.spec import Workload
from commtax.verbs.requests import steps_of
from commtax.verbs.settling import resolve_question, settle
from commtax.verbs.steps import prompt_work, step_bill
from each import each
from tables import tables

DATA = tables(__file__)

PLANS = DATA["plans"]
LONGEST = 8192


def asked_of(plan):
    model, cluster, words = plan
    return settle(resolve_question(model, cluster, words))


def random_steps(rng, count, most_rows):
    """Decodes with their mean context, prompts, new tokens of each and tokens before them; some steps are of one kind alone."""
    shape = rng.integers(0, 3, count)
    seqs = np.where(shape == 1, 0, np.round(2 ** rng.uniform(0, 8, count))).astype(int)
    context = 2 ** rng.uniform(4, 12.9, count)
    prompts = np.where(shape == 0, 0, rng.integers(1, 5, count))
    new = np.minimum(np.round(2 ** rng.uniform(2, 11, count)), (most_rows - seqs) // np.maximum(1, prompts)).astype(int)
    past = np.where(rng.random(count) < 0.5, 0, np.round(2 ** rng.uniform(4, 12, count))).astype(int)
    return seqs, context, prompts, new, past


def looked_up(table, seqs, context, prompts, new, past):
    if not prompts:
        return table.decoding(seqs, seqs * context)[0]
    return table.mixing(seqs, seqs * context, prompts * new, prompts, table.prompts_s([(0, new, past)] * prompts))


@each("plan", PLANS, ids=lambda plan: f"{plan[0]}-{plan[2].get('engine', 'vllm')}")
def test_a_step_looked_up_is_the_step_priced(plan):
    asked = asked_of(plan)
    table = steps_of(asked, LONGEST)
    steps = random_steps(np.random.default_rng(5), 400, table.mixed.shape[1] - 1)
    seqs, context, prompts, new, past = steps
    priced = step_bill(asked, Workload(seqs * 1.0, seqs * context, prompts * 1.0, prompts * new * 1.0, prompts * past * 1.0)).step_s
    found = np.array([looked_up(table, *step) for step in zip(*(column.tolist() for column in steps), strict=True)])
    error = np.abs(found / priced - 1)
    assert np.mean(error) < 0.003, (np.mean(error), np.argmax(error))
    assert np.max(error) < 0.02, [column[np.argmax(error)] for column in (*steps, priced, found)]


@pytest.mark.parametrize("prompts", [1, 2, 4])
def test_each_prompt_of_a_step_has_its_own_cached_prefix(prompts):
    asked, load = settle(resolve_question("llama-3.1-8b", "8xh100-sxm", {})), ClosedLoopLoad(8.0, 8192.0, 64.0, cached=7168.0)
    priced = step_bill(asked, prompt_work(0.0, load, prompts * 1024.0, prompts * 1.0)).step_s
    assert looked_up(steps_of(asked, LONGEST), 0, 0.0, prompts, 1024, 7168) == pytest.approx(float(priced), rel=0.003)


@settings(max_examples=15)
@given(plan=st.sampled_from(PLANS), seed=st.integers(0, 2**31))
def test_more_work_takes_longer(plan, seed):
    """More context, more prompt tokens, more of them cached, more prompts: never less time beyond what a collective's change of
    algorithm or a tile saves in the bill too."""
    table = steps_of(asked_of(plan), LONGEST)
    seqs, context, prompts, new, past = (int(x) for x in np.ravel(random_steps(np.random.default_rng(seed), 1, 2048)))
    prompts, context = max(1, prompts), float(context)
    base = looked_up(table, seqs, context, prompts, new, past)
    for more in (
        (seqs, context * 1.5, prompts, new, past),
        (seqs, context, prompts, new, past + 500),
        (seqs, context, prompts + 1, new, past),
    ):
        assert looked_up(table, *more) >= base * (1 - 0.02)
    if seqs:
        first, rise, holds = table.decoding(seqs, seqs * context)
        assert rise >= 0
        assert holds > 0
        assert table.decoding(seqs, seqs * (context + 1))[0] == pytest.approx(first + rise * min(1, holds), rel=1e-3)


@settings(max_examples=10)
@given(plan=st.sampled_from(PLANS), seed=st.integers(0, 2**31), factor=st.floats(0.1, 10))
def test_a_scaled_table_is_longer_throughout(plan, seed, factor):
    table = steps_of(asked_of(plan), LONGEST)
    scaled = table.scaled(factor)
    for step in zip(*(column.tolist() for column in random_steps(np.random.default_rng(seed), 10, 2048)), strict=True):
        assert looked_up(scaled, *step) == pytest.approx(factor * looked_up(table, *step), rel=1e-9)
