"""``commtax calibrate``: known constants come back, on one host and across hosts; what cannot be told is refused with a number."""

import csv
import json
import math
from dataclasses import asdict, replace
from itertools import permutations
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.catalog import profile as overlay
from commtax.cli import main
from commtax.cost.collectives import ALGORITHMS, choose, sigma_over
from commtax.runs.calibrate import learning, robust_fit
from commtax.runs.calibrate.calibration import calibrate
from commtax.runs.results import collective_tests
from commtax.spec import Algorithm, NetworkCurve
from commtax.spec import Path as Route
from commtax.statement import Refusal
from made_nccl import SIZES, TRUE, noisy, output, seconds, written
from paths import BENCHMARKS, SHARED
from tables import tables
from texts import lacking

DATA = tables(__file__)
COLLECTIVES = SHARED / "collectives.csv"
H200 = BENCHMARKS / "h200"
PLACE = "4x8xh100-sxm"
NOISE = 0.02
SLOW = settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
FABRICS = st.fixed_dictionaries(
    {"efficiency": st.floats(0.3, 1.0), "hops": st.floats(0.8, 12.0), "pipelining": st.floats(0.4, 2.5)}
)
SWEEPS = st.lists(st.integers(6, 33), min_size=1, max_size=10, unique=True).map(lambda powers: sorted(2**x for x in powers))
CURVE = asdict(NetworkCurve("all-reduce", (16,), (1024.0, 4096.0), ((1.0, 2.0),), ((0.1, 0.1),)))


@pytest.mark.parametrize("seed", range(2))
def test_known_constants_come_back_through_noise_and_outliers(tmp_path, seed):
    rng = np.random.default_rng(seed)
    files = [written(tmp_path, f"{n}.txt", output("all_reduce", n, noisy(TRUE, n, rng, odd=0.05))) for n in (2, 4, 8)]
    found = calibrate(files, "8xa100-80-sxm")
    (path,) = found.profile.libraries["nccl"]
    assert path.bandwidth_Bps == pytest.approx(TRUE.bandwidth_Bps, rel=0.03)
    assert (path.launch_s, path.hop_s) == (pytest.approx(TRUE.launch_s, rel=0.06), pytest.approx(TRUE.hop_s, rel=0.06))
    (part,) = found.parts
    assert part.after.median < 0.025 < part.before.median
    assert all(2 < factor < 3 for _, factor in part.outliers)
    odd = sum(row[1] / row[2] > 2 for n in (2, 4, 8) for row in _rows(files[(2, 4, 8).index(n)]))
    assert len(part.outliers) == odd, "every planted outlier is named, and nothing else"


def _rows(file):
    return [(r.nbytes, r.seconds, r.in_place_s) for r in collective_tests.parse_run(Path(file).read_text()).rows]


def test_a_switch_of_algorithms_is_found_only_where_there_is_one(tmp_path):
    rng = np.random.default_rng(1)
    small = Route("all-reduce", "ring", 60e9, launch_s=8e-6)
    large = Route("all-reduce", "ring", 300e9, launch_s=40e-6)
    rows = [r for r in noisy(small, 8, rng) if r[0] <= 2**20] + [r for r in noisy(large, 8, rng) if r[0] > 2**20]
    two = calibrate([written(tmp_path, "two.txt", output("all_reduce", 8, rows))], "8xh100-sxm")
    first, second = two.profile.libraries["nccl"]
    assert (first.max_bytes, second.turn, second.bandwidth_Bps) == (((8, 2.0**20),), 1, pytest.approx(300e9, rel=0.05))
    one = calibrate([written(tmp_path, "one.txt", output("all_reduce", 8, noisy(TRUE, 8, rng)))], "8xh100-sxm")
    assert len(one.profile.libraries["nccl"]) == 1


