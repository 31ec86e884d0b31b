"""Closed-loop serving: laws, limits on lengths, the rows of published runs as questions, and samples of fleets."""

import csv
import json
import re
from math import ceil
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import commtax
from cli_run import refusal, run_here
from commtax import catalog
from commtax.catalog import engine, model
from commtax.cost.closed_form import (
    OUTGROWN,
    ClosedLoopLoad,
    Pressure,
    Steps,
    closed_loop,
    pressure,
    prompts_ahead,
    running_requests,
)
from commtax.cost.compute import chosen_experts
from commtax.launch.writing import benchmark_command
from commtax.question import Question
from commtax.sim.streams import draw_stream
from commtax.spec import Experts
from commtax.spec.stream import Lengths
from commtax.statement import Refusal
from commtax.units import format_seconds
from commtax.verbs.loads import longest_of, sample_of, split, stream_of
from commtax.verbs.requests import fleet_of, run
from commtax.verbs.settling import ask, resolve_question, settle
from commtax_lab.published.serving_rows import is_fitted, may_draft, measured_means, question
from each import each
from paths import SHARED
from tables import tables

DATA = tables(__file__)
RUNS = SHARED / "serving_runs.csv"
ENGINES = ("vllm", "sglang", "trtllm", "trtllm@1.0")
PLACE = "8xh100-sxm"


def simulate(**words):
    return commtax.simulate("llama-3.1-8b", PLACE, **{"tp": 1, "input_len": 1024, "output_len": 256, **words})


@pytest.mark.parametrize("engine", ENGINES)
def test_one_client_pays_plain_steps(engine):
    s = simulate(engine=engine, concurrency=1, output_len=200)
    decode = commtax.bill("llama-3.1-8b", PLACE, tp=1, engine=engine, batch=1, context=1024 + 99)
    prefill = commtax.bill("llama-3.1-8b", PLACE, tp=1, engine=engine, phase="prefill", batch=1, context=1024)
    if engine != "trtllm@1.0":  # whose front end is slower than one short request
        assert s.tpot_s == pytest.approx(float(decode.step_s), rel=1e-9)
        assert s.ttft_s == pytest.approx(float(prefill.step_s) + catalog.engine(engine).host.request_s, rel=1e-9)
    assert s.tpot_s >= decode.step_s
    assert s.ttft_s >= prefill.step_s * (1 - 1e-12)


@settings(max_examples=25, deadline=None)
@given(
    engine=st.sampled_from(ENGINES), tp=st.sampled_from([1, 2, 4, 8]), tokens_in=st.integers(1, 16384),
    tokens_out=st.integers(2, 4096), spread=st.sampled_from([0.0, 0.1, 0.5]), finite=st.booleans(),
)  # fmt: skip
def test_more_clients_do_not_speed_up_a_request(engine, tp, tokens_in, tokens_out, spread, finite):
    clients = np.array([1, 2, 3, 4, 7, 8, 9, 16, 31, 64, 100, 128, 200, 256, 500, 1000, 3000])
    prompts = 5000 if finite else None
    words = {"engine": engine, "tp": tp, "input_len": tokens_in, "output_len": tokens_out, "spread": spread}
    s = simulate(concurrency=clients, num_prompts=prompts, **words)
    floor = commtax.bill("llama-3.1-8b", PLACE, tp=tp, engine="textbook", batch=1, context=tokens_in).step_s
    assert np.all(np.diff(s.e2e_s) >= -0.04 * s.e2e_s[1:]), "but for dips where a collective changes its algorithm"
    if not finite:  # more of a short benchmark's requests are among the first, which never wait inside a full cache
        assert np.all(np.diff(s.tpot_s) >= -0.04 * s.tpot_s[1:]), "with few outputs some waiting moves before the first token"
    assert np.all(s.tpot_s >= floor)
    assert np.all(s.ttft_s >= s.served.prefill_s)
    assert np.allclose(s.tokens_per_s, clients * tokens_out / s.e2e_s)
    assert np.allclose(s.e2e_s, s.ttft_s + (tokens_out - 1) * s.tpot_s)
    assert np.all(s.served.ahead <= s.running - 1 + 1e-9)


