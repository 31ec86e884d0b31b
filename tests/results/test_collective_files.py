"""Outputs of nccl-tests and rccl-tests that are cut, hold several tests, one rank or other columns, or are JSON."""

import json
import re

import pytest

from cli_run import run_here
from commtax.runs.audit import audit
from commtax.runs.report.audit_words import headline
from commtax.runs.results import collective_tests
from paths import ROOT

HEAD = "# nThread 1 nGpus {} minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20\n"
TITLES = "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
ROW = "{:>12} {:>12}     float     sum      -1  {:>7}   20.00   30.00      0  {:>7}   20.00   30.00      0\n"
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 30\n"


def rows(*sizes):
    return "".join(ROW.format(size, size // 4, 17.5, 17.4) for size in sizes)


@pytest.fixture
def audited(tmp_path):
    def read(text, name="x.txt"):
        path = tmp_path / name
        path.write_text(text)
        return audit([path])

    return read


def cut(run):
    return [str(n) for n in run.sections[0].notes if n.code == "partial"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TITLES + rows(8, 16) + ROW.format(32, 8, 17.5, 17.4)[:62], "ends in the row of 32 B"),
        (TITLES + rows(8, 16) + "          32       ", "neither its header nor its average"),
        (TITLES + rows(8, 16) + "          32             8", "ends in the row of 32 B"),
        ("".join(f"[1,0]<stdout>:{line}\n" for line in (TITLES + rows(8, 16)).splitlines()), "neither its header"),
        (rows(1 << 26, 1 << 27) + END + "./broadcast_perf -b 8\n" + HEAD.format(2), "broadcast is cut off: the text ends before"),
        (HEAD.format(2) + TITLES + rows(8, 16), "ends at 16 B of 128 MiB"),
        (HEAD.format(2) + "# Using devices\n", "ends before its table"),
    ],
)
def test_what_is_cut_off_is_partial_and_not_off(audited, text, says):
    run = audited(text)
    assert len(cut(run)) == 1
    assert says in cut(run)[0]
    assert ": partial, what it has shows nothing off" in headline(run)
    assert all(f.verdict != "disagree" for f in run.findings)


def test_the_last_rows_of_a_whole_test_are_not_partial(audited):
    run = audited(rows(1 << 26, 1 << 27) + END)
    assert not cut(run)
    assert [f.measured for f in run.findings if f.code == "average bus bandwidth, GB/s"] == [30]


def test_each_of_several_tests_has_its_average(audited):
    run = audited((HEAD.format(2) + TITLES + rows(1 << 27) + END) * 2)
    assert [f.item for f in run.findings if "average" in f.code] == [f"run {i}: average bus bandwidth, GB/s" for i in (1, 2)]


def test_one_rank_moves_nothing_and_is_not_blamed(audited):
    row = "    33554432       8388608     float    none      -1    19.56  1715.44    0.00      0     0.78  43046.1    0.00    N/A\n"
    device = "#  Rank  0 Group  0 Pid 21 on  h device  0 [0x01] NVIDIA GeForce RTX 5090\n"
    run = audited("./alltoall_perf\n" + HEAD.format(1).replace("134217728", "33554432") + device + TITLES + row + END)
    assert not [c for s in run.sections for c in s.causes]
    assert not [f for f in run.findings if f.unit == "share"]


@pytest.mark.parametrize(("program", "op"), [("reduce", "reduce"), ("gather", "gather"), ("hypercube", "hypercube")])
def test_programs_that_are_not_priced_keep_their_names(program, op):
    text = f"# Collective test starting: {program}_perf\n" + TITLES + rows(1 << 20).replace("30.00", "20.00")
    assert [run.op for run in collective_tests.parse(text).runs] == [op]


def test_columns_of_newer_versions():
    """Timestamps, differing bits and times of each iteration behind both halves of a row."""
    half = " 10.50  20.00  30.00  1  0  9.9  11.2  11.1  4.0"
    row = collective_tests.row_of(f"1048576 262144 float sum -1{half}{half.replace('10.50', '12.50')} 2026-02-01 10:00:00")
    assert (row.seconds, row.in_place_s, row.wrong) == pytest.approx((10.5e-6, 12.5e-6, 2))


