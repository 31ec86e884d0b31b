"""A running server beside its prediction: real pages over real HTTP, once, in windows, on a dashboard and for Prometheus."""

import io
import json
import os
import pty
import re
import select
import signal
import socket
import time
import tomllib
from functools import cache
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from cli_run import run_here
from commtax.runs.audit import scraping
from commtax.runs.doors.server_metrics import MetricsExporter, ServerWatch
from commtax.runs.evidence.finding import Claim
from commtax.runs.report.server_words import (
    FAMILIES,
    DashboardLine,
    answer_sentence,
    dashboard,
    exposition,
    load_sentence,
    next_lines,
    state_of,
)
from commtax.runs.results.exposition import LookAtServer, read_exposition
from commtax.runs.results.live import LooksAtServer, audit_server
from commtax.statement import Refusal
from commtax.verbs.settling import resolve_question
from forked import ForkedProgram
from metrics_pages import RECORDED_APART_S, ShownPage, SimulatedServer, recorded, shown
from paths import FIXTURES, ROOT
from texts import lacking

DATA = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
TINY = FIXTURES / "tiny-llama"
GRAFANA = ROOT / "src" / "commtax" / "runs" / "report" / "grafana_dashboard.json"
H100 = ("llama-3.1-8b", "2xh100-sxm")


@cache
def claim(tp=1):
    return Claim(resolve_question(*H100, {"tp": tp}))


@cache
def simulated(rate=20.0):
    return SimulatedServer(*H100, {"tp": 1, "request_rate": rate, "input_len": 512, "output_len": 128, "num_prompts": 800})


def seen_between(server, stretch=1.0, of=None, share=(0.3, 0.9)):
    """Two looks at a simulated server, whose clock is stretched too, so that as many are in flight."""
    server.stretch = stretch
    end = server.columns["sent_s"].max()
    looks = LooksAtServer(1e9)
    found = [looks.add(LookAtServer(at * end * stretch, read_exposition(server.page(at * end)))) for at in share]
    return audit_server(found[-1], of or claim(), "server")


@pytest.mark.parametrize("rate", [2.0, 20.0, 45.0])
def test_a_server_that_does_as_simulated_agrees(rate):
    """Arrivals at random, of which metrics do not tell: from one at a time to a server that hardly keeps up."""
    seen = seen_between(simulated(rate))
    assert state_of(seen) == "agree", [(f.item, f.predicted, f.measured) for f in seen.findings]
    assert "llama-3.1-8b on 2xh100-sxm, TP 1: as predicted: " in answer_sentence(seen)
    assert any(line.startswith("a predicted step: Decode at batch") for line in next_lines(seen))


@settings(max_examples=5)
@given(some.floats(0.2, 5.0))
def test_slower_and_faster_are_told_by_the_range(stretch):
    seen = seen_between(simulated(), stretch)
    (token,) = (f for f in seen.findings if f.code == "tpot_mean")
    inside = token.low <= token.measured <= token.high or abs(token.difference) <= token.tolerance
    assert (token.verdict == "agree") == inside
    if stretch > 1.6:
        assert state_of(seen) == "slower"
        assert next(next_lines(seen))  # what to look at
    if stretch < 0.6:
        assert state_of(seen) == "faster"
    assert seen.predicted.load.clients == pytest.approx(29, abs=3)  # the load is the same at any pace


def test_a_percentile_is_a_bucket_and_never_a_number():
    tails = [f for f in seen_between(simulated()).findings if f.code.endswith("_p99")]
    assert {f.code for f in tails} == {"ttft_p99", "itl_p99", "e2el_p99"}
    assert all(f.measured is None and f.verdict == "unknown" and "bounds of its bucket" in f.reason for f in tails)
    assert all(re.search(r"\(p99\): \d.* to \d", f.item) for f in tails)


def test_windows_roll_and_a_restart_begins_anew():
    pages = [read_exposition(recorded(n)) for n in (1, 2, 3)]
    looks = LooksAtServer(10.0)
    first = looks.add(LookAtServer(0.0, pages[0]))
    assert (first.seconds, first.idle, first.restarted) == (None, False, False)
    second = looks.add(LookAtServer(RECORDED_APART_S, pages[1]))
    assert (second.seconds, second.page.totals["e2e_request_latency_seconds_count"]) == (RECORDED_APART_S, 114)
    again = looks.add(LookAtServer(90.0, pages[2]))
    assert (again.seconds, again.restarted) == (None, True)
    notes = [n.code for s in audit_server(again, None, "x").audited.sections for n in s.notes]
    assert "restarted" in notes
    same = looks.add(LookAtServer(95.0, pages[2]))
    idle = audit_server(same, claim(), "x")
    assert (same.idle, same.restarted, state_of(idle), idle.audited.verdict) == (True, False, "idle", "unknown")
    assert len(list(exposition(idle, 1, 0, 0.0).splitlines())) > 5
    late = [looks.add(LookAtServer(95.0 + n, pages[2])).seconds for n in range(1, 30)]
    assert late[-1] == 10