def test_a_long_benchmark_tends_to_the_steady_state_and_an_array_is_its_elements():
    steady = simulate(concurrency=64)
    short, longer, longest = (simulate(concurrency=64, num_prompts=n) for n in (64, 640, 10**9))
    assert short.ttft_s > longer.ttft_s > steady.ttft_s
    assert longest.ttft_s == pytest.approx(float(steady.ttft_s), rel=1e-5)
    assert longest.tpot_s == pytest.approx(float(steady.tpot_s), rel=1e-5)
    tp, clients = np.array([1, 2, 4, 8]), np.array([3, 17, 64, 600])
    lengths_in, lengths_out = np.array([100, 1024, 4096, 9000]), np.array([16, 128, 1024, 300])
    words = {"engine": "vllm", "spread": 0.1}
    wide = simulate(tp=tp, concurrency=clients, input_len=lengths_in, output_len=lengths_out, num_prompts=6000, **words)
    for i in range(4):
        each = {"tp": int(tp[i]), "concurrency": int(clients[i]), "num_prompts": 6000}
        one = simulate(**each, input_len=int(lengths_in[i]), output_len=int(lengths_out[i]), **words)
        for name in ("tpot_s", "ttft_s", "e2e_s", "tokens_per_s", "running", "steps.chunks", "kv_tokens"):
            figure = attrgetter(name)
            assert np.asarray(figure(wide))[i] == pytest.approx(float(figure(one)), rel=1e-12), name
    s = simulate(tp=np.array([1, 3]), concurrency=4)
    assert s.legal.tolist() == [True, False]


def test_caches_limit_what_runs_by_hand():
    s = commtax.simulate("llama-3.1-70b", PLACE, tp=4, concurrency=400, input_len=8000, output_len=1000)
    assert s.running == pytest.approx(s.kv_tokens / 8500, rel=0.03)
    assert s.served.slot_s > 0
    assert any("run at once" in note for note in s.notes)
    # 10,000 tokens, 900 in and 100 out, 950 held on average: 10.5 run, and each pushes out 100/950 of another.
    vllm, load = catalog.engine("vllm"), ClosedLoopLoad(40, 900, 100, spread=0.0)
    seqs = running_requests(load, vllm, 10_000, 99)
    full = pressure(load, vllm, 10_000, seqs)
    assert (seqs, full.recomputed) == (pytest.approx(10_000 / 950), pytest.approx(OUTGROWN * 100 / 950))
    assert pressure(ClosedLoopLoad(8, 900, 100), vllm, 10_000, 8).recomputed < 0.01
    assert pressure(load, vllm, 10_000, seqs, fed=5).recomputed < 0.01  # who waits for its prompt holds nothing
    assert pressure(load, catalog.engine("trtllm"), 10_000, 10) == Pressure()
    quiet, crowded = (closed_loop(load, Steps(1.0, 3.0), seqs, 1.0, vllm, p) for p in (Pressure(), full))
    assert crowded.tpot_s > quiet.tpot_s
    assert crowded.stretch_s - quiet.stretch_s == pytest.approx((seqs - 1) * full.recomputed * 2 / 99)


def test_waiting_by_hand():
    """4 clients, 2 slots: each request lives 10 + 2 + 9 x 1 s and waits as long again (Little's law)."""
    engine = catalog.engine("torch")
    load, steps = ClosedLoopLoad(4, 100, 10), Steps(decode_s=1.0, prompt_s=3.0)
    served = closed_loop(load, steps, 2, 1.0, engine)
    assert served.tpot_s == 1.0  # the other prompt came before the first token
    assert (served.boundary_s + served.prefill_s + served.ahead_s, served.slot_s) == (1 + 3 + 2, 6 + 9 * 1.0)
    assert running_requests(load, engine, 10**6, 3) == 3
    assert running_requests(ClosedLoopLoad(4, 100, 10, spread=0.0), engine, 215, 99) == pytest.approx(
        215 / 105, rel=1e-3
    )  # 100 + 10/2 each
    assert running_requests(load, engine, 10**6, 99, fed=1.5) == 4  # the others wait for their prompts, which hold no slot
    # Long answers, so that no two prompts meet: of 8 ranks with 2 clients each, a request waits for 15 prompts of 2 s.
    load, vllm = ClosedLoopLoad(2, 100, 1e9), catalog.engine("vllm")
    many, one, few = (
        closed_loop(x, Steps(1.0, 3.0, ranks=r), x.concurrency if x.concurrency > 1 else 1.0, 0.0, vllm)
        for x, r in ((load, 8), (load, 1), (ClosedLoopLoad(0.125, 100, 1e9), 8))
    )
    assert float(many.stretch_s) * 1e9 == pytest.approx(15 * 2, rel=1e-3)
    assert float(one.stretch_s) * 1e9 == pytest.approx(1 * 2, rel=1e-3)
    assert float(few.stretch_s) == 0  # one client for all ranks


