"""How an audit answers: a screen read from above, a document, a page; no verdict without evidence; files of several jobs."""

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from hypothesis import strategies as st

import browser
from audited import LATE, line, section
from cli_run import run_here, shown_here
from commtax import catalog
from commtax.runs.audit import audit
from commtax.runs.audit.read_files import JobSigns, by_job
from commtax.runs.evidence.finding import (
    AGREE,
    DISAGREE,
    UNKNOWN,
    WHOLE,
    Audit,
    Cause,
    Claim,
    Finding,
    Section,
    StepRow,
    length_s,
    mean_middle_half,
    missing_sentence,
    typical_of_ranks,
)
from commtax.runs.evidence.identity import other_chip, other_model
from commtax.runs.logs.engine_logs import vllm_log
from commtax.runs.logs.startup_audit import audit_log
from commtax.runs.report.audit_page import MOST_SHOWN, audit_page, chart, thin_intervals
from commtax.runs.report.audit_words import audit_document, causes, headline
from commtax.runs.report.auditing import bar, show_audit
from commtax.runs.results import bench
from commtax.runs.results.bench_audit import audit_bench
from commtax.runs.results.bench_record import BenchmarkRun
from commtax.runs.results.expected_figures import BenchmarkLoad, predict_figures
from commtax.runs.traces.claim_check import predicted_step, priced_step
from commtax.runs.traces.trace import KINDS
from commtax.statement import Note
from commtax.timeline import Timeline
from commtax.verbs.settling import resolve_question
from commtax.web.assets import offline
from each import each
from made_traces import decode_graphs, document, event, kernel, launch, write
from paths import FIXTURES
from tables import tables
from texts import lacking, put

DATA = tables(__file__)


TINY = str(FIXTURES / "tiny-llama")
CAUSES = (
    Cause("launch", "the device waits for the host between kernels", 0.0012, 0.1, "capture CUDA graphs", "up to 1.2 ms"),
    Cause("sockets", "all-reduces run over sockets", 0.0022, 0.18, "set NCCL_IB_HCA", "about 1.6 ms a step"),
)
INTERVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 10_000), st.integers(0, 50), st.integers(0, 2)), max_size=80)
DEVICE = {"totalGlobalMem": 85_017_493_504, "numSms": 132, "name": "NVIDIA H100 80GB HBM3"}
TINY_MODEL = FIXTURES / "tiny-llama"
CPU = FIXTURES / "vllm-cpu-tp1.serve.json"


def screen(audited, width=100):
    return shown_here(show_audit, audited, width=width)


def test_words_come_first_dearest_cause_first_and_the_culprit_once():
    lines = screen(Audit(None, (section(culprit=LATE, causes=CAUSES),)))
    assert lines[0] == "2 ranks, 8 decode steps of 11.2 ms: rank 3 is the culprit (late rank)"
    assert lines[1] == "Why: since 12.4 s, the others wait 900 us a step for it"
    assert lines[2] == "1. all-reduces run over sockets: costs 2.2 ms (18%)"
    assert lines[3] == "   try: set NCCL_IB_HCA · gain: about 1.6 ms a step"
    assert lines[4].startswith("2. the device waits")
    assert lines[6] == "trace: rank0.json.gz, rank1.json.gz"
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    assert "predicted" not in text
    assert " ██████████████▓▓▓▓░░ " in text  # 71 % of twenty signs are fourteen
    own = Cause("late rank", "rank 3: the others wait", 0.0009, 0.08, "look at its host", "900 us a step")
    lines = screen(Audit(None, (section(culprit=LATE, causes=(*CAUSES, own)),)))
    assert lines[1] == "Why: since 12.4 s, the others wait 900 us a step for it: costs 900 µs (8%)"
    assert (lines[2], sum("the others wait" in x for x in lines)) == ("   try: look at its host · gain: 900 us a step", 1)
    assert sum(x.startswith(("1. ", "2. ", "3. ")) for x in lines) == 2


