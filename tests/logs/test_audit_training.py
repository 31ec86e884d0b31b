"""Training logs, links, clocks and collectives' tests: excerpts of public threads, made faults, and laws."""

import json
import random
import re
import time
from contextlib import suppress
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_run import run_here
from commtax.cost.inventory import num_params
from commtax.runs.audit import audit, formats
from commtax.runs.evidence import prefixes
from commtax.runs.evidence.finding import Claim
from commtax.runs.logs import training_log
from commtax.runs.logs.training_audit import audit_training, logged_plan, pace, taxes
from commtax.runs.logs.training_log import TrainedStep
from commtax.runs.machines import smi
from commtax.runs.machines.smi_audit import audit_links, audit_monitor
from commtax.runs.report.audit_words import headline
from commtax.runs.results import collective_tests
from commtax.runs.results.collective_audit import audit_collectives
from commtax.statement import Refusal
from commtax.verbs.billing import price
from commtax.verbs.settling import resolve_question, settle
from each import each
from paths import FIXTURES
from tables import tables
from texts import lacking, put

DATA = tables(__file__)
EXCERPTS = {e["name"]: e for e in json.loads((FIXTURES / "audit" / "training.json").read_text())}
GIB, MIB, KIB = 2**30, 2**20, 2**10
NOISY = st.lists(st.floats(0.985, 1.015), min_size=24, max_size=80)
SENDRECV = DATA["sendrecv"]
ROW = "{:>12} {:>12}     float    none      -1    12.31    0.01    0.01      0    12.10    0.01    0.01    N/A\n"
READERS = {
    "training": lambda text: audit_training(training_log.parse(text), None),
    "links": lambda text: audit_links(smi.parse_links(text), None),
    "monitor": lambda text: audit_monitor(smi.parse_monitor(text), None),
    "collectives": lambda text: audit_collectives(collective_tests.parse(text), None),
}


def named(kind):
    return [pytest.param(e, id=e["name"]) for e in EXCERPTS.values() if e["kind"] == kind]


def text_of(name):
    return "\n".join(EXCERPTS[name]["lines"]) + "\n"


def log_of(name):
    return training_log.parse(prefixes.strip_prefixes(text_of(name)))


def by_code(section):
    return {f.code: f for f in section.findings}


def codes(section):
    return [c.code for c in section.causes]


def claim(model, cluster, context=None, **options):
    return Claim(resolve_question(model, cluster, options), context=context)


def test_there_are_excerpts_enough():
    assert len(EXCERPTS) >= 20
    assert len({e["source"] for e in EXCERPTS.values()}) >= 20
    assert {e["kind"] for e in EXCERPTS.values()} == {"training", "links", "monitor", "collectives"}


@pytest.mark.parametrize("excerpt", EXCERPTS.values(), ids=lambda e: e["name"])
def test_every_excerpt_is_known_by_its_content(excerpt, tmp_path):
    assert formats.kinds(put(tmp_path, "file.txt", "\n".join(excerpt["lines"]))) == [excerpt["kind"]]


@each("excerpt", named("training"))
def test_published_steps_are_counted(excerpt):
    log, wanted = log_of(excerpt["name"]), excerpt["expected"]
    told = by_code(audit_training(log, None))
    assert (log.program, len(log.steps), log.steps[0].index) == (wanted["program"], wanted["steps"], wanted["first"])
    if "median_s" in wanted:
        assert told["step"].measured == pytest.approx(wanted["median_s"], rel=1e-4)
    if "tflops" in wanted:
        assert told["TFLOP/s per GPU"].measured == pytest.approx(wanted["tflops"])
    if "tokens_per_s" in wanted:
        assert told["tokens/s per GPU"].measured == pytest.approx(wanted["tokens_per_s"])
    if "mfu" in wanted:
        assert told["logged MFU"].measured == pytest.approx(wanted["mfu"])
    for unit, size in (("memory_gib", GIB), ("memory_mib", MIB)):
        if unit in wanted:
            assert told["memory of the fullest rank"].measured == pytest.approx(wanted[unit] * size)
    assert log.last == wanted.get("last", log.last)
    clocks = {t.name: t.high_s for t in log.timers}
    assert {name: pytest.approx(s) for name, s in wanted.get("timers", {}).items()}.items() <= clocks.items()


