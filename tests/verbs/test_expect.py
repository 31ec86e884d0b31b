"""Expectations against measurements: pass, fail, and the outputs of nccl-tests in its variants."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import commtax
from cli_run import run_here
from commtax.runs.results.collective_tests import parse_run
from each import each
from paths import ROOT
from tables import tables

DATA = tables(__file__)

HEADER = DATA["header"]
NEW = "     1048576        262144     float     sum      -1    25.41   41.26   72.21      0    25.20   41.61   72.82      0"
OLD = "     1048576        262144     float     sum    25.41   41.26   72.21  2e-07    25.20   41.61   72.82  2e-07"
SHORT = "     1048576         32768      int8     sum      -1    25.41   41.26   72.21    N/A    25.20   41.61   72.82    N/A"


@each("prefix", ["", "[1,0]<stdout>:", "0: "])
@each("row", [NEW, OLD, SHORT])
def test_rows_of_every_variant(prefix, row):
    run = parse_run(
        "\n".join(
            prefix + line
            for line in (*HEADER.splitlines(), row, "# Out of bounds values : 0 OK", "           0   0  int8  none -1  5.1 0 0 N/A")
        )
    )
    assert [(r.nbytes, r.seconds) for r in run.rows] == [(1048576, pytest.approx(25.41e-6))]
    assert run.rows[0].algbw_Bps == pytest.approx(41.26e9)
    assert (run.op, run.ranks) == ("all-reduce", 8)


def test_ranks_from_the_ratio_of_bandwidths():
    assert parse_run(NEW).ranks == 8
    assert parse_run("nothing here").rows == ()


def test_bandwidths_follow_their_definition():
    e = commtax.expect("all-reduce", "8xh100-sxm", nbytes=2**30)
    assert e.algbw_Bps == pytest.approx(2**30 / e.seconds)
    assert e.busbw_Bps == pytest.approx(e.algbw_Bps * 2 * 7 / 8)
    gather = commtax.expect("all-gather", "8xh100-sxm", nbytes=2**30)
    assert gather.busbw_Bps == pytest.approx(gather.algbw_Bps * 7 / 8)
    assert e.low_s < e.seconds < e.high_s
    assert e.seconds_of_busbw(float(e.busbw_Bps)) == pytest.approx(float(e.seconds))


def run(*words):
    return run_here("expect", *words)


def test_pass_and_fail_are_exit_codes():
    good = ("all-reduce", "--cluster", "8xh100-sxm", "--size", "1G")
    assert run(*good, "--measured", "470GB/s").returncode == 0
    slow = run(*good, "--measured", "166GB/s")
    assert slow.returncode == 1
    assert "FAIL" in slow.stdout
    assert run(*good, "--measured", "4ms").returncode == 0
    document = json.loads(run(*good, "--measured", "166 GB/s", "--json").stdout)
    assert document["pass"] is False
    assert document["nbytes"] == 2**30


def test_nothing_passes_on_an_assumed_range():
    """Slower than the range fails; within it nobody can say, however near the expected time."""
    found = commtax.expect("all-reduce", "8xrtx-pro-6000", nbytes=2**30)
    assert found.is_assumed
    for busbw, code, word in ((39e9, 3, "UNDECIDED"), (70e9, 3, "UNDECIDED"), (float(found.busbw_Bps) / 4, 1, "FAIL")):
        done = run("all-reduce", "--cluster", "8xrtx-pro-6000", "--size", "1G", "--measured", f"{busbw / 1e9}GB/s")
        assert (done.returncode, word in done.stdout) == (code, True)
    document = json.loads(run("all-reduce", "--cluster", "8xrtx-pro-6000", "--size", "1G", "--measured", "39GB/s", "--json").stdout)
    assert (document["verdict"], document["pass"]) == ("undecided", None)


@given(st.sampled_from(["8xh100-sxm", "2x8xh100-sxm", "8xrtx-pro-6000", "2xh100-nvl", "16xa100", "8xmi355x"]), st.floats(0.01, 100))
def test_a_verdict_follows_one_rule(cluster, times):
    found = commtax.expect("all-reduce", cluster, nbytes=2**24)
    verdict = found.verdict(float(found.seconds) * times)
    assert (verdict == "fail") == (times > 1 + found.spread)
    carried = float(found.seconds) * times >= found.floor_s
    assert (verdict == "pass") == (times <= 1 + found.spread and carried and not found.source.startswith("assumed"))


def test_a_whole_output(tmp_path):
    file = tmp_path / "nccl.txt"
    file.write_text(HEADER + NEW)
    done = run("all-reduce", "--cluster", "8xh100-sxm", "--ranks", "8", "--measured", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    file.write_text(HEADER + NEW.replace("25.41", "95.41"))
    assert run("all-reduce", "--cluster", "8xh100-sxm", "--ranks", "8", "--measured", str(file)).returncode == 1
    assert run("all-gather", "--cluster", "8xh100-sxm", "--ranks", "8", "--measured", str(file)).returncode == 2, (
        "another collective's"
    )
    file.write_text(HEADER + NEW.replace("25.41", "0.0"))
    assert run("all-reduce", "--cluster", "8xh100-sxm", "--measured", str(file)).returncode == 2
    file.write_text("no rows")
    assert run("all-reduce", "--cluster", "8xh100-sxm", "--measured", str(file)).returncode == 2


@pytest.mark.parametrize(("words", "says"), DATA["mistakes"])
def test_mistakes(words, says):
    done = run(*words)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr


def test_a_file_of_very_many_rows_is_refused(tmp_path):
    """Each row is three lines of answer: ten thousand took five seconds, and nobody reads them."""
    row = "    1048576        262144     float     sum      -1    50.00   20.97   36.70      0\n"
    file = tmp_path / "x.txt"
    file.write_text("# nThread 1 nGpus 8\n" + "".join(f"#  Rank  {r} Group  0\n" for r in range(8)) + row * 2001)
    done = run_here("expect", "all-reduce", "-c", "8xh100-sxm", "--measured", file)
    assert done.returncode == 2
    assert "2,001 rows, more than the 2,000 that are judged" in done.stderr


def test_a_file_shows_measured_beside_expected_bandwidth():
    """The file's own busbw of 1 GiB is 234 GB/s; 446 GB/s alone was taken for it."""
    said = run_here("expect", "all-reduce", "-c", "8xh100-sxm", "--measured", ROOT / "examples/all-reduce-8xh100.txt").stdout
    head, row = (next(line for line in said.splitlines() if name in line) for name in ("measured busbw", "8.02 ms"))
    assert head.index("measured busbw") < head.index("expected busbw")
    assert row.index("234.3 GB/s") < row.index("446.2 GB/s")
    assert "1 GiB took 1.90 x the expected time: busbw 234.3 GB/s instead of 446.2 GB/s" in said
    assert "NCCL_DEBUG=INFO" in said