def test_the_first_line_says_what_disagrees_and_by_how_much():
    slow = Finding("TTFT (mean)", 0.2, 0.3, "s", 0.25, evidence=True).judged()
    held = Finding("KV memory left", 50 * 2**30, 40 * 2**30, "bytes", 0.01, base=80 * 2**30).judged()
    wrong = Section("bench", ("a.json",), (held, slow, replace(slow, item="TPOT (mean)")))
    said = headline(Audit(claim(), (wrong,)))
    assert not lacking(said, "prediction: TTFT (mean) 300 ms instead of 200 ms (+50.0%), TPOT (mean)", "1 more")
    assert "KV memory left 40 GiB instead of 50 GiB (" in headline(Audit(claim(), (replace(wrong, findings=(held,)),)))


def test_a_sound_run_is_called_one():
    (first, *_) = screen(Audit(None, (section(),)))
    assert first.endswith("no culprit found, and nothing is off")
    assert screen(Audit(None, (section(causes=CAUSES[:1]),)))[0].endswith("no culprit found, but 1 cause of lost time")
    assert screen(Audit(None, (Section("log", ("a.log",), ()),)))[0] == "1 log: nothing could be determined"
    off = Finding("failed requests", 0, 3, reason="what failed is not in the statistics").judged()
    assert screen(Audit(None, (Section("bench", ("a.json",), (off,)),)))[0].startswith(
        "1 benchmark result: something is off (0 agree, 1 dis"
    )


def test_verdicts_are_of_claims_and_what_binds_is_told():
    lines = screen(Audit(claim(), (section(),)))
    assert lines[1].startswith("to judge it: the files hold no step")
    assert lines[2] == "2 ranks, 8 decode steps of 11.2 ms, mainly compute (71%)"
    host = section(notes=(Note("no device", "the trace has no GPU events: all times are host times"),))
    assert screen(Audit(None, (host,)))[0].endswith("mainly operations of the host (71%): no culprit found")
    whole = replace(host, steps=(StepRow(0, 0, WHOLE, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),))
    assert screen(Audit(None, (whole,)))[0] == "1 rank, 0 s as a whole, nothing was timed: nothing could be determined"
    held = Audit(claim(), (replace(section(), findings=(Finding("x", 1, 1, verdict=AGREE, evidence=True),)),))
    assert (
        screen(held)[0] == "llama-3.1-8b on 2xh100-sxm, TP 2: the run agrees with the prediction (1 agree, 0 disagree, 0 unknown)"
    )
    assert typical_of_ranks(held.sections[0]).total_s == pytest.approx(0.01125)


def test_a_culprit_is_told_once_with_the_moment_it_began():
    early = replace(LATE, since_s=0.0)
    late = replace(LATE, since_s=0.05)
    assert "since" not in screen(Audit(None, (section(culprit=early),)))[1]
    assert "since 50 ms, " in screen(Audit(None, (section(culprit=late),)))[1]
    own = Cause("desync", LATE.said, None, None, "look at its program")
    for blamed, times in (("desync", 1), ("", 2)):
        told = screen(Audit(None, (section(culprit=LATE, causes=(own,), blamed=blamed),)))
        assert sum(LATE.said in x for x in told) == times


def test_a_result_is_told_and_its_books_are_checked():
    told = [Finding(Note(f"tpot_{s}", f"TPOT ({s})"), None, t, "s") for s, t in (("mean", 0.08), ("p99", 0.089))]
    books = Finding("E2E = TTFT + (n - 1) TPOT", 71.5, 71.5, "s", 0.05).judged()
    lines = screen(Audit(None, (Section("bench", ("a.json",), (*told, books)),)))
    assert lines[0] == "1 benchmark result, TPOT 80 ms: not judged: give --model and --cluster"
    assert [x.split() for x in lines[2:4]] == [["item", "measured"], ["TPOT", "(mean)", "80", "ms"]]
    assert lines[5].split() == ["item", "expected", "measured", "difference", "tolerance", "verdict"]


def test_partial_files_are_marked_and_long_reasons_stand_below():
    cut = Note("partial", "rank1.json.gz ends at byte 77: from 0.84 s on it is missing")
    text = "\n".join(screen(Audit(None, (section(notes=(Note("devices", "8 of them"), cut)),))))
    assert "trace: rank0.json.gz, rank1.json.gz (partial)" in text
    assert text.index("· rank1.json.gz ends") < text.index("· 8 of them")
    why = "seconds of this chip are assumed: " + "calibrate first " * 5
    told = [Finding(f"figure {i}", 1.0, 2.0, "s", 0.1, why) for i in range(3)]
    lines = screen(Audit(None, (Section("trace", ("a",), tuple(told)),)))
    assert sum(why.strip() in x for x in lines) == 1
    assert [x.split()[-1] for x in lines if x.startswith("figure")] == ["[1]"] * 3