@pytest.mark.parametrize(("stretch", "code", "word"), [(1.0, 0, "as predicted"), (2.5, 1, "slower"), (0.4, 1, "faster")])
def test_once_over_http(stretch, code, word):
    server = simulated()
    server.stretch = stretch
    words = ("--model", "llama-3.1-8b", "--cluster", "2xh100-sxm", "-tp", "1", "--batch", "29")
    with shown(server.page(30.0)) as at:
        done = run_here("audit", "--metrics", at.url, *words)
        document = json.loads(run_here("audit", "--metrics", at.url, *words, "--json").stdout)
    assert (done.returncode, word in done.stdout.splitlines()[0]) == (code, True), done.stdout + done.stderr
    assert "since its start" in done.stdout.splitlines()[1]
    assert (document["schema"], document["sections"][0]["kind"]) == ("commtax.audit/2", "metrics")
    assert document["verdict"] == ("disagree" if code else "agree")


def test_a_pasted_launch_says_what_runs_and_without_a_claim_it_is_told_what_happens():
    command = f"vllm serve {TINY} --enforce-eager --max-model-len 1024"
    with shown(recorded(1), recorded(2)) as at:
        done = run_here("audit", "--metrics", at.url, "--from", command, "--cluster", "2xcpu", "--window", "500ms")
    assert done.returncode == 3, done.stderr  # seconds of CPUs are assumed
    first, load = done.stdout.splitlines()[:2]
    assert first == "tiny-llama on 2xcpu, TP 1: no verdict"
    assert not lacking(load, "160 tokens in, 32 out", "80% of the prompt tokens cached")
    assert "to judge it: seconds of cpu are assumed" in done.stdout
    with shown(recorded(2)) as at:
        done = run_here("audit", "--metrics", at.url.removesuffix("/metrics"), "--header", "Authorization: Bearer x y")
        assert (at.asked[0]["path"], at.asked[0]["Authorization"]) == ("/metrics", "Bearer x y")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tiny-llama: nothing in it is off")
    assert "TTFT (p99): 250 ms to 500 ms" in done.stdout


@pytest.mark.parametrize("row", DATA["answer"], ids=lambda row: row["said"][:30])
def test_what_is_no_page_of_metrics_is_refused_by_name(row):
    with shown(ShownPage(row["body"], row.get("status", 200), row.get("headers", {}))) as at:
        done = run_here("audit", "--metrics", at.url)
    assert done.returncode == 2
    assert not lacking(done.stderr, f"error: metrics '{at.url}': ", row["said"])
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("row", DATA["wrong"], ids=lambda row: row["said"][:40])
def test_wrong_words_are_refused(row):
    done = run_here("audit", *row["words"])
    assert (done.returncode, row["said"] in done.stderr) == (2, True), done.stderr


