"""The labs grade: solutions pass, starters fail with help, and seeded mistakes in every function are caught."""

import importlib.util
import inspect
import itertools
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from each import each
from paths import ROOT
from texts import put

LABS = ROOT / "labs"
FOLDERS = ("lab-01-tp-sharding-math", "lab-02-two-way-tp", "lab-03-tp-comm-cost", "lab-04-pipeline-bubble")


def load(path):
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}".replace("-", "_"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fails(folder, implementation):
    """Whether a test of the lab fails for an implementation, with any of its parameter sets; the first that does is enough."""
    tests = load(LABS / folder / "test_lab.py")
    for name, test in inspect.getmembers(tests, inspect.isfunction):
        if not name.startswith("test_") or any(m.name == "gpu" for m in getattr(test, "pytestmark", [])):
            continue
        for arguments in parameter_sets(test):
            try:
                test(implementation, **arguments)
            except (Exception, pytest.fail.Exception):  # whatever a wrong implementation does
                return True
    return False


def parameter_sets(test):
    """The arguments that ``pytest.mark.parametrize`` would give."""
    sets = [{}]
    for mark in getattr(test, "pytestmark", []):
        names, values = mark.args
        names = [names] if isinstance(names, str) else list(names)
        rows = [dict(zip(names, v if isinstance(v, tuple) else (v,), strict=True)) for v in values]
        sets = [{**a, **b} for a, b in itertools.product(sets, rows)]
    return sets


def changed(folder, **functions):
    solution = load(LABS / folder / "solution.py")
    return SimpleNamespace(**{**{n: getattr(solution, n) for n in dir(solution) if not n.startswith("__")}, **functions})


S1, S2, S3, S4 = (load(LABS / f / "solution.py") for f in FOLDERS)


def wrong_block(x, wq, wk, wv, wo, up, down, heads, ranks, group):
    assert group.all_gather([x @ s for s in S1.column_shards(wq, ranks)]).shape[1] == wq.shape[1]
    return S1.parallel_block(x, wq, wk, wv, wo, up, down, heads, ranks, group)