def test_logs_tell_their_plan_model_and_place():
    log, wanted = log_of("megatron-28b-8xmi300x"), EXCERPTS["megatron-28b-8xmi300x"]["expected"]
    told = logged_plan(log)
    assert [told.options[axis] for axis in ("tp", "pp", "dp")] == [wanted[axis] for axis in ("tp", "pp", "dp")]
    assert (told.gpus, told.engine, told.options["recompute"], told.options["zero"]) == (8, "megatron", "selective", 1)
    assert num_params(told.model) / 1e9 == pytest.approx(wanted["params_billion"], rel=1e-3)  # whose vocabulary is padded
    told, wanted = logged_plan(log_of("torchtitan-h200-debug")), EXCERPTS["torchtitan-h200-debug"]["expected"]
    assert (told.chip, told.cluster, told.options["dp"]) == (wanted["chip"], wanted["cluster"], 8)
    assert (told.options["global_batch"], told.options["micro_batch"], told.options["context"]) == (64, 8, 2048)
    assert told.options["recompute"] == "selective"
    assert told.options["eager"]


def test_our_mfu_is_the_logs_own_and_what_the_user_says_comes_first():
    """Megatron's TFLOP/s over the peak of an MI300X, 249.6 of 1,307.4, by FLOPs that are counted here."""
    log = log_of("megatron-28b-8xmi300x")
    section = audit_training(log, claim(logged_plan(log).model, "8xmi300x"))
    assert by_code(section)["MFU"].measured == pytest.approx(249.6 / 1307.4, rel=1e-3)
    assert {"tax-tp", "tax-kernels", "tax-recompute", "unexplained"} <= set(codes(section))
    assert by_code(section)["step"].verdict == "unknown"  # nobody measured kernels there
    section = audit_training(log, claim(logged_plan(log).model, "8xmi300x", tp=8))
    assert by_code(section)["tensor-parallel size"].verdict == "disagree"


def test_a_torchtitan_run_is_explained():
    """Qwen3 32B, FSDP over 8 H100, two sequences of 4,096 a GPU, full recomputation, compiled: 1,874 tokens/s, MFU 39.42 %."""
    own = {"phase": "train", "engine": "torchtitan", "global_batch": 16, "micro_batch": 2, "recompute": "full"}
    section = audit_training(log_of("torchtitan-qwen3-32b-fsdp8"), claim("qwen3-32b", "8xh100-sxm", 4096, **own))
    told = by_code(section)
    assert told["step"].verdict == "agree"
    assert abs(told["step"].difference) < 0.05
    assert told["MFU"].measured == pytest.approx(0.3942, rel=0.06)  # torchtitan counts no head's parameters
    assert {"tax-kernels", "tax-recompute", "tax-dp"} <= set(codes(section))


def test_a_log_that_tells_too_little_says_what_is_missing():
    notes = {n.code: n for n in audit_training(log_of("megatron-llm-slower-and-slower"), None).notes}
    assert not lacking(notes["not-priced"], "--model", "--cluster")
    bare = audit_training(log_of("torchtitan-qwen3-32b-fsdp8"), claim("qwen3-32b", "8xh100-sxm"))
    assert any(n.code == "not-priced" and "--global-batch" in n for n in bare.notes)
    large = audit_training(log_of("megatron-28b-8xmi300x"), claim("llama-3.1-8b", "2xh100-sxm"))
    assert any(n.code == "not-priced" for n in large.notes)


def test_slower_and_slower():
    section = audit_training(log_of("megatron-llm-slower-and-slower"), None)
    assert codes(section) == ["slower-since"]
    assert "iteration 142 " in section.causes[0].said
    assert section.causes[0].cost_s == pytest.approx(114.30755 - 18.54375)


def steps_of(seconds, batch=None):
    return [TrainedStep(10 * (i + 1), step_s=s, batch=batch[i] if batch else None) for i, s in enumerate(seconds)]