def test_an_engines_limit_throws_nobody_out_and_clients_wait_for_front_ends():
    """8 may run and the cache is nearly empty: the others wait for their first token, not between tokens. Of 8 clients one is on
    its way through the server at times; of 64 another takes its place."""
    few, many = (simulate(concurrency=n, max_num_seqs=8) for n in (8, 64))
    assert many.tpot_s == pytest.approx(float(few.tpot_s), rel=1e-3)
    assert many.tokens_per_s == pytest.approx(float(few.tokens_per_s), rel=2e-3)
    assert any("max_num_seqs 8" in note for note in many.notes)
    out = command("llama-3.1-8b", "--cluster", "1xh100-sxm", "--input-len", "8000", "--output-len", "1000", "--concurrency", "99")
    assert "preempted" in out.stdout
    assert "waiting for the front end" not in out.stdout
    four, five, six = (simulate(dp=2, concurrency=n) for n in (4, 5, 6))
    assert (five.running, five.served.slot_s) == (2.5, 0)
    assert four.ttft_s < five.ttft_s < six.ttft_s
    assert four.tokens_per_s < five.tokens_per_s < six.tokens_per_s
    # 8 clients and 2 s a request: 16 s between two answers, unless the engine needs longer; half of it before the first token.
    engine = catalog.engine("torch").but(frontend_request_s=2.0)
    served = closed_loop(ClosedLoopLoad(8, 100, 2), Steps(0.001, 0.001), 8, 0.0, engine)
    assert served.ttft_s + served.tpot_s == pytest.approx(16.0, rel=1e-3)
    assert served.frontend_s == pytest.approx(8.0, rel=1e-2)
    slow = closed_loop(ClosedLoopLoad(8, 100, 2), Steps(100.0, 100.0), 8, 0.0, engine)
    assert slow.frontend_s < 1e-2 * slow.ttft_s


def test_prompts_ahead_by_hand():
    """Equal lengths: one in the step in progress and one in the own; the first 64 of 640 wait for half of all others. Where prompts
    go before decoding, and all end together, no prompt is done before those that share its step."""
    vllm, sglang = catalog.engine("vllm"), catalog.engine("sglang")
    steady = ClosedLoopLoad(64, 8192, 1024, spread=0.0)
    assert (prompts_ahead(steady, 64, 8192, vllm), prompts_ahead(steady, 64, 8192, sglang)) == (2, 63 / 2)
    assert prompts_ahead(ClosedLoopLoad(16, 1024, 128, spread=0.0), 16, 8192, sglang) == np.mean([7] * 8 + [15] * 8)
    burst = ClosedLoopLoad(64, 8192, 1024, num_prompts=640, spread=0.0)
    assert prompts_ahead(burst, 64, 8192, vllm) == pytest.approx(2 + 0.1 * (31.5 - 2))
    independent = ClosedLoopLoad(64, 8192, 1024, spread=0.5)
    assert prompts_ahead(independent, 64, 8192, vllm) == pytest.approx(2 * 63 / 1025)


@each(
    ("engine", "pp", "clients", "below", "above"),
    [("sglang", 1, 2, 4096, 4097), ("vllm", 2, 2, 4096, 4097), ("vllm", 1, 64, 8129, 8130), ("trtllm", 1, 8, 4096, 4097)],
)
@each("spread", [0.0, 0.5])
def test_one_more_prompt_token_saves_no_time(engine, pp, clients, below, above, spread):
    """What a prompt leaves of a step's budget goes to the next one: nothing jumps where two prompts just fit into a step."""
    words = {"engine": engine, "pp": pp, "concurrency": clients, "spread": spread}
    less, more = (simulate(input_len=n, **words) for n in (below, above))
    assert less.ttft_s <= more.ttft_s <= 1.02 * less.ttft_s + less.steps.decode_s
    assert less.e2e_s <= more.e2e_s