@given(st.lists(st.tuples(*(st.floats(0, 10) for _ in range(4))), min_size=1, max_size=12))
def test_a_typical_step_is_the_sum_of_its_parts(parts):
    rows = [StepRow(0, i, "", 0.0, c, e, 0.0, k, idle) for i, (c, e, k, idle) in enumerate(parts)]
    used = mean_middle_half(rows)
    assert used.busy_s + used.idle_s == pytest.approx(used.total_s)
    lengths = sorted(map(length_s, rows))
    assert lengths[0] - 1e-9 <= used.total_s <= lengths[-1] + 1e-9
    assert len(bar(used, used.total_s)) == (20 if used.total_s else 0)


def test_document_of_an_audit():
    odd = Finding("odd", 0.0, 1.0, "s", math.inf)
    audited = Audit(None, (section(culprit=LATE, causes=(*CAUSES, Cause("x", "no price", math.nan)), findings=(odd,)),))
    document = json.loads(json.dumps(audit_document(audited), allow_nan=False))
    assert (document["schema"], document["verdict"]) == ("commtax.audit/2", "fault")
    assert document["culprit"] == {"kind": "late rank", "rank": 3, "since_s": 12.4, "said": LATE.said}
    assert document["summary"][0].startswith("2 ranks")
    assert {"rank", "index", "name", "start_s", "compute_s", "exposed_s", "hidden_s", "copy_s", "idle_s", "usual"} == set(
        document["steps"][0]
    )
    wanted = {"op", "algorithm", "group", "ranks", "count", "bytes", "wire_s", "wait_s", "hidden_s"}
    assert (wanted, [c["code"] for c in document["causes"]][:2]) == (set(document["collectives"][0]), ["sockets", "launch"])
    assert (document["facts"], len(document["sections"][0]["steps"])) == ({"nccl": "2.27.3"}, 16)
    assert audit_document(Audit(None, (section(),)))["culprit"] is None


def claim(**words):
    return Claim(resolve_question("llama-3.1-8b", "2xh100-sxm", {"tp": 2, **words}))


@each("words", [{}, {"tp": 1}, {"engine": "sglang"}, {"eager": True}])
@each("phase", ["decode", "prefill"])
def test_the_predicted_step_in_time_is_as_long_as_its_bill(phase, words):
    b = claim(**words).bill(phase, 4, 512)
    laid = predicted_step(b)
    assert (laid.begin_s, laid.finish_s) == (0, pytest.approx(float(b.step_s)))
    both, compute = (sum(end - start for start, end in laid.covered(*kinds)) for kinds in (("comm", "compute"), ("compute",)))
    assert both - compute == pytest.approx(float(b.comm_fraction) * float(b.step_s), abs=1e-9)


def test_the_predicted_step_is_the_one_that_was_measured():
    priced = priced_step(claim(), section()).question
    assert (priced.phase, int(priced.batch)) == ("decode", 8)
    prompts = tuple(replace(s, name="execute_context_2(512)_generation_0(0)") for s in section().steps)
    priced = priced_step(claim(), section(steps=prompts)).question
    assert (priced.phase, int(priced.batch), int(priced.context)) == ("prefill", 2, 256)
    priced = priced_step(replace(claim(), batch=3, context=77), section(steps=())).question
    assert (priced.phase, int(priced.batch), int(priced.context)) == ("decode", 3, 77)


@given(INTERVALS, st.integers(9, 40))
def test_a_thinned_picture_covers_what_it_stands_for(rows, most):
    given_rows = sorted((*r, f"k{i}") for i, r in enumerate(rows))
    shown = thin_intervals(given_rows, most)
    assert len(shown) <= most
    for lane, start, duration, kind, _ in given_rows:
        covering = [s for s in shown if s[0] == lane and s[3] == kind and s[1] <= start and s[1] + s[2] >= start + duration]
        assert covering
    if len(rows) <= most:
        assert shown == given_rows