@given(NOISY, st.floats(1e-3, 1e3))
def test_steady_steps_are_steady(noise, usual):
    found = pace(steps_of([usual * n for n in noise]))
    assert found.shift is None
    assert not found.slow
    assert not found.warm_up
    assert found.usual_s == pytest.approx(usual, rel=0.02)


@given(NOISY, st.floats(1.3, 4.0), st.data())
def test_since_when_steps_are_slower(noise, factor, data):
    at = data.draw(st.integers(6, len(noise) - 6))
    found = pace(steps_of([n * (factor if i >= at else 1.0) for i, n in enumerate(noise)]))
    assert (found.shift.since, found.shift.factor) == (10 * (at + 1), pytest.approx(factor, rel=0.03))
    assert not found.slow


@given(NOISY, st.integers(3, 7))
def test_regular_slow_steps_and_their_period(noise, period):
    seconds = [n * (3.0 if i % period == period - 1 else 1.0) for i, n in enumerate(noise)]
    found = pace(steps_of(seconds))
    assert [i for i, _ in found.slow] == [10 * (i + 1) for i in range(len(noise)) if i % period == period - 1]
    assert found.period == 10 * period
    assert found.shift is None


@given(NOISY, st.integers(1, 5))
def test_first_steps_are_warm_up(noise, first):
    found = pace(steps_of([n * (5.0 if i < first else 1.0) for i, n in enumerate(noise)]))
    assert len(found.warm_up) == first
    assert not found.slow
    assert found.usual_s == pytest.approx(1.0, rel=0.02)


@given(NOISY)
def test_a_batch_that_grows_is_no_slower_run(noise):
    batch = [16.0 * (1 + i // 8) for i in range(len(noise))]
    found = pace(steps_of([n * b for n, b in zip(noise, batch, strict=True)], batch))
    assert found.shift is None
    assert not found.slow


@settings(max_examples=10)
@given(st.sampled_from(DATA["plans"]), st.floats(0.5, 4.0))
def test_taxes_and_useful_arithmetic_are_the_step(plan, factor):
    own = dict(plan)
    priced = price(settle(resolve_question(own.pop("model"), own.pop("cluster"), {**own, "phase": "train"})))
    measured = factor * float(priced.step_s)
    useful = float(priced.mfu) * float(priced.step_s)
    assert sum(t.seconds for t in taxes(priced, measured)) + useful == pytest.approx(measured)


def test_ranks_that_disagree_lost_iterations_and_restarts():
    lines = [
        f" iteration {i:8d}/     100 | consumed samples: {i * 8} | elapsed time per iteration (ms): 1000.0 | "
        f"global batch size: 8 | number of skipped iterations: {int(i == 3)} | number of nan iterations: 0 |\n"
        "(min, max) time across ranks (ms):\n    forward-compute ................................: (200.00, 520.00)"
        for i in range(1, 9)
    ]
    section = audit_training(training_log.parse("\n".join(lines)), None)
    assert (codes(section), section.causes[0].cost_s) == (["uneven-ranks", "skipped"], pytest.approx(0.32))
    line = "[titan] step: {:2d}  loss:  4.0  memory:  1.00GiB(1.00%)  tps: 1,000  mfu: 1.00%"
    log = training_log.parse("\n".join(line.format(i) for i in (*range(1, 6), *range(1, 13))))
    assert (log.restarts, len(log.steps)) == (1, 12)


def test_other_programs():
    composer = training_log.parse(
        "[batch=3/3200]:\n\t Train time/batch: 2\n\t Train throughput/batches_per_sec: 0.5000\n"
        "\t Train throughput/device/mfu: 0.4123\n"
    )
    assert (composer.program, composer.steps[0].step_s, composer.steps[0].mfu) == ("composer", 2.0, 0.4123)
    trainer = training_log.parse(
        "{'train_runtime': 93.1, 'train_samples_per_second': 8.5, 'train_steps_per_second': 0.5, 'epoch': 1.0}"
    )
    assert (trainer.program, trainer.steps[0].step_s, trainer.steps[0].samples_per_s) == ("trainer", 2.0, 8.5)


@pytest.mark.parametrize("excerpt", named("links"))
def test_published_links(excerpt):
    links, wanted = smi.parse_links("\n".join(excerpt["lines"])), excerpt["expected"]
    assert (len(links.snapshots), len(links.names)) == (wanted["snapshots"], wanted["gpus"])
    sent = {str(gpu): sum(tx for tx, _ in of.values()) / KIB for gpu, of in links.carried.items()}
    assert sent == wanted.get("sent_kib", {})
    down = [[gpu, n] for gpu, of in links.speeds.items() for n, speed in of.items() if not speed]
    assert (down, codes(audit_links(links, None))) == (wanted.get("down", []), (["link-down"] if down else []))


def counters(*gpus):
    rows = []
    for gpu, links in enumerate(gpus):
        rows.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})")
        rows += [f"\t Link {n}: Data {way}: {kib} KiB" for n, kib in enumerate(links) for way in ("Tx", "Rx")]
    return "\n".join(rows) + "\n"


