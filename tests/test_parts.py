"""The law of parts: what a bill charges for the shapes of published kernel tables, by its own path."""

import gzip
import json
import math
from collections import defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from commtax.readers.published.kernels import of_file
from commtax.validate.parts import LAWFUL, UNLIKE, groups

SAMPLE = Path(__file__).parent / "fixtures" / "kernel_shapes.json.gz"
CHIPS = ("a100-80-sxm", "h100-sxm", "b200-sxm", "b300-sxm", "gb200", "l40s")
MOST_EXPERTS, MOST_OTHERS = 0.12, 0.10
MORE = {"l40s": 0.04}  # its cache keeps activations between repetitions of a product, which no step does
FEW = 12  # rows of a sample below which a median says little


@cache
def found():
    """Groups of the committed sample: rows of each chip, engine, kind and number format that a hash chose."""
    tables = json.loads(gzip.decompress(SAMPLE.read_bytes()))["tables"]
    return groups(table for t in tables for _, table in of_file(t["name"], t["header"], t["rows"]))


def median_error(some):
    return math.expm1(float(np.median(np.abs(np.concatenate([g.errors for g in some])))))


@pytest.mark.parametrize("chip", CHIPS)
def test_experts_and_other_kernels_are_charged_what_tables_measured(chip):
    here = [g for g in found() if g.chip == chip and not g.why]
    experts, others = ([g for g in here if (g.kind == "experts") is yes] for yes in (True, False))
    assert median_error(experts) <= MOST_EXPERTS
    assert median_error(others) <= MOST_OTHERS + MORE.get(chip, 0.0)


def test_no_group_of_shapes_is_beyond_one_and_a_half_times():
    by_kernel = defaultdict(list)
    for g in found():
        if not g.why:
            by_kernel[g.chip, g.engine, g.kind].append(g.errors)
    medians = {key: abs(float(np.median(np.concatenate(e)))) for key, e in by_kernel.items() if sum(map(len, e)) >= FEW}
    assert len(medians) > 60
    assert {key: math.exp(m) for key, m in medians.items() if m > math.log(LAWFUL)} == {}


def test_what_no_engine_serves_so_is_told_with_its_reason():
    assert {g.why for g in found() if g.why} <= set(UNLIKE)
    assert all(fact["why"] for fact in UNLIKE.values())
    off = [g for g in found() if g.why == "untuned-fp8-experts"]
    assert np.median(np.concatenate([g.errors for g in off])) < -math.log(2)  # else it need not be told