def test_one_group_size_says_so_and_asks_for_another(tmp_path):
    rng = np.random.default_rng(2)
    found = calibrate([written(tmp_path, "8.txt", output("all_reduce", 8, noisy(TRUE, 8, rng)))], "8xa100-80-sxm")
    (path,) = found.profile.libraries["nccl"]
    assert (path.hop_s, path.launch_s) == (0, pytest.approx(TRUE.launch_s + 7 * TRUE.hop_s, rel=0.05))
    assert "all latency is in launch_s" in " ".join(found.parts[0].notes)
    assert "over 2 ranks" in found.wish.what
    here, elsewhere = (commtax.expect("all-reduce", "8xa100-80-sxm", nbytes=8192, ranks=n, profile=found.profile) for n in (8, 2))
    assert (here.source, elsewhere.source) == ("calibrated: my-box", "assumed: measured on 8 ranks")
    assert elsewhere.spread > 3 * here.spread


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "alltoall"])
def test_other_collectives(tmp_path, op):
    rng = np.random.default_rng(3)
    name = {"alltoall": "all-to-all"}.get(op, op.replace("_", "-"))
    true = Route(name, "ring", 150e9, launch_s=12e-6, hop_s=1e-6)
    files = [written(tmp_path, f"{op}{n}.txt", output(op, n, noisy(true, n, rng))) for n in (2, 8)]
    found = calibrate(files, "8xh100-sxm")
    assert found.profile.libraries["nccl"][0].bandwidth_Bps == pytest.approx(150e9, rel=0.04)
    assert "all-reduce" in found.wish.what, "the one that tensor parallelism is made of was not measured"


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        ([1024, 2**20, 2**30], "3 sizes spanning 1,048,576x; at least 4 spanning 16x"),
        ([1024, 2048, 4096, 8192], "4 sizes spanning 8x; at least 4 spanning 16x"),
        ([2**x for x in range(8, 14)], "no size is mostly bytes; measure up to"),
        ([2**x for x in range(26, 32)], "no size is mostly latency; measure below"),
    ],
)
def test_too_few_points_are_refused_with_what_is_needed(tmp_path, sizes, says):
    rng = np.random.default_rng(4)
    with pytest.raises(ValueError, match=says):
        calibrate([written(tmp_path, "few.txt", output("all_reduce", 8, noisy(TRUE, 8, rng, sizes)))], "8xa100-80-sxm")


def test_wrong_values_and_impossible_times_are_no_measurements(tmp_path):
    rows = noisy(TRUE, 8, np.random.default_rng(5))
    rows[3] = (*rows[3][:3], 17)
    found = calibrate([written(tmp_path, "w.txt", output("all_reduce", 8, rows))], "8xa100-80-sxm")
    assert found.parts[0].rows == 2 * (len(rows) - 1)
    assert found.refused == ("w.txt: all-reduce of 8 KiB over 8 ranks: 17 wrong values, no measurement",)
    file = written(tmp_path, "fast.json", json.dumps(bench("llama-3.1-8b", 1, 0.002, 0.02)))
    with pytest.raises(ValueError, match=r"2 ms per token beats the hardware, which needs 4\.\d+ ms"):
        calibrate([file], "8xh100-sxm")
    rows = [(2**x, 20 + 2**x / 2e5, 20 + 2**x / 2e5, 0) for x in range(10, 31)]
    rows[-1] = (2**30, 200.0, 5500.0, 0)
    with pytest.raises(Refusal, match=r"'8.txt: all-reduce of 1 GiB over 8 ranks': [\d.]+ times as fast as nvlink4"):
        calibrate([written(tmp_path, "8.txt", output("all_reduce", 8, rows))], "8xh100-sxm")


def test_forms_and_choices_of_paths_are_the_catalogue_s():
    assert set(get_args(Algorithm)) == set(ALGORITHMS)
    paths = (Route("all-reduce", "ring", 1e9, max_bytes=((8, 1024.0),)), Route("all-reduce", "ring", 1e10, launch_s=1.0, turn=1))
    assert (int(choose(paths, 1024, 8).path), int(choose(paths, 1025, 8).path)) == (0, 1)
    rng = np.random.default_rng(6)
    two = output("all_reduce", 8, noisy(TRUE, 8, rng)) + output("all_gather", 4, noisy(TRUE, 4, rng))
    assert [(r.op, r.ranks, len(r.rows)) for r in collective_tests.parse_all(two)] == [("all-reduce", 8, 21), ("all-gather", 4, 21)]
    bare = collective_tests.parse_run(output("all_reduce", 8, noisy(TRUE, 8, rng), header=False))
    assert (bare.op, bare.ranks) == ("all-reduce", 8)


