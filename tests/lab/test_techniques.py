"""Published techniques and how sure whole runs are: held-out figures stay hidden, widths by what no run had."""

import csv
import math
import re
from dataclasses import replace
from itertools import combinations
from typing import get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from commtax import catalog
from commtax.catalog.techniques import missed, width
from commtax.catalog.transfer import Setting, fitted_runs, is_measured, sigma, unseen_levels
from commtax.shipped_tables import table
from commtax.statement import Refusal
from commtax_lab import lab_table
from commtax_lab.published.scoring.statistics import transfer_folds
from commtax_lab.published.scoring.technique_misses import MissRange, TechniqueMiss, covered_share, fit_misses, left_out, misses
from commtax_lab.published.scoring.technique_scores import (
    ScoredFlip,
    ScoredTechnique,
    crossing,
    predict_technique,
    same_sign,
    score_flip,
    score_row,
    share_right,
    within_factor,
)
from commtax_lab.published.serving_rows import HABITS, SimulateArguments, question
from commtax_lab.published.technique_rows import (
    READ_KINDS,
    FlipGroup,
    TechniqueReading,
    TechniqueRow,
    held_out,
    read_technique_rows,
    technique_readings,
)
from each import each
from paths import ROOT, SHARED
from tables import tables

TABLE = SHARED / "techniques.csv"
here = pytest.mark.skipif(not TABLE.is_file(), reason="the shared table of techniques is not here")
FREE, HELD = "https://github.com/vllm-project/vllm/pull/19744", "https://github.com/vllm-project/vllm/pull/39080"
COLUMNS = "id technique engine model chip gpus plan workload metric better baseline value speedup kind confidence quote source note"
RATIOS = st.floats(0.05, 20.0)
DATA = tables(__file__)
PAGE = ROOT / "docs" / "transfer.md"
WIDENING = ("engine", "chip", "dtype", "family", "publisher")
NAMES = {level: sorted({run[level] for run in fitted_runs()}) for level in WIDENING}
SETTINGS = st.builds(Setting, **{level: st.sampled_from([*names, "nobody"]) for level, names in NAMES.items()})


def row(name="T1", source=FREE, **changes):
    cells = dict.fromkeys(COLUMNS.split(), "x") | {"id": name, "source": source, "gpus": "4", "kind": "op", "confidence": "high"}
    cells |= {"better": "lower", "baseline": "20", "value": "10", "metric": "us per op"}
    return cells | changes


def table_of(tmp_path, *rows):
    with (tmp_path / "techniques.csv").open("w", newline="") as file:
        lines = csv.DictWriter(file, COLUMNS.split())
        lines.writeheader()
        lines.writerows(rows)
    return tmp_path / "techniques.csv"


def scored(before, after, figure="step_s", **changes):
    cells = dict.fromkeys(("id", "technique", "engine", "model", "chip", "plan", "workload"), "x")
    known = {"kind": "op", "confidence": "high", "metric": "us per op", "source": FREE, "lower": True, "baseline": 20.0}
    known |= {"value": 10.0}
    reading = TechniqueReading("x", "step", "8xh100-sxm", figure=figure, both={"batch": 8})
    return ScoredTechnique(TechniqueRow(**cells | known | changes), reading, before, after)


@here
def test_every_row_has_a_reading_or_what_it_lacks():
    readings, rows = technique_readings(), read_technique_rows(TABLE)
    ids = {one.id for one in rows}
    assert ids == set(readings.by_row) | set(readings.refused)
    assert set(readings.missed) | set(readings.anchors) | {name for group in readings.flips for name in group.rows} <= ids
    assert all(math.isnan(one.value) == one.held for one in rows)


def test_a_row_is_read_or_refused_and_known_figures_are_told_apart():
    readings = technique_readings()
    assert not set(readings.by_row) & set(readings.refused)
    assert {kind in readings.bars.factor for kind in READ_KINDS} == {True}
    asked = technique_readings().by_row
    assert not asked["T012"].unseen
    assert not asked["T061"].unseen
    assert asked["T061"].seen
    assert asked["T284"].unseen