NCCL = {
    "args": ["./build/alltoall_perf", "-b", "8M"],
    "config": {
        "nthreads": 1,
        "ngpus": 2,
        "minimum_bytes": 8388608,
        "maximum_bytes": 16777216,
        "step_factor": 2,
        "devices": [{"rank": r, "hostname": "n", "device_hex": f"0000:{r}a:00", "device_info": "NVIDIA H100"} for r in (0, 1)],
    },
    "results": [
        {
            "size": 8388608 << i,
            "count": 1048576 << i,
            "type": "float",
            "redop": "none",
            "root": "    -1",
            "out_of_place": {"time": 60.5 * (i + 1), "alg_bw": 138.6, "bus_bw": 69.3, "nwrong": 0},
            "in_place": {"time": 60.1, "alg_bw": 139.5, "bus_bw": 69.7, "nwrong": None},
        }
        for i in (0, 1)
    ],
    "average_bus_bandwidth": {"bandwidth": 69.5},
}
RCCL = [
    {"name": "AllReduce", "gpus": 4, "size": size, "inPlace": way, "time": us, "algBw": 50.0, "busBw": 75.0, "#wrong": "0"}
    for size, us in ((1024, 19.2), (1 << 30, 21400.0))
    for way in (0, 1)
]


def test_json_of_both(audited):
    found = audited(json.dumps(NCCL), "a.json").findings
    assert [f.measured for f in found if f.code == "size"] == pytest.approx([60.5e-6, 121e-6])
    assert found[0].item == "all-to-all over 2 ranks: best bus bandwidth, GB/s"
    for text in ("\n".join(map(json.dumps, RCCL)), json.dumps(RCCL)):
        found = audited(text, "b.json").findings
        assert found[0].item == "all-reduce over 4 ranks: best bus bandwidth, GB/s"
        assert [f.measured for f in found if f.code == "size"] == pytest.approx([19.2e-6, 0.0214])


def test_rows_of_nothing_are_in_the_average_and_are_not_missing(audited):
    empty = ROW.format(0, 0, 1.0, 1.0).replace("20.00   30.00", " 0.00    0.00")
    text = HEAD.format(8) + TITLES + empty * 2 + rows(67108864, 134217728) + END.replace(": 30", ": 15")
    (average,) = (f for f in audited(text).findings if "average" in f.item)
    assert average.reason == "as printed: the mean of these rows"


SLOW = (ROOT / "examples" / "all-reduce-8xh100.txt").read_text()


def test_a_host_that_its_devices_name_is_judged_as_if_it_were_named(tmp_path):
    file = tmp_path / "nccl.txt"
    file.write_text(SLOW)
    named, own = (run_here("audit", file, *place, "--json") for place in (("--cluster", "8xh100-sxm"), ()))
    assert (named.returncode, own.returncode) == (1, 1)
    verdicts = [[(f["item"], f["verdict"]) for f in json.loads(done.stdout)["sections"][0]["findings"]] for done in (named, own)]
    assert verdicts[0] == verdicts[1]
    for place in (("--cluster", "8xh100-sxm"), ()):
        told = " ".join(run_here("audit", file, *place).stdout.split())
        assert "all-reduce of 1 GiB took 1.90 x the time that it should" in told
        assert "1 GiB reaches 234.3 GB/s of bus bandwidth where 446.2 GB/s is to be expected" in told
        assert "nvidia-smi nvlink -s" in told


@pytest.mark.parametrize(("device", "hosts"), [("NVIDIA L40S", 1), ("NVIDIA H100 NVL", 1), ("NVIDIA H100 80GB HBM3", 2)])
def test_names_that_do_not_tell_links_judge_nothing(tmp_path, device, hosts):
    """Cards may have bridges or not, and no name tells the network between hosts."""
    file = tmp_path / "nccl.txt"
    text = SLOW.replace("NVIDIA H100 80GB HBM3", device)
    file.write_text(re.sub(r"(Rank  [4-7] .*) node7 ", r"\1 node8 ", text) if hosts > 1 else text)
    done = run_here("audit", file)
    assert done.returncode == 0
    assert "give --cluster to judge it" in " ".join(done.stdout.split())
    assert "disagree" not in done.stdout