def test_across_hosts(tmp_path):
    truth = overlay.Profile("true", network={"efficiency": 0.7, "hops": 5.0, "pipelining": 0.8})
    rng = np.random.default_rng(7)
    sizes = np.array([2.0**x for x in range(10, 33)])
    files = []
    for ranks in (16, 32):
        times = commtax.expect("all-reduce", "4x8xh100-sxm", nbytes=sizes, ranks=ranks, profile=truth).seconds
        rows = [(int(s), 1e6 * t * math.exp(0.02 * rng.standard_normal()), 1e6 * t, 0) for s, t in zip(sizes, times, strict=True)]
        files.append(written(tmp_path, f"{ranks}.txt", output("all_reduce", ranks, rows)))
    found = calibrate(files, "4x8xh100-sxm")
    network = found.profile.network
    assert (network["efficiency"], network["hops"]) == (pytest.approx(0.7, rel=0.03), pytest.approx(5.0, rel=0.05))
    with_it = commtax.expect("all-reduce", "4x8xh100-sxm", nbytes=2**26, ranks=32, profile=found.profile)
    assert with_it.source == "calibrated: my-box"
    assert with_it.spread < commtax.expect("all-reduce", "4x8xh100-sxm", nbytes=2**26, ranks=32).spread


def test_large_tensors_alone_tell_no_latency_across_hosts(tmp_path):
    truth = overlay.Profile("true", network={"efficiency": 0.7, "hops": 5.0, "pipelining": 0.8})
    sizes = np.array([2.0**x for x in range(29, 34)])
    times = commtax.expect("all-reduce", "4x8xh100-sxm", nbytes=sizes, ranks=32, profile=truth).seconds
    rows = [(int(s), 1e6 * t, 1e6 * t, 0) for s, t in zip(sizes, times, strict=True)]
    found = calibrate([written(tmp_path, "32.txt", output("all_reduce", 32, rows))], "4x8xh100-sxm")
    usual = commtax.expect("all-reduce", "4x8xh100-sxm", nbytes=1024, ranks=32)
    assert found.profile.network["hops"] == usual.fabric.network.hops
    assert "hops" in found.parts[0].notes[1]
    small, large = (commtax.expect("all-reduce", "4x8xh100-sxm", nbytes=s, ranks=32, profile=found.profile) for s in (1024, 2**31))
    assert float(small.spread) >= 0.6 > 5 * float(large.spread)


def bench(model, clients, tpot, ttft, tp=1, lengths=(512, 256), **more):
    n = 10 * clients
    totals = {"completed": n, "duration": 60, "total_input_tokens": n * lengths[0], "total_output_tokens": n * lengths[1]}
    times = {"mean_ttft_ms": 1e3 * float(ttft), "mean_tpot_ms": 1e3 * float(tpot)}
    head = {"model_id": model, "max_concurrency": clients, "tp": tp, "failed": 0, "request_rate": "inf"}
    return {**head, **totals, **times, **more}


def served(tmp_path, clients, **host):
    truth = overlay.Profile("true", host=host, engine="vllm")
    files = []
    for c in clients:
        load = {"concurrency": c, "input_len": 512, "output_len": 256, "num_prompts": 10 * c, "spread": 0.0}
        s = commtax.simulate("llama-3.1-8b", "8xh100-sxm", profile=truth, **load)
        files.append(written(tmp_path, f"c{c}.json", json.dumps(bench("llama-3.1-8b", c, s.tpot_s, s.ttft_s))))
    return files