def first_rows():
    """One reading of each kind of question: rows that differ in their load alone are not asked again."""
    kinds = {}
    for one in technique_readings().by_row.values():
        kinds.setdefault((one.verb, one.model, one.cluster, one.figure, one.assumed), one)
    return list(kinds.values())


def figures_or_refused(reading):
    try:
        return predict_technique(reading)
    except Refusal as refusal:
        return refusal.argument


def test_readings_are_questions_that_can_be_asked():
    """A side may be refused, by a rule; what it gives otherwise is a figure, and the lines that are summed are there."""
    found = {one.id: figures_or_refused(one) for one in first_rows()}
    assert "lines" not in found.values()
    assert all(math.isfinite(x) and x > 0 for pair in found.values() if isinstance(pair, tuple) for x in pair)
    assert sum(isinstance(pair, tuple) for pair in found.values()) > len(found) / 2


def test_figures_of_held_out_sources_are_read_only_when_asked_for(tmp_path):
    path = table_of(tmp_path, row("T1"), row("T2", HELD), row("T3", kind="training"))
    assert held_out(HELD)
    assert not held_out(FREE)
    hidden, shown = read_technique_rows(path), read_technique_rows(path, held=True)
    assert ([one.id for one in hidden], [one.speedup for one in shown]) == (["T1", "T2"], [2.0, 2.0])
    assert hidden[0].speedup == 2.0
    assert math.isnan(hidden[1].baseline)
    assert math.isnan(hidden[1].value)


def test_a_speedup_above_one_is_a_gain_whatever_is_better(tmp_path):
    path = table_of(tmp_path, row("T1"), row("T2", better="higher"))
    assert ([one.speedup for one in read_technique_rows(path)], scored(3.0, 2.0).predicted) == ([2.0, 0.5], 1.5)
    assert scored(3.0, 2.0, "tokens_per_s").predicted == pytest.approx(2 / 3)


def test_a_row_without_a_reading_or_with_a_refused_side_says_so(tmp_path):
    [one] = read_technique_rows(table_of(tmp_path, row("T157")))
    assert score_row(one, technique_readings()).missing == technique_readings().refused["T157"]
    [other] = read_technique_rows(table_of(tmp_path, row("no such id")))
    assert not score_row(other, technique_readings()).priced


@given(RATIOS, RATIOS, st.floats(0.0, 0.1))
def test_signs_agree_as_their_inverses_do(predicted, published, near):
    assert same_sign(predicted, published, near) == same_sign(published, predicted, near)
    if same_sign(predicted, published, 0.0) and 1 not in (predicted, published):
        assert (predicted > 1) == (published > 1)


def test_signs_and_shares_count_what_is_known_and_each_source_once():
    assert not same_sign(1.0, 0.8, 0.03)
    assert not same_sign(1.0, 1.2, 0.03)
    assert same_sign(1.0, 1.02, 0.03)
    assert scored(2.0, 1.0).scored
    assert not scored(2.0, 1.0, value=math.nan).scored
    assert share_right([scored(2.0, 1.0, value=math.nan)], lambda _: True).rows == 0
    rows = [scored(2.0, 1.0), scored(2.0, 1.0), scored(1.0, 2.0), scored(1.0, 2.0, source=HELD)]
    found = share_right(rows, lambda one: one.predicted > 1)
    assert ((found.right, found.rows, found.share), found.by_source) == ((2, 4, 0.5), pytest.approx((2 / 3 + 0) / 2))


@given(RATIOS, RATIOS, st.floats(1.0, 2.0))
def test_a_factor_counts_to_either_side(predicted, published, factor):
    assert within_factor(predicted, published, factor) == within_factor(published, predicted, factor)
    assert within_factor(predicted, predicted, factor)


@each("speedups, at", [([0.5, 2.0], 2.0), ([2.0, 0.5], 2.0), ([0.5, 0.8], math.nan)])
def test_a_flip_lies_where_the_speedup_passes_one(speedups, at):
    assert crossing([1, 4], speedups) == pytest.approx(at, nan_ok=True)


