"""Two runs beside each other: what changed, by how much, and what the sentence makes of it."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audited import LATE, line, section
from cli_run import run_here, shown_here
from commtax.runs.evidence.finding import Audit, CollectiveRow, Finding, KernelRow, Section
from commtax.runs.report.audit_differences import difference_document, sentence, show_difference, summary
from commtax.runs.report.audit_page import difference_page
from commtax.runs.traces.run_differences import FigureChange, difference
from commtax.statement import Note
from paths import FIXTURES
from start_logs import start_log

GEMM, RING = "void cutlass::gemm", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"


def run(exposed=0.002, idle=0.0012, algorithm="one-shot", wire=0.012, nccl="2.26", **others):
    """Eight steps of two ranks, with one kind of collectives."""
    made = section()
    steps = tuple(replace(s, exposed_s=exposed, idle_s=idle) for s in made.steps)
    sent = (CollectiveRow("all-reduce", algorithm, "tp:0", 2, 584, 584 * 131072.0, wire, 0.005, 0.001),)
    kernels = (KernelRow(GEMM, "compute", 144, 0.0051), KernelRow(f"{algorithm} kernel", "comm", 73, exposed))
    facts = {"nccl": nccl, "torch": "2.9", "host": "a"}
    return Audit(None, (replace(made, **{"steps": steps, "collectives": sent, "kernels": kernels, "facts": facts, **others}),))


def shown(found, width=100):
    return "\n".join(shown_here(show_difference, found, width=width))


def test_a_longer_step_is_put_down_to_its_parts():
    """1.1 ms more of exposed all-reduce and 0.2 ms of idle time, by hand."""
    found = difference(run(), run(0.0031, 0.0014, "ring ll", 0.0208, "2.27"))
    wanted = "B's step is 1.3 ms (+11.6%) longer: +1.1 ms exposed all-reduce (algorithm one-shot -> ring ll), +200 µs idle"
    assert sentence(found) == f"{wanted}; nccl 2.26 -> 2.27 is the only fact that changed"
    assert [c.item for c in found.worse] == ["step"]
    lines = shown(found).splitlines()
    assert lines[0] == sentence(found)
    assert any(x.split() == ["nccl", "2.26", "2.27"] for x in lines)
    assert any(x.startswith("exposed communication") and "+1.1 ms" in x and "+55.0%" in x for x in lines)
    assert any("one-shot -> ring ll" in x and "1.5 ms -> 2.6 ms" in x for x in lines)
    assert any("ring ll kernel" in x and "new" in x for x in lines)
    assert any("one-shot kernel" in x and "gone" in x for x in lines)


def test_a_run_differs_in_nothing_from_itself():
    found = difference(run(), run())
    assert not found.worse
    assert not found.facts
    assert not found.kernels
    assert "as long as A's within 5%" in sentence(found)
    assert sentence(found).endswith("none of 3 facts known of both runs changed")


@given(st.floats(1e-4, 5e-3), st.floats(1e-4, 5e-3), st.floats(0, 5e-3), st.floats(0, 5e-3))
def test_parts_sum_to_the_change_of_the_step(a, b, rest_a, rest_b):
    found = difference(run(a, rest_a), run(b, rest_b))
    assert sum(p.delta for p in found.parts) == pytest.approx(found.step.delta, abs=1e-12)
    back = difference(run(b, rest_b), run(a, rest_a))
    assert back.step.delta == pytest.approx(-found.step.delta)
    assert not (found.worse and back.worse)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"algorithm": "ring"}, "(algorithm one-shot -> ring)"),
        ({"count": 1168}, "(73 -> 146 per step)"),
        ({"nbytes": 1e6}, "per step)"),
        ({"wait_s": 0.0138}, "(+1.1 ms waiting)"),
        ({"wire_s": 0.0208}, "(+1.1 ms wire)"),
    ],
)
def test_why_a_collective_takes_longer(changes, says):
    before = run()
    (row,) = before.sections[0].collectives
    slower = replace(row, wire_s=row.wire_s + 0.0088) if "wait_s" not in changes else row
    after = run(0.0031, collectives=(replace(slower, **changes),))
    assert says in sentence(difference(before, after))


def test_compute_names_its_kernel():
    after = run(kernels=(KernelRow(GEMM, "compute", 144, 0.0071), KernelRow("one-shot kernel", "comm", 73, 0.002)))
    after = Audit(None, (replace(after.sections[0], steps=tuple(replace(s, compute_s=0.010) for s in after.sections[0].steps)),))
    assert "+2 ms compute (void cutlass::gemm +2 ms)" in sentence(difference(run(), after))


def test_a_part_of_a_step_does_not_decide_beside_it():
    """One collective takes twice as long, and the step does not: nothing is worse."""
    slower = [run(findings=(Finding(Note("collective", "one all-reduce"), None, s, "s"),)) for s in (1e-5, 2e-5)]
    found = difference(*slower)
    assert not found.worse
    assert [c.relative for c in found.metrics] == [pytest.approx(1.0)]


def bench(**figures):
    codes = {"tpot_mean": "s", "output_tokens_per_s": ""}
    told = tuple(Finding(Note(code, code), None, figures[code], unit) for code, unit in codes.items() if code in figures)
    return Audit(None, (Section("bench", ("a.json",), told),))


def test_results_without_steps():
    found = difference(bench(tpot_mean=0.0121, output_tokens_per_s=1200), bench(tpot_mean=0.0141, output_tokens_per_s=1100))
    assert [c.item for c in found.worse] == ["tpot_mean", "output_tokens_per_s"]
    assert sentence(found).startswith(
        "B is worse: tpot_mean 12.1 ms -> 14.1 ms (+16.5%), output_tokens_per_s 1,200 -> 1,100 (-8.3%)"
    )
    better = difference(bench(output_tokens_per_s=1100), bench(output_tokens_per_s=1300))
    assert not better.worse
    assert sentence(better).startswith("B is better: output_tokens_per_s 1,100 -> 1,300")
    assert sentence(difference(bench(), bench())).startswith("no figure that both runs have")
    assert not FigureChange("count", 1.0, 9.0, "").is_worse(0.05)
    assert FigureChange("new", None, 9.0).relative is None


@pytest.mark.parametrize("claim", [(), ("--model", "llama-3.3-70b", "--cluster", "4xh100-sxm")], ids=["logs alone", "with a model"])
def test_less_room_for_requests_is_worse(tmp_path, claim):
    """Two starts with the same settings, the second with a third less memory for its cache."""
    logs = start_log(tmp_path, "a", 31.20, 408_944), start_log(tmp_path, "b", 21.10, 276_560)
    document = json.loads(run_here("audit", "--diff", *logs, "--json", *claim).stdout)
    memory, tokens = ("KV memory left", "KV tokens in that memory") if claim else ("KV memory per rank", "KV tokens")
    assert (document["verdict"], document["worse"]) == ("worse", [memory, tokens, "full-length requests at once"])
    shown = run_here("audit", "--diff", *logs, *claim)
    assert (shown.returncode, shown.stdout.startswith("B is worse: ")) == (1, True)
    back = run_here("audit", "--diff", *reversed(logs), *claim)
    assert (back.returncode, back.stdout.startswith("B is better: ")) == (0, True)


def test_document_and_page_of_a_difference():
    found = difference(run(), run(0.0031, culprit=LATE))
    document = json.loads(json.dumps(difference_document(found), allow_nan=False))
    assert document["schema"] == "commtax.audit-diff/1"
    assert document["verdict"] == "worse"
    assert document["step"]["change"] == pytest.approx(0.0011)
    assert document["runs"]["b"]["culprit"]["rank"] == 3
    assert document["collectives"][0]["a"]["bytes"] == pytest.approx(73 * 131072)
    assert document["summary"] == summary(found) == [sentence(found), f"B: rank 3 (late rank) since 12.4 s: {LATE.said}"]
    page = difference_page(found, "commtax audit --diff a b")
    assert [c["name"].split(",")[0] for c in page["charts"]] == ["A", "B"]
    assert difference_page(difference(run(measured=None), run(measured=line())), "x")["charts"][0]["name"].startswith("B")


def test_command_line(tmp_path):
    """A real benchmark result, and the same with other figures."""
    before = FIXTURES / "vllm-cpu-tp1.latency.json"
    told = json.loads(before.read_text())
    slower = tmp_path / "after.json"
    slower.write_text(
        json.dumps({**told, "avg_latency": told["avg_latency"] * 1.5, "latencies": [x * 1.5 for x in told["latencies"]]})
    )
    words = ("-m", FIXTURES / "tiny-llama", "-c", "2xcpu", "--input-len", 128, "--output-len", 32)
    worse = run_here("audit", "--diff", before, slower, *words)
    assert worse.returncode == 1, worse.stderr
    assert "+50.0%" in worse.stdout
    assert run_here("audit", "--diff", before, slower, "--tolerance", "60%", *words).returncode == 0
    assert run_here("audit", "--diff", before, before, *words).returncode == 0
    document = run_here("audit", "--diff", before, slower, "--json", "--html", tmp_path / "d.html", *words)
    assert json.loads(document.stdout)["verdict"] == "worse"
    assert (tmp_path / "d.html").stat().st_size < 200_000
    for wrong in ((before,), (before, before, before)):
        done = run_here("audit", "--diff", *wrong)
        assert (done.returncode, "two runs" in done.stderr) == (2, True)
    assert run_here("audit", "--diff", before, before, "--anonymise", tmp_path / "x").returncode == 2
