"""Commands agree: a plan is what simulate says of it, alone or among others, and what is emitted pastes back as itself."""

import json
import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import brute
import commtax
from commtax.cost.closed_form import fullest_batch
from commtax.cost.schedules import most_chunks
from commtax.judgement.margins import margin
from commtax.launch.read_command import parse
from commtax.planner import plan, plan_training, serving_standing
from commtax.planner.columns import SIZED, ServingColumns, ServingPlans, objective_value
from commtax.planner.exchanges import exchanges
from commtax.planner.ranking import complexity, share_hosts
from commtax.planner.space import space
from commtax.planner.splits import SAME
from commtax.planner.training_search import BUDGET
from commtax.spec import Plan, Workload
from commtax.verbs.billing import price
from commtax.verbs.settling import ask, resolve_question, settle
from commtax.verbs.steps import step_bill
from each import each
from planned import command, questions, value
from tables import tables

DATA = tables(__file__)


@given(st.integers(0, 10**6))
@settings(max_examples=3)
def test_no_plan_at_any_load_beats_an_answer(seed):
    """The best in the objective and at each place, and simpler plans within the margin, against a plain search."""
    rng = random.Random(seed)
    asked = brute.question(rng)
    assert not brute.disagreements(asked, plan(**asked), rng, points=32)