def test_a_page_of_several_jobs_names_each_and_one_of_a_large_trace_is_small():
    alone = replace(section(ranks=1), files=("other.json",))
    page = audit_page(Audit(None, (section(), alone)), "commtax audit traces/")
    assert [t["title"] for t in page["tables"] if "title" in t] == ["trace: rank0.json.gz, rank1.json.gz", "trace: other.json"]
    assert [c["name"].split(",")[0] for c in page["charts"]] == ["rank0.json.gz", "other.json"]
    many = line([(i % 8, i * 1e-6, i * 1e-6 + 8e-7, i % 3) for i in range(40_000)])
    page = offline(audit_page(Audit(claim(), (section(measured=many),)), "commtax audit traces/"), "audit")
    assert len(page) < 1_000_000
    assert MOST_SHOWN // 4 < len(chart(many, "measured")["start"]) <= MOST_SHOWN
    assert "http://" not in page.replace("http://www.w3.org", "")
    lane, start = np.arange(40) % 20 * 2, np.arange(40.0)
    drawn = chart(Timeline(lane, start, start + 0.1 + lane, lane * 0, ("x",) * 40, tuple(map(str, range(40))), KINDS), "a")
    assert drawn["lanes"] == [str(2 * i) for i in range(4, 20)]  # the sixteen busiest of twenty
    assert drawn["name"].endswith("(4 lanes more)")
    assert set(drawn["lane"]) == set(range(16))


@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
def test_the_page_shows_measured_above_predicted(tmp_path):
    hostile = replace(LATE, said="</script><script>document.title='owned'</script>")
    page = audit_page(Audit(claim(), (section(culprit=hostile, causes=CAUSES),)), "commtax audit traces/ --html a.html")
    file = put(tmp_path, "a.html", offline(page, "audit"))
    with browser.chromium() as chromium:
        shown = chromium.new_page(viewport={"width": 1200, "height": 900})
        faults = []
        shown.on("pageerror", lambda error: faults.append(str(error)))
        shown.goto(file.as_uri())
        names = shown.locator(".chart-name").all_text_contents()
        assert [n.split(",")[0].split(":")[0] for n in names] == ["measured", "predicted"]
        assert shown.locator("canvas").count() == 2
        assert hostile.said in shown.locator("#blamed").text_content()
        assert shown.locator(".cause").count() == 2
        shown.locator("#nearer").click()
        shown.locator("canvas").first.hover(position={"x": 600, "y": 8})
        shown.wait_for_function("document.getElementById('hover').textContent.includes('kernel')")
        assert not faults


def test_options_without_a_model_are_refused_not_ignored(tmp_path):
    trace = write(tmp_path / "rank0.json", decode_graphs(4, 1))
    for words in (("-tp", 2), ("--cluster", "2xh100-sxm"), ("--batch", 4), ("--baseline", trace), ("--tolerance", "10%")):
        done = run_here("audit", trace, *words)
        assert done.returncode == 2, words
        assert "--model" in done.stderr
    assert run_here("audit", trace).returncode == 0


def test_the_machine_is_taken_from_the_trace(tmp_path):
    listed = [{"id": i, **DEVICE} for i in range(2)]
    trace = write(tmp_path / "rank0.json", decode_graphs(65, 1) | {"deviceProperties": listed})
    document = json.loads(run_here("audit", trace, "-m", "llama-3.1-8b", "-tp", 2, "--json").stdout)
    assert document["cluster"] == "2xh100-sxm"
    assert "as the trace lists its devices" in " ".join(document["notes"])
    refused = run_here("audit", write(tmp_path / "bare.json", decode_graphs(65, 1)), "-m", "llama-3.1-8b")
    assert (refused.returncode, "--cluster" in refused.stderr, refused.stderr.count("\n")) == (2, True, 1)


