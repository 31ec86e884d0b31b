"""The study as one command: the built-in engine for real, an installed vLLM through a stand-in, flags on published mistakes."""

import json
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import live_models
from cli_run import run_here
from commtax import catalog
from commtax.cli import main
from commtax.runs.traces.profilers import kineto
from commtax_lab.cli.experiment import markdown
from commtax_lab.measure.arch import arch
from commtax_lab.measure.comm import RankGroup
from commtax_lab.measure.engine import LiveEngine
from commtax_lab.measure.generate import generate, prompts
from commtax_lab.measure.study import builtin, experiment, recipe
from commtax_lab.measure.study.driving import StudyOrder
from commtax_lab.measure.study.experiment import _constants
from commtax_lab.measure.study.findings import Prices, analyse, answers, spread
from commtax_lab.measure.study.recipe import StudyRun
from commtax_lab.measure.study.small_engine_serving import BatchingEngine, requests, serve
from commtax_lab.measure.weights import Checkpoint, load
from forked import ForkedProgram
from tables import tables
from texts import lacking, put

DATA = tables(__file__)
CPU = torch.device("cpu")
FACTS = DATA["facts"]
PRICES = Prices(catalog.model("llama-3.1-8b"), "2xh100-sxm", "vllm", "bf16")


def run_cli(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["measure", "experiment", *map(str, words)])
    return ended.value.code, capsys.readouterr()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tiny")
    live_models.write(folder, "llama", max_position_embeddings=1024)
    return folder


# --- the built-in engine, for real ---------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def study_here(checkpoint, tmp_path_factory):
    out = tmp_path_factory.mktemp("study")
    words = ["measure", "experiment", "--model", str(checkpoint), "--quick", "--out", str(out), "--cluster", "2xcpu"]
    process = ForkedProgram("commtax", *words)
    until = time.monotonic() + 240  # the machine is calibrated first
    while not list((out / "runs").glob("[!.]*.json")) and time.monotonic() < until:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    with process.stdout:
        _, told = process.communicate()
    kept = {p.name: p.stat().st_mtime_ns for p in (out / "runs").glob("*.json")}
    done = run_here(*words, "--json")
    assert done.returncode == 0, done.stderr
    return out, process.returncode, told, kept, json.loads(done.stdout)


def test_an_interrupted_study_goes_on(study_here):
    out, code, told, kept, found = study_here
    assert code == 130
    assert "goes on" in told
    assert kept
    assert all((out / "runs" / name).stat().st_mtime_ns == at for name, at in kept.items())
    planned = recipe.runs(recipe.recipe("tp-study", quick=True), (1, 2), ("latency", "batch", "profile", "serve"))
    assert {p.stem for p in (out / "runs").glob("*.json")} == {run.name for run in planned}
    assert found["missing"] == found["failed"] == []


def test_the_study_fills_the_table(study_here):
    out, *_, found = study_here
    one, two = found["degrees"]
    assert (one["tp"], two["tp"]) == (1, 2)
    for row in (one, two):
        assert row["applied"]["ok"]
        assert row["decode_ms"] > 0
        assert row["decode_predicted_ms"] > 0
        assert ([p["input_len"] for p in row["prefill"]], [b["batch"] for b in row["batches"]]) == ([128, 512], [1, 4, 16])
        assert row["serve"]["requests"] == 16
        assert row["serve"]["ttft_p99_ms"] >= row["serve"]["ttft_p50_ms"] > 0
    p = two["profile"]
    assert p["allreduces"] == p["predicted_allreduces"] == 5  # two a layer and the embedding's
    assert p["allreduce_bytes"] == p["predicted_bytes"] == 64 * 4
    assert p["equal"]
    assert 0 < p["wire_fraction"] <= p["comm_fraction"] <= 1
    assert [r["batch"] for r in found["crossover"][0]["ratios"]] == [1, 4, 16]
    report = (out / "report.md").read_text()
    assert all(a["question"] in report and a["answer"] in report for a in found["answers"])
    assert len(found["answers"]) == 4
    assert {"batch-scaling.svg", "latency-by-degree.svg"} <= {p.name for p in out.iterdir()}
    assert str(out) not in report


