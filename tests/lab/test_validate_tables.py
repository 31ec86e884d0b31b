"""Tables as people write them: any columns, names and folders; every metric; another predictor beside ours; no network."""

import csv
import gzip
import json
import re
import socket
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli_run import run_here
from commtax import catalog, simulate
from commtax_lab.published.kernel_tables import kind_of, tables_of_file
from commtax_lab.published.metrics import metric
from commtax_lab.published.scoring import ANSWERS, check
from commtax_lab.published.scoring.statistics import RATES, score_lines, transfer_folds
from commtax_lab.published.tables import ADDED, KINDS, headers, kind_of_columns, paths, rename_columns, shipped_tables
from each import each
from paths import BENCHMARKS
from tables import tables

DATA = tables(__file__)
GEMM = ["m", "n", "k", "gemm_dtype", "latency_ms"]
PRODUCTS = [["16", "4096", "4096", "bfloat16", "0.02"], ["512", "8192", "4096", "bfloat16", "0.07"]]
RUN = DATA["run"]
ASKED = {"model": "llama-3.1-8b", "cluster": "8xh100-sxm", "engine": "vllm", "tp": 2, "input_len": 1024, "output_len": 256}
TABLES = {table.kind: table for table in shipped_tables() if table.kind not in ("kernels", "open_loop_runs", "h200")}
ODD = ["", "0", "-1", "1e999", "nan", "inf", "llama", "H100", "8x", "1e-9", "'; --", "\x00", "9" * 40, "full", "8,000"]
WORDS = st.one_of(st.sampled_from(ODD), st.text(max_size=8))