def test_of_several_flips_the_nearest_counts_and_rows_are_right_where_both_flip_near():
    assert crossing([1, 4, 16], [0.5, 2.0, 0.5], near=9.0) == pytest.approx(8.0)
    group = FlipGroup("x", ("a", "b"), ("batch",))
    assert ScoredFlip(group, (32, 256), (0.7, 1.3), (1.1, 1.4), 100.0, 60.0).right(0.03, 2.0) == [True, True]
    assert ScoredFlip(group, (32, 256), (0.7, 1.3), (1.1, 1.4), 100.0, 20.0).right(0.03, 2.0) == [False, True]
    assert ScoredFlip(group, (32, 256), (0.7, 1.3), (1.1, 1.4), 100.0, math.nan).right(0.03, 2.0) == [False, True]


def test_quickreduce_flips_between_small_and_large_messages():
    """The kernels of vLLM pull request 19744: INT4 loses at 256 KiB and wins at 4 MiB, published 0.63 and 1.70."""
    readings = technique_readings()
    group = FlipGroup("int4", ("T043", "T049"), ("nbytes",))
    speedups = {"T043": (14.39, 22.85), "T049": (63.86, 37.49)}
    rows = {}
    for name, (before, after) in speedups.items():
        rows[name] = score_row(scored(1.0, 1.0, id=name, baseline=before, value=after).row, readings)
    flip = score_flip(group, rows)
    assert flip is not None
    assert 2**18 < flip.predicted_at < 2**22
    assert flip.right(0.03, 2.0) == [True, True]


@each("name, speedup", [("T012", 1.0), ("T013", 0.75), ("T014", 0.5667), ("T015", 0.1266), ("T016", 0.1412)])
def test_a_fused_all_reduce_of_2025_loses_from_64_tokens_on(name, speedup):
    """vLLM pull request 22086, two H100: FlashInfer's first kernel against a custom all-reduce and a compiled norm."""
    before, after = predict_technique(technique_readings().by_row[name])
    assert before / after == pytest.approx(speedup, rel=0.08)


@each("name, us", [("T074", (311.8, 172.2)), ("T075", (311.8, 101.7))])
def test_a_dispatch_to_as_many_ranks_as_experts_takes_what_was_published(name, us):
    """TensorRT-LLM's tech blog 18, EP 8 of a GB200 NVL72: 2,048 tokens per rank in bf16, and in fewer bits."""
    assert predict_technique(technique_readings().by_row[name]) == pytest.approx([x * 1e-6 for x in us], rel=0.08)


def drawn(sources, slope, effects=(0.1, 0.2, 0.4)):
    return [TechniqueMiss(f"s{i}", "others", slope * (i + 1) / sources * x, x) for i in range(sources) for x in effects]


@given(st.integers(5, 20), st.floats(0.2, 0.9))
def test_a_range_of_misses_holds_its_share_of_sources_and_little_more(sources, slope):
    """Errors in proportion to the effect, from source to source all alike between 0 and a slope: 80 % of it holds 80 %."""
    rows = drawn(sources, slope)
    found = fit_misses(rows)
    assert covered_share(rows, found) >= 0.8 - 1e-9
    assert width(0.4, found.least, found.share) <= 0.4 * slope * (0.8 + 1 / sources) + 0.05


def test_sources_count_once_and_are_judged_by_ranges_that_they_did_not_teach():
    rows = [TechniqueMiss("many", "others", 0.0, 0.1)] * 90 + [TechniqueMiss(f"s{i}", "others", 0.08, 0.1) for i in range(4)]
    found = fit_misses(rows)
    assert width(0.1, found.least, found.share) >= 0.08
    assert covered_share(rows, MissRange(0.03, 0.0)) == pytest.approx(0.2)
    alone = [TechniqueMiss("far", "others", 0.5, 0.1), *(TechniqueMiss(f"s{i}", "others", 0.02, 0.1) for i in range(3))]
    assert left_out(alone).coverage == pytest.approx(0.75)