MISTAKES = {
    "lab-01-tp-sharding-math": {
        "column_shards": [lambda w, n: S1.row_shards(w, n), lambda w, n: [w[:, i::n] for i in range(n)]],
        "row_shards": [lambda w, n: S1.column_shards(w, n), lambda w, n: [w] * n],
        "column_parallel": [
            lambda x, s, g: g.all_reduce([x @ p for p in s]),
            lambda x, s, g: x @ __import__("numpy").concatenate(s, axis=1),
        ],
        "row_parallel": [
            lambda x, s, g: g.all_gather([a @ p for a, p in zip(S1.column_shards(x, len(s)), s, strict=True)]),
            lambda x, s, g: g.all_reduce([x[:, : p.shape[0]] @ p for p in s]),
        ],
        "parallel_mlp": [
            lambda x, up, down, n, g: S1.row_parallel(
                __import__("numpy").maximum(S1.column_parallel(x, S1.column_shards(up, n), g), 0), S1.row_shards(down, n), g
            ),
            lambda x, up, down, n, g: S1.row_parallel(x @ up, S1.row_shards(down, n), g),
        ],
        "parallel_block": [
            wrong_block,
            lambda x, wq, wk, wv, wo, up, down, heads, ranks, group: S1.parallel_block(
                x, wq, wk, wv, wo, up, down, ranks, ranks, group
            ),
        ],
        "legal_degrees": [
            lambda heads, width, most: [n for n in range(1, most + 1) if heads % n == 0],
            lambda heads, width, most: [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= most],
        ],
    },
    "lab-02-two-way-tp": {
        "rank_weight_bytes": [lambda split, copied, n: (split + copied) // n, lambda split, copied, n: split + copied],
        "split_parameters": [
            lambda hidden, width, layers, heads, kv_heads, vocab: S2.split_parameters(hidden, width, layers, heads, heads, vocab),
            lambda hidden, width, layers, heads, kv_heads, vocab: (
                S2.split_parameters(hidden, width, layers, heads, kv_heads, vocab) - vocab * hidden
            ),
        ],
        "kv_blocks": [lambda tokens, size, n: -(-tokens * n // size), lambda tokens, size, n: n * (tokens // size)],
        "kv_bytes_per_rank": [
            lambda blocks, size, layers, kv, dim, item, n: S2.kv_bytes_per_rank(blocks, size, layers, kv, dim, item, n) // 2,
            lambda blocks, size, layers, kv, dim, item, n: 2 * blocks * size * layers * kv * dim * item // n,
        ],
        "collectives_per_step": [
            lambda layers: {"all-reduce": 2 * layers, "all-gather": 1},
            lambda layers: {"all-reduce": 2 * layers + 1, "all-gather": layers},
        ],
        "largest_difference": [
            lambda a, b: max(x - y for r, q in zip(a, b, strict=True) for x, y in zip(r, q, strict=True)),
            lambda a, b: max(
                (abs(x - y) for r, q in zip(a, b, strict=True) for x, y in zip(r, q, strict=True) if x == x), default=0.0
            ),
        ],
        "wire_and_waits": [
            lambda seconds: (max(seconds), [max(seconds) - s for s in seconds], seconds.index(max(seconds))),
            lambda seconds: (min(seconds), [s - min(seconds) for s in seconds], seconds.index(max(seconds))),
        ],
        "step_seconds": [lambda compute, comm: sum(compute) / len(compute) + comm, lambda compute, comm: max(compute)],
        "winner": [
            lambda tp1, many, n, batch, goal: "tp" if many < tp1 else "replicas",
            lambda tp1, many, n, batch, goal: "tp" if goal == "latency" else "replicas",
        ],
    },
    "lab-03-tp-comm-cost": {
        "allreduce_payload_bytes": [lambda t, h, dtype_bytes=2: t * h * 2, lambda t, h, dtype_bytes=2: 2 * t * h * dtype_bytes],
        "ring_allreduce_traffic_per_rank": [lambda s, n: (n - 1) / n * s, lambda s, n: 2 * s],
        "allreduce_time_s": [lambda s, n, b, a: 2 * (n - 1) / n * s / b, lambda s, n, b, a: 2 * (n - 1) / n * s / b + a],
        "tp_comm_time_per_step": [
            lambda t, hidden, num_layers, num_ranks, bandwidth_Bps, latency_s, dtype_bytes=2, allreduces_per_layer=2: (
                num_layers * allreduces_per_layer * ((num_ranks - 1) * latency_s)
            ),
            lambda t, hidden, num_layers, num_ranks, bandwidth_Bps, latency_s, dtype_bytes=2, allreduces_per_layer=2: (
                num_layers * S3.allreduce_time_s(t * hidden * dtype_bytes, num_ranks, bandwidth_Bps, latency_s)
            ),
        ],
        "comm_fraction": [lambda comm, compute: comm / compute, lambda comm, compute: compute / (comm + compute)],
    },
    "lab-04-pipeline-bubble": {
        "bubble_fraction": [lambda p, m: (p - 1) / m, lambda p, m: p / (p + m)],
        "schedule_grid": [
            lambda p, m: [[i if i < m else None for i in range(p + m - 1)] for _ in range(p)],
            lambda p, m: S4.schedule_grid(p, m)[::-1],
        ],
        "grid_bubble": [
            lambda grid: sum(c is None for row in grid for c in row) / max(1, sum(c is not None for row in grid for c in row)),
            lambda grid: sum(c is None for c in grid[0]),
        ],
        "min_microbatches": [
            lambda p, budget: __import__("math").ceil((p - 1) * (1 - budget) / budget) if p > 1 else 1,
            lambda p, budget: __import__("math").ceil((p - 1) / budget) if p > 1 else 1,
        ],
        "pipeline_time_s": [lambda stages, m: sum(stages) * m, lambda stages, m: max(stages) * (len(stages) + m - 1)],
        "step_latency_s": [
            lambda compute, tp, pp, comm, hop: compute / (tp * pp) + comm + (pp - 1) * hop,
            lambda compute, tp, pp, comm, hop: compute / tp + (pp - 1) * hop,
        ],
        "tokens_per_s": [lambda b, latency, pp, flight: b * pp / latency, lambda b, latency, pp, flight: b * flight / latency],
    },
}
SEEDED = [(lab, name, i) for lab, functions in MISTAKES.items() for name, wrong in functions.items() for i in range(len(wrong))]


@each(("folder", "name", "index"), SEEDED)
def test_seeded_mistakes_are_caught(folder, name, index):
    assert fails(folder, changed(folder, **{name: MISTAKES[folder][name][index]}))


def test_every_function_of_every_starter_has_two_seeded_mistakes():
    for folder, functions in MISTAKES.items():
        asked = {n for n, _ in inspect.getmembers(load(LABS / folder / "starter.py"), inspect.isfunction)}
        assert asked == functions.keys()
        assert all(len(wrong) >= 2 for wrong in functions.values())


def run(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-p", "no:cacheprovider"],
        cwd=ROOT,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_documents_own_commands():
    labs = "phase-10-distributed-inference/labs"
    whole = run(labs, "-m", "not gpu", "--collect-only")
    assert whole.returncode == 0, whole.stdout
    assert all(folder in whole.stdout for folder in FOLDERS)
    done = run(labs, "-m", "not gpu", "--ignore", f"{labs}/lab-02-two-way-tp")  # whose live run this session has in labs/
    assert done.returncode == 0, done.stdout
    starter = run("phase-10-distributed-inference/labs/lab-03-tp-comm-cost", "-q", LAB_IMPL="starter")
    assert starter.returncode == 1, "the empty starter is collected, and fails"
    assert "tokens x hidden x bytes an element" in starter.stdout, "with messages that help"
    assert "error" not in starter.stdout.splitlines()[-1]


def test_a_filled_in_starter_turns_green(tmp_path):
    filled = put(tmp_path, "mine.py", (LABS / "lab-03-tp-comm-cost" / "solution.py").read_text())
    assert run("labs/lab-03-tp-comm-cost", "-q", LAB_IMPL=str(filled)).returncode == 0
    beside = LABS / "lab-03-tp-comm-cost" / "mine_for_test.py"
    try:
        beside.write_text(filled.read_text())
        assert run("labs/lab-03-tp-comm-cost", "-q", LAB_IMPL=beside.name).returncode == 0, "a file beside the starter is found"
    finally:
        beside.unlink()
    filled.write_text("this is not python")
    broken = run("labs/lab-03-tp-comm-cost", "-q", LAB_IMPL=str(filled))
    assert broken.returncode == 1, "a broken file fails tests, not collection"