def test_constants_are_measured_once_a_study_or_said_to_be_unknown(tmp_path):
    """A profile beside the runs is used again, one of other ranks or a damaged one is not."""
    driver = SimpleNamespace(on_cpu=True, dtype="fp32", library="gloo")
    asked = StudyOrder(tmp_path, degrees=(1, 2))
    file = tmp_path / "profile-2-ranks-fp32.json"
    file.write_text(json.dumps({"commtax_profile": 1, "chip": {"key": "cpu", "memory_Bps": 1e10}}))
    told = []
    assert _constants(asked, driver, told.append) == (str(file), "")
    assert _constants(replace(asked, degrees=(1, 3)), driver, told.append)[0] == ""
    assert "2 or 4 ranks" in _constants(replace(asked, degrees=(1, 3)), driver, told.append)[1]
    assert _constants(replace(asked, cluster="2xcpu"), driver, told.append) == ("", "")
    assert "not calibrated" in _constants(replace(asked, engine="vllm"), driver, told.append)[1]
    assert not told
    file.write_text("[1]")
    unlike = replace(asked, lost_s=0.0)  # refused before anything starts: a calibration that fails is said, and the study goes on
    assert "could not be calibrated" in _constants(unlike, driver, told.append)[1]
    assert "calibrating" in told[0]


def test_another_study_is_not_mixed_in(study_here, checkpoint, capsys):
    code, told = run_cli(capsys, "--model", checkpoint, "--out", study_here[0])
    assert code == 2
    assert "quick" in told.err


def test_machines_merge_into_one_report(study_here, tmp_path, capsys):
    out = study_here[0]
    code, told = run_cli(capsys, "--merge", out, "--merge", out, "--out", tmp_path / "all", "--json")
    assert code == 0
    boxes = json.loads(told.out)["boxes"]
    assert len({b["box"] for b in boxes}) == 2
    text = (tmp_path / "all" / "report.md").read_text()
    assert "## All machines" in text
    assert all(b["box"] in text for b in boxes)
    whole = json.loads((out / "experiment.json").read_text())
    damaged = [{**whole, "degrees": None}, {k: v for k, v in whole.items() if k != "flags"}, {**whole, "box": 3}, [whole], None]
    damaged.append({**whole, "x": [1e308]})
    for document in damaged:
        (tmp_path / "experiment.json").write_text(json.dumps(document))
        code, told = run_cli(capsys, "--merge", tmp_path, "--out", tmp_path / "all")
        assert code == 2
        assert "experiment.json" in told.err
        assert told.err.count("\n") == 1


# --- serving with sequences of their own length -------------------------------------------------------------------------
@pytest.mark.parametrize("slots", [1, 3, 8])
def test_requests_served_together_say_what_they_say_alone(checkpoint, slots):
    a = arch(str(checkpoint))
    weights = load(Checkpoint(checkpoint), a, 0, 1, torch.float32, CPU)
    sizes = [(9, 7), (30, 3), (4, 12), (17, 2), (25, 9)]
    server = BatchingEngine(a, weights, RankGroup(0, 1), slots, 48)
    chosen: dict[int, list[int]] = {}
    queue = requests(server, sizes, [0.0] * len(sizes))
    start, step = server.start, server.step

    def started(row, tokens):
        owner = next(i for i, r in enumerate(queue) if r.prompt is tokens)
        chosen[owner] = [start(row, tokens)]
        return chosen[owner][-1]

    def stepped(tokens, positions):
        found = step(tokens, positions)
        owners = [
            next(i for i in chosen if chosen[i][-1] == t and queue[i].position == p and len(chosen[i]) < sizes[i][1])
            for t, p in zip(tokens, positions, strict=True)
        ]
        for owner, token in zip(owners, found, strict=True):
            chosen[owner].append(token)
        return found

    server.start, server.step = started, stepped
    serve(server, queue)
    for index, (length, outputs) in enumerate(sizes):
        alone = LiveEngine(a, weights, RankGroup(0, 1), 1, 48)
        wanted = generate(alone, prompts(a.model.vocab, 1, length, index, CPU), outputs)
        assert (chosen[index], len(queue[index].times_s)) == ([int(t) for t in wanted.tokens], outputs)


