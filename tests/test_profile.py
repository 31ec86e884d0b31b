"""A machine's own constants, laid over the catalogue: read strictly, used where they speak, and nowhere else."""

import json

import pytest

import commtax
from commtax.catalog import profile

PLAIN = {"kl": 0, "kc": 1, "mk": 1, "k0": 0, "p": 4, "q": 0, "tile_m": 1, "tile_n": 1}
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
    assert bill.setup.engine.key == "builtin"
    rows, inner = 128256 // 2, 2048
    assert line(bill, "head").each_s == pytest.approx(4 * (rows * inner + rows + inner) / 5e9, rel=1e-3), "bytes at half of 10 GB/s"
    assert line(bill, "attention output").each_s == pytest.approx(1e-3 + 2048 * 4 / 1e9), "a millisecond and 8 KiB at 1 GB/s"
    assert line(bill, "attention output").source == "calibrated: bench"
    assert line(bill, "logits").source == "calibrated: bench"


def test_what_a_profile_does_not_hold_stays(tmp_path):
    file = tmp_path / "few.json"
    file.write_text(json.dumps({"commtax_profile": 1, "library": {"name": "vllm", "paths": []}}))
    with_it = commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, profile=str(file), engine="vllm")
    assert with_it.step_s == commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8, engine="vllm").step_s


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"commtax_profile": 2}, "not a commtax profile of version 1"),
        ({"kernel": {}}, "unknown key 'kernel'; did you mean kernels"),
        ({"chip": {"key": "cpu", "memory_gbps": 3}}, "unknown key 'memory_gbps'"),
        ({"chip": {"memory_Bps": -1}}, "finite numbers of at least 0"),
        (
            {"libraries": [{"name": "x", "paths": [{"op": "reduce", "algorithm": "ring", "bandwidth_Bps": 1}]}]},
            "a path needs an op",
        ),
        ({"libraries": 3}, "wrong form"),
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
