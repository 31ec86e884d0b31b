"""``commtax validate``: the shipped table holds its bounds, a wrong constant breaks them, odd files give reasons."""

import csv
import gzip
import importlib
import json
import re
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import commtax
import commtax_lab
from cli_run import run_here
from commtax import catalog
from commtax.catalog.foreign_names import find_chip_name
from commtax.statement import Refusal
from commtax_lab.published import sweep
from commtax_lab.published.collective_rows import even_power, question
from commtax_lab.published.scoring import ADDED, ANSWERS, check, predicting
from commtax_lab.published.scoring.statistics import figures, judge, score_lines
from commtax_lab.published.tables import dicts, read
from commtax_lab.published.tables import shipped_tables as shipped_tables
from commtax_lab.published.training import is_fitted
from each import each
from paths import BENCHMARKS, DOCUMENTS, ROOT, SHARED
from tables import tables

DATA = tables(__file__)
TABLES = Path(commtax_lab.__file__).parent / "published" / "tables"
GROUP = {
    *("kind", "source", "system", "library", "version", "mode", "dtype", "tp"),
    *("n", "median_ape", "p90_ape", "bias", "covered", "width"),
}


def answer(table):
    return ANSWERS[table.kind](table)


def table_of(name, rows=None):
    table = next(shipped_tables(name))
    return table if rows is None else replace(table, rows=rows)


def run(*arguments):
    return run_here("validate", *arguments)


@pytest.fixture(scope="module")
def shipped():
    return check()


def test_the_shipped_table_holds_every_bound(shipped):
    missed = [(b.name, b.value, b.limit) for b in shipped.bounds if b.ok is not True]
    assert not missed
    assert shipped.ok


def test_the_readme_s_figures_are_what_validate_gives(shipped, monkeypatch):
    """Ours and others' on the same runs; stale ones: ``make figures``."""
    monkeypatch.syspath_prepend(str(DOCUMENTS))
    accuracy = __import__("accuracy")
    assert accuracy.quoted(shipped) in (ROOT / "README.md").read_text()
    rows = list(accuracy.rival_rows(shipped, sources=True))
    assert len(rows) == 2 + 5
    assert set(rows) <= set((ROOT / "docs" / "accuracy.md").read_text().splitlines())


def test_quoted_figures_are_what_validate_gives(shipped):
    """Each line of the scoreboard that the page quotes, to the last digit but for rounding; stale ones: ``make figures``."""
    text = (ROOT / "docs" / "accuracy.md").read_text()
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in text.splitlines() if line.startswith("|")]
    quoted = {name: cells for row in rows for name, *cells in (row, row[1:]) if cells and cells[0].replace(",", "").isdigit()}
    figures = {line.name: line.errors for line in score_lines(shipped.records) if line.errors}
    shared = figures.keys() & quoted.keys()
    assert len(shared) >= 25
    for name in shared:
        found, cells = figures[name], quoted[name]
        median, tail, *others = (float(cell.strip("%+")) / 100 for cell in cells[1:])
        assert int(cells[0].replace(",", "")) == found.n, name
        assert (median, tail) == pytest.approx((found.median_ape, found.p90_ape), abs=1.1e-3), name
        assert others[1 if len(others) == 3 else 0] == pytest.approx(found.covered, abs=1.1e-2), name


def test_the_scoreboard_is_what_validate_gives(shipped, monkeypatch):
    """Its words to the letter, its figures but for rounding; stale: ``make figures``."""
    if not DOCUMENTS.is_dir():
        pytest.skip("pages are in the source tree only")
    monkeypatch.syspath_prepend(str(DOCUMENTS))
    scoreboard = importlib.import_module("scoreboard")
    figure = re.compile(r"\d[\d,.]*")
    made, kept = scoreboard.page(shipped.records), scoreboard.PAGE.read_text(encoding="utf-8")
    assert figure.sub("#", made) == figure.sub("#", kept)
    for one, other in zip(figure.findall(made), figure.findall(kept), strict=True):
        near = 0.11 if "." in other.rstrip(".") else 1.01  # of the last digit
        assert float(one.replace(",", "")) == pytest.approx(float(other.replace(",", "")), abs=near)


