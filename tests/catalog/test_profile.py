"""A machine's own constants, laid over the catalogue: read strictly, used where they speak, and nowhere else."""

import copy
import json
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax import catalog
from commtax.catalog import physics, profile

PLAIN = {"kl": 0, "kc": 1, "mk": 1, "k0": 0, "p": 4, "q": 0, "tile_m": 1, "tile_n": 1}
PATH = {"op": "all-reduce", "algorithm": "ring", "bandwidth_Bps": 1e9}
TABLE = {
    "commtax_profile": 1,
    "name": "bench",
    "engine": "builtin",
    "dtype": "fp32",
    "chip": {"key": "cpu", "memory_Bps": 1e10, "flops_per_s": {"fp32": 1e15}, "memory_bytes": 1e12},
    "kernels": {"tables": {"gemm.fp32": {"t0": 0, "eb": 0.5, "ep": 1, **PLAIN}}},
    "libraries": [{"name": "shm", "paths": [{"op": "all-reduce", "algorithm": "ring", "launch_s": 1e-3, "bandwidth_Bps": 1e9}]}],
}


def written(tmp_path, **changes):
    file = tmp_path / "p.json"
    file.write_text(json.dumps({**TABLE, **changes}))
    return str(file)


def line(bill, what):
    return next(x for x in bill.items if x.item.what == what)


def test_a_bill_with_a_profile_by_hand(tmp_path):
    bill = commtax.bill("llama-3.2-1b", "2xcpu", tp=2, profile=written(tmp_path))
    assert bill.question.engine.key == "builtin"
    rows, inner = 128256 // 2, 2048
    assert line(bill, "head").each_s == pytest.approx(4 * (rows * inner + rows + inner) / 5e9, rel=1e-3), "bytes at half of 10 GB/s"
    assert line(bill, "attention output").each_s == pytest.approx(1e-3 + 2048 * 4 / 1e9), "a millisecond and 8 KiB at 1 GB/s"
    assert line(bill, "attention output").source == "calibrated: bench"
    assert line(bill, "logits").source.startswith("assumed"), "the profile has no all-gather"


def test_what_a_profile_does_not_hold_stays(tmp_path):
    file = tmp_path / "few.json"
    file.write_text(json.dumps({"commtax_profile": 1, "library": {"name": "vllm", "paths": []}}))
    with_it = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, profile=str(file), engine="vllm")
    assert with_it.step_s == commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, engine="vllm").step_s


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"commtax_profile": 3}, "commtax_profile=3: a newer commtax wrote it; this one reads versions 1 and 2"),
        ({"commtax_profile": True}, "not a commtax profile of version 1 or 2"),
        ({"commtax_profile": "2"}, "not a commtax profile of version 1 or 2"),
        ({"deployment": []}, "unknown key 'deployment'"),
        ({"libraries": [{"name": "x", "paths": []}] * 2}, r"libraries\[1\].name='x': was given before"),
        ({"library": {"name": "x", "paths": []}}, "library: libraries lists them all"),
        ({"kernels": {"table": {}}}, "unknown key 'kernels.table'; did you mean tables"),
        ({"libraries": [{"name": "x", "paths": [{**PATH, "own": True}]}]}, r"unknown key 'libraries\[0\].paths\[0\].own'"),
        ({"kernel": {}}, "unknown key 'kernel'; did you mean kernels"),
        ({"chip": {"key": "cpu", "memory_gbps": 3}}, "unknown key 'chip.memory_gbps'"),
        ({"chip": {"memory_Bps": -1}}, r"chip.memory_Bps=-1: bytes a second from 1e\+08 to 1e\+14; nearest valid: 1e\+08"),
        (
            {"libraries": [{"name": "x", "paths": [{"op": "reduce", "algorithm": "ring", "bandwidth_Bps": 1}]}]},
            r"libraries\[0\].paths\[0\].op='reduce': one of all-reduce",
        ),
        ({"libraries": 3}, "libraries=3: a list is needed"),
        ({"libraries": [None]}, r"libraries\[0\]=None: a table"),
        ({"chip": [1]}, r"chip=\[1\]: a table"),
        ({"chip": None}, "chip=None: a table"),
        ({"chip": {"flops_per_s": {"fp32": "fast"}}}, "chip.flops_per_s.fp32='fast': operations a second"),
        ({"chip": {"flops_per_s": {"fp99": 1e12}}}, "chip.flops_per_s.fp99: a type of arithmetic is one of fp32"),
        ({"kernels": "x"}, "kernels='x': a table"),
        ({"kernels": {"tables": {"gemm.fp32": [1]}}}, r"kernels.tables.gemm.fp32=\[1\]: a table"),
        ({"host_s": None}, "host_s=None: seconds from 0 to 3600"),
        ({"host_s": float("nan")}, "host_s=nan: seconds from 0 to 3600"),
        ({"host_s": 10**400}, "host_s=1000000000"),
        ({"name": 3}, "name=3: a text"),
        ({"network": {"efficiency": 3}}, "network.efficiency=3: .* nearest valid: 2"),
        ({"network": {"least_ranks": 1.5}}, "network.least_ranks=1.5: .* nearest valid: 2"),
        ({"sigma_tpot": 99}, "sigma_tpot=99: .* nearest valid: 5"),
    ],
)
def test_bad_profiles_are_refused_in_one_line(tmp_path, changes, says):
    with pytest.raises(ValueError, match=says):
        profile.load(written(tmp_path, **changes))