@settings(max_examples=30, deadline=None)
@example(engine="vllm", pp=4, spread=0.1, apart=False, clients=25, tokens_in=1, tokens_out=128)  # chunks in several stages
@example(engine="sglang", pp=1, spread=0.0, apart=False, clients=8, tokens_in=1, tokens_out=2)  # eight that end together
@given(
    engine=st.sampled_from(["vllm", "sglang", "trtllm", "vllm@0.12"]), pp=st.sampled_from([1, 1, 2, 4]),
    spread=st.sampled_from([0.0, 0.1, 0.5, 1.0]), apart=st.booleans(), clients=st.integers(1, 300),
    tokens_in=st.integers(1, 40_000), tokens_out=st.sampled_from([1, 2, 3, 17, 128, 1000]),
)  # fmt: skip
def test_times_grow_with_prompts(engine, pp, spread, apart, clients, tokens_in, tokens_out):
    lengths = np.unique(np.r_[tokens_in, tokens_in + 1, [8192 // k + j for k in (1, 2, 3, 8) for j in (-1, 0, 1)], 16385, 30_000])
    words = {"disaggregated": True, "prefill_workers": 2, "decode_workers": 2} if apart else {}
    words |= {"engine": engine, "pp": pp, "spread": spread, "concurrency": clients, "output_len": tokens_out}
    s = simulate(input_len=lengths, kv_tokens=1e12, **words)
    if not apart:  # where longer contexts slow decoding down, prompts come to their own workers a little slower
        # A step that prompts fill decodes for fewer requests where they are longer: TTFT of equal steps falls by a millionth. Where
        # prompts run first, a token more lets fewer of them end together: by up to 0.03 % among 420 questions.
        together = 1e-3 if catalog.engine(engine).serves.prefill_first else 1e-5
        assert np.all(np.diff(s.ttft_s) >= -together * s.ttft_s[1:])
    # A network of workers is solved to less than its figures show. Where a prompt less fits into a step, those that no longer share
    # one do not wait for each other: E2E of clients in lockstep falls, by up to 45 % of what it is then among 2,880 questions.
    alone = np.diff(8192 // lengths) < 0
    exact = np.where(alone, 0.5, 1e-3) if apart else 1e-9
    assert np.all(np.diff(s.e2e_s) >= -exact * s.e2e_s[1:])


@settings(max_examples=30, deadline=None)
@given(
    engine=st.sampled_from(["vllm", "sglang", "trtllm", "vllm@0.12"]),
    spread=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    tokens_in=st.integers(1, 40_000),
    tokens_out=st.sampled_from([1, 2, 3, 17, 128, 1000]),
)
def test_a_client_more_costs_no_throughput(engine, spread, tokens_in, tokens_out):
    """At batches that fill their graphs; where a step's rows begin another tile of the products it may cost up to 8 %."""
    clients = np.array([1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256])
    s = simulate(engine=engine, spread=spread, input_len=tokens_in, output_len=tokens_out, concurrency=clients, kv_tokens=1e12)
    assert np.all(np.diff(s.tokens_per_s) >= -0.08 * s.tokens_per_s[1:])
    assert np.all(np.diff(s.e2e_s) >= -1e-9 * s.e2e_s[1:])
    assert np.all(np.diff(s.ttft_s) >= -1e-9 * s.ttft_s[1:])


def test_lengths_vary_and_single_outputs_are_all_prompts():
    """Equal lengths are a choice: nobody's users answer in lockstep."""
    words = {"concurrency": 32, "input_len": 8000}
    usual, varied, equal = simulate(**words), simulate(spread=0.5, **words), simulate(spread=0.0, **words)
    assert (usual.ttft_s, usual.tpot_s, usual.requests.spread) == (varied.ttft_s, varied.tpot_s, 0.5)
    assert equal.ttft_s > usual.ttft_s, "two prompts of others come first, in every step"
    assert any("vary by ±50% (--spread 0 makes them equal" in note for note in usual.notes)
    assert any("lockstep; --spread 0.5" in note for note in equal.notes)
    # Each other client's prompt is computed once while one waits: four clients get more answers than two, and none decodes. A
    # client is on its way through the server for about 1 % of the time, and its prompt is then not ahead.
    few, more = (simulate(engine="vllm", concurrency=n, input_len=8000, output_len=1) for n in (2, 4))
    assert more.requests_per_s >= few.requests_per_s
    assert (more.served.ahead, more.served.boundary_s) == (pytest.approx(3, rel=0.01), 0)


@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_workers_without_a_client_do_nothing(workers):
    """More decode workers than clients: the same times as with one for each, and none below zero."""
    words = {"disaggregated": True, "prefill_workers": 1, "concurrency": 2}
    found = simulate(decode_workers=workers, **words)
    assert found.served.slot_s == 0
    assert found.ttft_s > found.served.prefill_s
    if workers > 2:
        assert found.ttft_s == pytest.approx(float(simulate(decode_workers=2, **words).ttft_s))


def test_experts_are_popular_and_fill_their_tiles_one_by_one():
    moe = Experts(128, 8, 1536)
    tokens = np.arange(1, 2000)
    equal, skewed = (chosen_experts(moe, tokens, a) for a in (np.inf, 0.3))
    assert np.allclose(equal, 128 * (1 - (1 - 8 / 128) ** tokens))
    assert skewed[0] == pytest.approx(8)
    assert np.all(skewed <= equal + 1e-9)
    assert np.all(np.diff(skewed) > 0)
    assert np.allclose(chosen_experts(moe, tokens, 1e6), equal, rtol=3e-2)
    # No client makes all experts need another tile at once: tokens/s have no cliff.
    clients = np.arange(60, 300)
    found = commtax.simulate("mixtral-8x7b", "8xa100-80-sxm", tp=4, concurrency=clients, input_len=100, output_len=500)
    assert np.all(np.diff(found.tokens_per_s) > -0.03 * found.tokens_per_s[:-1])


def test_scales_and_versions_have_their_own_constants():
    """One scale a tensor is applied by the kernel before; tiles are quantised on the way."""
    static = commtax.bill("llama-3.1-70b", PLACE, tp=8, dtype="fp8", batch=64)
    plain = commtax.bill("llama-3.1-70b", PLACE, tp=8, batch=64)
    assert static.step_s < plain.step_s
    assert catalog.engine("vllm@0.12.0").host.host_s != catalog.engine("vllm").host.host_s
    assert catalog.engine("vllm@0.12.0").note == ""
    assert "0.12" in catalog.engine("vllm@0.13").note
    assert catalog.engine("vllm@0.5").host.host_s == catalog.engine("vllm@0.11").host.host_s
    assert catalog.engine("trtllm@1.0.0rc3").host.frontend_request_s > 0 == catalog.engine("trtllm").host.frontend_request_s


@pytest.mark.parametrize(("words", "text"), DATA["bad_input_is_named"])
def test_bad_input_is_named(words, text):
    with pytest.raises(ValueError, match=text):
        simulate(**words)


def test_workers_are_counted_and_do_not_stretch_decoding():
    together = simulate(concurrency=64, input_len=4096)
    apart = simulate(concurrency=64, input_len=4096, disaggregated=True, prefill_workers=2, decode_workers=1, num_prompts=640)
    assert apart.tpot_s == pytest.approx(float(apart.steps.decode_s))
    assert apart.tpot_s < together.tpot_s
    assert apart.served.ahead > 0.1 * (64 / 2 - 1) / 2, "the burst of the start, and the queue after it"
    assert (apart.num_gpus, together.num_gpus) == (3, 1)
    words = ("llama-3.1-70b", "--cluster", "2x8xh100-sxm", "--disaggregated", "-tp", "4", "--concurrency", "64")
    done = command(*words, "--prefill-workers", "4", "--prefill-tp", "2", "--decode-workers", "2")
    assert "16 GPUs = 4 x TP 2 for prompts + 2 x TP 4 for decoding" in done.stdout
    assert "moving its cache" in done.stdout
    assert "idle" not in done.stdout
    found = json.loads(command(*words, "--prefill-workers", "3", "--decode-workers", "1", "--json").stdout)
    assert (found["gpus"], found["idle_gpus"], found["prompt_workers"]["workers"]) == (16, 0, 3)
    small = command(*words, "--prefill-tp", "1")
    assert (small.returncode, "KV cache of a prompt worker no room" in " ".join(small.stdout.split())) == (1, True)


def test_long_requests_are_refused_everywhere_unless_told(tmp_path):
    with pytest.raises(Refusal, match="131,072 positions"):
        simulate(input_len=131_000, output_len=128)
    told = simulate(input_len=131_000, output_len=128, max_model_len=262_144)
    assert any("131,072 positions" in note for note in told.notes)
    assert not any("positions" in note for note in simulate().notes)
    with pytest.raises(Refusal, match="nearest valid input_len: 130944"):
        commtax.simulate("llama-3.1-70b", "4xh100", tp=4, input_len=200_000)
    asked = ("compare", "llama-3.1-8b", "-c", "2xh100", "--plans", "tp1,tp2")
    assert "belongs to whole requests" in run_here(*asked, "--max-model-len", "8000").stderr
    assert run_here(*asked, "--from", "vllm serve meta-llama/Llama-3.1-8B --max-model-len 512").returncode == 0
    assert "are more than the 131,072 positions" in run_here(*ASKED, "--input-len", "200000", "--max-model-len", "262144").stdout
    saved = tmp_path / "requests.csv"
    result = run_here(*ASKED, "--input-len", "100000", "--num-prompts", "60", "--save", str(saved))
    rows = list(csv.DictReader(saved.read_text().splitlines()))
    assert result.returncode == 0
    assert 125_000 < max(int(row["input_tokens"]) + int(row["output_tokens"]) for row in rows) <= 131_072
    said = run_here(*ASKED, "--input-len", "100000").stdout
    assert "lengths vary by ±30.9% only, so that none is longer than the 131,072 tokens" in " ".join(said.split())


DAILY = "source_file=2026-04-06.csv; silicon_concurrency=64; measured=2025-10-29"


def row(**columns):
    plain = DATA["row"]
    return plain | columns


def test_a_row_is_a_question_with_its_habits():
    asked = question(row())
    assert (asked["model"].key, asked["cluster"].key) == ("qwen3-32b", PLACE)
    assert (asked["engine"].key, asked["engine"].version) == ("vllm", "0.12.0")
    assert asked["engine"] == catalog.engine("vllm@0.12.0"), "no recipe concerns it"
    assert (asked["tp"], asked["concurrency"], asked["num_prompts"], asked["spread"]) == (8, 8, 80, 0.0)
    assert measured_means(row()) == {"ttft_s": pytest.approx(0.0918), "tpot_s": pytest.approx(0.00796)}
    drawn = question(row(silicon_data_source=DAILY, batch_size=""))
    assert (drawn["concurrency"], drawn["input_len"], round(drawn["spread"], 3)) == (64, 922, 0.111)
    ranks = {"tp_size": "1", "attention_dp_size": "8", "moe_ep_size": "8", "batch_size": "4"}
    shared = question(row(model_path="deepseek-ai/DeepSeek-R1", **ranks))
    assert (shared["tp"], shared["dp"], shared["ep"], shared["concurrency"]) == (1, 8, 8, 32)
    named = {"id": "x_tp8_ep8_1", "tp_size": "64", "moe_ep_size": "8", "attention_dp_size": "1"}
    multiplied = question(row(model_path="deepseek-ai/DeepSeek-R1", silicon_data_source=DAILY, **named))
    assert (multiplied["tp"], multiplied["ep"], multiplied["cluster"].key) == (8, 8, PLACE)
    as_said = question(row(model_path="deepseek-ai/DeepSeek-R1", **named))
    assert (as_said["tp"], as_said["cluster"].key) == (64, "8x8xh100-sxm"), "only InferenceMAX's tables multiply"
    tiles = question(row(model_path="Qwen/Qwen3-235B-A22B-FP8", gemm_quant_mode="fp8_block"))
    assert tiles["model"].quant.block == (128, 128)
    static = question(row(backend="trtllm", model_path="meta-llama/Llama-3.1-70B", gemm_quant_mode="fp8"))
    assert (static["dtype"], static["kv_dtype"], static["model"].quant.dtype) == ("", "fp8", "fp8")


@pytest.mark.parametrize(("columns", "reason"), DATA["a_row_that_cannot_be_priced_says_why"])
def test_a_row_that_cannot_be_priced_says_why(columns, reason):
    with pytest.raises(Refusal, match=reason):
        question(row(**columns))


def predict(run):
    found = commtax.simulate(**question(run))
    return {"ttft_s": float(found.ttft_s), "tpot_s": float(found.tpot_s)}


def question_or_none(run):
    try:
        return question(run)
    except Refusal:
        return None


def median_errors(runs):
    pairs = [(predict(run), measured_means(run)) for run in runs]
    return (np.median([abs(found[name] / was[name] - 1) for found, was in pairs]) for name in ("tpot_s", "ttft_s"))


def test_published_runs():
    """Means of published closed-loop runs that were not fitted, in ms (InferenceMAX and ai-dynamo/aiconfigurator)."""
    long = {"isl": "4096", "osl": "512"}
    figures = [
        (row(**long, batch_size="16", silicon_ttft_ms="394", silicon_tpot_ms="11.08"), 0.05, 0.3),
        (row(**long, batch_size="64", silicon_ttft_ms="583.2", silicon_tpot_ms="23.53"), 0.05, 0.3),
        (row(**long, tp_size="4", batch_size="64", silicon_ttft_ms="905.1", silicon_tpot_ms="34.9"), 0.05, 0.3),
    ]
    for run_one, tpot, ttft in figures:
        found, was = predict(run_one), measured_means(run_one)
        assert found["tpot_s"] == pytest.approx(was["tpot_s"], rel=tpot)
        assert found["ttft_s"] == pytest.approx(was["ttft_s"], rel=ttft)


def test_rows_not_fitted_are_within_the_bars():
    if not RUNS.exists():
        pytest.skip("the table of runs is not here")
    with RUNS.open() as file:
        runs = list(csv.DictReader(file))
    asked = [(run, question_or_none(run)) for run in runs if run["mode"] == "agg"]
    assert all(words is not None for _, words in asked), "all but disaggregated runs whose workers were not counted"
    tested = [(run, bool(words["model"].experts)) for run, words in asked if not is_fitted(run) and not may_draft(run)]
    for mixture, most, first in ((False, 0.04, 0.20), (True, 0.11, 0.28)):
        chosen = [run for run, experts in tested if experts == mixture]
        assert len(chosen) > 80
        tpot, ttft = median_errors(chosen[::2])
        assert tpot <= most
        assert ttft <= first


def command(*words):
    return run_here("simulate", *words)


def test_the_command_prints_a_document_or_refuses_in_one_line():
    done = command("llama-3.1-8b", "--cluster", PLACE, "-tp", "1", "--concurrency", "1,8", "--input-len", "512", "--json")
    document = json.loads(done.stdout)
    assert (document["schema"], document["input_len"]) == ("commtax.simulate/1", 512)
    assert [row["concurrency"] for row in document["runs"]] == [1, 8]
    for row in document["runs"]:
        assert row["tpot_low_s"] < row["tpot_s"] < row["tpot_high_s"]
        parts = sum(row[f"ttft_{name}_s"] for name in ("request", "boundary", "prefill", "ahead", "slot", "frontend"))
        assert parts == pytest.approx(row["ttft_s"])
    assert "num_prompts" in refusal(command("llama-3.1-8b", "--cluster", PLACE, "--concurrency", "8", "--num-prompts", "0"))


def test_the_command_tells_what_does_not_fit_and_what_has_no_time():
    words = ("llama-3.1-8b", "--cluster", PLACE, "--output-len", "1", "--concurrency")
    for clients in ("4", "1,8"):
        run = json.loads(command(*words, clients, "--json").stdout)["runs"][0]
        assert [run[name] for name in ("tpot_s", "tpot_low_s", "tpot_high_s", "mixed_share")] == [None] * 4
        assert run["e2e_s"] == pytest.approx(run["ttft_s"])
    shown = command(*words, "4").stdout
    assert ("TPOT –" in shown, "of TPOT" in shown) == (True, False)
    for clients in ("4", "1,8"):
        done = command("llama-3.1-70b", "--cluster", "1xh100-sxm", "--concurrency", clients)
        assert done.returncode == 1
        assert done.stdout.startswith("It does not fit: weights leave the KV cache of a replica no room")
        assert ("It would fit with --dtype int4" in done.stdout, "tokens/s" in done.stdout) == (True, False)
    workers = ("-tp", "4", "--disaggregated", "--prefill-tp", "1", "--prefill-workers", "4", "--decode-workers", "1")
    apart = command("llama-3.1-70b", "--cluster", "8xh100-sxm", *workers, "--concurrency", "8").stdout
    assert "weights leave the KV cache of a prompt worker no room" in apart
    assert "It would fit with --prefill-tp 2" in apart
    assert not json.loads(command("llama-3.1-70b", "--cluster", "1xh100-sxm", "--json").stdout)["fits"]


@pytest.mark.parametrize(("words", "says"), DATA["workers_that_are_not_there"])
def test_workers_that_are_not_there(words, says):
    assert says in refusal(command("llama-3.1-8b", "--cluster", "8xh100-sxm", "--disaggregated", *words))
    enough = command("llama-3.1-8b", "--cluster", "8xh100-sxm", "--disaggregated", "--concurrency", "8", "--prefill-workers", "7")
    assert enough.returncode == 0, enough.stderr


def test_cached_prompts_and_single_prompt_steps_in_the_closed_form():
    """As on the command line; what is no share is refused."""
    plain, cached = (commtax.simulate("llama-3.1-8b", "8xh100-sxm", concurrency=8, prefix_cache=share) for share in (0, 0.5))
    said = run_here("simulate", "llama-3.1-8b", "-c", "8xh100-sxm", "--concurrency", 8, "--prefix-cache", 0.5)
    assert f"TTFT {format_seconds(cached.ttft_s)} " in said.stdout
    assert float(cached.ttft_s) < float(plain.ttft_s)
    for wrong in (2, -0.1, "half", True):
        with pytest.raises(Refusal, match=r"prefix_cache=.*a share from 0 to 1"):
            commtax.simulate("llama-3.1-8b", "8xh100-sxm", concurrency=8, prefix_cache=wrong)
    # However many clients send, a request's own prompt takes its own step and no more.
    words = {"input_len": 64, "output_len": 16, "num_prompts": 192, "dtype": "fp32"}
    one, *others = (commtax.simulate("llama-3.2-1b", "2xcpu", engine="builtin", concurrency=c, **words) for c in (1, 2, 8, 64))
    for more in others:
        assert float(more.served.prefill_s) == pytest.approx(float(one.served.prefill_s))
        assert float(more.served.ahead_s) > float(one.served.ahead_s)
    words, hint = ("simulate", "llama-3.1-8b", "-c", "h100-sxm"), "--concurrency N or --request-rate N"
    assert hint in run_here(*words).stdout
    assert all(hint not in run_here(*words, "--concurrency", clients).stdout for clients in ("1", "4"))


ASKED = ("simulate", "llama-3.1-70b", "--cluster", "4xh100", "-tp", "4", "--concurrency", "2")


@pytest.mark.parametrize("more", [(), ("--num-prompts", "20")])
def test_requests_that_are_all_too_long_are_refused(more: tuple[str, ...]) -> None:
    result = run_here(*ASKED, "--input-len", "200000", *more)
    assert result.returncode == 2
    assert "with output_len it makes 200,128 tokens, more than the 131,072 positions of llama-3.1-70b" in result.stderr
    assert run_here(*ASKED, "--input-len", "130944", "--spread", "0").returncode == 0, "the nearest valid length is valid"


@pytest.mark.parametrize("words", DATA["all_that_price_whole_requests_hold_them_to_the_limit"])
def test_all_that_price_whole_requests_hold_them_to_the_limit(words: tuple[str, ...]) -> None:
    asked = (*words, "--cluster", "2xh100", "--output-len", "100", "--max-model-len")
    assert "max_model_len=8000: fewer than input_len + output_len = 8,100" in refusal(run_here(*asked, "8000"))
    assert run_here(*asked, "8100").returncode == 0


@settings(max_examples=200)
@given(
    limit=st.integers(2, 131_072),
    share=st.floats(0.01, 1),
    prompts=st.floats(0.01, 0.99),
    spread=st.floats(0, 1),
    seed=st.integers(0, 9),
)
def test_no_request_and_no_check_goes_beyond_the_limit(limit, share, prompts, spread, seed) -> None:
    tokens = max(2, int(limit * share))
    ins = min(tokens - 1, max(1, int(tokens * prompts)))
    load = {"input_len": ins, "output_len": tokens - ins, "spread": spread, "num_prompts": 50, "concurrency": 2}
    q = ask("llama-3.1-8b", "1xh100", max_model_len=limit, **load).but(seed=seed)
    assert longest_of(stream_of(q)) <= limit
    bare = Question(model("llama-3.1-8b"), q.cluster, engine("vllm")).but(max_model_len=limit, **load)
    ratio = float(re.search(r"--random-range-ratio (\S+)", benchmark_command(bare, "vllm"))[1])
    assert ceil(ins * (1 + ratio)) + ceil((tokens - ins) * (1 + ratio)) <= limit


def ttft_s(q):
    asked = settle(q)
    stream = stream_of(asked)
    ran = run(stream, fleet_of(asked, longest_of(stream)))
    return stream.arrival_s, np.array(ran.book.first_s) - stream.arrival_s


def test_a_sample_of_a_fleet_has_the_times_of_the_whole():
    stream = draw_stream(rate=200.0, inputs=Lengths("uniform", 500, 100, 900), outputs=Lengths("constant", 20), count=320)
    plain, offered = split({"trace": stream})
    q = resolve_question("llama-3.2-1b", "16xh100-sxm", {**plain, "replicas": 16}).but(offered=offered)
    sample = sample_of(q)
    arrived, whole = ttft_s(q)
    chosen, part = ttft_s(sample.question)
    assert (sample.size, len(chosen)) == ((2, 0), 40)
    assert np.allclose(part, whole[np.isin(arrived, chosen)], rtol=1e-9)
    plain, offered = split({"request_rate": 1000.0, "max_concurrency": 5000, "unique_prompts": 600, "num_prompts": 100_000})
    q = resolve_question("llama-3.2-1b", "1000xh100-sxm", {**plain, "replicas": 1000}).but(offered=offered)
    part = sample_of(q).question
    assert (part.plan.replicas, part.offered.request_rate, part.requests.num_prompts) == (2, 2.0, 200)
    assert (part.offered.max_in_flight, part.offered.burstiness) == (10, 500)
    assert part.offered.unique_prompts == 600 // 200 * 2, "each replica meets three prompts, as before"