def test_a_folder_is_all_that_is_in_it(tmp_path):
    for r in (0, 1):
        write(tmp_path / f"rank{r}.json.gz", decode_graphs(4, 1, rank=r))
    (tmp_path / "readme.md").write_text("hello\n")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "inner").mkdir()
    document = json.loads(run_here("audit", tmp_path, "--json").stdout)
    assert document["sections"][0]["files"] == ["rank0.json.gz", "rank1.json.gz"]
    assert document["notes"] == ["2 files of the folder not recognised, and left out: config.json, readme.md"]
    empty = run_here("audit", tmp_path / "inner")
    assert (empty.returncode, empty.stderr.count("\n")) == (2, 1)


def test_a_page_of_a_real_log(tmp_path):
    words = ("-m", TINY, "-c", "2xcpu", "-tp", 2, "--html", tmp_path / "a.html")
    done = run_here("audit", FIXTURES / "vllm-cpu-tp2.log", *words)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "a.html").read_text()
    assert '"verdict": "agree"' in text
    assert str(tmp_path) not in text.split('"command"')[1][:400]


@cache
def claimed(model="llama-3.1-8b", place="1xh100-sxm", **options):
    return Claim(resolve_question(model, place, options))


@cache
def as_predicted(load=BenchmarkLoad(512, 128, clients=4, count=40, spread=0.0)):  # noqa: B008
    found = predict_figures(load, claimed())
    stats = {m: {s: found.of(m, s).value for s in ("mean", "median")} for m in ("ttft", "tpot")}
    rate = found.of("requests_per_s", "").value
    return BenchmarkRun(
        "vllm", "serve", requests=40, concurrency=4, lengths=(512, 128), spread=0.0, stats=stats, requests_per_s=rate, model="model"
    )


def judged(result, claim=None):
    return Audit(claim or claimed(), (audit_bench([result], claim or claimed(), "x"),))


def made(verdict, evidence, measured):
    """A finding with a prediction of 1, ten per cent tolerance and a range up to 2."""
    return Finding("x", 1.0, measured, "s", 0.1, verdict=verdict, evidence=evidence, low=0.5, high=2.0)


findings = some.builds(made, some.sampled_from([AGREE, DISAGREE, UNKNOWN]), some.booleans(), some.sampled_from([1.0, 1.5, 3.0]))


@settings(max_examples=60)
@given(some.lists(findings, max_size=5))
def test_only_evidence_agrees_and_anything_refutes(found):
    verdict = Audit(claimed(), (Section("bench", ("x",), tuple(found)),)).verdict
    evidence = [f for f in found if f.evidence]
    if any(f.verdict == DISAGREE for f in found):
        assert verdict == DISAGREE
    elif any(f.verdict == AGREE for f in evidence) and not any(f.verdict == UNKNOWN and f.measured == 3.0 for f in evidence):
        assert verdict == AGREE
    else:
        assert verdict == UNKNOWN


def test_figures_as_predicted_agree_and_only_typical_steps_count():
    found = judged(as_predicted())
    assert (found.verdict, missing_sentence(found)) == (AGREE, "")
    assert {f.code for f in found.findings if f.evidence} >= {"ttft_mean", "tpot_mean", "requests_per_s"}
    floor = "time per token (floor: reading the weights)"
    assert not {f.code for f in found.findings if f.evidence} & {floor, "queue_mean"}
    made = section()
    prompts = tuple(replace(s, name="execute_context_1(512)_generation_0(0)", compute_s=1.0) for s in made.steps[:3])
    assert typical_of_ranks(replace(made, steps=(*made.steps, *prompts))) == typical_of_ranks(made)


def test_a_floor_and_an_identity_are_no_verdict():
    """Our own run on CPUs, whose seconds are assumed: TPOT is fourteen times what they say, and nothing agrees."""
    found = audit([CPU], Claim(resolve_question(str(TINY_MODEL), "1xcpu", {})))
    assert found.count(AGREE) >= 3
    assert found.verdict == UNKNOWN
    assert all(
        word in missing_sentence(found) for word in ("seconds of cpu are assumed", "commtax measure calibrate", "--profile", "TPOT")
    )
    assert "no verdict" in headline(found)
    done = run_here("audit", CPU, "-m", TINY_MODEL, "-c", "1xcpu")
    assert done.returncode == 3
    assert done.stdout.splitlines()[1].startswith("to judge it: ")
    assert run_here("audit", CPU).returncode == 0, "nobody claims anything"


