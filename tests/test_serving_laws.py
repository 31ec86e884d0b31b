"""Laws of the engine in time: whatever is asked, tokens and blocks are conserved, nothing is early and nobody idles beside a queue."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commtax.sim.serving.book import Rules
from commtax.sim.serving.figures import columns, gaps, seconds, segments
from commtax.sim.serving.pipeline import Pipeline
from commtax.sim.serving.replica import Replica
from commtax.sim.serving.running import Fleet, Run, Workers, run
from toy_engine import Case, Stepping, cases, constant_surface, stream, toy_surface

EXACT = 1e-9
TIMES = ("sent_s", "started_s", "first_s", "done_s", "lost_s")
few = settings(max_examples=60)


def same(one, other, names=TIMES):
    for name in names:
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=EXACT, atol=EXACT, err_msg=name)


def static_prefill_s(case, i, book):
    """The shortest that a prompt alone takes: what is not cached, in as many steps as it is cut into."""
    done, total, goal = book.cached[i], 0.0, int(case.stream.input_len[i])
    while done < goal:
        new = min(goal - done, case.rules.tokens) if case.rules.chunked else goal - done
        total += case.surface.mixing(0, 0, new, 1, case.surface.prompt_s(new, done))
        done += new
    return total


def static_decode_s(case, i):
    """A request's other tokens, alone in the engine."""
    first, last = int(case.stream.input_len[i]), int(case.stream.input_len[i] + case.stream.output_len[i] - 1)
    return sum(case.surface.decoding(1, cached)[0] for cached in range(first, last))


@few
@given(case=cases(), ranks=st.sampled_from([1, 1, 3]))
def test_tokens_and_blocks_are_conserved(case, ranks):
    book, engine = case.run(Replica, ranks)
    assert np.all(np.isfinite(book.done_s)), "every request ends"
    log = segments([engine])
    decoded = log["decodes"] @ log["steps"]
    again = sum(book.thrown)  # each recomputation makes one token
    assert decoded + len(case.stream) + again == case.stream.output_len.sum()
    once = case.stream.input_len.sum() - sum(book.cached)
    assert log["tokens"].sum() >= once
    if not again:
        assert log["tokens"].sum() == once, "hits and computed tokens are the prompts"
    for pool in engine.pools:
        assert pool.free == case.rules.blocks
        assert pool.running == 0
        assert not pool.waiting
    assert not any(lane.busy or lane.cached or any(lane.phases) for lane in engine.lanes)
    _, counts = gaps(log)
    assert counts.sum() == decoded


@few
@given(case=cases(), ranks=st.sampled_from([1, 1, 3]))
def test_nothing_is_early(case, ranks):
    book, _ = case.run(Replica, ranks)
    rows = columns(Run(book, []))
    for i in range(len(case.stream)):
        prefill = static_prefill_s(case, i, book)
        way = case.rules.way_s + case.rules.door_s
        assert rows["ttft_s"][i] >= (way + prefill) * (1 - EXACT)
        assert rows["e2e_s"][i] >= (way + prefill + static_decode_s(case, i)) * (1 - EXACT)
    assert np.all(rows["queue_s"] >= 0)
    assert np.all(rows["wait_s"] >= -EXACT)


@few
@given(case=cases(shared=False))
def test_alone_a_request_pays_static_steps(case):
    """One client: TTFT is the way in and the prompt's step, TPOT the mean of the decode steps."""
    case = replace(case, stream=replace(case.stream, in_flight=1), rules=replace(case.rules, token_s=0.0, ahead=False))
    book, _ = case.run()
    rows = columns(Run(book, []))
    for i, output in enumerate(case.stream.output_len):
        own = case.rules.way_s + case.rules.door_s + static_prefill_s(case, i, book)
        assert rows["ttft_s"][i] == pytest.approx(own, rel=1e-9)
        if output > 1:
            assert rows["tpot_s"][i] == pytest.approx(static_decode_s(case, i) / (output - 1), rel=1e-9)


@few
@given(case=cases(), ranks=st.sampled_from([1, 1, 3]), seed=st.integers(0, 99))
def test_jumping_is_stepping(case, ranks, seed):
    """In one go, in pieces that end anywhere, and looking up after every step: the same times."""
    whole, _ = case.run(Replica, ranks)
    stepped, _ = case.run(Stepping, ranks)
    same(whole, stepped)
    if case.stream.in_flight < inf:
        return
    until = np.sort(np.random.default_rng(seed).uniform(0, max(whole.done_s), 20))
    pieces, _ = case.run(Replica, ranks, pieces=until.tolist())
    same(whole, pieces)


@few
@given(case=cases())
def test_one_stage_is_no_pipeline(case):
    case = case.but(ahead=False)
    plain, _ = case.run()
    staged, _ = case.run(Pipeline, 1)
    same(plain, staged)


@few
@given(case=cases(shared=False), per_id=st.sampled_from([1, 3, 4, 6, 8, 32]), seed=st.integers(0, 99))
def test_blocks_of_shared_text_may_be_of_any_size(case, per_id, seed):
    """Traces name text in pieces of their own, the last of which may be cut: the engine's blocks are counted right all the same."""
    rng = np.random.default_rng(seed)
    texts = rng.integers(0, 3, len(case.stream)).tolist()
    counts = (-(-case.stream.input_len // per_id)).tolist()
    ids = tuple(tuple(1000 * text + at for at in range(n)) for text, n in zip(texts, counts, strict=True))
    case = replace(case, stream=replace(case.stream, prefixes=ids, block=per_id))
    book, engine = case.run()
    assert engine.pools[0].free == case.rules.blocks
    assert not any(engine.lanes[0].phases)
    assert all(0 <= hit < n for hit, n in zip(book.cached, book.input_len, strict=True))
