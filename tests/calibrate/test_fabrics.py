"""``commtax calibrate`` on collectives across hosts: laws on made fabrics, anchors on published ones that are taken as unknown."""

import importlib.util
import json
import math
import sys
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.catalog import profile as overlay
from commtax.cost.collectives import sigma_over
from commtax.runs.calibrate.calibration import calibrate
from commtax.spec import NetworkCurve
from commtax.statement import Refusal
from made_nccl import output, written
from paths import BENCHMARKS, SHARED
from tables import tables

DATA = tables(__file__)

PLACE = "4x8xh100-sxm"
NOISE = 0.02
SLOW = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FABRICS = st.fixed_dictionaries(
    {
        "efficiency": st.floats(0.3, 1.0),
        "hops": st.floats(0.8, 12.0),
        "pipelining": st.floats(0.4, 2.5),
    }
)
SWEEPS = st.lists(st.integers(6, 33), min_size=1, max_size=10, unique=True).map(lambda powers: sorted(2**x for x in powers))


def timed(fabric, sizes, ranks=16, seed=0, noise=NOISE):
    """Rows of nccl-tests on a made fabric: (size, µs out of place, µs in place, wrong)."""
    rng = np.random.default_rng(seed)
    truth = overlay.Profile("true", network=fabric)
    times = commtax.expect("all-reduce", PLACE, nbytes=np.array(sizes, float), ranks=ranks, profile=truth).seconds
    scatter = np.exp(noise * rng.standard_normal((2, len(sizes))))
    return [(size, 1e6 * t * a, 1e6 * t * b, 0) for size, t, a, b in zip(sizes, times, *scatter, strict=True)]


def text_of(folder, name, rows, ranks=16):
    return written(folder, name, output("all_reduce", ranks, rows))


def predicted(sizes, profile, ranks=16):
    return commtax.expect("all-reduce", PLACE, nbytes=np.array(sizes, float), ranks=ranks, profile=profile)


@SLOW
@given(fabric=FABRICS, sizes=SWEEPS, seed=st.integers(0, 99))
def test_what_was_shown_comes_back_and_can_be_read(tmp_path, fabric, sizes, seed):
    """However few sizes: one already helps, and what is written is what is used."""
    rows = timed(fabric, sizes, seed=seed)
    found = calibrate([text_of(tmp_path, "shown.txt", rows)], PLACE)
    shown = np.sqrt([out * again for _, out, again, _ in rows]) * 1e-6
    errors = np.abs(np.log(predicted(sizes, found.profile).seconds / shown))
    assert np.max(errors) < 4 * NOISE
    assert np.median(errors) <= np.median(np.abs(np.log(predicted(sizes, None).seconds / shown))) + NOISE
    again = overlay.parse(json.loads(json.dumps(found.document)))
    assert (dict(again.network), again.curves) == (dict(found.profile.network), found.profile.curves)


@SLOW
@given(fabric=FABRICS, sizes=SWEEPS, seed=st.integers(0, 99))
def test_neither_the_order_of_files_nor_a_file_given_twice_changes_anything(tmp_path, fabric, sizes, seed):
    """The rule of weights: rows that say exactly the same count once."""
    files = [text_of(tmp_path, f"{ranks}.txt", timed(fabric, sizes, ranks, seed), ranks) for ranks in (16, 32)]
    copy = text_of(tmp_path, "16.txt", timed(fabric, sizes, 16, seed), 16)
    one = calibrate(files, PLACE).document
    assert calibrate([*files[::-1], copy, *files], PLACE).document == one


def test_files_inside_a_host_in_another_order_or_twice_change_nothing(tmp_path):
    rng = np.random.default_rng(3)
    rows = [(2**x, *(20 + 2**x / 2e5 * np.exp(0.02 * rng.standard_normal(2))), 0) for x in range(10, 31, 2)]
    files = [written(tmp_path, f"{n}.txt", output("all_reduce", n, rows)) for n in (4, 8)]
    one = calibrate(files, "8xh100-sxm").document
    assert calibrate([*files[::-1], *files], "8xh100-sxm").document == one