def test_a_wild_time_to_the_first_token_costs_its_own_part_alone(tmp_path):
    waits = (0.3, 4000.0, 0.3, 9000.0)
    rows = [json.dumps(bench("mixtral-8x7b", c, 0.03, ttft, tp=8)) for c, ttft in zip((1, 4, 16, 64), waits, strict=True)]
    files = [written(tmp_path, f"m{i}.json", row) for i, row in enumerate(rows)]
    out = tmp_path / "box.toml"
    done = run_here("calibrate", *files, "--cluster", "8xh100-sxm", "-o", out)
    assert (done.returncode, done.stdout.count("not this deployment")) == (0, 2)
    assert sorted((x.metric, x.clients) for x in overlay.load(out).lessons if x.metric == "ttft") == [("ttft", 1), ("ttft", 16)]


@given(st.lists(st.tuples(st.sampled_from([1, 8, 64]), st.floats(0.006, 1e4), st.floats(1e-4, 1e6)), min_size=1, max_size=5))
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_can_be_read(tmp_path, runs):
    files = [written(tmp_path, f"r{i}.json", json.dumps(bench("llama-3.1-8b", *run))) for i, run in enumerate(runs)]
    out = tmp_path / "out.json"
    out.unlink(missing_ok=True)
    done = run_here("calibrate", *files, "--cluster", "8xh100-sxm", "-o", out)
    assert (done.returncode, out.exists()) in ((0, True), (2, False))
    assert not out.exists() or overlay.load(out).lessons


def test_latency_results_need_their_lengths(tmp_path):
    words = {"engine": "vllm", "profile": overlay.Profile("true", host={"host_s": 3e-3})}
    whole = float(commtax.bill("llama-3.1-8b", "1xh100-sxm", phase="prefill", batch=8, context=32, **words).step_s)
    whole += 127 * float(commtax.bill("llama-3.1-8b", "1xh100-sxm", batch=8, context=32 + 64, **words).step_s)
    file = written(tmp_path, "l.json", json.dumps({"avg_latency": whole, "latencies": [whole]}))
    with pytest.raises(ValueError, match="--input-len --output-len --batch"):
        calibrate([file], "1xh100-sxm", model="llama-3.1-8b")
    found = calibrate([file], "1xh100-sxm", model="llama-3.1-8b", batch=8, input_len=32, output_len=128)
    told = commtax.simulate("llama-3.1-8b", "1xh100-sxm", concurrency=8, input_len=32, output_len=128, profile=found.profile)
    usual = commtax.simulate("llama-3.1-8b", "1xh100-sxm", concurrency=8, input_len=32, output_len=128)
    assert abs(float(told.e2e_s) / whole - 1) < 0.05 < abs(float(usual.e2e_s) / whole - 1)


def test_kernels_of_our_own_sweep(tmp_path):
    rows = [json.loads(x) for x in (H200 / "gemm.jsonl").read_text().splitlines()]
    kept = [r for r in rows if r["kind"] == "gemm" and r["dtype"] == "bf16"]
    slow = [{**r, "median_s": r["median_s"] * 1.3} for r in kept]
    fit, rest = slow[::2], slow[1::2]
    file = written(tmp_path, "slow.jsonl", "\n".join(map(json.dumps, fit)))
    found = calibrate([file], "8xh200-sxm", engine="fused")
    (part,) = found.parts
    assert part.after.median < 0.5 * part.before.median
    again = calibrate([written(tmp_path, "rest.jsonl", "\n".join(map(json.dumps, rest)))], "8xh200-sxm", engine="fused")
    assert found.profile.tables["gemm.bf16"]["eb"] == pytest.approx(again.profile.tables["gemm.bf16"]["eb"], rel=0.02)
    plain, own = (commtax.bill("llama-3.1-8b", "8xh200-sxm", engine="fused", profile=p) for p in (None, found.profile))
    assert float(own.step_s) > 1.15 * float(plain.step_s)
    sources = {x.item.op: x.source for x in own.items}
    assert sources["gemm"] == "calibrated: my-box"
    assert sources["decode"] == "calibrated", "what was not measured keeps its source"