def test_what_is_missing_for_a_verdict_is_told():
    lone = BenchmarkRun("vllm", "serve", stats={"tpot": {"mean": 0.008}}, concurrency=4)
    assert judged(lone).verdict == UNKNOWN
    assert all(flag in missing_sentence(judged(lone)) for flag in ("--input-len", "--output-len"))
    found = Audit(claimed(), (audit_log(vllm_log.parse(served_log([0])), claimed()),))
    assert found.verdict == UNKNOWN
    assert missing_sentence(found) == "the files do not tell tensor-parallel size, weights per rank"
    found = Audit(claimed(), (Section("topology", ("x",), (Finding("GPUs", 8, 8).judged(),)),))
    assert missing_sentence(found).endswith("that is predicted; as claimed: GPUs")


@each(("name", "claim", "other"), DATA["names"])
def test_another_model_is_a_disagreement_and_a_name_that_tells_nothing_is_none(name, claim, other):
    assert bool(other_model(name, catalog.model(claim))) == other


def test_a_run_of_another_model_disagrees_by_the_name_that_its_file_gives():
    found = judged(replace(as_predicted(), model="ibm-granite/granite-3.1-8b-instruct"))
    assert found.verdict == DISAGREE
    assert [f.reason for f in found.findings if f.verdict == DISAGREE] == [
        "the file names granite-3.1-8b-instruct, not llama-3.1-8b"
    ]
    assert other_model("Qwen/Qwen3.8-27B-FP8", catalog.model("gpt-oss-20b")) == "the file names qwen3.8-27b-fp8, not gpt-oss-20b"


@pytest.mark.parametrize(
    ("name", "other"), [("NVIDIA H200", True), ("mi300x", True), ("H100", False), ("H100 NVL", False), ("my box", False)]
)
def test_another_chip_is_a_disagreement(name, other):
    assert bool(other_chip(name, claimed())) == other


@pytest.mark.parametrize(
    "said", [{"pp": 2}, {"data_parallel_size": 2}, {"ep_size": 8}, {"tensor_parallel_size": 8}, {"hw": "h200"}]
)
def test_sizes_and_chips_of_a_result_are_read_and_compared(said):
    document = {"duration": 10.0, "completed": 40, "total_output_tokens": 5120, "max_concurrency": 4, "mean_tpot_ms": 7.0, **said}
    (result,) = bench.read(json.dumps(document))
    assert judged(result).verdict == DISAGREE
    (plain,) = bench.read(json.dumps({name: value for name, value in document.items() if name not in said}))
    assert judged(plain).verdict == UNKNOWN


def test_a_plan_that_has_no_room_did_not_run():
    """DeepSeek-V3 is 79.6 GiB a GPU at TP 8: an H100 has 79.1."""
    claim = claimed("deepseek-v3", "8xh100-sxm", tp=8)
    result = BenchmarkRun(
        "vllm", "serve", requests=100, concurrency=16, lengths=(1024, 128), stats={"tpot": {"mean": 0.04}}, model="m"
    )
    found = judged(result, claim)
    assert found.verdict == DISAGREE
    (memory,) = [f for f in found.findings if f.verdict == DISAGREE]
    assert memory.code == "memory"
    assert memory.predicted > memory.measured
    assert "memory" not in {f.code for f in judged(result, claimed("deepseek-v3", "8xh200-sxm", tp=8)).findings}


def test_a_prediction_of_overload_is_not_hidden():
    """MLPerf's Server on MI355X: first tokens in 0.69 s, where assumed constants say that the queue grows without end."""
    claim = claimed("llama-2-70b", "8xmi355x", tp=8)
    stats = {"ttft": {"mean": 0.69}, "tpot": {"mean": 0.12}, "e2el": {"mean": 0.69 + 295 * 0.12}}
    result = BenchmarkRun(
        "mlperf", "serve", request_rate=120.0, requests=2000, requests_per_s=119.0, lengths=(294, 296), stats=stats
    )
    found = judged(result, claim)
    assert (found.verdict, "TTFT (mean) was 690 ms where" in missing_sentence(found)) == (UNKNOWN, True)
    assert any("overloaded" in note for note in found.sections[0].notes if note.code == "load")