def write(path, rows, columns=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    names = columns or list(dict.fromkeys(name for row in rows for name in row))
    with gzip.open(path, "wt", newline="") if path.suffix == ".gz" else path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(names)
        lines.writerows([row.get(name, "") for name in names] if isinstance(row, dict) else row for row in rows)


def only_records(folder):
    return check(folder).records


@each("table", list(shipped_tables()), ids=lambda table: table.name)
def test_every_table_is_known_by_its_columns(table):
    if table.kind not in ("kernels", "h200"):  # several kinds in one file, and our own
        assert kind_of_columns(table.header) == kind_of_columns(table.header[::-1]) == table.kind
    assert kind_of_columns([*table.header, "file", *ADDED]) == ""


def test_renamed_columns_are_each_there_once():
    for table in shipped_tables():
        columns = rename_columns(table.kind, table.header)
        assert len(columns) == len(set(columns))
    given = ["model", "model_path", " gpu ", "max concurrency"]
    assert rename_columns("serving_runs", given) == ["model", "model_path", "system", "concurrency"]


@pytest.mark.parametrize(("path", "chip", "engine"), DATA["kernels_tell_their_chip_and_engine_by_file_or_folder"])
def test_kernels_tell_their_chip_and_engine_by_file_or_folder(tmp_path, path, chip, engine):
    write(tmp_path / path, PRODUCTS, GEMM)
    assert [kind for kind, _ in paths(tmp_path)] == ["kernels"]
    ((index, table),) = tables_of_file(path, GEMM, PRODUCTS)
    assert (index, (table.chip.key, table.kind.name, table.column("framework")[0])) == ([0, 1], (chip, "gemm", engine))
    found = only_records(tmp_path)
    assert np.all(found.priced)
    assert set(found.chip) == {chip}


def test_kernels_tell_their_chip_by_a_column_and_bounds_without_rows_say_why(tmp_path):
    rows = [["NVIDIA H200", *PRODUCTS[0]], ["rtx_pro_6000_server", *PRODUCTS[0]], ["abacus", *PRODUCTS[0]]]
    rows += [["NVIDIA H200", *PRODUCTS[1]]]
    write(tmp_path / "times.csv", rows, ["device", *GEMM])
    found = only_records(tmp_path)
    assert (found.chip.tolist(), found.row.tolist()) == (["h200-sxm", "h200-sxm", "rtx-pro-6000-server", ""], [0, 3, 1, 2])
    assert "abacus" in found.skipped[-1]
    write(tmp_path / "bare" / "h200_sxm_gemm.csv", PRODUCTS, GEMM)
    bounds = {b.name: b for b in check(tmp_path / "bare").bounds}
    assert "our own sweep" in bounds["GEMM bf16 on H200, m <= 256: median"].why
    assert bounds["serving, dense: median of TPOT"].why == "no tested row has kind tpot"
    assert bounds["GEMM of engines' tables, bf16: median"].n == 2
    assert all(b.why for b in bounds.values() if b.ok is None)


def test_a_row_is_fitted_whatever_its_file_is_called(tmp_path):
    rows = [[str(2**i), "4096", "4096", "bfloat16", "1.0"] for i in range(14)]
    fitted = [
        next(tables_of_file(name, GEMM, rows))[1].fitted().tolist() for name in ("h100_sxm_gemm.csv", "H100-SXM_vllm_gemm.csv")
    ]
    assert (fitted[0], set(fitted[0])) == (fitted[1], {True, False})
    assert not any(next(tables_of_file("h200_sxm_gemm.csv", GEMM, rows))[1].fitted())
    narrow = [[row[0], "256", *row[2:]] for row in rows]
    assert not any(next(tables_of_file("h100_sxm_gemm.csv", GEMM, narrow))[1].fitted())


def test_a_folder_is_read_whole(tmp_path):
    write(tmp_path / "serving_runs_more.csv", [{**RUN, "silicon_tpot_ms": "8"}])
    write(tmp_path / "deep" / "er" / "anything.csv.gz", [{**RUN, "mean_tpot_ms": "8"}])
    write(tmp_path / "kernels_other" / "h100_sxm_gemm.csv", PRODUCTS, GEMM)
    write(tmp_path / ".hidden" / "serving_runs.csv", [RUN])
    (tmp_path / "notes.txt").write_text("m,n and k are sizes\n")
    (tmp_path / "broken.csv").write_bytes(b"\x00\xff\x00")
    report = check(tmp_path, rows_to=tmp_path / "rows.csv")
    assert sorted(report.files) == ["deep/er/anything.csv.gz", "kernels_other/h100_sxm_gemm.csv", "serving_runs_more.csv"]
    assert sorted(check(tmp_path).files) == sorted(report.files)  # what was written is no table
    assert "mean_tpot_ms" in headers(tmp_path)


@each(("column", "kind", "unit", "per_gpu", "middle"), DATA["columns_say_what_they_measure"])
def test_columns_say_what_they_measure(column, kind, unit, per_gpu, middle):
    known = metric(column)
    assert (known.kind, known.unit, known.per_gpu, known.middle) == (kind, unit, per_gpu, middle)


@each("column", ["p99_ttft_ms", "std_tpot_ms", "aic_ttft_ms", "isl", "ttft_slo_ms", "latency_ms", "id", ""])
def test_what_is_no_figure_of_ours(column):
    assert metric(column) is None


def test_every_metric_is_what_the_closed_loop_gives(tmp_path):
    """Little's law: N clients have N requests under way, each takes TTFT + (O - 1) TPOT."""
    told = {"mean_ttft_ms": "50", "mean_tpot_ms": "8", "mean_e2el_ms": "2000", "output_throughput": "2000", "tput_per_gpu": "5000"}
    told |= {"total_token_throughput": "9000", "request_throughput": "7", "mean_intvty": "120", "input_throughput": "7000"}
    write(tmp_path / "a.csv", [{**RUN, **told}])
    found = only_records(tmp_path)
    made = simulate(**ASKED, concurrency=16, num_prompts=160, spread=0.0)
    rate = 16 / (made.ttft_s + 255 * made.tpot_s)
    wanted = {"ttft": made.ttft_s, "tpot": made.tpot_s, "e2e": made.e2e_s, "throughput": 256 * rate, "request-rate": rate}
    wanted |= {"total-rate": 1280 * rate, "input-rate": 1024 * rate, "interactivity": 1 / made.tpot_s}
    assert dict(zip(found.kind, found.predicted, strict=True)) == pytest.approx({k: float(v) for k, v in wanted.items()})
    assert np.all((found.low < found.predicted) & (found.predicted < found.high))
    assert {kind for kind in wanted if kind in RATES} == {*RATES} - {"decode-rate"}


def test_closed_loops_of_inference_runs_have_every_metric(tmp_path):
    one = {"framework": "SGLang 0.5", "model": "Llama-3.1-8B", "gpu": "NVIDIA H100 80GB HBM3", "isl": "512", "osl": "128"}
    one |= {"tp": "2"}
    one |= {"batch": "32", "batch_kind": "closed loop of clients", "value": "9"}
    told = {"request_throughput": "req/s", "total_token_throughput": "tok/s/gpu", "mean_e2el": "s", "mean_itl": "ms"}
    write(tmp_path / "a.csv", [{**one, "metric": metric, "unit": unit} for metric, unit in told.items()])
    found = only_records(tmp_path)
    assert found.kind.tolist() == ["request-rate", "total-rate", "e2e", "tpot"]
    assert found.measured.tolist() == pytest.approx([9, 18, 9, 0.009])
    assert found.predicted[1] == pytest.approx(640 * found.predicted[0])
    assert found.predicted[0] == pytest.approx(32 / found.predicted[2])


def test_a_figure_of_one_gpu_counts_for_all_and_a_server_without_clients_is_full(tmp_path):
    write(tmp_path / "a.csv", [{**RUN, "tput_per_gpu": "5000"}])
    (measured,) = only_records(tmp_path).measured
    assert measured == 10_000
    write(
        tmp_path / "a.csv",
        [{**RUN, "batch_size": "", "output_throughput": "9000", "mean_ttft_ms": "50"}, {**RUN, "batch_size": ""}],
    )
    found = only_records(tmp_path)
    at = dict(zip(found.kind, found.predicted, strict=True))
    assert at["throughput"] > simulate(**ASKED, concurrency=64).tokens_per_s
    assert "clients" in found.skipped[found.kind == "ttft"][0]
    assert found.skipped[-1]


def test_many_runs_at_once_are_each_as_alone(tmp_path):
    rows = [{**RUN, "id": str(i), "batch_size": str(2**i), "isl": str(256 * (i + 1)), "silicon_tpot_ms": "9"} for i in range(7)]
    rows.append({**RUN, "id": "odd", "tp_size": "3", "silicon_tpot_ms": "9"})  # no plan: the others have their answers
    write(tmp_path / "a.csv", rows)
    together = only_records(tmp_path)
    assert together.skipped[-1]
    for i, row in enumerate(rows[:-1]):
        write(tmp_path / "one" / "a.csv", [row])
        alone = only_records(tmp_path / "one")
        names = ("predicted", "low", "high", "floor")
        assert [together.columns[n][i] for n in names] == pytest.approx([alone.columns[n][0] for n in names])


def rival_of(folder, rows, columns=("id", "ttft", "tpot_ms")):
    write(folder / "rival.csv", rows, list(columns))
    return folder / "rival.csv"


def test_another_predictor_beside_ours(tmp_path):
    runs = [
        {**RUN, "id": str(i), "batch_size": str(i), "silicon_ttft_ms": "40", "silicon_tpot_ms": str(6 + i / 10)}
        for i in (1, 2, 4, 8)
    ]
    write(tmp_path / "data" / "a.csv", [*runs, {**runs[0], "id": "odd", "tp_size": "3"}])
    made = check(tmp_path / "data").records
    rows = [[r["id"], "40", r["silicon_tpot_ms"]] for r in runs] + [["nobody", "1", "1"], ["odd", "40", "6"], ["1x", "?", ""]]
    found = check(tmp_path / "data", rival=rival_of(tmp_path, rows)).compared
    assert (found.ids, found.matched, found.unknown, found.unpriced, found.unread) == (7, 4, 1, 1, 1)
    assert found.units == {"ttft": "ms"}  # 40 s would be a thousand times what was measured
    first = {duel.kind: duel for duel in found.duels if duel.value == "all"}
    assert (first["tpot"].rival.median_ape, first["tpot"].wins) == (pytest.approx(0, abs=1e-12), 0)
    off = np.abs(made.predicted / made.measured - 1)[(made.kind == "tpot") & made.priced]
    assert first["tpot"].ours.median_ape == pytest.approx(float(np.median(off)))
    assert first["tpot"].n == first["ttft"].n == 4


def test_seconds_and_milliseconds_of_a_rival_are_told_apart(tmp_path):
    write(tmp_path / "data" / "a.csv", [{**RUN, "silicon_ttft_ms": "40", "silicon_tpot_ms": "6"}])
    for ttft, unit in (("0.05", "s"), ("50", "ms")):
        found = check(tmp_path / "data", rival=rival_of(tmp_path, [["one", ttft, "6"]])).compared
        assert found.units == {"ttft": unit}
        assert next(d for d in found.duels if d.kind == "ttft").rival.bias == pytest.approx(0.25)


def test_the_command_compares_and_refuses_what_it_cannot(tmp_path):
    write(tmp_path / "data" / "a.csv", [{**RUN, "silicon_ttft_ms": "40", "silicon_tpot_ms": "6"}])
    good = rival_of(tmp_path, [["one", "40", "6"]])
    ran = run_here("validate", "--data", tmp_path / "data", "--compare", good)
    assert "Beside rival.csv" in ran.stdout
    document = json.loads(run_here("validate", "--data", tmp_path / "data", "--compare", good, "--json").stdout)
    assert document["compared"]["matched"] == 1
    for rows, columns in (
        ([["one", "1"]], ["name", "ttft"]),
        ([["one", "1"]], ["id", "colour"]),
        ([], ["id", "ttft"]),
        ([["x", "1"]], ["id", "ttft"]),
    ):
        ran = run_here("validate", "--data", tmp_path / "data", "--compare", rival_of(tmp_path, rows, columns))
        assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
        assert ran.stderr.startswith("error: compare")
    assert run_here("validate", "--compare", tmp_path / "none.csv").returncode == 2


def test_nothing_is_looked_up_over_the_network(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise AssertionError("validate used the network")

    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refused)
    monkeypatch.setattr(socket.socket, "connect", refused)
    unknown = "somebody/Model-Nobody-Knows-7B"
    write(tmp_path / "a.csv", [{**RUN, "model_path": unknown, "silicon_tpot_ms": "9"}])
    write(
        tmp_path / "b.csv",
        [{"framework": "vllm", "model": unknown, "gpu": "A100", "metric": "tpot", "value": "3", "isl": "9", "batch": "1"}],
    )
    write(
        tmp_path / "c.csv",
        [{"model": unknown, "seq": "4096", "gpus": "8", "gpu_type": "H100-80GB", "global_batch": "8", "step_time_s": "1"}],
    )
    open_loop = {"model": unknown, "chip": "h100-sxm", "engine": "vllm", "request_rate_rps": "1", "num_requests": "9", "tp": "1"}
    write(tmp_path / "d.csv", [{**open_loop, "input_mean_tokens": "9", "output_mean_tokens": "9", "ttft_mean_ms": "9"}])
    module = {"model": unknown, "batch_size": "1", "isl": "9", "num_heads": "8", "gemm_type": "bfloat16", "latency_ms": "1"}
    write(tmp_path / "h100_sxm_mla_context_module.csv", [{**module, "kv_cache_dtype": "bfloat16", "kernel_source": "default"}])
    report = check(tmp_path)
    assert len(report.files) == 5
    assert not np.any(report.records.priced)
    assert all("catalogue" in why or "column" in why for why in report.records.skipped)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(TABLES)), st.randoms(use_true_random=False), st.lists(WORDS, max_size=4))