def test_a_note_names_the_scalar_that_shapes_do_not_tell(tmp_path, monkeypatch):
    usual = catalog.kernel_constants(catalog.engine("fused"), catalog.chip("h200-sxm"))
    bare = {**usual.tables["gemm.bf16"], "t0": 0.0}
    monkeypatch.setattr(catalog, "kernel_constants", lambda *_: replace(usual, tables={"gemm.bf16": bare}))
    rows = [json.loads(x) for x in (H200 / "gemm.jsonl").read_text().splitlines()]
    many = [r for r in rows if r["kind"] == "gemm" and r["dtype"] == "bf16" and min(r["m"], r["n"], r["k"]) >= 4096]
    file = written(tmp_path, "many.jsonl", "\n".join(json.dumps({**r, "median_s": r["median_s"] * 1.3}) for r in many))
    (part,) = calibrate([file], "8xh200-sxm", engine="fused").parts
    assert part.notes == ("eb: these shapes do not tell it",)


def test_files_of_all_kinds_make_one_profile(tmp_path):
    rng = np.random.default_rng(8)
    files = [written(tmp_path, f"{n}.txt", output("all_reduce", n, noisy(TRUE, n, rng))) for n in (2, 8)]
    files += served(tmp_path, (1, 16), host_s=1e-3)
    files.append(str(H200 / "decode.jsonl"))
    found = calibrate(files, "8xh100-sxm")
    assert set(found.document) >= {"chip", "libraries", "links", "kernels", "deployment", "sources", "engine"}
    file = written(tmp_path, "box.json", json.dumps(found.document))
    loaded = overlay.load(file)
    assert loaded == found.profile or loaded.libraries == found.profile.libraries
    assert float(commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, profile=file).step_s) > 0


def test_our_own_rows_of_collectives(tmp_path):
    true = Route("all-reduce", "ring", 2e9, launch_s=40e-6)
    rows = [
        {"impl": "shm", "ranks": 2, "op": "all-reduce", "size_bytes": s, "time_us": 1e6 * seconds(true, s, 2)} for s in SIZES[:16]
    ]
    found = calibrate([written(tmp_path, "rows.jsonl", "\n".join(json.dumps({**r, "wrong": 0}) for r in rows))], "2xcpu")
    assert found.profile.libraries["shm"][0].bandwidth_Bps == pytest.approx(2e9, rel=0.01)
    step = commtax.bill("llama-3.2-1b", "2xcpu", tp=2, engine="builtin", profile=found.profile)
    assert next(x for x in step.items if x.item.op == "all-reduce").source == "calibrated: my-box"


def test_an_all_reduce_is_wished_for_by_the_library_that_has_none(tmp_path):
    ops = {"shm": Route("all-gather", "ring", 2e9, launch_s=40e-6), "gloo": Route("all-reduce", "ring", 1e9, launch_s=90e-6)}
    rows = [
        {"impl": impl, "ranks": 2, "op": true.op, "size_bytes": s, "time_us": 1e6 * seconds(true, s, 2)}
        for impl, true in ops.items()
        for s in SIZES[:16]
    ]
    found = calibrate([written(tmp_path, "rows.jsonl", "\n".join(map(json.dumps, rows)))], "2xcpu")
    wished = {part.name: [w.what for w in part.wishes if "not measured" in w.what] for part in found.parts}
    assert [len(wishes) for wishes in wished.values()] == [1, 0], wished


@pytest.mark.parametrize(("text", "says"), DATA["corrupt_files_are_refused_in_one_line"])
def test_corrupt_files_are_refused_in_one_line(tmp_path, capsys, text, says):
    file = written(tmp_path, "bad.txt", text)
    with pytest.raises(SystemExit) as end:
        main(["calibrate", file, "--cluster", "2xcpu", "--out", str(tmp_path / "o.json")])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "o.json").exists()