def test_traced_steps_are_named_for_the_reader(checkpoint, tmp_path):
    a = arch(str(checkpoint))
    weights = load(Checkpoint(checkpoint), a, 0, 1, torch.float32, CPU)
    engine = builtin.NamedStepsEngine(a, weights, RankGroup(0, 1), 2, 32)
    file = tmp_path / "x-rank0.json"
    with builtin.trace(engine, file):
        for _ in range(2):
            generate(engine, prompts(a.model.vocab, 2, 12, 0, CPU), 5)
    assert [s.phase for s in kineto.read(file).steps] == 2 * ["prefill", *4 * ["decode"]]


def test_a_dataset_in_sharegpts_form(tmp_path):
    talk = [{"from": "human", "value": "x" * 400}, {"from": "gpt", "value": "y" * 80}]
    file = put(tmp_path, "talks.json", json.dumps([{"id": "1", "conversations": talk}, {"id": "2", "conversations": talk[:1]}]))
    assert recipe.dataset_lengths(file) == [(100, 20)]
    for text in ("{", "[1]", "[]"):
        file.write_text(text)
        with pytest.raises(ValueError, match="dataset"):
            recipe.dataset_lengths(file)


# --- mistakes -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("words", "told"), DATA["mistakes_are_one_line"])
def test_mistakes_are_one_line(words, told, capsys, tmp_path):
    code, out = run_cli(capsys, *words, "--out", tmp_path)
    assert code == 2
    assert told in out.err
    assert out.err.count("\n") == 1


# --- what a sound study does not show: the published study's own figures --------------------------------------------------
def latency(tp, batch, seconds, output=64, kind="batch"):
    run = StudyRun(kind, tp, batch, 512, output, 5)
    return run, {"latency_s": [seconds * f for f in (0.995, 1.0, 1.005)], "prefill_s": [], "decode_s": []}


def served(tp, ttft_ms, itl_ms, output=128):
    stats = {
        "ttft": {"mean": ttft_ms / 1e3, "median": ttft_ms / 1e3, "p99": ttft_ms / 1e3},
        "itl": {"mean": itl_ms / 1e3, "median": itl_ms / 1e3},
    }
    stats["tpot"] = stats["itl"]
    facts = {"requests": 200, "failed": 0, "duration_s": 50.0, "requests_per_s": 4.0, "output_tokens_per_s": 512.0}
    return StudyRun("serve", tp, 0, 256, 128, 200, 4.0), {
        "stats_s": stats,
        **facts,
        "input_len": 220.0,
        "output_len": float(output),
    }


def published(speedup=1.0):
    """Llama-3.1-8B on H100 as published: offline the same at both degrees, and a first token that takes a whole request."""
    batches = {1: 0.4487, 4: 0.4688, 16: 0.497, 32: 0.5425}
    one = [latency(1, b, s) for b, s in batches.items()]
    two = [latency(2, b, s / speedup) for b, s in batches.items()]
    return [*one, *two, served(1, 923.94, 7.22), served(2, 656.14, 5.13)]


def words_of(found):
    return " / ".join(f"{f['what']}: {f['why']}" for f in found["flags"])


def test_the_published_study_is_flagged_and_a_real_gain_is_not():
    found = analyse(FACTS, published(), PRICES)
    text = words_of(found)
    assert not lacking(text, "TP=2: TP was probably not applied", "serving differs (7.22 and 5.13 ms a token)")
    assert not lacking(text, "TP=1: TTFT is 128 x ITL", "TP=2: TTFT is 128 x ITL")
    found["answers"] = answers(found)
    assert "TP was probably not applied" in markdown([found], [])
    assert found["crossover"][0]["batch"] is None
    found = analyse(FACTS, published(speedup=1.4), PRICES)
    assert "probably not applied" not in words_of(found)
    assert found["crossover"][0]["batch"] == 1
    proved = [(run, {**x, "applied": {"ok": True, "found": "2 ranks"}}) for run, x in published()]
    text = words_of(analyse(FACTS, proved, PRICES))
    assert "equals TP=1 within noise" in text
    assert "probably not applied" not in text


def test_a_prompt_of_no_time_is_not_told():
    """On a busy machine the tokens of one run may take longer than another run as a whole."""
    nothing = {"prefill_s": [], "decode_s": []}
    first = (StudyRun("first", 2, 1, 128, 1, 3), {"latency_s": [0.2], **nothing})
    runs = [(StudyRun("latency", 2, 1, i, o, 3), {"latency_s": [s], **nothing}) for i, o, s in ((128, 32, 3.5), (512, 8, 0.3))]
    (row,) = analyse(FACTS, [first, *runs], PRICES)["degrees"]
    assert [one["input_len"] for one in row["prefill"]] == [128]