@given(questions())
@settings(max_examples=4)
def test_a_plan_is_what_simulate_says(question):
    """The first plans of both kinds, one copy or one split each: the same TTFT, TPOT, tokens/s and decode step."""
    a = plan(**question, max_concurrency=32)
    rows, asked = a.plans, a.question
    for i in {int(j) for mode in (0, 1) for j in np.flatnonzero(rows.mode == mode)[:3]}:
        apart, copies = bool(rows.mode[i]), int(rows.replicas[i])
        names = {"prefill_workers": "prefill_replicas", "prefill_tp": "prefill_tp", "prefill_dp": "prefill_dp"}
        workers = {name: int(getattr(rows, column)[i]) for name, column in names.items()} | {"decode_workers": copies}
        one = commtax.simulate(
            asked.model, asked.cluster, engine=asked.engine, input_len=question["input_len"], output_len=question["output_len"],
            concurrency=int(rows.concurrency[i]) // (1 if apart else copies), disaggregated=apart,
            **{axis: int(getattr(rows, axis)[i]) for axis in ("tp", "pp", "dp", "ep")}, **(workers if apart else {}),
            **a.exchanges[int(rows.exchange[i])].changes,
        )  # fmt: skip
        assert float(rows.ttft_s[i]) == pytest.approx(float(one.ttft_s))
        assert float(rows.tpot_s[i]) == pytest.approx(float(one.tpot_s))
        assert float(rows.tokens_per_s[i]) == pytest.approx(float(one.tokens_per_s) * (1 if apart else copies))
        step, seqs = a.step_of(rows, i), a.step_of(rows, i).question.work.decode_seqs
        least, most = step.step_s, step.step_s
        if (pp := int(rows.pp[i])) > 1 and not apart:  # a token waits for the fullest batch
            most = price(step.question.but(batch=pp * math.ceil(fullest_batch(pp * seqs, pp)))).step_s
        if apart:  # between batches that graphs hold, steps grow evenly
            least, most = (price(step.question.but(batch=n)).step_s for n in (max(1, int(seqs) // 2), int(seqs * 1.25) + 2))
        assert float(least) * (1 - 1e-6) <= float(one.steps.decode_s) <= float(most) * (1.05 if apart else 1 + 1e-6)


@given(questions(), st.sampled_from(DATA["larger"]))
@settings(max_examples=3)
def test_more_gpus_never_make_the_best_worse(question, clusters):
    few, many = (value(plan(**{**question, "cluster": place}, max_concurrency=16)) for place in clusters)
    assert many >= few * (1 - 1e-9)


@given(questions(), st.sampled_from((1.01, 1.3, math.inf)), st.sampled_from(("ttft_s", "tpot_s", "confidence")))
@settings(max_examples=3)
def test_looser_limits_never_make_the_best_worse(question, factor, limit):
    tight = question | {"confidence": 0.8}
    loose = tight | ({"confidence": 0.8 / min(factor, 1.6)} if limit == "confidence" else {limit: tight[limit] * factor})
    assert value(plan(**loose, max_concurrency=40)) >= value(plan(**tight, max_concurrency=40)) * (1 - 1e-9)


@given(questions(), st.floats(0, 0.1), st.floats(0, 0.4))
@settings(max_examples=3)
def test_the_recommended_plan_is_the_simplest_within_the_margin(question, within, more):
    """No simpler one lies within it; without a margin it is as good as the best; a wider one never asks for more to be set up."""
    kinds = []
    for share in (0, within, within + more):
        a = plan(**question, max_concurrency=32, margin=share)
        if not len(a.plans):
            return
        worths, hard = objective_value(a.question, a.plans), complexity(a.plans, a.question.cluster)
        assert worths[a.recommended] * (1 + share) >= worths[0] * (1 - 1e-9)
        assert np.all(hard[worths * (1 + share) >= worths[0]] >= hard[a.recommended])
        kinds.append(float(hard[a.recommended]))
    assert kinds == sorted(kinds, reverse=True)


def test_of_plans_too_close_to_call_workers_fill_hosts():
    """In a rack of hosts of four GPUs, DP 12 is recommended though DP 9 is predicted a little ahead."""
    a = plan("deepseek-v3", "gb200-nvl72", tpot_s=0.02)
    near = objective_value(a.question, a.plans) * (1 + margin(a.question)) >= objective_value(a.question, a.plans)[0]
    shared = share_hosts(a.plans, a.question.cluster)
    assert (shared[0], shared[a.recommended]) == (1, 0)
    assert near[a.recommended]
    assert "experts over 9 and 36 with 32 redundant ones (DeepEP) (workers that share hosts): " in "".join(a.why)
    rows = ServingColumns.of(8, **dict.fromkeys(ServingColumns.names(), 1))
    rows = replace(rows, dp=np.array([1, 2, 3, 4, 6, 8, 9, 36]))
    assert share_hosts(rows, a.question.cluster).tolist() == [0, 0, 1, 0, 1, 0, 1, 0]


@pytest.mark.parametrize(("model", "few", "many"), DATA["training_gains_from_gpus"])
def test_training_gains_from_gpus(model, few, many):
    """8 hosts 457 ms, 9 hosts 761 ms: nine do not divide the batch, and one may idle."""
    fewer, more = (plan_training(model, place, global_batch=64) for place in (few, many))
    if len(fewer.plans):
        assert float(more.plans.step_s[0]) <= float(fewer.plans.step_s[0]) * (1 + 1e-9)


def test_what_idles_is_told_and_one_client_has_one_prompt_worker():
    few, many = (plan("llama-3.1-405b", place, tpot_s=0.04) for place in ("2x8xh100-sxm", "3x8xh100-sxm"))
    assert few.gpu_words(few.plans, 0) == "16 GPUs = TP 16"
    assert many.gpu_words(many.plans, 0) == "16 GPUs = TP 16 (8 of 24 GPUs idle)"
    assert value(many) == pytest.approx(value(few))
    trained = plan_training("llama-3.1-8b", "9x8xh100-sxm", global_batch=64)
    assert "(8 of 72 GPUs idle)" in trained.gpu_words(trained.plans, 0)
    a = plan("llama-3.1-70b", "8x8xh100-sxm", objective="latency")
    alone = a.plans.take(np.flatnonzero((a.plans.mode == 1) & (a.plans.concurrency == 1)))
    assert len(alone)
    assert np.all(alone.prefill_replicas == 1)


@given(st.sampled_from(("llama-3.1-70b", "qwen3-30b-a3b", "gpt-oss-120b")), st.integers(1, 12), st.sampled_from((1, 2, 3, 4, 6, 8)))
@settings(max_examples=8)
def test_plans_are_nested(model, hosts, gpus):
    """What is tried on fewer GPUs is tried on more, with at least as many copies; in a rack of 72 tp 16 is."""
    small, large = (_tried(model, f"{h}x{g}xh100-sxm") for h, g in ((hosts, gpus), (hosts + 1, gpus)))
    wide = _tried(model, f"{hosts}x{gpus + 1}xh100-sxm")
    for sizes, copies in small.items():
        assert min(large[sizes], wide[sizes]) >= copies, sizes
    assert _tried("llama-3.1-405b", "18x4xgb200")[16, 1, 1, 1] == 4


def _tried(model, cluster):
    base = ask(model, cluster)
    s = space(base, exchanges(base)[0])
    return {(int(a), int(b), int(c), int(d)): int(n) for a, b, c, d, n in zip(s.tp, s.pp, s.dp, s.ep, s.replicas, strict=True)}


@given(questions())
@settings(max_examples=3)
def test_no_prompt_worker_is_idle_weight(question):
    """With one fewer, a prompt waits for more than a thousandth of its request, or a limit is broken, or tokens cost more."""
    a = plan(**question, max_concurrency=64)
    rows = a.plans
    for i in np.flatnonzero((rows.mode == 1) & (rows.prefill_replicas > 1))[:5].tolist():
        one = _split(a, i, int(rows.prefill_replicas[i]) - 1)
        wait = float(one.served.ahead_s)
        waits = wait > 0.9 * SAME * float(one.e2e_s - wait - one.served.moved_s)  # a little less is sent to who has to wait
        dearer = (
            a.question.goal.objective == "cost" and float(one.tokens_per_s) / float(one.num_gpus) <= rows.tokens_per_s_per_gpu[i]
        )
        late = float(one.ttft_s) > a.question.goal.ttft_s
        assert waits or dearer or late


def _split(a, i, workers):
    rows, asked = a.plans, a.question
    return commtax.simulate(
        asked.model, asked.cluster, engine=asked.engine, concurrency=int(rows.concurrency[i]),
        input_len=asked.requests.input_len, output_len=asked.requests.output_len, prefill_workers=workers,
        disaggregated=True, prefill_tp=int(rows.prefill_tp[i]), prefill_dp=int(rows.prefill_dp[i]),
        **{axis: int(getattr(rows, axis)[i]) for axis in ("tp", "dp", "ep")}, decode_workers=int(rows.replicas[i]),
        **a.exchanges[int(rows.exchange[i])].changes,
    )  # fmt: skip


@each("engine", ["vllm", "sglang", "trtllm"])
@each("model", ["glm-5", "mixtral-8x7b", "qwen3-30b-a3b"])
def test_a_plan_among_others_costs_what_it_costs_alone(model, engine):
    """All plans of a cluster priced at once; experts are gathered over dp in some of them and over ep in others."""
    base = ask(model, "4x8xh200-sxm", engine=engine)
    whole = space(base, exchanges(base)[0])
    legal = whole.take(np.flatnonzero(whole.codes == 0))
    many = replace(base, plan=replace(base.plan, **{axis: getattr(legal, axis) for axis in ("tp", "pp", "dp", "ep")}))
    work = Workload(decode_seqs=60, cached_tokens=60 * 1000)
    together = np.asarray(step_bill(many, work).step_s)
    for i in range(0, len(legal), 7):
        one = {axis: int(getattr(legal, axis)[i]) for axis in ("tp", "pp", "dp", "ep")}
        assert together[i] == pytest.approx(float(step_bill(replace(base, plan=replace(base.plan, **one)), work).step_s)), one


def test_a_pasted_plan_at_its_own_load():
    """Also where disaggregated plans take more clients, and where the cache holds fewer than there are."""
    bench = "vllm bench serve --random-input-len 8192 --random-output-len 512 --max-concurrency {}"
    server = "vllm serve openai/gpt-oss-120b --max-model-len 8704"
    for clients in (16, 2000):
        words = ("--cluster", "2x8xh200-sxm", "--from", f"{server}\n{bench.format(clients)}", "--objective", "gpus", "--json")
        code, out, error = command(*words)
        assert code == 0, error
        assert json.loads(out)["pasted"]["concurrency"] == clients
    found = plan("llama-3.1-8b", "2xh100-sxm", max_concurrency=8)
    stands = serving_standing(found, {"tp": 1, "pp": 1, "dp": 1, "ep": 1}, 2)
    assert int(stands.rows.concurrency[0]) == 8, "of both copies, as was asked"


@pytest.mark.parametrize(("model", "cluster", "words"), DATA["an_emitted_plan_pastes_back_as_itself"])
def test_an_emitted_plan_pastes_back_as_itself(model, cluster, words):
    engine = words[1] if words[0] == "--engine" else "vllm"
    code, out, error = command(model, "--cluster", cluster, *words, "--emit", engine, "--json")
    assert code == 0, error
    found = json.loads(out)
    first = found["recommended"]
    kept = [w for pair in zip(words[::2], words[1::2], strict=True) if pair[0] not in ("--engine", "--technique") for w in pair]
    pasted = "\n".join((found["emit"]["launch"], found["emit"]["benchmark"]))
    code, out, error = command("--cluster", cluster, "--from", pasted, *kept, "--json")
    assert code == 0, error
    again = json.loads(out)["pasted"]
    for name in ("tp", "pp", "dp", "ep", "replicas", "gpus", "concurrency", "dtype", "prefill_dp"):
        assert again.get(name) == first.get(name), name
    assert again["tokens_per_s"] == pytest.approx(first["tokens_per_s"], rel=0.02), "the cache has room that a lower limit leaves"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm"])
def test_the_first_plan_is_written_whatever_its_workers(engine):
    """Servers of their own for prompts are written, read back, and stand where the plan stands."""
    words, asked = ("--ttft", "500ms", "--tpot", "30ms"), ("llama-3.1-70b", "--cluster", "2x8xh100-sxm", "--engine", engine)
    code, out, error = command(*asked, *words, "--emit", engine, "--json")
    assert code == 0, error
    found = json.loads(out)
    first, text = found["recommended"], "\n".join((found["emit"]["launch"], found["emit"]["benchmark"]))
    assert first["mode"] == "disaggregated"
    read = parse(text)
    assert (read.options.get("tp"), read.servers.count, read.servers.prefill_tp, read.servers.prefill_workers) == (
        *(first["tp"], first["replicas"], first["prefill_tp"], first["prefill_replicas"]),
    )
    assert not read.unread
    devices = [x for x in text.splitlines() if x.startswith("CUDA_VISIBLE_DEVICES")]
    assert len(devices) == first["replicas"] + first["prefill_replicas"]
    code, out, error = command("--cluster", "2x8xh100-sxm", "--from", text, *words, "--json")
    assert code == 0, error
    again = json.loads(out)["pasted"]
    assert again["tokens_per_s"] == pytest.approx(first["tokens_per_s"], rel=0.02)
    for name in ("tp", "pp", "dp", "ep", "replicas", "gpus", "concurrency", "dtype", "prefill_dp"):
        assert again.get(name) == first.get(name), name


@pytest.mark.parametrize(
    ("tuned", "experts", "way"),
    [
        (False, "experts over 8", {}),
        (True, "experts over 8 with 32 redundant ones (DeepEP)", {"ep_backend": "deepep_low_latency", "redundant_experts": 32}),
    ],
)
def test_two_pools_are_named_and_priced_as_they_run(tuned, experts, way):
    """A plan of somebody's own has no exchange and no copies that nobody asked for; what it has, both pools have by name."""
    sizes, lengths = {"tp": 1, "pp": 1, "dp": 8, "ep": 8}, {"input_len": 1024, "output_len": 128}
    asked = resolve_question("deepseek-v3", "2x8xh200-sxm", {"disaggregated": True, **lengths})
    stood = serving_standing(ServingPlans(asked), sizes, 1, clients=448, prompts=Plan(1, dp=8), tuned=tuned)
    assert stood.plan == f"16 GPUs = 1 x DP 8 x TP 1 for prompts + 1 x DP 8 x TP 1 for decoding, {experts}"
    pools = {"disaggregated": True, "prefill_tp": 1, "prefill_dp": 8, "prefill_workers": 1, "decode_workers": 1}
    simulated = commtax.simulate("deepseek-v3", "2x8xh200-sxm", **sizes, **pools, **way, concurrency=448, **lengths)
    assert float(stood.rows.tokens_per_s[0]) == pytest.approx(float(simulated.tokens_per_s), rel=1e-9)
    assert float(stood.rows.ttft_s[0]) == pytest.approx(float(simulated.ttft_s), rel=1e-9)


def test_pasted_plans_and_plans_without_workers_of_their_own():
    """An exchange that its command does not have is a remark beside it."""
    script = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --enable-dp-attention"
    code, out, error = command("--cluster", "8xh200-sxm", "--from", script, "--objective", "latency", "--no-disaggregated")
    assert code == 0, error
    said = " ".join(out.split())
    assert "Pasted: 8 GPUs = DP 8 x TP 1, experts over 8, 8 clients:" in said
    better = r"all \d+ good plans are better; the recommended plan has 2.\d+ x its speed"
    assert re.search(better + r". run as .* \(DeepEP\), it would have 1.0", said)
    words = ("llama-3.1-70b", "--cluster", "2x8xh100-sxm", "--ttft", "500ms", "--tpot", "30ms", "--no-disaggregated", "--json")
    code, out, _ = command(*words, "--emit", "vllm")
    found = json.loads(out)
    assert (code, found["disaggregated"], {p["mode"] for p in found["plans"]}) == (0, False, {"together"})
    assert found["emit"]["launch"].count("vllm serve") == found["plans"][0]["replicas"]
    assert "--data-parallel-size" not in found["emit"]["launch"], "replicas are servers"
    assert not np.any(plan("llama-3.1-8b", "4xh100-sxm", disaggregated=False).plans.mode)


def test_no_request_is_refused_for_its_length_and_the_page_has_the_plan(tmp_path):
    """The model's own length where the cache holds it, else what varied lengths need: never the mean alone."""
    roomy = plan("llama-3.1-8b", "h100-sxm", tpot_s=0.03)
    assert roomy.longest(roomy.plans, 0) == 0
    tight = plan("llama-3.1-8b", "rtx-4090", input_len=512, output_len=128, tpot_s=0.05)
    assert 640 < tight.longest(tight.plans, 0) == 1024
    from commtax.web.pages import plan_page

    found = plan("llama-3.1-70b", "2x8xh100-sxm", ttft_s=0.5, tpot_s=0.03)
    page = plan_page(found, "commtax plan")
    assert (int(found.plans.mode[0]), page["view"]["state"]["tp"]) == (1, int(found.plans.tp[0]))
    assert page["view"]["totals"]["step_s"] == pytest.approx(float(found.step_of(found.plans, 0).step_s))


@pytest.mark.parametrize(
    ("model", "cluster", "batch"),
    [("llama-3.1-70b", "8x8xh100-sxm", 256), ("llama-3.1-405b", "2048x8xh100-sxm", 2048), ("mixtral-8x7b", "4x8xa100-80-sxm", 128)],
)
def test_no_count_of_chunks_beats_the_best_training_plan(model, cluster, batch):
    """Each split of the ten fastest plans, interleaved in any legal count of chunks, is no faster than the best where it fits."""
    found = plan_training(model, cluster, global_batch=batch)
    rows, budget = found.plans, BUDGET * found.question.cluster.chip.visible_bytes
    for i in range(min(10, len(rows))):
        kind, pp = found.kinds[int(rows.kind[i])], int(rows.pp[i])
        sizes = {name: int(getattr(rows, name)[i]) for name in SIZED}
        for chunks in range(2, int(most_chunks(kind.model.num_layers, pp)) + 1) if pp > 1 else ():
            put = kind.but(batch=batch // sizes["dp"], schedule="interleaved", chunks=chunks, **sizes)
            try:
                priced = price(settle(put))
            except ValueError:
                continue
            fits = float(priced.memory_bytes_per_rank) <= budget
            assert not fits or float(priced.step_s) >= float(rows.step_s[0]) * (1 - 1e-9), f"{sizes} in {chunks} chunks"