def test_the_command_line_round_trip(tmp_path, capsys):
    rng = np.random.default_rng(9)
    slow = Route("all-reduce", "ring", 90e9, launch_s=60e-6, hop_s=4e-6)
    files = [written(tmp_path, f"{n}.txt", output("all_reduce", n, noisy(slow, n, rng))) for n in (2, 8)]
    out = str(tmp_path / "box.json")
    assert run(["calibrate", *files, "-c", "8xh100-sxm", "-o", out]) == 0
    said = capsys.readouterr().out
    assert all(word in said for word in ("written to", "launch_s", "measure next", "80% range"))
    words = ["llama-3.1-8b", "-c", "8xh100-sxm", "-tp", "8"]
    for command in (
        ["bill", *words, "--library", "nccl"],
        ["bill", *words, "--phase", "train"],
        ["compare", *words, "--over", "batch=1:4", "--library", "nccl"],
        ["simulate", *words, "--concurrency", "8", "--engine", "torch"],
        ["expect", "all-reduce", "-c", "8xh100-sxm", "--size", "1M"],
    ):
        plain, own = answer(command, capsys), answer([*command, "--profile", out], capsys)
        assert plain != own, command
        if command[0] != "compare":
            assert own["profile"] == "box"
    assert answer(["expect", "all-reduce", "-c", "8xh100-sxm", "--size", "64K", "--profile", out], capsys)[
        "seconds"
    ] == pytest.approx(seconds(slow, 65536, 8), rel=0.05)
    measured = ["expect", "all-reduce", "-c", "8xh100-sxm", "--measured", files[1]]
    assert run(measured) == 1, "this box is slower than it should be …"
    text = output("all_reduce", 8, noisy(slow, 8, rng, noise=0.0))
    assert run([*measured[:-1], written(tmp_path, "again.txt", text), "--profile", out]) == 0, "… and is as it was"


def run(arguments):
    try:
        main(arguments)
    except SystemExit as end:
        return end.code or 0
    return 0


def answer(command, capsys):
    capsys.readouterr()
    assert run([*command, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(("command", "says"), DATA["a_profile_is_honoured_or_refused"])
def test_a_profile_is_honoured_or_refused(tmp_path, capsys, command, says):
    rng = np.random.default_rng(10)
    found = calibrate([written(tmp_path, "8.txt", output("all_reduce", 8, noisy(TRUE, 8, rng)))], "8xh100-sxm")
    assert run([*command, "--profile", written(tmp_path, "box.json", json.dumps(found.document))]) == 2
    assert says in capsys.readouterr().err


def test_engines_keep_their_own_kernels_and_other_links_the_catalogue_s(tmp_path):
    rng = np.random.default_rng(11)
    slow = Route("all-reduce", "ring", 90e9, launch_s=60e-6)
    found = calibrate([written(tmp_path, "8.txt", output("all_reduce", 8, noisy(slow, 8, rng)))], "8xh100-sxm")
    usual, own = (commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, profile=p) for p in (None, found.profile))
    assert float(usual.step_s) == float(own.step_s), "small tensors go through vLLM's kernels, which nobody measured"
    assert "none of these collectives takes a path of profile my-box" in own.notes[-1]
    usual, own = (commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, batch=16384, profile=p) for p in (None, found.profile))
    assert float(own.comm_s) > 1.5 * float(usual.comm_s), "large ones through NCCL"
    rows = commtax.compare("llama-3.1-8b", "8xh100-sxm", ["link=nvlink4,10gbe"], tp=8, library="nccl", profile=found.profile).rows
    plain = commtax.compare("llama-3.1-8b", "8xh100-sxm", ["link=nvlink4,10gbe"], tp=8, library="nccl").rows
    assert [float(a.bill.step_s) == float(b.bill.step_s) for a, b in zip(rows, plain, strict=True)] == [False, True]


