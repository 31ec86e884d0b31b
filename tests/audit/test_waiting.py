"""Waiting is not priced: measured and predicted are compared without it, and it stands in lines of its own."""

import time
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

pytest.importorskip("torch")

from commtax import catalog
from commtax.catalog import profile as overlay
from commtax.verbs.billing import bill
from commtax_lab.cli.measuring import show_tp
from commtax_lab.measure.comm import IssuedCollective
from commtax_lab.measure.engine import OFF_CORE, SENDING, LiveEngine
from commtax_lab.measure.generate import GenerationRun, MeasuredJob, RankResult
from commtax_lab.measure.job import LiveJob
from commtax_lab.measure.reconcile import document
from texts import lacking

JOB = LiveJob(
    model="llama-3.2-1b", random=True, layers=1, tp=2, device="cpu", dtype="fp32", impl="shm", cluster="2xcpu", output_len=4
)
ORDER = [IssuedCollective("attention output", "all-reduce", 8192), IssuedCollective("logits", "all-gather", 4096)]
WIRE_S, COMPUTE_S = (1e-4, 3e-4), {"head": 8e-3, "QKV projection": 2e-3}
SECONDS = st.floats(0, 0.5)


def run(off_core_s=0.0, skew_s=0.0, sends=True, steps=3):
    """A rank's steps: its lines, time off its core, and time inside collectives beyond the wire."""
    inside = [WIRE_S[0] + skew_s, WIRE_S[1]] if sends else []
    step_s = sum(COMPUTE_S.values()) + off_core_s + sum(inside)
    lines = {**COMPUTE_S, OFF_CORE: off_core_s}
    kinds = {"order": ORDER if sends else [], "comm_s": [inside] * steps, "decode_lines": [lines] * steps}
    return GenerationRun(prefill_s=0.1, decode_s=[step_s] * steps, **kinds)


def answer(first_off_s, second_off_s):
    """Two ranks, either of which lost its core for a while, so that the other waited for it in a collective; and TP=1."""
    longest = max(first_off_s, second_off_s)
    ranks = [run(off, longest - off) for off in (first_off_s, second_off_s)]
    parts = [RankResult(i, "here", (i,), 1, {}, 1, 1, 16, [r], [run(sends=False)]) for i, r in enumerate(ranks)]
    return document(JOB, MeasuredJob(parts, (9.0, 9.0, 9.0), "2", "CPU", tp1=[run(first_off_s, sends=False)], tp1_bytes=1))


@given(SECONDS, SECONDS)
@settings(max_examples=12, deadline=None)
def test_what_others_take_from_the_machine_is_waiting_and_no_error(first_s, second_s):
    quiet, busy = answer(0.0, 0.0), answer(first_s, second_s)
    assert quiet["tp"]["waiting_ms"] == pytest.approx(0, abs=1e-9)
    assert busy["tp"]["own_ms"] == pytest.approx(quiet["tp"]["own_ms"])
    assert busy["tp"]["waiting_ms"] == pytest.approx(max(first_s, second_s) * 1e3, abs=1e-9)
    assert busy["tp1"]["own_ms"] == pytest.approx(sum(COMPUTE_S.values()) * 1e3)
    assert busy["tp"]["ms_per_token"] == pytest.approx(busy["tp"]["own_ms"] + busy["tp"]["waiting_ms"])
    for before, after in zip(quiet["bill"], busy["bill"], strict=True):
        assert after["item"] == before["item"]
        assert after["kind"] == "wait" or after["measured_s"] == pytest.approx(before["measured_s"])
    measured = sum(row["measured_s"] or 0.0 for row in busy["bill"])
    assert measured == pytest.approx(busy["tp"]["ms_per_token"] * 1e-3), "lines and waiting are the step"


def test_the_table_compares_without_waiting():
    found = answer(0.5, 0.2)
    console = Console(width=160)
    with console.capture() as capture:
        show_tp(console, found)
    text = capture.get()
    error = found["predicted"]["tp_ms"] / found["tp"]["own_ms"] - 1
    assert f"{error:+.0%}" in next(line for line in text.splitlines() if line.startswith("TP=2 ")).split()
    assert not lacking(text, "waiting for a core", "waiting for other ranks")


def test_a_rank_slow_on_purpose_computes_that_much_longer():
    """Its toil lies between its lines; predictions hold it, and so do the lines."""
    slow = LiveJob(**{**{f: getattr(JOB, f) for f in JOB.__slots__}, "slow_rank": "1:3"})
    parts = [RankResult(i, "here", (i,), 1, {}, 1, 1, 16, [run(skew_s=0.0)], [run(sends=False)]) for i in range(2)]
    found = document(slow, MeasuredJob(parts, (0.0, 0.0, 0.0), "2", "CPU"))
    lines = {row["item"]: row["measured_s"] for row in found["bill"]}
    assert lines["head"] == pytest.approx(3 * COMPUTE_S["head"])


def test_a_lap_tells_computing_from_being_away():
    lines: dict[str, float] = {}
    engine = SimpleNamespace()
    LiveEngine.watch(engine, lines)
    time.sleep(0.05)
    LiveEngine._lap(engine, "head")
    time.sleep(0.01)
    LiveEngine._lap(engine, SENDING)
    assert lines[OFF_CORE] + lines["head"] >= 0.05
    assert lines[OFF_CORE] > lines["head"]


def calibrated():
    path = {"algorithm": "ring", "launch_s": 3e-5, "bandwidth_Bps": 1e9, "source": "between computing"}
    paths = [{"op": op, **path} for op in ("all-reduce", "all-gather")]
    gemm = {"t0": 1e-5, "eb": 0.9, "ep": 0.9, "pack": 0.0, "kl": 0.0, "kc": 1.0, "mk": 1.0, "k0": 0.0, "p": 4.0, "q": 0.0}
    chip = {"key": "cpu", "memory_Bps": 1e10, "flops_per_s": {"fp32": 1e11}}
    kernels = {"tables": {"gemm.fp32": {**gemm, "tile_m": 1.0, "tile_n": 1.0}}}
    libraries = [{"name": name, "paths": paths} for name in ("shm", "gloo")]
    head = {"commtax_profile": 1, "name": "box", "engine": "builtin", "dtype": "fp32", "chip": chip, "host_s": 0.0}
    return overlay.parse({**head, "kernels": kernels, "libraries": libraries})


@pytest.mark.parametrize("library", ["shm", "gloo"])
@pytest.mark.parametrize("tp", [1, 2])
def test_a_profile_counts(library, tp):
    """Collectives that are not sent rest on nothing: what was measured here is no longer called assumed."""
    step = bill(
        catalog.model("llama-3.2-1b"), "2xcpu", tp=tp, engine="builtin", dtype="fp32", library=library, profile=calibrated()
    )
    said = [source for source in step.sources if source.startswith("comm")]
    assert said == (["comm: calibrated: box"] if tp > 1 else [])