def test_silent_links_and_gpus():
    before = counters(*[[0] * 4] * 4)
    assert codes(audit_links(smi.parse_links(before + counters(*[[10**6] * 4] * 4)), None)) == []
    after = counters([10**6] * 4, [10**6] * 4, [0] * 4, [10**6, 10**6, 0, 10**6])
    said = audit_links(smi.parse_links(before + after), None).causes
    assert [(c.code, c.said.partition(":")[0]) for c in said[:2]] == [("gpu-silent", "GPU 2"), ("link-silent", "GPU 3")]
    reset = smi.parse_links(counters([500] * 4) + counters([7] * 4))
    assert reset.was_reset
    assert reset.carried[0][0] == (7 * KIB, 7 * KIB)


def test_two_files_are_one_difference(tmp_path):
    for name, kib in (("before.txt", 100), ("after.txt", 350)):
        (tmp_path / name).write_text(counters([kib] * 2, [kib] * 2))
    section = audit([tmp_path / "before.txt", tmp_path / "after.txt"]).sections[0]
    assert ([f.measured for f in section.findings], section.files) == ([500 * KIB, 500 * KIB], ("before.txt, after.txt",))


def test_link_speeds_against_the_catalogue_and_a_gpu_without_any():
    whole = "GPU 0: NVIDIA H100 80GB HBM3\n" + "\n".join(f"  Link {n}: 26.562 GB/s" for n in range(18))
    asked = claim("llama-3.1-8b", "8xh100-sxm")
    assert by_code(audit_links(smi.parse_links(whole), asked))["speed"].verdict == "agree"
    lame = re.sub("Link 1(\\d): 26.562 GB/s", "Link 1\\1: <inactive>", whole)
    assert by_code(audit_links(smi.parse_links(lame), asked))["speed"].verdict == "disagree"
    errors = "GPU 1: NVIDIA H100\n  Link 4: Replay Errors: 0\n  Link 5: CRC Errors: 12\n"
    assert codes(audit_links(smi.parse_links(errors), None)) == ["link-errors"]
    text = "GPU 2: NVIDIA B200 (UUID: GPU-xxx)\nNVML: Unable to retrieve NVLink information as all links are inActive\n"
    assert smi.looks_like_links(text)
    assert codes(audit_links(smi.parse_links(text), None)) == ["links-down"]


@pytest.mark.parametrize("excerpt", named("monitor"))
def test_published_monitors(excerpt):
    seen, wanted = smi.parse_monitor("\n".join(excerpt["lines"])), excerpt["expected"]
    assert len(seen.samples) == wanted["gpus"]
    of = seen.samples[0]
    assert {len(values) for values in of.values()} == {wanted["samples"]}
    told = by_code(audit_monitor(seen, None))
    assert (told["utilisation"].measured, told["clock"].measured) == (pytest.approx(wanted["sm"]), wanted["clock_mhz"])
    assert median(of["pwr"]) == wanted["power_w"]


def table(rows, columns="pwr gtemp sm mem mclk pclk rxpci txpci"):
    head = f"# gpu {columns}\n# Idx W C % % MHz MHz MB/s MB/s\n"
    return head + "\n".join(f"  {gpu} {' '.join(map(str, cells))}" for _ in range(5) for gpu, cells in rows)