def test_who_is_silent_or_endless_is_given_up(monkeypatch):
    monkeypatch.setattr(scraping.LEVEL, "silent_s", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        at = f"http://127.0.0.1:{deaf.getsockname()[1]}/metrics"
        with pytest.raises(Refusal, match="no whole answer within"):
            scraping.MetricsPage(at).fetch()
    with pytest.raises(Refusal, match="nobody listens there: is the server up"):
        scraping.MetricsPage(at).fetch()
    with shown("x") as plain, pytest.raises(Refusal, match="does not speak HTTPS there: try http://"):
        scraping.MetricsPage(plain.url.replace("http:", "https:")).fetch()
    monkeypatch.setattr(scraping.COUNT, "most_bytes", 2**20)
    with shown("vllm:a 1\n" * 2**17) as at, pytest.raises(Refusal, match="more than 1 MiB, which is no page of metrics"):
        scraping.MetricsPage(at.url).fetch()
    monkeypatch.setattr(scraping.LEVEL, "most_s", -1.0)
    with shown(recorded(1)) as at, pytest.raises(Refusal, match="no whole answer within"):
        scraping.MetricsPage(at.url).fetch()


def samples(page):
    found = {}
    for line in page.splitlines():
        match = re.fullmatch(r'(commtax_\w+)(?:\{((?:\w+="[^"]*",?)*)\})? (\S+)', line)
        if match:
            found[match[1], tuple(sorted(re.findall(r'(\w+)="([^"]*)"', match[2] or "")))] = float(match[3])
        else:
            assert re.match(r"# (HELP|TYPE) commtax_\w+ \S", line), line
    return found


def test_the_band_is_served_and_a_server_that_goes_away_is_told():
    with shown(recorded(1), recorded(2), ShownPage("", 503), recorded(3)) as at:
        watch = ServerWatch(scraping.MetricsPage(at.url), Claim(resolve_question(str(TINY), "2xcpu", {})), 60.0)
        exporter = MetricsExporter("0", watch.exposition)
        try:
            assert exporter.url.startswith("http://127.0.0.1:")
            assert exporter.is_local
            watch.try_look()
            watch.try_look()
            with urlopen(exporter.url) as answer:
                band = samples(answer.read().decode())
            assert watch.try_look() is None
            gone = samples(watch.exposition())
            assert watch.try_look().window.restarted
            with pytest.raises(HTTPError, match="404"):
                urlopen(exporter.url.replace("/metrics", "/else"))
        finally:
            exporter.close()
    token = {bound: band["commtax_predicted_seconds", (("bound", bound), ("metric", "tpot"), ("statistic", "mean"))]
             for bound in ("low", "value", "high")}  # fmt: skip
    assert 0 < token["low"] < token["value"] < token["high"]
    assert band["commtax_measured_seconds", (("metric", "tpot"), ("statistic", "mean"))] == pytest.approx(0.0302, rel=0.01)
    assert band["commtax_measured_bucket_seconds", (("bound", "high"), ("metric", "ttft"), ("statistic", "p99"))] == 0.25
    assert sum(value for (name, _), value in band.items() if name == "commtax_state") == 1
    assert (band["commtax_up", ()], gone["commtax_up", ()], gone["commtax_look_failures_total", ()]) == (1, 0, 1)
    assert not any(name == "commtax_measured_seconds" for name, _ in gone)


def test_the_dashboard_of_grafana_draws_what_is_served():
    asked = [target["expr"] for panel in json.loads(GRAFANA.read_text())["panels"] for target in panel["targets"]]
    named = {name for expr in asked for name in re.findall(r"commtax_(\w+)", expr)}
    assert named <= FAMILIES.keys()
    assert {"measured_seconds", "predicted_seconds", "measured_bucket_seconds", "state", "load"} <= named
    served = exposition(seen_between(simulated()), 1, 0, 0.0)
    for expr in asked:
        for name, labels in re.findall(r"(commtax_\w+)\{([^}]*)\}", expr):
            wanted = [part for part in labels.split(",") if part and "$instance" not in part]
            lines = [line for line in served.splitlines() if line.startswith((f"{name}{{", f"{name} "))]
            assert any(all(part in line for part in wanted) for line in lines), expr


@pytest.mark.parametrize("width", [60, 80, 100])
def test_the_dashboard_fits_its_terminal(width):
    from rich.console import Console

    console = Console(width=width, record=True, file=io.StringIO())
    history = [seen_between(simulated(), share=share) for share in ((0.2, 0.5), (0.4, 0.8))]
    console.print(dashboard(history, DashboardLine("http://localhost:8000/metrics", "12:00:00", "5 s"), width))
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert re.search(r"TPOT +\d\S* ms", text)
    assert ("where it lies" in text, "so far" in text) == (width >= 80, width >= 100)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_a_dashboard_on_a_terminal_ends_cleanly(signal_number, tmp_path):
    leader, follower = pty.openpty()
    with shown(recorded(1), recorded(2)) as at:
        words = ["audit", "--metrics", at.url, "--every", "500ms", "--export-prometheus", "0", "--grafana"]
        words += [str(tmp_path / "g.json")]
        process = ForkedProgram("commtax", *words, stdin=follower, stdout=follower, env={**os.environ, "TERM": "xterm"})
        os.close(follower)
        text = read_until(leader, "(last ")
        process.send_signal(signal_number)
        text += read_until(leader, "\x1b[?25h")
        _, errors = process.communicate()
    os.close(leader)
    assert (process.returncode, "Traceback" in errors) == (0, False), errors
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor was hidden, and is back
    assert "6 requests in flight" in text or "requests in flight" in text
    assert re.search(r"predicted band for Prometheus at http://127\.0\.0\.1:\d+/metrics\n", errors)
    assert json.loads((tmp_path / "g.json").read_text())["uid"] == "commtax-band"


def read_until(leader, sign, most_s=60.0):
    text, end = "", time.monotonic() + most_s
    while sign not in text and time.monotonic() < end:
        if select.select([leader], [], [], 0.2)[0]:
            try:
                text += os.read(leader, 65536).decode(errors="replace")
            except OSError:
                break
    assert sign in text
    return text


def test_in_a_pipe_each_look_is_a_line():
    with shown(recorded(1), recorded(2), ShownPage("", 503), recorded(3)) as at:
        process = ForkedProgram("commtax", "audit", "--metrics", at.url, "--every", "500ms", "--json")
        with process.stdout:
            lines = [json.loads(process.stdout.readline()) for _ in range(3)]
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
    assert ([line["schema"] for line in lines], process.returncode) == (["commtax.audit/2"] * 3, 0)
    assert "answers with 503: the server is not ready" in errors
    assert "restarted since the last look" in str(lines[2])


def test_said_aloud_where_others_can_reach_it():
    exporter = MetricsExporter("0.0.0.0:0", lambda: "")
    exporter.close()
    assert not exporter.is_local
    with pytest.raises(Refusal, match="a port from 0 to 65535 is needed"):
        MetricsExporter("example", lambda: "")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(Refusal, match="cannot listen there"):
        MetricsExporter(str(taken.getsockname()[1]), lambda: "")
    assert load_sentence(seen_between(simulated())).startswith("29")