def test_files_that_are_no_profiles(tmp_path):
    with pytest.raises(ValueError, match="no such file"):
        profile.load(tmp_path / "none.json")
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    with pytest.raises(ValueError, match="not valid JSON"):
        profile.load(bad)


def test_a_profile_of_another_chip_is_refused(tmp_path):
    with pytest.raises(ValueError, match="measured on cpu, and the cluster has h100-sxm"):
        commtax.bill("llama-3.2-1b", "2xh100-sxm", tp=2, profile=written(tmp_path))


def test_the_asked_type_is_the_type_of_activations():
    plain = commtax.traffic("llama-3.1-8b", "2xcpu", tp=2, engine="builtin")
    wide = commtax.traffic("llama-3.1-8b", "2xcpu", tp=2, engine="builtin", dtype="fp32")
    assert wide.sent_bytes_per_rank == 2 * plain.sent_bytes_per_rank


def ring(**constants):
    return {"name": "nccl", "paths": [{"op": "all-reduce", "algorithm": "ring", "bandwidth_Bps": 4e11, **constants}]}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"libraries": [ring(contention=[[2, 1.0], [8, -1e9]])]}, "contention=-1e+09: how many times slower bytes move from 1e-06"),
        ({"libraries": [ring(contention=[[8, 1.0], [2, 2.0]])]}, "group sizes rise from pair to pair"),
        ({"libraries": [ring(contention=[[2, 1.0], [8, 1e-3]])]}, "bandwidth_Bps=4e+14: more than nvlink4 can do (1.8 TB/s"),
        (
            {"libraries": [ring(bandwidth_Bps=1e12), {**ring(bandwidth_Bps=1e15), "name": "rccl"}]},
            "libraries[1].paths[0].bandwidth_Bps=1e+15",
        ),
        ({"libraries": [ring(bandwidth_Bps=9e12)]}, "more than nvlink4 can do (1.8 TB/s, 4 times one direction: NVIDIA"),
        ({"chip": {"key": "h100-sxm", "memory_Bps": 4e12}}, "chip.memory_Bps=4e+12: more than h100-sxm can do (3.35 TB/s: NVIDIA"),
        ({"chip": {"memory_Bps": 4e12}}, "chip.memory_Bps=4e+12: more than h100-sxm can do"),
        ({"chip": {"key": "h100-sxm", "flops_per_s": {"bf16": 1e15}}}, "nearest valid: 9.894e+14"),
        ({"chip": {"key": "h100-sxm", "memory_bytes": 200e9}}, "chip.memory_bytes=2e+11: more than h100-sxm can do"),
    ],
)
def test_impossible_physics_is_refused_by_every_command(tmp_path, changes, says):
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"commtax_profile": 1, "links": {"intra": "nvlink4"}, **changes}))
    done = run_here("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "-tp", 8, "--engine", "vllm", "--profile", file)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_an_attained_share_is_at_most_all(tmp_path):
    table = dict(TABLE["kernels"]["tables"]["gemm.fp32"], ep=100)
    with pytest.raises(ValueError, match=r"kernels.tables.gemm.fp32.ep=100: an attained share .* nearest valid: 1$"):
        profile.load(written(tmp_path, kernels={"tables": {"gemm.fp32": table}}))


def test_what_ships_obeys_the_rules():
    """The catalogue's own constants lie within the ranges that a profile's must."""
    for engine in map(catalog.engine, catalog.keys("engines")):
        for chip in map(catalog.chip, catalog.keys("chips")):
            for name, table in catalog.kernel_constants(engine, chip).tables.items():
                for key, value in table.items():
                    physics.KERNEL[key].read(value, f"{chip.key} {name}.{key}")
            physics.check_chip({"memory_Bps": chip.memory_Bps, "flops_per_s": chip.flops_per_s}, chip)
    for cluster in map(catalog.cluster, catalog.keys("clusters")):
        for library in ("nccl", "vllm", "trtllm", "sglang"):
            for op, mine in catalog.fabric(library, cluster).paths.items():
                for path in mine:
                    physics.check_path(path, cluster.intra, f"{cluster.key} {library} {op}")


H100 = catalog.chip("h100-sxm")
WHOLE = {
    "commtax_profile": 1,
    "name": "whole",
    "chip": {"key": "h100-sxm", "memory_Bps": 3e12, "flops_per_s": {"bf16": 9e14}, "memory_bytes": 80e9, "num_sms": 132},
    "kernels": {"tables": {k: dict(v) for k, v in catalog.kernel_constants(catalog.engine("vllm"), H100).tables.items()}},
    "libraries": [ring(launch_s=1e-5, hop_s=1e-6, contention=[[2, 1.0], [8, 2.0]], max_bytes=[[8, 1e6]], turn=0), ring(turn=1)],
    "network": {"efficiency": 0.9, "hops": 3, "pipelining": 0.1, "norm": 8, "spread": 0.3, "least_ranks": 8, "most_ranks": 64},
    "links": {"intra": "nvlink4"},
    "host_s": 1e-3, "host_s_per_doubling": 1e-4, "host_s_per_seq": 1e-5, "request_s": 1e-2, "sigma_tpot": 0.1,
}  # fmt: skip
WHOLE["libraries"] = [{"name": "nccl", "paths": [*WHOLE["libraries"][0]["paths"], *WHOLE["libraries"][1]["paths"]]}]


def leaves(table, way=()):
    """Every place of a profile that holds a value."""
    items = table.items() if isinstance(table, dict) else enumerate(table) if isinstance(table, list) else ()
    for key, value in items:
        yield (*way, key)
        yield from leaves(value, (*way, key))


LINEAR = 6.9e9
"""Weights of llama-3.1-8b's layers: each row of a step multiplies and adds all of them."""
PLACES = [way for way in leaves(WHOLE) if way[0] not in ("commtax_profile",)]
WRONG = st.sampled_from([None, True, "x", "", [], {}, [1], {"a": 1}, math.nan, math.inf, -math.inf, -1, 0, 10**400, 1e300, 1e-300])
VALUES = st.one_of(WRONG, st.floats(-1e3, 1e3), st.floats(-20, 20).map(lambda x: 10**x), st.integers(-5, 300))


def rule_of(way):
    """The range of a place, where it has one."""
    last = way[-1]
    if way[0] == "libraries" and len(way) == 7:
        return physics.BY_SIZE[way[4]] if last == 1 else None
    tables = {"kernels": physics.KERNEL, "network": physics.NETWORK, "chip": physics.CHIP, "libraries": physics.PATH}
    return tables.get(way[0], physics.HOST).get(last)


def within(way):
    """A place and a value of its range, the ends among them."""
    rule = rule_of(way)
    inner = st.floats(-18, math.log10(rule.high)).map(lambda x: max(rule.low, min(rule.high, 10**x)))
    value = st.one_of(st.sampled_from([rule.low, rule.high]), inner)
    return st.tuples(st.just(way), value.map(round) if rule.whole else value)


RANGED = st.sampled_from([way for way in PLACES if rule_of(way)]).flatmap(within)


def mutated(changes):
    table = copy.deepcopy(WHOLE)
    for way, value in changes:
        inner = table
        for key in way[:-1]:
            inner = (
                inner[key] if (isinstance(inner, dict) and key in inner) or (isinstance(inner, list) and key < len(inner)) else {}
            )
        if isinstance(inner, dict) or (isinstance(inner, list) and way[-1] < len(inner)):
            inner[way[-1]] = value
    return table


def parsed(table):
    try:
        return profile.parse(table), ""
    except ValueError as error:
        return None, str(error)


@settings(max_examples=120)
@given(st.one_of(st.lists(RANGED, max_size=6), st.lists(st.tuples(st.sampled_from(PLACES), VALUES), max_size=3)))
@example([])
@example([(("libraries", 0, "paths", 0, "contention", 1, 1), -1e9)])
@example([(("kernels", "tables", "gemm.bf16", "ep"), 100)])
def test_what_is_accepted_prices_within_physics(changes):
    own, said = parsed(mutated(changes))
    if own is None:
        assert "\n" not in said
        assert len(said) < 400
        return
    model, peak = catalog.model("llama-3.1-8b"), H100.flops_per_s["bf16"]
    for words in ({"phase": "decode", "batch": 4}, {"phase": "prefill", "batch": 1, "context": 2048}):
        step = commtax.bill(model, "2x8xh100-sxm", tp=16, engine="vllm", profile=own, **words)
        assert all(math.isfinite(float(x.total_s)) and float(x.total_s) >= 0 for x in step.items)
        read = sum(float(x.item.nbytes * x.item.count) for x in step.items if x.kind == "compute" and x.item.op == "gemm")
        flops = 2 * LINEAR * words["batch"] * words.get("context", 1) / 16
        assert math.isfinite(step.step_s)
        assert step.step_s >= max(read / H100.memory_Bps, flops / peak)
    trained = commtax.train_bill(model, "8xh100-sxm", tp=2, dp=4, batch=2, profile=own)
    assert 0 < trained.mfu <= 1
    assert math.isfinite(trained.step_s)