@SLOW
@given(fabric=FABRICS, place=st.integers(3, 19), factor=st.sampled_from([1.6, 2.5, 5.0]), seed=st.integers(0, 99))
def test_an_odd_row_is_named_and_not_followed(tmp_path, fabric, place, factor, seed):
    sizes = [2**x for x in range(10, 33)]
    rows = timed(fabric, sizes, seed=seed)
    plain = calibrate([text_of(tmp_path, "plain.txt", rows)], PLACE)
    size, out, again, _ = rows[place]
    rows[place] = (size, out * factor, again, 0)
    odd = calibrate([text_of(tmp_path, "odd.txt", rows)], PLACE)
    assert [label for label, _ in odd.parts[0].outliers] == [f"odd.txt: all-reduce of {_bytes(size)} over 16 ranks"]
    errors = np.log(predicted(sizes, odd.profile).seconds / predicted(sizes, plain.profile).seconds)
    assert np.max(np.abs(errors)) < 3 * NOISE


def _bytes(size):
    return commtax.units.format_bytes(size)


@SLOW
@given(fabric=FABRICS, place=st.integers(8, 22), faster=st.floats(1.5, 100.0))
def test_a_run_that_beats_its_nics_is_refused_by_name_and_nothing_is_written(tmp_path, fabric, place, faster):
    sizes = [2**x for x in range(10, 33)]
    rows = timed(fabric, sizes)
    size = sizes[place]
    floor_us = 1e6 * size / (8 * catalog.cluster(PLACE).inter.bandwidth_Bps)
    rows[place] = (size, floor_us / faster, rows[place][2], 0)
    out = tmp_path / "box.json"
    done = run_here("calibrate", text_of(tmp_path, "fast.txt", rows), "-c", PLACE, "--out", out)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f"'fast.txt: all-reduce of {_bytes(size)} over 16 ranks'" in done.stderr
    assert "can carry it" in done.stderr
    assert not out.exists()


def test_a_row_that_beats_nvlink_is_refused_by_name(tmp_path):
    rows = [(2**x, 20 + 2**x / 2e5, 20 + 2**x / 2e5, 0) for x in range(10, 31)]
    rows[-1] = (2**30, 200.0, 5500.0, 0)
    with pytest.raises(Refusal, match=r"'8.txt: all-reduce of 1 GiB over 8 ranks': [\d.]+ times as fast as nvlink4"):
        calibrate([written(tmp_path, "8.txt", output("all_reduce", 8, rows))], "8xh100-sxm")


TEXT = output("all_reduce", 16, timed({"efficiency": 0.7, "hops": 4.0, "pipelining": 1.0}, [2**x for x in range(10, 31, 2)]))
DAMAGES = st.one_of(
    st.integers(0, len(TEXT)).map(lambda at: TEXT[:at]),
    st.integers(0, len(TEXT)).map(lambda at: TEXT[at:]),
    st.tuples(st.integers(0, len(TEXT)), st.text(min_size=1, max_size=8)).map(lambda x: TEXT[: x[0]] + x[1] + TEXT[x[0] + 4 :]),
    st.text(max_size=60),
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=DAMAGES)
def test_damaged_and_foreign_files_are_fitted_or_refused_in_one_line(tmp_path, text):
    out = tmp_path / "box.json"
    out.unlink(missing_ok=True)
    (tmp_path / "damaged.txt").write_text(text, encoding="utf-8")
    done = run_here("calibrate", tmp_path / "damaged.txt", "-c", PLACE, "--out", out)
    if done.returncode:
        assert (done.returncode, done.stdout, done.stderr.strip().count("\n")) == (2, "", 0)
        assert not out.exists()
    else:
        overlay.load(out)


def test_ranges_widen_with_what_was_not_measured(tmp_path):
    sizes = [2**x for x in range(16, 27, 2)]
    rows = timed({"efficiency": 0.7, "hops": 4.0, "pipelining": 1.0}, sizes)
    profile = calibrate([text_of(tmp_path, "16.txt", rows)], PLACE).profile
    at, between, beyond = (float(predicted([size], profile).spread[0]) for size in (2**20, 2**21, 2**32))
    assert at < between < beyond
    more = [float(predicted([2**20], profile, ranks).spread[0]) for ranks in (16, 24, 32)]
    assert more == sorted(set(more))
    (curve,) = profile.curves
    assert sigma_over(curve, 2.0**20, 16, 8) < sigma_over(curve, 2.0**20, 16, 4)
    assert predicted([2**20], profile, 32).source.kind == "assumed"