@here
def test_ranges_of_gains_are_those_that_the_free_sources_teach():
    rows, readings = read_technique_rows(TABLE, held=False), technique_readings()
    quick = [
        one for one in rows if one.id in readings.by_row and readings.by_row[one.id].verb == "step" and not held_out(one.source)
    ]
    inside = [abs(x.error) <= missed(x.kind, math.exp(x.effect)) for x in misses(score_row(one, readings) for one in quick)]
    assert len(inside) >= 25
    assert np.mean(inside) >= 0.75


def setting(run):
    names = catalog.engine(run["engine"]), catalog.chip(run["chip"]), catalog.model(run["model"])
    return Setting.of(*names, run["dtype"], run["publisher"])


def without(asked, *levels):
    """A setting of which nobody ran these levels."""
    return replace(asked, **dict.fromkeys(levels, "nobody"), **({"gpu": ("", 0.0)} if "chip" in levels else {}))


@pytest.mark.parametrize(("chip", "known"), [("gb200", True), ("h200-sxm", True), ("a100-80-sxm", False)])
def test_the_same_gpu_in_another_host_is_no_other_chip(chip, known):
    asked = Setting.of(catalog.engine("trtllm"), catalog.chip(chip), catalog.model("deepseek-r1"), "fp8")
    assert ("chip" not in unseen_levels(asked)) == known


def test_who_asks_is_nobody_whose_runs_were_seen():
    for run in fitted_runs():
        known = setting(run)
        asked = replace(known, publisher="")
        assert unseen_levels(asked) == ("publisher",)
        assert sigma(asked, "tpot", False) > sigma(known, "tpot", False)


def test_runs_name_known_engines_chips_and_models():
    for run in fitted_runs():
        assert run["engine"] in catalog.keys("engines")
        assert catalog.engine(f"{run['engine']}@{run['version']}").host.pooled
        assert run["chip"] in catalog.keys("chips")
        assert run["model"] in catalog.keys("models")
        assert catalog.model(run["model"]).architecture == run["family"]


@pytest.mark.parametrize("metric", ["tpot", "ttft"])
@pytest.mark.parametrize("mixture", [False, True])
def test_a_range_grows_with_all_that_no_run_had(metric, mixture):
    seen = table("catalog/transfer.toml")["sigma"][metric]["mixtures" if mixture else "dense"]["seen"]
    for run in fitted_runs():
        home = setting(run)
        assert ((unseen_levels(home), is_measured(home)), sigma(home, metric, mixture)) == (((), True), pytest.approx(seen))
        for count in range(len(WIDENING)):
            for strange in combinations(WIDENING, count):
                less = without(home, *strange)
                for level in set(WIDENING) - set(strange):
                    more = without(less, level)
                    assert set(unseen_levels(more)) == {*strange, level}
                    assert sigma(more, metric, mixture) > sigma(less, metric, mixture) >= seen


@given(SETTINGS, st.sampled_from(["tpot", "ttft"]), st.booleans())
def test_no_range_is_narrower_than_at_home(asked, metric, mixture):
    seen = table("catalog/transfer.toml")["sigma"][metric]["mixtures" if mixture else "dense"]["seen"]
    assert sigma(asked, metric, mixture) >= seen
    assert is_measured(asked) <= (not {"engine", "chip", "dtype"} & set(unseen_levels(asked)))


def test_the_page_shows_the_figures_that_were_found():
    folds = {(fold.left_out, fold.models, fold.metric): fold for fold in transfer_folds()}
    lines = re.findall(
        r"^\| (nothing|engine|chip|family|publisher|file).*? \| (dense|mixtures) \| (.*) \|$", PAGE.read_text(), re.M
    )
    assert len(lines) == len(folds) / 2
    for reason, models, figures in lines:
        shown = [float(cell.strip(" %")) for cell in figures.split("|")]
        tpot, ttft = (folds["" if reason == "nothing" else reason, models, metric] for metric in ("tpot", "ttft"))
        found = (tpot.median, tpot.covered, tpot.half_width, ttft.median, ttft.covered)
        assert shown[0] == tpot.n == ttft.n
        for percent, share, digit in zip(shown[1:], found, (0.1, 1, 0.1, 1, 1), strict=True):
            assert percent == pytest.approx(100 * share, abs=0.51 * digit + 0.05), "files keep a tenth of a percent"