def test_every_published_row_names_its_source_and_some_test():
    for path in sorted(TABLES.glob("*.csv")):
        header, rows = read(path)
        if path.stem != "h200":  # these are ours
            assert all(row[header.index("source")] for row in rows)
        assert rows
    assert 0.2 < np.mean(check(None, only="collectives").records.fitted) < 0.7


def test_our_own_rows_are_those_of_the_sweep():
    folder = BENCHMARKS / "h200"
    if not folder.is_dir():
        pytest.skip("the sweep is in the source tree only")
    table = table_of("h200")
    found = sweep.load(folder)
    assert len(table.rows) == len(found)
    assert answer(table).fitted.tolist() == [asked.entries[0].fitted for asked in sweep.read(found, "h200-sxm")]


def test_fitted_rows_are_told_apart(shipped):
    r = shipped.records
    mine = (r.kind == "all-reduce") & (r.system == "h100_sxm") & (r.library == "vllm")
    assert {bool(f) for f in r.fitted[mine]} == {True, False}
    assert all(even_power(size) == fitted for size, fitted in zip(r.size[mine], r.fitted[mine], strict=True))
    assert not np.any(r.fitted[r.system == "AWS p5.48xlarge (AWS Batch)"])


def test_splits_and_questions_of_collectives_by_hand():
    assert even_power(2**20)
    assert not even_power(2**19)
    assert sweep.is_fitted({"kind": "step", "model": "llama-3.1-8b"})
    assert not sweep.is_fitted({"kind": "step", "model": "phi-4"})
    assert is_fitted({"source": "mosaicml/llm-foundry", "gpus": "64", "precision": "amp_bf16"})
    assert not is_fitted({"source": "mosaicml/llm-foundry", "gpus": "128", "precision": "amp_bf16"})
    assert not is_fitted({"source": "mosaicml/llm-foundry", "gpus": "8", "precision": "amp_fp8"})
    row = {"gpu": "A100 80GB SXM", "system": "AWS p4de.24xlarge x2", "nodes": "2", "gpus": "16", "library": "NCCL"}
    row |= {"op": "all_reduce"}
    asked = question(row)
    assert (asked.cluster.inter.key, asked.cluster.nics_per_host, asked.inside, asked.ranks) == ("efa-100", 4, 8, 16)
    assert question({**row, "library": "vLLM custom AR 1-stage", "nodes": "1", "gpus": "8"}).algorithm == "one-shot"
    with pytest.raises(Refusal, match="two ranks"):
        question({**row, "gpus": "1", "nodes": "1"})


def test_json_from_the_command():
    ran = run("--json", "--only", "inference")
    assert ran.returncode == 0, ran.stderr
    document = json.loads(ran.stdout)
    assert document["ok"] is True
    assert all(set(g) >= GROUP for g in document["groups"])
    assert all(set(b) == {"name", "limit", "value", "n", "ok", "why"} for b in document["bounds"])
    assert all(set(s) == {"reason", "n"} for s in document["skipped"])
    fast = next(b for b in document["bounds"] if b["name"].startswith("gpt-fast"))
    assert fast["n"] == 10
    assert fast["value"] < 0.12


def test_a_wrong_constant_is_caught(monkeypatch):
    """Twice the latency of every all-reduce: the bound on small tensors must break, and the command would exit 1."""
    fabrics = sys.modules["commtax.catalog.fabric"]
    real = fabrics._paths

    def slow(*arguments):
        return tuple(replace(p, launch_s=2 * p.launch_s, hop_s=2 * p.hop_s) for p in real(*arguments))

    monkeypatch.setattr(fabrics, "_paths", slow)
    monkeypatch.setattr(fabrics, "_MADE", {})
    found = check(None, only="collectives")
    assert not found.ok
    assert next(b for b in found.bounds if "up to 1 MiB" in b.name).ok is False


