"""Questions at the edge are answered soon: what was searched, counted or printed one by one. By CPU time."""

import itertools
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_run import run_here
from commtax import catalog
from commtax.cost.schedules import SCHEDULES, fewest_microbatches
from commtax.planner.columns import ServingColumns
from commtax.planner.ranking import family
from commtax.verbs import fit_advice, fitting, kv_caches
from commtax.verbs.settling import resolve_question, settle
from each import each
from tables import tables

DATA = tables(__file__)

GENEROUS_S = 6.0  # each takes less than a second; before, they took 9 to 44


@pytest.mark.parametrize(("command", "code"), DATA["a_refusal_takes_no_longer_than_an_answer"])
def test_a_refusal_takes_no_longer_than_an_answer(command, code):
    began_s = time.process_time()
    done = run_here(*command.split())
    assert done.returncode == code, done.stderr
    assert time.process_time() - began_s < GENEROUS_S


LIMITS = st.fixed_dictionaries(
    {},
    optional={
        "max_num_seqs": st.sampled_from([1, 256, 4096, 65_536]),
        "gpu_memory_utilization": st.sampled_from([0.01, 0.3, 0.6, 0.95]),
        "kv_cache_memory_bytes": st.sampled_from([1.0, 1e7, 1e9, 4e9, 4e10]),
        "max_model_len": st.sampled_from([1, 4096, 100_000, 10_000_000]),
    },
)
PLACES = st.sampled_from(["4x8xa100-40-sxm", "2x8xl4", "8x8xh100-sxm"])


@settings(max_examples=40)
@given(st.sampled_from(["llama-3.1-70b", "gemma-3-27b", "gpt-oss-120b", "deepseek-v3", "opt-1.3b"]), PLACES, LIMITS)
def test_what_is_ruled_out_at_a_look_does_not_fit(model, place, limits):
    """Every plan that the screen leaves out, judged: none fits."""
    put = resolve_question(model, place, limits)
    asked = settle(put)
    asked = asked.but(limits=kv_caches.limits_of(asked))
    may = fitting.screen(asked, auto_ep=False)
    out = [c for c in fitting.candidates(put) if not may(int(c.plan.tp), int(c.plan.pp))]
    for candidate in out[:: max(1, len(out) // 12)]:
        assert not fitting.judge(candidate.but(limits=asked.limits)).fits


def test_advice_is_looked_for_only_where_it_is_read(monkeypatch):
    """A plan's refusal reads how much is missing; what would fit is told once, for the whole search."""
    asked = []
    monkeypatch.setattr(fit_advice, "_advice", lambda failed: asked.append(failed) or [])
    assert run_here("plan", "opt-1.3b", "-c", "p5", "--gpu-memory-utilization", "0.01").returncode == 1
    assert not asked


@each("kind", SCHEDULES.values(), ids=lambda k: k.name)
def test_the_fewest_microbatches_are_those_that_counting_finds(kind):
    for p, v, budget in itertools.product((1, 2, 4, 7, 16), (1, 3), (0.0123, 0.2, 0.5, 1.0)):
        if not any(kind.legal(p, m, v) for m in range(1, 4 * p + 1)):
            continue
        times = (1.0, 1.0, 1.0)
        within = (m for m in itertools.count(1) if kind.idle(p, *times) <= budget * kind.total(p, m, v, *times) * (1 + 1e-12))
        assert fewest_microbatches(kind, p, v, times, budget) == next(m for m in within if kind.legal(p, m, v))


def test_a_budget_without_a_legal_shape_is_refused():
    done = run_here("pipeline", "-p", 13, "--schedule", "dualpipe", "--budget", 0.1)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nearest legal stages: 14" in done.stderr


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("pipeline -p 1000 -m 2000", "at most 150 microbatches"),
        ("pipeline -p 1000000 -m 1", "at most 150,000 stages"),
        ("pipeline -p 1000 -m 200 --schedule zb-v", "at most 75 microbatches"),
        ("plan llama-3.1-8b -c 8xh100-sxm --top 100000", "nearest valid: 1000"),
        ("plan llama-3.1-8b -c 8xh100-sxm --top 0", "top"),
    ],
)
def test_what_would_take_minutes_is_refused_with_what_would_not(command, says):
    done = run_here(*command.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_families_are_told_apart_in_large_clusters():
    """Digits in a mixed base, also where they do not fit into one number."""
    import numpy as np

    rows = np.random.default_rng(0).integers(0, 1_000_000, (200, 9))
    rows = np.concatenate([rows, rows[:50]])
    names = ("mode", "dtype", "tp", "pp", "dp", "ep", "replicas", "prefill_tp", "prefill_replicas")
    plain = dict.fromkeys(ServingColumns.names(), np.zeros(len(rows)))
    found = family(ServingColumns(**{**plain, **dict(zip(names, rows.T, strict=True))}))
    order = {row: i for i, row in enumerate(sorted(set(map(tuple, rows.tolist()))))}
    assert found.tolist() == [order[tuple(row)] for row in rows.tolist()]


def test_every_chip_has_a_first_answer():
    """The screen looks at one tp with any chip and any engine that serves."""
    for engine in (key for key in catalog.keys("engines") if "decode" in catalog.engine(key).phases):
        assert fit_advice.fit("llama-3.2-1b", "8xh100-sxm", engine=engine, max_model_len=128).fits