def test_faster_than_physics():
    run, x = latency(1, 1, 0.5, 128, "latency")
    fast = [(run, {**x, "decode_s": [3e-3], "prefill_s": [0.02]})]  # 16 GB cannot be read in 3 ms at 3.35 TB/s
    assert "TP=1: faster than physics" in words_of(analyse(FACTS, fast, PRICES))
    sound = [(run, {**x, "decode_s": [7e-3], "prefill_s": [0.02]})]
    assert "physics" not in words_of(analyse(FACTS, sound, PRICES))


def test_miscounted_all_reduces_and_growing_queues_and_noise_are_flagged():
    counted = DATA["miscounted_all_reduces_and_growing_queues_and_noise_are_flagged"]
    run, x = served(2, 100.0, 7.0)
    noisy = (StudyRun("batch", 2, 4, 512, 64, 3), {"latency_s": [1.0, 1.0, 2.0], "prefill_s": [], "decode_s": []})
    profiled = (StudyRun("profile", 2, 1, 256, 32, 3), {"profile": counted})
    late = (run, {**x, "failed": 3})
    alone = (StudyRun("latency", 2, 1, 512, 64, 3), {"latency_s": [1.0], "prefill_s": [0.01], "decode_s": [7e-3]})
    found = analyse(FACTS, [noisy, profiled, late, alone], PRICES)
    text = words_of(found)
    assert "64 in the profile, 65 by arithmetic" in text  # vLLM reduces the embedding too
    assert not lacking(text, "TTFT holds waiting in a queue", "3 requests failed", "noisy")
    link = found["degrees"][0]["profile"]["link"]
    assert link["inside_Bps"] == pytest.approx(8192 / 9e-6)  # at TP=2 a rank sends the tensor once
    assert link["inside_share"] == pytest.approx(8192 / 9e-6 / 450e9)


def test_runs_are_named_apart_and_spread_leaves_out_extremes():
    for chosen in (recipe.recipe("tp-study", quick=False), recipe.recipe("tp-study", quick=True)):
        names = [
            run.name for run in recipe.runs(chosen, (1, 2, 4), ("latency", "first", "batch", "profile", "serve", "throughput"))
        ]
        assert len(set(names)) == len(names)
    full = recipe.recipe("tp-study", quick=False)
    assert (full.latency, (full.num_prompts, full.rate_per_s)) == (((512, 128, 20), (2048, 32, 10)), (200, 4.0))
    assert set(full.batches) == {1, 4, 8, 16, 32, 64}
    assert (spread([1.0, 10.0, 10.0, 10.0, 100.0]), spread([5.0])) == (0.0, 0.0)
    run = StudyRun("serve", 1, 0, 100, 50, 300, 4.0)
    found = recipe.lengths(run, "")
    assert all(50 <= i <= 150 and 25 <= o <= 75 for i, o in found)
    assert found == recipe.lengths(run, "")
    times = recipe.arrivals(run)
    assert (times, times[-1] / 299) == (sorted(times), pytest.approx(0.25, rel=0.2))


# --- counters ---------------------------------------------------------------------------------------------------------------
def test_counters_are_read_and_compared(tmp_path):
    port = tmp_path / "mlx5_0" / "ports" / "1" / "counters"
    port.mkdir(parents=True)
    (port / "port_xmit_data").write_text("25\n")
    (port / "port_rcv_data").write_text("N/A\n")
    assert experiment.infiniband(tmp_path) == {"mlx5_0 port 1 sent": 100.0}
    net = put(tmp_path, "dev", "Inter-|   Receive\n face |bytes\n    lo: 7 1 0 0 0 0 0 0 9 1 0 0 0 0 0 0\n")
    assert experiment.interfaces(net) == {"lo received": 7.0, "lo sent": 9.0}
    assert experiment.bytes_moved({"a": 1.0, "b": 2.0}, {"a": 4.0, "b": 2.0, "c": 5.0}) == {"a": 3.0, "c": 5.0}
    assert experiment.bytes_moved(experiment.snapshot(), experiment.snapshot()) is not None