def test_a_second_number_of_hosts_narrows_the_range_there(tmp_path):
    fabric, sizes = {"efficiency": 0.6, "hops": 5.0, "pipelining": 1.2}, [2**x for x in range(10, 33, 2)]
    files = [text_of(tmp_path, f"{n}.txt", timed(fabric, sizes, n), n) for n in (16, 32)]
    one, both = (calibrate(some, PLACE).profile for some in (files[:1], files))
    assert predicted([2**24], both, 32).spread < predicted([2**24], one, 32).spread
    truth = predicted(sizes, overlay.Profile("true", network=fabric), 32).seconds
    assert np.median(np.abs(np.log(predicted(sizes, one, 32).seconds / truth))) < 0.06
    assert np.median(np.abs(np.log(predicted(sizes, both, 32).seconds / truth))) < 0.02


def test_a_curve_is_read_between_its_knots_and_kept_beyond_them():
    curve = NetworkCurve("all-reduce", (16, 64), (1024.0, 4096.0), ((1.0, 2.0), (4.0, 8.0)), ((0.1, 0.1), (0.1, 0.1)))
    usual = overlay.Profile("usual", network={"efficiency": 0.7})
    own = replace(usual, curves=(curve,))
    place = "16x8xh100-sxm"

    def over(nbytes, ranks):
        times = [commtax.expect("all-reduce", place, nbytes=nbytes, ranks=ranks, profile=one).seconds for one in (own, usual)]
        return times[0] / times[1]

    expected = {(1024.0, 16): 1, (4096.0, 16): 2, (2048.0, 16): math.sqrt(2), (1024.0, 32): 2, (2048.0, 32): 2 * math.sqrt(2)}
    for (nbytes, ranks), factor in {**expected, (8.0, 16): 1, (2.0**30, 128): 8}.items():
        assert over(nbytes, ranks) == pytest.approx(factor), (nbytes, ranks)
    gathered = [commtax.expect("all-gather", place, nbytes=2048.0, ranks=16, profile=one).seconds for one in (own, usual)]
    assert gathered[0] == gathered[1]


CURVE = asdict(NetworkCurve("all-reduce", (16,), (1024.0, 4096.0), ((1.0, 2.0),), ((0.1, 0.1),)))


@pytest.mark.parametrize(("change", "says"), DATA["a_curve_that_cannot_be_is_refused_by_key"])
def test_a_curve_that_cannot_be_is_refused_by_key(change, says):
    with pytest.raises(Refusal) as refused:
        overlay.parse({"commtax_profile": 2, "network_curves": [{**CURVE, **change}]})
    assert says in str(refused.value)


@pytest.fixture(scope="module")
def study():
    """The benchmark of published fabrics, as a module."""
    if not (SHARED / "collectives_more.csv").exists():
        pytest.skip("published tables are not here")
    spec = importlib.util.spec_from_file_location("fabric_calibration", BENCHMARKS / "fabric_calibration.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("system", ["p4de", "A3 Mega", "MI300X", "p6-b200", "GB200"])
def test_half_of_the_sizes_of_an_unknown_fabric_tell_the_others(study, system, monkeypatch):
    """Of the network nothing is known but its line rate."""
    (curve,) = (c for c in study.curves(SHARED) if c.system == system)
    monkeypatch.setattr(study, "size_splits", lambda points: {"half": [[i % 2 == 0 for i in range(len(points))]]})
    (score,) = study.other_sizes([curve]).values()
    before, after = (np.median(np.abs(np.expm1(x))) for x in (score.before, score.after))
    assert after < 0.06 < before


def test_one_number_of_hosts_tells_the_others(study):
    some = [c for c in study.curves(SHARED) if c.system == "MI325X"]
    for (split, name), score in study.other_hosts(some).items():
        assert np.max(np.abs(np.expm1(score.after))) < 0.12, (split, name)
        assert np.max(np.abs(score.after)) < min(score.widths), (split, name)