def test_options_without_a_use_are_refused(tmp_path):
    file = written(tmp_path, "8.txt", output("all_reduce", 8, noisy(TRUE, 8, np.random.default_rng(12))))
    with pytest.raises(ValueError, match="model: belongs to benchmarks"):
        calibrate([file], "8xh100-sxm", model="llama-3.1-8b")
    with pytest.raises(ValueError, match="2xh100-sxm has 2 GPUs"):
        calibrate([file], "2xh100-sxm")


def test_least_squares_with_values_of_at_least_nothing():
    rows = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert robust_fit.nonnegative(rows, rows @ [2.0, 3.0]) == pytest.approx([2, 3])
    assert robust_fit.nonnegative(rows, np.array([3.0, 2.0, 1.0])) == pytest.approx([2, 0])


def published(source, op="all_reduce"):
    with COLLECTIVES.open() as file:
        return [r for r in csv.DictReader(file) if r["source_id"] == source and r["op"] == op]


@pytest.mark.skipif(not COLLECTIVES.exists(), reason="published tables are not here")
@pytest.mark.parametrize(
    ("source", "cluster", "ranks", "least"),
    [("aws-p4de-2x8A100", "2x8xa100-80-sxm", 16, 3.0), ("mleng-8A100", "8xa100-80-sxm", 8, 2.0)],
)
def test_a_profile_made_of_half_of_a_published_sweep_improves_the_other_half(tmp_path, source, cluster, ranks, least):
    rows = [(int(float(r["bytes"])), float(r["time_us"]), float(r["time_us"]), 0) for r in published(source)]
    rows.sort()
    found = calibrate([written(tmp_path, "half.txt", output("all_reduce", ranks, rows[::2]))], cluster)
    errors = {}
    for name, own in (("plain", None), ("own", found.profile)):
        times = [float(commtax.expect("all-reduce", cluster, nbytes=s, ranks=ranks, profile=own).seconds) for s, *_ in rows[1::2]]
        errors[name] = np.median([abs(math.log(us * 1e-6 / t)) for (_, us, *_), t in zip(rows[1::2], times, strict=True)])
    assert errors["own"] < errors["plain"] / least


@pytest.mark.parametrize("seconds", [1e-320, pytest.param(10**400, id="huge"), 0.0, "fast"])
def test_times_that_nothing_takes_are_refused_by_row(tmp_path, seconds):
    lines = [json.loads(line) for line in (H200 / "decode.jsonl").read_text().splitlines()[:40]]
    lines[7]["median_s"] = seconds
    file = written(tmp_path, "decode.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    done = run_here("calibrate", file, "-c", "8xh200-sxm", "--out", tmp_path / "box.json")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: 'decode.jsonl: row 8")
    assert "a time of" in done.stderr


def test_benchmarks_that_asked_the_same_are_priced_once(tmp_path, monkeypatch):
    plain, calls = learning.simulate, []
    monkeypatch.setattr(learning, "simulate", lambda *words, **more: calls.append(1) or plain(*words, **more))
    row = {"backend": "vllm", "model_id": "llama-3.1-8b", "num_prompts": 80, "max_concurrency": 8, "completed": 80, "duration": 9.0}
    row |= {"total_input_tokens": 81_920, "total_output_tokens": 10_240, "mean_ttft_ms": 60.0, "mean_tpot_ms": 9.0}
    file = written(tmp_path, "serve.json", json.dumps([row] * 2000))
    assert calibrate([Path(file)], catalog.cluster("8xh100-sxm"), name="x").profile.lessons
    assert len(calls) < 10


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
    assert calibrate([*files[::-1], copy, *files], PLACE).document == calibrate(files, PLACE).document