def asked(rate, answered, requests=300, first=0.2, each=0.02, **more):
    """A benchmark at a rate, of 256 tokens an answer."""
    stats = {name: {"mean": s, "median": s} for name, s in (("ttft", first), ("tpot", each), ("e2el", first + 255 * each))}
    load = {"request_rate": rate, "requests_per_s": answered, "requests": requests, "lengths": (1024, 256)}
    tokens = {"total_tokens_per_s": answered * 1280, "output_tokens_per_s": answered * 256}
    return BenchmarkRun("vllm", "serve", **{"stats": stats, **load, **tokens, **more})


def causes_of(result):
    return {cause.code: cause.said for cause in audit_bench([result], None, "x").causes}


@pytest.mark.parametrize(("rate", "answered", "first"), [(0.3, 0.13, 600.0), (1.5, 0.61, 140.0), (8.0, 5.0, 10.0), (8.0, 2.0, 0.2)])
def test_overload_is_said_first(rate, answered, first):
    result = asked(rate, answered, first=first)
    assert causes_of(result) == {"overload": f"overloaded: answered {answered:g} of {rate:g} requests/s"}
    assert headline(Audit(None, (audit_bench([result], None, "x"),))).endswith(f"answered {answered:g} of {rate:g} requests/s")


@pytest.mark.parametrize(
    "healthy",
    [
        asked(1.5, 1.45),
        asked(1.0, 0.63, requests=10, each=0.023),  # the last of ten answers is a third of the run
        asked(1.0, 0.76, requests=200, each=0.13),  # answers of half a minute, and some of two
        asked(330.0, 11.9, requests=660, first=2.5, each=0.1, concurrency=330),  # a ramp, then clients wait for answers
        asked(0.02, 0.02, first=0.3, each=0.0001),  # 0.008 at once: a long prompt, and a short answer
        asked(8.0, 7.9, stats={"ttft": {"mean": 0.217, "median": 0.045}, "e2el": {"mean": 0.317, "median": 0.145}}),  # outliers
        asked(float("inf"), 9.6, requests=768, first=53.0, each=0.001),  # all at once: each waits for the others by design
    ],
)
def test_healthy_runs_get_no_advice(healthy):
    assert causes_of(healthy) == {}


@pytest.mark.parametrize(("tail", "codes"), [(0.6, ["overload"]), (0.3, [])])
def test_requests_that_pile_up_are_told_from_a_tail_where_no_deviation_is(tail, codes):
    slow = asked(10.0, 6.0, requests=500, first=5.0, each=0.28, facts={"peak concurrency": "400"})
    assert list(causes_of(replace(slow, stats=slow.stats | {"tpot": {"mean": 0.26, "median": 0.28, "p99": tail}}))) == codes


def test_queues_are_told_from_medians_and_overload_from_its_growth():
    waits = asked(None, 10.0, first=20.0, each=0.02, concurrency=256)
    assert list(causes_of(waits)) == ["queue"]
    pulled = {"ttft": {"mean": 20.0, "median": 0.2}, "e2el": {"mean": 25.1, "median": 5.3}}
    assert causes_of(replace(waits, stats=waits.stats | pulled)) == {}
    document = {"duration": 100.0, "completed": 30, "request_rate": 0.35, "total_output_tokens": 3000, "total_input_tokens": 3000}
    document |= {"request_throughput": 0.3, "mean_tpot_ms": 50.0}
    (steady,) = bench.read(json.dumps(document | {"ttfts": [5.0] * 30}))
    (growing,) = bench.read(json.dumps(document | {"ttfts": [0.5 * n for n in range(1, 31)]}))
    assert causes_of(steady) == {}
    assert "first tokens came 4.6 times as late" in causes_of(growing)["overload"]


def served_log(waiting):
    line = "INFO x [loggers.py:1] Engine 000: Avg prompt throughput: 9.0 tokens/s, Avg generation throughput: 400.0 tokens/s, "
    return "\n".join(f"{line}Running: 16 reqs, Waiting: {n} reqs, GPU KV cache usage: 40.0%" for n in waiting)