@pytest.mark.parametrize(("odd", "wanted"), DATA["the_gpu_that_stands_out"])
def test_the_gpu_that_stands_out(odd, wanted):
    usual = (400, 60, 99, 40, 2619, 1755, 100, 100)
    section = audit_monitor(smi.parse_monitor(table([(0, usual), (1, usual), (2, odd), (3, usual)])), None)
    assert codes(section) == list(wanted)
    assert all("GPU 2" in c.said for c in section.causes)


def test_clocks_against_the_catalogue():
    capped = (695, 70, 100, 60, 2619, 1400, 100, 100)
    section = audit_monitor(smi.parse_monitor(table([(0, capped)])), claim("llama-3.1-8b", "8xh100-sxm"))
    assert (codes(section), by_code(section)["clock"].predicted) == (["power-cap"], pytest.approx(1980, rel=0.02))


@each("excerpt", [p for p in named("collectives") if "runs" not in p.values[0]["expected"]])
def test_published_collectives(excerpt):
    tests, wanted = collective_tests.parse("\n".join(excerpt["lines"])), excerpt["expected"]
    (run,) = tests.runs
    assert (run.op, run.ranks or tests.ranks, len(run.rows)) == (wanted["op"], wanted["ranks"], wanted["rows"])
    section = audit_collectives(tests, None, "out.txt")
    told = by_code(section)
    assert told["peak"].measured == pytest.approx(wanted["peak_GBps"])
    assert (tests.averages_Bps or (0.0,))[-1] / 1e9 == pytest.approx(wanted.get("average_GBps", 0))
    if "least_us" in wanted:
        assert told["latency"].measured == pytest.approx(wanted["least_us"] * 1e-6)
    if "dip_bytes" in wanted:
        assert codes(section) == ["dip"]
        assert "64 MiB" in section.causes[0].said
    if "cluster" in wanted:
        assert any(wanted["cluster"] in n for n in section.notes if n.code == "place")
    assert len(tests.hosts) == wanted.get("hosts", len(tests.hosts))
    sound = "dip_bytes" not in wanted
    assert any(n.code == "calibrate" for n in section.notes) == sound, "nobody calibrates on a machine with a fault"