def test_the_command_exits_1_when_a_bound_is_exceeded(tmp_path):
    header = "source,system,gpu,nodes,gpus,interconnect,library,library_version,op,bytes,time_us,method"
    rows = [f"me,mine,H100 SXM,1,8,NVLink4,NCCL,2.29,all_reduce,{2**i},1000,nccl-tests" for i in range(10, 20)]
    (tmp_path / "collectives.csv").write_text("\n".join([header, *rows]) + "\n")
    ran = run("--data", tmp_path)
    assert ran.returncode == 1
    assert "a stated bound is exceeded" in ran.stdout


def write_odd_folder(folder):
    (folder / "collectives.csv").write_text(DATA["write_odd_folder"])
    with gzip.open(folder / "serving_runs.csv.gz", "wt") as file:
        file.write("model_path,system,backend,isl,osl,batch_size,tp_size,silicon_tpot_ms\n")
        file.write("meta-llama/Llama-3.1-8B-Instruct,h100_sxm,vllm,1024,128,8,1,8.0\n")
        file.write("nobody/knows,h100_sxm,vllm,1024,128,8,1,8.0\n")
        file.write("meta-llama/Llama-3.1-8B-Instruct,h100_sxm,vllm,1024,128,8,1,\n")
    (folder / "inference.csv").write_text("framework,model,metric,value\nsomething,llama,tpot,3\n")
    (folder / "training_runs.csv").write_text("")
    (folder / "kernels").mkdir()
    (folder / "kernels" / "h100_sxm_gemm.csv").write_text(
        "m,n,k,gemm_dtype,latency_ms\n1,4096,4096,bfloat16,0.02\nx,1,1,bfloat16,1\n8,512,512,base7,1\n"
    )
    (folder / "kernels" / "abacus_gemm.csv").write_text("m,n,k,latency_ms\n1,2,3,4\n")
    (folder / "kernels" / "h100_sxm_context_attention.csv").write_text("batch_size,isl\n1,2\n")
    (folder / "notes.txt").write_text("ignored")


def test_odd_files_give_reasons_and_keep_every_row(tmp_path):
    write_odd_folder(tmp_path)
    out = tmp_path / "rows.csv"
    ran = run("--data", tmp_path, "--rows", out)
    assert ran.returncode in (0, 1), ran.stderr
    assert "Traceback" not in ran.stderr
    with out.open(newline="") as file:
        found = list(csv.DictReader(file))
    assert len(found) == 8 + 3 + 1 + 0 + 3 + 1 + 1
    assert set(found[0]) >= {*ADDED, "file", "gpu", "model_path", "m", "framework"}
    for row in found:
        assert bool(row["skipped"]) != bool(row["predicted"]), row
        assert row["fitted"] in ("true", "false")
        if row["predicted"]:
            assert float(row["low"]) < float(row["predicted"]) < float(row["high"])
    assert sum(bool(r["predicted"]) for r in found) == 3
    reasons = " | ".join(r["skipped"] for r in found)
    for word in ("mystery", "quantum", "number of GPUs", "many", "teleport", "nobody/knows", "base7", "abacus", "missing", "-1"):
        assert word in reasons


@pytest.mark.parametrize(("name", "asked"), [("inference", "price"), ("training_runs", "train_bill")])
def test_equal_rows_are_priced_once(monkeypatch, name, asked):
    plain, calls = getattr(predicting, asked), []
    monkeypatch.setattr(predicting, asked, lambda *words, **more: calls.append(1) or plain(*words, **more))
    found = answer(table_of(name, table_of(name).rows[:1] * 5000))
    assert (len(calls), found.row.tolist(), len(set(found.predicted.tolist()))) == (1, list(range(5000)), 1)


@pytest.mark.parametrize(("name", "column", "text"), DATA["a_cell_that_is_no_figure_leaves_its_row_out"])
def test_a_cell_that_is_no_figure_leaves_its_row_out(name, column, text):
    table = table_of(name)
    at = table.header.index(column)
    rows = [table.rows[0], [text if i == at else cell for i, cell in enumerate(table.rows[0])]]
    found = answer(table_of(name, rows))
    assert not found.skipped[0]
    assert column in found.skipped[1] or "tp" in found.skipped[1]


