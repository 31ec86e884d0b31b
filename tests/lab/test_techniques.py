"""Published techniques: every row is read or says what it lacks, held-out figures stay hidden, and the arithmetic of the scores."""

import csv
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commtax.catalog.techniques import missed, width
from commtax.statement import Refusal
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
from paths import SHARED

TABLE = SHARED / "techniques.csv"
here = pytest.mark.skipif(not TABLE.is_file(), reason="the shared table of techniques is not here")
FREE, HELD = "https://github.com/vllm-project/vllm/pull/19744", "https://github.com/vllm-project/vllm/pull/39080"
COLUMNS = "id technique engine model chip gpus plan workload metric better baseline value speedup kind confidence quote source note"
RATIOS = st.floats(0.05, 20.0)


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
    known = {
        "kind": "op",
        "confidence": "high",
        "metric": "us per op",
        "source": FREE,
        "lower": True,
        "baseline": 20.0,
        "value": 10.0,
    }
    reading = TechniqueReading("x", "step", "8xh100-sxm", figure=figure, both={"batch": 8})
    return ScoredTechnique(TechniqueRow(**cells | known | changes), reading, before, after)


@here
def test_every_row_has_a_reading_or_what_it_lacks():
    readings, rows = technique_readings(), read_technique_rows(TABLE)
    ids = {one.id for one in rows}
    assert ids == set(readings.by_row) | set(readings.refused)
    assert set(readings.missed) | set(readings.anchors) | {name for group in readings.flips for name in group.rows} <= ids
    assert all(math.isnan(one.value) == one.held for one in rows)


def test_a_row_is_read_or_refused_but_never_both():
    readings = technique_readings()
    assert not set(readings.by_row) & set(readings.refused)
    assert {kind in readings.bars.factor for kind in READ_KINDS} == {True}


def first_rows():
    """One reading of each kind of question: rows that differ in their load alone are not asked again."""
    kinds = {}
    for one in technique_readings().by_row.values():
        kinds.setdefault((one.verb, one.model, one.cluster, one.figure, one.assumed), one)
    return list(kinds.values())


def figures_or_refused(reading):
    """Both figures, or the option that a side was refused for."""
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
    assert [one.id for one in hidden] == ["T1", "T2"]
    assert [one.speedup for one in shown] == [2.0, 2.0]
    assert hidden[0].speedup == 2.0
    assert math.isnan(hidden[1].baseline)
    assert math.isnan(hidden[1].value)


def test_a_speedup_above_one_is_a_gain_whatever_is_better(tmp_path):
    path = table_of(tmp_path, row("T1"), row("T2", better="higher"))
    assert [one.speedup for one in read_technique_rows(path)] == [2.0, 0.5]
    assert scored(3.0, 2.0).predicted == 1.5
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


def test_nothing_gained_is_not_the_sign_of_a_loss():
    assert not same_sign(1.0, 0.8, 0.03)
    assert not same_sign(1.0, 1.2, 0.03)
    assert same_sign(1.0, 1.02, 0.03)


@given(RATIOS, RATIOS, st.floats(1.0, 2.0))
def test_a_factor_counts_to_either_side(predicted, published, factor):
    assert within_factor(predicted, published, factor) == within_factor(published, predicted, factor)
    assert within_factor(predicted, predicted, factor)


def test_shares_by_source_count_each_source_once():
    rows = [scored(2.0, 1.0), scored(2.0, 1.0), scored(1.0, 2.0), scored(1.0, 2.0, source=HELD)]
    found = share_right(rows, lambda one: one.predicted > 1)
    assert (found.right, found.rows, found.share) == (2, 4, 0.5)
    assert found.by_source == pytest.approx((2 / 3 + 0) / 2)


def test_rows_without_figures_are_not_scored():
    assert scored(2.0, 1.0).scored
    assert not scored(2.0, 1.0, value=math.nan).scored
    assert share_right([scored(2.0, 1.0, value=math.nan)], lambda _: True).rows == 0


@each("speedups, at", [([0.5, 2.0], 2.0), ([2.0, 0.5], 2.0), ([0.5, 0.8], math.nan)])
def test_a_flip_lies_where_the_speedup_passes_one(speedups, at):
    assert crossing([1, 4], speedups) == pytest.approx(at, nan_ok=True)


def test_of_several_flips_the_nearest_to_the_published_one_counts():
    assert crossing([1, 4, 16], [0.5, 2.0, 0.5], near=9.0) == pytest.approx(8.0)


def test_rows_are_on_the_right_side_where_both_flip_near_each_other():
    group = FlipGroup("x", ("a", "b"), ("batch",))
    near = ScoredFlip(group, (32, 256), (0.7, 1.3), (1.1, 1.4), 100.0, 60.0)
    assert near.right(0.03, 2.0) == [True, True]
    far = ScoredFlip(group, (32, 256), (0.7, 1.3), (1.1, 1.4), 100.0, 20.0)
    assert far.right(0.03, 2.0) == [False, True]
    assert ScoredFlip(group, (32, 256), (0.7, 1.3), (1.1, 1.4), 100.0, math.nan).right(0.03, 2.0) == [False, True]


def test_quickreduce_flips_between_small_and_large_messages():
    """The kernels of vLLM pull request 19744: INT4 loses at 256 KiB and wins at 4 MiB, published 0.63 and 1.70."""
    readings = technique_readings()
    group = FlipGroup("int4", ("T043", "T049"), ("nbytes",))
    speedups = {"T043": (14.39, 22.85), "T049": (63.86, 37.49)}
    rows = {}
    for name, (before, after) in speedups.items():
        known = scored(1.0, 1.0, id=name, baseline=before, value=after).row
        rows[name] = score_row(known, readings)
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


def test_rows_whose_figures_constants_know_are_told_apart():
    asked = technique_readings().by_row
    assert not asked["T012"].unseen
    assert not asked["T061"].unseen
    assert asked["T061"].seen
    assert asked["T284"].unseen


def drawn(sources, slope, effects=(0.1, 0.2, 0.4)):
    return [TechniqueMiss(f"s{i}", "others", slope * (i + 1) / sources * x, x) for i in range(sources) for x in effects]


@given(st.integers(5, 20), st.floats(0.2, 0.9))
def test_a_range_of_misses_holds_its_share_of_sources_and_little_more(sources, slope):
    """Errors in proportion to the effect, from source to source all alike between 0 and a slope: 80 % of it holds 80 %."""
    rows = drawn(sources, slope)
    found = fit_misses(rows)
    assert covered_share(rows, found) >= 0.8 - 1e-9
    assert width(0.4, found.least, found.share) <= 0.4 * slope * (0.8 + 1 / sources) + 0.05


def test_a_source_counts_once_however_many_rows_it_has():
    rows = [TechniqueMiss("many", "others", 0.0, 0.1)] * 90 + [TechniqueMiss(f"s{i}", "others", 0.08, 0.1) for i in range(4)]
    found = fit_misses(rows)
    assert width(0.1, found.least, found.share) >= 0.08
    assert covered_share(rows, MissRange(0.03, 0.0)) == pytest.approx(0.2)


def test_sources_are_judged_by_ranges_that_they_did_not_teach():
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