def test_files_inside_a_host_in_another_order_or_twice_change_nothing(tmp_path):
    rng = np.random.default_rng(3)
    rows = [(2**x, *(20 + 2**x / 2e5 * np.exp(0.02 * rng.standard_normal(2))), 0) for x in range(10, 31, 2)]
    files = [written(tmp_path, f"{n}.txt", output("all_reduce", n, rows)) for n in (4, 8)]
    assert calibrate([*files[::-1], *files], "8xh100-sxm").document == calibrate(files, "8xh100-sxm").document


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
    rows[place] = (size, 1e6 * size / (8 * catalog.cluster(PLACE).inter.bandwidth_Bps) / faster, rows[place][2], 0)
    out = tmp_path / "box.json"
    done = run_here("calibrate", text_of(tmp_path, "fast.txt", rows), "-c", PLACE, "--out", out)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert not lacking(done.stderr, f"'fast.txt: all-reduce of {_bytes(size)} over 16 ranks'", "can carry it")
    assert not out.exists()


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


@pytest.mark.parametrize(("change", "says"), DATA["a_curve_that_cannot_be_is_refused_by_key"])
def test_a_curve_that_cannot_be_is_refused_by_key(change, says):
    with pytest.raises(Refusal) as refused:
        overlay.parse({"commtax_profile": 2, "network_curves": [{**CURVE, **change}]})
    assert says in str(refused.value)


def unknown_fabric(system):
    """Published all-reduces by (hosts, ranks), as (cluster, {size: seconds}); of the network nothing is known but its line rate."""
    if not (SHARED / "collectives_more.csv").exists():
        pytest.skip("published tables are not here")
    source, chip, per_host, nics, nic_Bps, hosts_per_domain = DATA["fabrics"][system]
    texts = ((SHARED / name).read_text(encoding="utf-8") for name in ("collectives.csv", "collectives_more.csv"))
    rows = [row for text in texts for row in csv.DictReader(text.splitlines())]
    mine = [row for row in rows if (row["source_id"], row["op"]) == (source, "all_reduce") and row["time_us"]]
    found = {}
    for row in (row for row in mine if (row["nodes"] or "1") != "1"):
        hosts, ranks = int(row["nodes"]), int(row["gpus"])
        link = replace(catalog.link("roce-400"), key="unknown", bandwidth_Bps=nic_Bps, nic_per_gpu=nics >= per_host)
        described = {"inter": link, "nics_per_host": nics, "nvlink_domain": per_host * hosts_per_domain}
        cluster = replace(catalog.cluster(f"{hosts}x{per_host}x{chip}"), **described)
        found.setdefault((hosts, ranks), (cluster, {}))[1][float(row["bytes"])] = float(row["time_us"]) * 1e-6
    return found


def taught(folder, cluster, ranks, shown):
    rows = [(int(size), seconds * 1e6, seconds * 1e6, 0) for size, seconds in shown.items()]
    return calibrate([written(folder, "shown.txt", output("all_reduce", ranks, rows))], cluster).profile


def misses(cluster, ranks, times, own=None):
    """Logarithms of predicted over measured, and half-widths of ranges."""
    told = commtax.expect("all-reduce", cluster, nbytes=np.array([*times]), ranks=ranks, profile=own)
    return np.log(told.seconds / np.array([*times.values()])), np.log1p(told.spread)


@pytest.mark.parametrize("system", ["p4de", "A3 Mega", "MI300X", "p6-b200", "GB200"])
def test_half_of_the_sizes_of_an_unknown_fabric_tell_the_others(system, tmp_path):
    (((_, ranks), (cluster, times)),) = unknown_fabric(system).items()
    shown, rest = (dict(sorted(times.items())[first::2]) for first in (0, 1))
    own = taught(tmp_path, cluster, ranks, shown)
    before, after = (np.median(np.abs(np.expm1(misses(cluster, ranks, rest, one)[0]))) for one in (None, own))
    assert after < 0.06 < before


def test_one_number_of_hosts_tells_the_others(tmp_path):
    fabric = unknown_fabric("MI325X")
    for (shown, (place, times)), (other, (cluster, rest)) in permutations(fabric.items(), 2):
        for some in (times, {max(times): times[max(times)]}):
            errors, widths = misses(cluster, other[1], rest, taught(tmp_path, place, shown[1], some))
            assert np.max(np.abs(np.expm1(errors))) < 0.12, (shown, other)
            assert np.max(np.abs(errors)) < np.min(widths), (shown, other)