def test_a_test_that_is_cut_off_is_partial(tmp_path):
    """No row: it did not run; some rows: what is there is told; all rows: whole, though its last lines are missing."""
    file = tmp_path / "sendrecv.txt"
    rows = [ROW.format(size, size // 4) for size in (8, 16, 32, 64)]
    for count, verdict in ((0, ["disagree"]), (2, ["unknown"]), (4, [])):
        file.write_text(SENDRECV + "".join(rows[:count]))
        audited = audit([file])
        (section,) = audited.sections
        assert [f.verdict for f in section.findings if f.code == "rows"] == verdict
        assert any(n.code == "partial" for n in section.notes) == (count < 4)
        assert headline(audited).partition(": ")[2].startswith("partial") == (count < 4)
    file.write_text(SENDRECV + "".join(rows[:2]) + "# Out of bounds values : 0 OK\n")
    assert not [n for n in audit([file]).sections[0].notes if n.code == "partial"]


def test_an_unknown_chip_has_no_cluster(tmp_path):
    text = (SENDRECV + ROW.format(64, 16)).replace("NVIDIA A100-SXM4-80GB", "NVIDIA GeForce RTX 2080 Ti")
    assert not [n for n in audit_collectives(collective_tests.parse(text), None).notes if n.code == "place"]


def test_tables_without_a_command_or_a_known_chip():
    """Times of a tenth of a second have no point and are no root; 1e+00 is the largest error, no count of wrong values."""
    tests = collective_tests.parse(text_of("nccl-tests-two-tables"))
    assert [(r.op, len(r.rows), round(r.rows[0].seconds, 6), r.rows[0].busbw_Bps) for r in tests.runs] == [
        ("all-reduce", 2, 0.122131, 4.33e9),
        ("", 2, 0.520935, 0.51e9),
    ]
    assert not audit_collectives(tests, None).causes
    section = audit_collectives(collective_tests.parse(text_of("nccl-tests-without-mpi")), None)
    assert (codes(section), section.notes[0].code) == (["alone"], "partial")
    assert {f.code for f in section.findings} <= {"rows"}


def test_the_printed_average():
    whole, cut = (audit_collectives(collective_tests.parse(text_of(n)), None) for n in ("nccl-tests-nvl72", "rccl-tests-two-hosts"))
    key = "average bus bandwidth, GB/s"
    found = [by_code(section)[key] for section in (whole, cut)]
    assert [(f.predicted, f.verdict, "missing" in f.reason) for f in found] == [(None, "unknown", False), (None, "unknown", True)]
    assert "agree" not in {f.verdict for f in whole.findings}, "a text that adds up is no sound network"


def test_sizes_against_the_claimed_cluster():
    """An MI300X host reaches what the catalogue says; ten times as long is a disagreement; wrong values are said."""
    asked, text = claim("llama-3.1-8b", "8xmi300x"), text_of("rccl-tests-8xmi300x")
    assert by_code(audit_collectives(collective_tests.parse(text), asked))["size"].verdict == "agree"
    slow = text.replace("91.10   92.08  161.14      0", "911.0    9.21   16.11      3")
    section = audit_collectives(collective_tests.parse(slow), asked)
    assert (by_code(section)["size"].verdict, codes(section)[0]) == ("disagree", "wrong-values")


def test_the_command_needs_no_model_where_the_log_tells_it(tmp_path):
    file = put(tmp_path, "train.log", text_of("megatron-28b-8xmi300x"))
    done = run_here("audit", str(file), "--cluster", "8xmi300x", "--json")
    assert done.returncode == 3, "its kernels are assumed: no verdict"
    (section,) = json.loads(done.stdout)["sections"]
    assert section["kind"] == "training"
    assert any("of 100% of the peak: 19% MFU" in n for n in section["notes"])
    file.write_text(text_of("rccl-tests-8xmi300x"))
    assert run_here("audit", str(file), "--cluster", "8xmi300x").returncode == 0
    file.write_text(text_of("megatron-llm-slower-and-slower"))
    refused = run_here("audit", str(file), "--cluster", "8xmi300x")
    assert refused.returncode == 2
    assert "--model" in refused.stderr


@settings(max_examples=150)
@given(st.sampled_from(sorted(EXCERPTS)), st.integers(0, 2**32))
def test_mutated_texts_are_read_or_refused(name, seed):
    luck, text = random.Random(seed), list(text_of(name))
    for _ in range(luck.randint(1, 40)):
        at = luck.randrange(len(text) + 1)
        text[at : at + luck.choice((0, 1, 1, 30))] = luck.choice(
            ("", "9", "0", "-", ".", "\n", "|", ":", "nan", "1e999", "[", "\x00", "é")
        )
    for read in READERS.values():
        with suppress(Refusal):
            read("".join(text))


@pytest.mark.parametrize(
    "hostile",
    ["iteration 1/ 2 | " + "a: 1 | " * 150_000, "\n" * 1_000_000, "GPU 0: " + "x" * 1_000_000, "1 " * 500_000, " .." * 300_000],
    ids=["bars", "ends", "name", "cells", "dots"],
)
def test_long_texts_take_no_time(hostile):
    began = time.process_time()
    for fits in (training_log.looks_like, smi.looks_like_links, smi.looks_like_monitor, collective_tests.looks_like):
        fits(hostile)
    for read in READERS.values():
        read(hostile)
    assert time.process_time() - began < 2.0


def test_a_log_cut_off_in_the_middle_tells_what_is_there():
    text = text_of("megatron-28b-8xmi300x")
    whole, cut = (audit_training(training_log.parse(t), None) for t in (text, text[: text.index("iteration        6/")]))
    assert by_code(cut)["step"].measured == pytest.approx(421.5453)
    assert any(n.code == "partial" and "iteration 5 of 20" in n for n in cut.notes)
    assert replace(by_code(whole)["step"], measured=0) == replace(by_code(cut)["step"], measured=0)