def test_bad_arguments_are_one_line(tmp_path):
    for arguments in (("--data", tmp_path / "none"), ("--data", tmp_path), ("--only", "dice"), ("--plot", "x.gif")):
        ran = run(*arguments)
        assert ran.returncode == 2
        assert ran.stderr.startswith("error:")
        assert ran.stderr.count("\n") == 1
    (tmp_path / "collectives.csv.gz").write_bytes(b"\x1f\x8bno gzip at all")
    ran = run("--data", tmp_path)
    assert ran.returncode == 2
    assert "damaged" in ran.stderr


def test_a_picture(tmp_path):
    ran = run("--only", "collectives", "--plot", tmp_path / "a.svg")
    assert ran.returncode == 0, ran.stderr
    assert 1_000 < (tmp_path / "a.svg").stat().st_size < 400_000


def test_figures_by_hand(shipped):
    r = shipped.records
    some = r.where_true(np.flatnonzero(r.priced)[:50])
    f = figures(some)
    assert (f.n, f.median_ape) == (50, pytest.approx(float(np.median(np.abs(some.predicted / some.measured - 1)))))
    assert f.bias == pytest.approx(float(np.exp(np.mean(np.log(some.predicted / some.measured))) - 1))
    assert f.covered == pytest.approx(float(np.mean((some.low <= some.measured) & (some.measured <= some.high))))


def test_ranges_of_collectives_come_from_residuals():
    known = commtax.expect("all-reduce", "8xh100-sxm", nbytes=2**16, library="vllm")
    guessed = commtax.expect("all-reduce", "8xmi350x", nbytes=2**16)
    across = commtax.expect("all-reduce", "2x8xh100-sxm", nbytes=2**24)
    assert 0.02 < known.spread < 0.1 < across.spread < 0.4 < guessed.spread
    spreads = catalog.fabric("nccl", catalog.cluster("8xh100-sxm")).spreads
    assert {s.source for s in spreads} == {"residuals", "hosts"}, "of tables that were left out, over PCIe between hosts"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the larger tables are not here")
def test_a_sample_of_the_larger_tables(tmp_path):
    for name in ("collectives", "serving_runs", "inference", "training_runs"):
        header, rows = read(SHARED / f"{name}.csv")
        with (tmp_path / f"{name}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([header, *rows[:: max(1, len(rows) // 40)]])
    found = check(tmp_path)
    r = found.records
    assert sum(p for _, p in found.files.values()) > 0.93 * sum(n for n, _ in found.files.values())
    assert not np.any(r.priced & (r.predicted < r.floor * (1 - 1e-9)) & (r.kind != "decode-rate") & (r.kind != "throughput"))


@pytest.mark.skipif(not SHARED.is_dir(), reason="the larger tables are not here")
def test_shipped_rows_are_priced_like_those_they_came_from():
    runs = [r for path in SHARED.glob("serving_runs*.csv") for r in dicts(*read(path))]
    large = {(r["model_path"], r["isl"], r["osl"], f"{float(r['silicon_tpot_ms']):.4g}") for r in runs}
    header, rows = read(TABLES / "serving_runs.csv")
    assert all((r["model"], r["input"], r["output"], r["tpot_ms"]) in large for r in dicts(header, rows))


def test_one_long_cell_costs_its_own_length():
    """Text stays as it is: as a column of equal widths it would cost the longest cell for every row."""
    table = table_of("training_runs")
    rows = [list(table.rows[i % len(table.rows)]) for i in range(3000)]
    rows[7][table.header.index("source")] += "x" * 200_000
    records = answer(table_of("training_runs", rows))
    tracemalloc.start()
    judge(records, {"rows": (0.0, len(rows))})
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100e6


@each(("words", "chip"), DATA["a_chip_is_named_by_a_word_of_its_own"])
def test_a_chip_is_named_by_a_word_of_its_own(words, chip):
    assert find_chip_name(words) == chip
