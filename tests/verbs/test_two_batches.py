"""A technique is one function and one field: two batches in turn, whose exchanges run beside each other's compute.

A prototype: it changes the lines of a served step and says what they may run beside, and bills and tables of steps follow.
"""

from dataclasses import replace

import numpy as np
import pytest

from commtax.cost import pricing, surface
from commtax.spec import Workload
from commtax.verbs.settling import resolve_question, settle, terms_of

PLANS = (
    ("deepseek-v3", "4x8xh200-sxm", {"dp": 32, "ep": 32, "batch": 128, "ep_backend": "deepep_low_latency"}),
    ("deepseek-v3", "4x8xh200-sxm", {"tp": 4, "dp": 8, "ep": 32, "batch": 64}),
    ("qwen3-30b-a3b", "8xh100-sxm", {"dp": 8, "ep": 8, "batch": 256, "eager": True}),
)
plain_lines = pricing.step_lines


def halved(work):
    """One of two equal batches."""
    parts = ("decode_seqs", "cached_tokens", "prefill_seqs", "prefill_tokens", "past_tokens")
    return replace(work, **{name: getattr(work, name) / 2 for name in parts})


def in_two_batches(t, work):
    """Every kernel and collective runs once for each half; exchanges of tokens may run beside the other half's kernels."""

    def twice(line):
        window = "other batch" if line.item.part == "experts" and line.kind == "comm" else line.item.overlaps_with
        return replace(line, item=replace(line.item, count=2 * line.item.count, overlaps_with=window))

    lines = [twice(line) for line in plain_lines(t, halved(work)) if line.kind != "host"]
    return [*lines, pricing.host_line(lines, work, t)]


@pytest.fixture
def two_batches(monkeypatch):
    for module in (pricing, surface):
        monkeypatch.setattr(module, "step_lines", in_two_batches)


@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan[0]}-{plan[2].get('ep_backend', 'gathered')}")
def test_two_batches_hide_what_the_other_covers_and_no_more(plan, two_batches):
    model, cluster, words = plan
    q = settle(resolve_question(model, cluster, words))
    t = terms_of(q)
    step = pricing.inference_bill(t, q.work, q.tokens)
    half = pricing.Bill(pricing.expose_lines(plain_lines(t, halved(q.work)), t), q.tokens)
    hosts = sum(line.total_s for line in half.lines if line.kind == "host")
    kernels = sum(line.total_s for line in step.lines if line.kind == "compute")
    assert step.step_s >= max(kernels, step.comm_s)
    waits = sum(line.total_s for line in step.lines if line.kind == "host")
    assert step.step_s <= 2 * (half.step_s - hosts) + waits  # the plain sum of both halves: what halving costs is in it
    assert step.comm_s - step.exposed_comm_s == pytest.approx(min(kernels, _exchanges_s(step)))


def _exchanges_s(step):
    return sum(line.total_s for line in step.lines if line.item.overlaps_with == "other batch")


def test_the_table_of_steps_follows(two_batches):
    model, cluster, words = PLANS[0]
    q = settle(resolve_question(model, cluster, words))
    t = terms_of(q)
    table = surface.surface(t, 512, 128, 8192)
    for seqs, context in ((64, 1024.0), (128, 4096.0)):
        priced = pricing.inference_bill(t, Workload(decode_seqs=seqs, cached_tokens=seqs * context), 1).step_s
        assert table.decoding(seqs, seqs * context)[0] == pytest.approx(float(np.asarray(priced)), rel=0.01)