def test_mutated_tables_give_reasons_and_never_an_error(kind, random, words):
    table = TABLES[kind]
    row = dict(zip(table.header, random.choice(table.rows), strict=False))
    row |= {random.choice(table.header): word for word in words}
    columns = random.sample([*row], random.randint(2, len(row)) if random.random() < 0.5 else len(row))
    found = ANSWERS[kind](replace(table, header=columns, rows=[[row[name] for name in columns]]))
    assert set(found.row.tolist()) == {0}
    assert all(bool(why) or np.isfinite(p) for why, p in zip(found.skipped, found.predicted, strict=True))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(WORDS, min_size=5, max_size=5), min_size=1, max_size=4), st.permutations(GEMM), st.integers(1, 5))
def test_mutated_kernels_give_reasons_and_never_an_error(rows, columns, kept):
    header = columns[:kept]
    for index, table in tables_of_file("h100_sxm_gemm.csv", header, [row[:kept] for row in rows]):
        assert len(index) == table.count
        assert table.wrong or len(table.good) == table.count


def test_fits_and_scores_tell_fitted_rows_by_the_same_rule():
    """Every script that fits on published rows asks the function that ``validate`` marks them by, or leaves groups out in turn."""
    if not BENCHMARKS.is_dir():
        pytest.skip("the fits are in the source tree only")
    for path in sorted(BENCHMARKS.glob("fit_*.py")):
        text = " ".join(path.read_text().split())
        reads = "from commtax_lab.published" in text
        asks = re.search(r"is_fitted|may_fit|\.fitted\b|even_power|half\b|left out in turn|def left_out", text)
        assert asks or not reads, path.name


def test_kinds_are_all_answered():
    assert (set(ANSWERS), kind_of("h100_sxm_gemm.csv.gz").name) == (set(KINDS), "gemm")
    assert all(catalog.chip(key) for key in ("h100-sxm", "h200-sxm"))


def test_the_scoreboard_has_a_line_for_each_part(tmp_path):
    write(tmp_path / "a.csv", [{**RUN, "silicon_ttft_ms": "40", "silicon_tpot_ms": "6"}])
    lines = score_lines(check(tmp_path).records)
    assert {line.name for line in lines if line.errors} == {"TPOT, dense", "TTFT, dense"}
    assert len({line.name for line in lines}) == len(lines)


def test_folds_abroad_are_told_with_their_ranges():
    folds = transfer_folds()
    assert {fold.metric for fold in folds} == {"tpot", "ttft"}
    assert all(0 < fold.median < 1 and 0 < fold.covered <= 1 and fold.half_width > 0 and fold.n > 0 for fold in folds)