@pytest.mark.parametrize(
    ("waiting", "codes"), [(range(0, 120, 5), ["overload"]), ([30] * 24, []), (range(120, 0, -5), []), ([0] * 23 + [9], [])]
)
def test_a_queue_that_grows_is_overload(waiting, codes):
    assert [cause.code for cause in audit_log(vllm_log.parse(served_log(waiting)), None).causes] == codes


def signs(rank, world=0, place="a", at=0.0, meets=True):
    return JobSigns(rank, world, place, at, at + 1.0, meets)


def jobs(*files):
    return by_job(files, [f"file {i}" for i in range(len(files))])


def test_ranks_of_one_job_stay_together_and_others_apart():
    assert jobs(signs(0, 2), signs(1, 2)) == [[0, 1]]
    assert jobs(signs(0), signs(0)) == [[0, 1]]  # nobody told them their ranks
    assert jobs(signs(0, 2), signs(1)) == [[0, 1]]  # one of them does not tell of how many
    assert jobs(signs(0, 2, "a"), signs(1, 2, "b")) == [[0, 1]]  # hosts of one job may differ
    assert jobs(signs(0, 2), signs(1, 128)) == [[0], [1]]
    assert jobs(signs(0, 2, "a"), signs(0, 2, "b"), signs(1, 2, "a")) == [[0, 2], [1]]
    assert jobs(signs(0, 2, at=0.0), signs(1, 2, at=0.1), signs(0, 2, at=60.0), signs(1, 2, at=60.2)) == [[0, 1], [2, 3]]
    assert (jobs(signs(0, meets=False), signs(0, meets=False)), jobs(signs(0, 1), signs(0, 1))) == ([[0], [1]], [[0], [1]])
    assert jobs(signs(0, 2), signs(1, 2, at=0.2), signs(0, 2, at=2.0), signs(1, 2, at=2.1)) == [[0, 1], [2, 3]]
    assert jobs(signs(0, at=0.0), signs(0, at=2.0)) == [[0, 1]]  # nobody told them, and clocks of hosts differ
    skewed = (signs(0, 2), signs(1, 2, at=3.0), signs(0, 2, at=9.0), signs(1, 2, at=12.0))
    assert jobs(*skewed) == [[0, 1], [2, 3]]  # the longest pauses that part them do
    at_once = [signs(rank, 2) for rank in (0, 1, 0, 1)]
    assert by_job(at_once, ["a-rank0.json", "a-rank1.json", "b-rank0.json", "b-rank1.json"]) == [[0, 1], [2, 3]]
    assert by_job(at_once, ["w.json", "x.json", "y.json", "z.json"]) == [[0, 1, 2, 3]]


SIGNS = st.builds(signs, st.integers(0, 3), st.sampled_from([0, 1, 2, 8]), st.sampled_from("ab"), st.floats(0, 100), st.booleans())


@given(st.lists(SIGNS, max_size=8))
def test_every_file_is_of_one_job_and_known_worlds_are_not_mixed(files):
    found = jobs(*files)
    assert sorted(at for job in found for at in job) == list(range(len(files)))
    assert all(len({files[at].world for at in job} - {0}) <= 1 for job in found)
    assert [job[0] for job in found] == sorted(job[0] for job in found)


def alone(pause_us):
    events, at = [], 0.0
    for step in range(4):
        begin = at
        for i in range(30):
            events += [launch(at, step * 30 + i), kernel("gemm", at, 4, step * 30 + i)]
            at += 4 + pause_us
        events.append(event("user_annotation", f"ProfilerStep#{step}", begin, at - begin - 1))
    return document(events, world=1)


def test_a_folder_of_two_jobs_is_told_as_two(tmp_path):
    write(tmp_path / "alone.json", alone(6))
    for rank in (0, 1):
        write(tmp_path / f"rank-{rank}.json", decode_graphs(3, 1, steps=4, rank=rank))
    found = audit([tmp_path])
    assert [s.files for s in found.sections] == [("alone.json",), ("rank-0.json", "rank-1.json")]
    assert headline(found).startswith("traces of 2 jobs, each reported separately: ")
    first = next(c for c in causes(found) if c.code == "launch-bound")
    assert first.said.startswith("alone.json: the device idles ")
    assert "30 pauses of 6 µs" in first.said