def run_row(clients, **columns):
    """A run as InferenceMAX's daily files have it."""
    plain = {"backend": "sglang", "backend_version": "0.5.1.post1", "model_path": "deepseek-ai/DeepSeek-R1", "system": "b200_sxm"}
    plain |= {"mode": "agg", "isl": "1024", "osl": "1024", "tp_size": "8", "silicon_ttft_ms": "500", "silicon_tpot_ms": "20"}
    return plain | {"silicon_data_source": f"source_file=2025-10-29.csv; silicon_concurrency={clients}; measured=2025-10"} | columns


@pytest.mark.parametrize(("clients", "columns", "steps"), DATA["a_run_is_read_as_its_script_launched_it"])
def test_a_run_is_read_as_its_script_launched_it(clients, columns, steps):
    run = question(run_row(clients, **columns))
    assert (run["engine"].serves.steps_per_decision, run["concurrency"]) == (steps, clients)


def test_recipes_have_a_source_and_say_what_can_be_asked():
    chosen_by = {"engine", "models", "chips", "tp", "pp", "dp", "ep", "isl", "osl", "from_clients", "from_dp", "since", "until"}
    chosen_by |= {"weights", "mode", "days", "database"}
    said = {"kv_dtype", "max_num_seqs", "max_num_batched_tokens", "gpu_memory_utilization", "ep_backend"}
    assert said <= set(get_type_hints(SimulateArguments))
    for recipe in lab_table("published/recipes.toml")["recipe"]:
        assert recipe["source"]
        assert set(recipe) <= chosen_by | said | {*HABITS, "drafts", "spread_experts", "dp_attention", "source"}
        assert set(recipe) - chosen_by - {"source"}, "a recipe that says nothing"
        assert set(recipe.get("models", ())) <= set(catalog.keys("models"))
        assert set(recipe.get("chips", ())) <= set(catalog.keys("chips"))
        assert recipe.get("engine", "vllm") in catalog.keys("engines")


@given(st.sampled_from([2, 4, 8]), st.sampled_from([2, 4, 8]), st.booleans(), st.booleans())
def test_sizes_that_a_table_multiplied_are_taken_once(launched, experts, ranks, multiplied):
    """Experts lie on the same GPUs as the attention, whether these hold parts of each head or requests of their own."""
    width = launched * experts if multiplied else launched
    sizes = {"tp_size": "1", "attention_dp_size": str(width)} if ranks else {"tp_size": str(width), "attention_dp_size": "1"}
    run = question(
        run_row(8, id=f"x_tp{launched}_ep{experts}_1", backend="vllm", backend_version="", moe_ep_size=str(experts), **sizes)
    )
    assert (run["tp"], run["dp"], run["ep"]) == ((1, launched, experts) if ranks else (launched, 1, experts))


@each("run", fitted_runs(), ids=lambda run: f"{run['engine']} {run['version']} {run['model']} {run['chip']}")
def test_no_kernel_beats_the_hardware(run):
    """Whatever an engine lays on a product, bytes over bandwidth and FLOPs over peak still hold."""
    model, chip = catalog.model(run["model"]), catalog.chip(run["chip"])
    dtype = {} if model.quant else {"dtype": run["dtype"]}
    for step in ({"phase": "prefill", "batch": 1, "context": 8000}, {"phase": "decode", "batch": 64, "context": 2000}):
        bill = commtax.bill(run["model"], f"8x{run['chip']}", tp=4, engine=f"{run['engine']}@{run['version']}", **dtype, **step)
        for line in bill.items:
            if line.item.form == "gemm":
                least = max(float(line.item.nbytes) / chip.memory_Bps, float(line.flops) / line.peak_flops_per_s)
                assert float(line.each_s) >= least * (1 - 1e-9), line.item.what