def test_what_no_link_carries_does_not_pass():
    """2,000 GB/s on NVLink 4 is the time of something else."""
    found = commtax.expect("all-reduce", "8xh100-sxm", nbytes=2**30)
    assert found.verdict(found.seconds_of_busbw(2000e9)) == "undecided"
    assert found.verdict(float(found.low_s)) == "pass"
    assert float(found.floor_s) <= float(found.low_s)
    cards = commtax.expect("all-reduce", "8xh100-nvl", nbytes=2**30)  # bridged pairs reduce first: 69 GB/s was measured on such
    assert float(cards.floor_s) <= cards.seconds_of_busbw(69e9)


@pytest.mark.parametrize("chip", ["h100-pcie", "h100-nvl", "l4"])
def test_across_hosts_nothing_is_surer_than_inside_one(chip):
    """Where most of the time goes by on a link inside the hosts that is assumed, the whole is assumed, with its range."""
    one, two = (commtax.expect("all-reduce", f"{hosts}8x{chip}", nbytes=2**33) for hosts in ("", "2x"))
    assert two.source.startswith("assumed")
    assert two.spread >= one.spread * 0.9
    measured = commtax.expect("all-reduce", "2x8xh100-sxm", nbytes=2**33)
    assert measured.source.kind == "calibrated"


@pytest.mark.parametrize("batch", [1, 64, 4096])
def test_a_bill_and_an_expectation_agree_unless_another_library_is_named(batch):
    """Both say whose collectives they are; what nccl-tests measure is told beside them, and judged by NCCL."""
    priced = commtax.bill("llama-3.1-70b", "8xh100-sxm", tp=8, batch=batch)
    line = next(x for x in priced.items if x.item.op == "all-reduce")
    words = ("expect", "all-reduce", "-c", "8xh100-sxm", "--size", str(int(line.item.nbytes)))
    plain, judged = (json.loads(run_here(*words, *more, "--json").stdout) for more in ((), ("--measured", "1s")))
    assert plain["seconds"] == pytest.approx(float(line.each_s))
    assert (plain["library"].partition("@")[0], judged["library"].partition("@")[0]) == ("vllm", "nccl")
    assert judged["seconds"] == pytest.approx(float(commtax.expect("all-reduce", "8xh100-sxm", nbytes=line.item.nbytes).seconds))
    told = run_here(*words).stdout
    assert ("which is what nccl-tests measures" in told) == (plain["seconds"] != pytest.approx(judged["seconds"], rel=0.005))
    assert "vllm@" in told


def test_a_bill_says_whose_collectives_it_prices():
    told = run_here("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "-tp", "2", "--details").stdout
    assert "collectives as vllm@" in told
    assert "collectives as" not in run_here("bill", "llama-3.1-8b", "-c", "8xh100-sxm", "--details").stdout
