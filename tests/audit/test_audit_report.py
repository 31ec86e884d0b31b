"""How an audit answers: a screen that is read from above, a document, a page; with a claim and without one."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import browser
from audited import LATE, line, section
from cli_run import run_here, shown_here
from commtax.runs.evidence.finding import (
    AGREE,
    WHOLE,
    Audit,
    Cause,
    Claim,
    Finding,
    Section,
    StepRow,
    length_s,
    mean_middle_half,
    typical_of_ranks,
)
from commtax.runs.report.audit_page import MOST_SHOWN, audit_page, chart, thin_intervals
from commtax.runs.report.audit_words import audit_document, headline
from commtax.runs.report.auditing import bar, show_audit
from commtax.runs.traces.claim_check import predicted_step, priced_step
from commtax.runs.traces.trace import KINDS
from commtax.statement import Note
from commtax.timeline import Timeline
from commtax.verbs.settling import resolve_question
from commtax.web.assets import offline
from each import each
from made_traces import decode_graphs, write
from paths import FIXTURES

TINY = str(FIXTURES / "tiny-llama")
CAUSES = (
    Cause("launch", "the device waits for the host between kernels", 0.0012, 0.1, "capture CUDA graphs", "up to 1.2 ms"),
    Cause("sockets", "all-reduces run over sockets", 0.0022, 0.18, "set NCCL_IB_HCA", "about 1.6 ms a step"),
)


def screen(audited, width=100):
    return shown_here(show_audit, audited, width=width)


def test_words_come_first_dearest_cause_first():
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


def test_the_culprit_is_told_once_with_its_price():
    own = Cause("late rank", "rank 3: the others wait", 0.0009, 0.08, "look at its host", "900 us a step")
    lines = screen(Audit(None, (section(culprit=LATE, causes=(*CAUSES, own)),)))
    assert lines[1] == "Why: since 12.4 s, the others wait 900 us a step for it: costs 900 µs (8%)"
    assert lines[2] == "   try: look at its host · gain: 900 us a step"
    assert sum("the others wait" in x for x in lines) == 1
    assert sum(x.startswith(("1. ", "2. ", "3. ")) for x in lines) == 2


def test_the_first_line_says_what_disagrees_and_by_how_much():
    slow = Finding("TTFT (mean)", 0.2, 0.3, "s", 0.25, evidence=True).judged()
    held = Finding("KV memory left", 50 * 2**30, 40 * 2**30, "bytes", 0.01, base=80 * 2**30).judged()
    wrong = Section("bench", ("a.json",), (held, slow, replace(slow, item="TPOT (mean)")))
    said = headline(Audit(claim(), (wrong,)))
    assert "prediction: TTFT (mean) 300 ms instead of 200 ms (+50.0%), TPOT (mean)" in said
    assert "1 more" in said
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


def test_what_binds_is_told_beside_a_claim_and_of_a_host():
    lines = screen(Audit(claim(), (section(),)))
    assert lines[1].startswith("to judge it: the files hold no step")
    assert lines[2] == "2 ranks, 8 decode steps of 11.2 ms, mainly compute (71%)"
    host = section(notes=(Note("no device", "the trace has no GPU events: all times are host times"),))
    assert screen(Audit(None, (host,)))[0].endswith("mainly operations of the host (71%): no culprit found")
    whole = replace(host, steps=(StepRow(0, 0, WHOLE, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),))
    assert screen(Audit(None, (whole,)))[0] == "1 rank, 0 s as a whole, nothing was timed: nothing could be determined"


def test_a_culprit_since_the_first_step_has_no_moment():
    early = replace(LATE, since_s=0.0)
    late = replace(LATE, since_s=0.05)
    assert "since" not in screen(Audit(None, (section(culprit=early),)))[1]
    assert "since 50 ms, " in screen(Audit(None, (section(culprit=late),)))[1]


def test_a_cause_under_the_code_that_is_the_culprits_is_told_once():
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


def test_partial_files_are_marked():
    cut = Note("partial", "rank1.json.gz ends at byte 77: from 0.84 s on it is missing")
    text = "\n".join(screen(Audit(None, (section(notes=(Note("devices", "8 of them"), cut)),))))
    assert "trace: rank0.json.gz, rank1.json.gz (partial)" in text
    assert text.index("· rank1.json.gz ends") < text.index("· 8 of them")


def test_reasons_that_would_fold_a_table_stand_below_it():
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


def test_prompts_between_tokens_are_not_in_the_typical_step():
    made = section()
    prompts = tuple(replace(s, name="execute_context_1(512)_generation_0(0)", compute_s=1.0) for s in made.steps[:3])
    assert typical_of_ranks(replace(made, steps=(*made.steps, *prompts))) == typical_of_ranks(made)


def test_document_of_an_audit():
    odd = Finding("odd", 0.0, 1.0, "s", math.inf)
    audited = Audit(None, (section(culprit=LATE, causes=(*CAUSES, Cause("x", "no price", math.nan)), findings=(odd,)),))
    document = json.loads(json.dumps(audit_document(audited), allow_nan=False))
    assert document["schema"] == "commtax.audit/2"
    assert document["verdict"] == "fault"
    assert document["culprit"] == {"kind": "late rank", "rank": 3, "since_s": 12.4, "said": LATE.said}
    assert document["summary"][0].startswith("2 ranks")
    assert {"rank", "index", "name", "start_s", "compute_s", "exposed_s", "hidden_s", "copy_s", "idle_s", "usual"} == set(
        document["steps"][0]
    )
    wanted = {"op", "algorithm", "group", "ranks", "count", "bytes", "wire_s", "wait_s", "hidden_s"}
    assert wanted == set(document["collectives"][0])
    assert [c["code"] for c in document["causes"]][:2] == ["sockets", "launch"]
    assert document["facts"] == {"nccl": "2.27.3"}
    assert len(document["sections"][0]["steps"]) == 16
    assert audit_document(Audit(None, (section(),)))["culprit"] is None


def claim(**words):
    return Claim(resolve_question("llama-3.1-8b", "2xh100-sxm", {"tp": 2, **words}))


@each("words", [{}, {"tp": 1}, {"engine": "sglang"}, {"eager": True}])
@each("phase", ["decode", "prefill"])
def test_the_predicted_step_in_time_is_as_long_as_its_bill(phase, words):
    b = claim(**words).bill(phase, 4, 512)
    laid = predicted_step(b)
    assert laid.begin_s == 0
    assert laid.finish_s == pytest.approx(float(b.step_s))
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


INTERVALS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 10_000), st.integers(0, 50), st.integers(0, 2)), max_size=80)


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


def test_lanes_are_drawn_that_hold_something():
    lane, start = np.arange(40) % 20 * 2, np.arange(40.0)
    drawn = chart(Timeline(lane, start, start + 0.1 + lane, lane * 0, ("x",) * 40, tuple(map(str, range(40))), KINDS), "a")
    assert drawn["lanes"] == [str(2 * i) for i in range(4, 20)]  # the sixteen busiest of twenty
    assert drawn["name"].endswith("(4 lanes more)")
    assert set(drawn["lane"]) == set(range(16))


def test_a_page_of_several_jobs_names_each():
    alone = replace(section(ranks=1), files=("other.json",))
    page = audit_page(Audit(None, (section(), alone)), "commtax audit traces/")
    assert [t["title"] for t in page["tables"] if "title" in t] == ["trace: rank0.json.gz, rank1.json.gz", "trace: other.json"]
    assert [c["name"].split(",")[0] for c in page["charts"]] == ["rank0.json.gz", "other.json"]


def test_a_large_trace_makes_a_small_page():
    many = line([(i % 8, i * 1e-6, i * 1e-6 + 8e-7, i % 3) for i in range(40_000)])
    page = offline(audit_page(Audit(claim(), (section(measured=many),)), "commtax audit traces/"), "audit")
    assert len(page) < 1_000_000
    assert MOST_SHOWN // 4 < len(chart(many, "measured")["start"]) <= MOST_SHOWN
    assert "http://" not in page.replace("http://www.w3.org", "")


@pytest.mark.skipif(bool(browser.missing()), reason=browser.missing())
def test_the_page_shows_measured_above_predicted(tmp_path):
    hostile = replace(LATE, said="</script><script>document.title='owned'</script>")
    page = audit_page(Audit(claim(), (section(culprit=hostile, causes=CAUSES),)), "commtax audit traces/ --html a.html")
    file = tmp_path / "a.html"
    file.write_text(offline(page, "audit"))
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


DEVICE = {"totalGlobalMem": 85_017_493_504, "numSms": 132, "name": "NVIDIA H100 80GB HBM3"}


def test_the_machine_is_taken_from_the_trace(tmp_path):
    listed = [{"id": i, **DEVICE} for i in range(2)]
    trace = write(tmp_path / "rank0.json", decode_graphs(65, 1) | {"deviceProperties": listed})
    done = run_here("audit", trace, "-m", "llama-3.1-8b", "-tp", 2, "--json")
    document = json.loads(done.stdout)
    assert document["cluster"] == "2xh100-sxm"
    assert "as the trace lists its devices" in " ".join(document["notes"])
    bare = write(tmp_path / "bare.json", decode_graphs(65, 1))
    refused = run_here("audit", bare, "-m", "llama-3.1-8b")
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


def test_verdict_with_a_claim():
    held = Audit(claim(), (replace(section(), findings=(Finding("x", 1, 1, verdict=AGREE, evidence=True),)),))
    assert (
        screen(held)[0] == "llama-3.1-8b on 2xh100-sxm, TP 2: the run agrees with the prediction (1 agree, 0 disagree, 0 unknown)"
    )
    assert typical_of_ranks(held.sections[0]).total_s == pytest.approx(0.01125)
