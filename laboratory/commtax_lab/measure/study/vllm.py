"""The study on an installed vLLM: drives its ``bench latency``, ``throughput`` and ``serve``, and reads what they leave.

vLLM stays a program of its own, found on PATH or given; nothing of it is imported. Its log says whether the degree
was really applied.
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from commtax import catalog, files
from commtax.runs.logs.engine_logs import vllm_log
from commtax.runs.results import bench
from commtax.runs.results.bench_record import BenchmarkRun
from commtax.runs.traces.profilers import kineto
from commtax_lab import lab_table
from commtax_lab.measure import launch, machine
from commtax_lab.measure.study import vllm_setup
from commtax_lab.measure.study.driving import Done, Driver, StudyOrder, allreduces, check, serving_record
from commtax_lab.measure.study.leash import leash_command
from commtax_lab.measure.study.recipe import LONGEST, SPREAD, Recipe, StudyRun
from commtax_lab.measure.study.study_documents import Applied, Check, RunRecord

START_S = 1200.0  # a large model takes minutes to load
RUN_S = 7200.0
GRACE_S = {signal.SIGINT: 20.0, signal.SIGTERM: 5.0, signal.SIGKILL: 5.0}
LIKE_FAILURES = 2  # after as many of one kind the rest would fail alike
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
KEPT_LINES = 6
KEPT_CHARACTERS = 600
LOOKED_AT = 20_000  # characters at the end of a log
SHELL = 128  # what shells add to the signal that ended a command
_CHILD = (
    re.compile(r"(?:exit ?code|code|signal)[ :=]{1,3}-(\d{1,2})\b", re.IGNORECASE),
    re.compile(r"Failed core proc\(s\): \{[^}]{0,200}: -(\d{1,2})\b"),
)
_UNKNOWN_OPTION = "unrecognized"  # as argparse says it
_TABLES = lab_table("measure/study/vllm.toml")
_SAID, _LIKELY = ({signal.Signals[name]: text for name, text in _TABLES[kind].items()} for kind in ("said", "likely"))


class FailedRunError(RuntimeError):
    """A command of the engine ended badly, and its ``kind``: two failures of one kind would be followed by a third."""

    def __init__(self, text: str, kind: str = "", died: bool = False, unknown_option: bool = False) -> None:
        super().__init__(text)
        self.text, self.kind, self.died = text, kind, died
        self.unknown_option = unknown_option  # the program has no option of a name that it was given


class Vllm(Driver):
    """Driver of an installed vLLM."""

    kinds = ("latency", "first", "batch", "profile", "serve", "throughput")

    def __init__(self, order: StudyOrder, recipe: Recipe, divided: int = 0) -> None:
        """Prepare to drive vLLM. ``divided``: ranks that the machine's cores are divided among, where it is more than run."""
        self.program = vllm_setup.find_vllm(order.vllm or "vllm", order.out)
        self.version = self.program.version
        self.order, self.recipe, self.raw = order, recipe, order.out / "raw"
        self.model = catalog.model(order.model)
        self.weights = vllm_setup.weights(order.model, self.model, order.out)
        self.on_cpu = "cpu" in self.version
        eager = "--enforce-eager"
        self.args = [*shlex.split(order.vllm_args), *([eager] if self.on_cpu and eager not in order.vllm_args else [])]
        self.eager = eager in self.args
        # quantised weights keep their own type
        self.dtype = order.dtype or ("" if self.model.quant else machine.served_dtype(machine.facts(), self.on_cpu))
        self.ended = launch.EndedBySignal()
        ranks = max(order.degrees)
        self.share = machine.cores_per_rank(max(ranks, divided))
        self.kv = (
            vllm_setup.kv_space(self.model, self.dtype, ranks, order.vllm_args) if self.on_cpu else vllm_setup.ChosenEnvironment()
        )
        query = ("--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
        self.gpus = [] if self.on_cpu else [gpu.split(", ") for gpu in machine.tool_output("nvidia-smi", *query).splitlines()]
        gpus = f"{len(self.gpus)} x {self.gpus[0][0]}" if self.gpus else "unknown device"
        self.device = machine.core_words(self.share) if self.on_cpu else gpus
        chip = machine.nearest_chip(self.gpus[0][0], float(self.gpus[0][-1]) * 2**20) if self.gpus else "cpu" if self.on_cpu else ""
        self.where = f"{max(2, *order.degrees)}x{chip}" if chip else ""

    def checks(self) -> list[Check]:
        ranks = max(self.order.degrees)
        checks = [check("vLLM found", True, self.version), *self.program.checks, *self.weights.checks]
        if not self.on_cpu:
            return [*checks, check("GPUs for the largest degree", len(self.gpus) >= ranks, self.device)]
        cores, slow = len(machine.cores()), machine.bf16_note(machine.facts(), self.dtype)
        emulated = [check("bf16 instructions", False, f"{slow}; use --dtype fp32")] if slow else []
        text = f"{cores} cores, {self.share} per rank at every degree"
        return [*checks, *emulated, check("a core for each rank", cores >= ranks, text), *self.kv.checks]

    def run(self, todo: Sequence[StudyRun], done: Done) -> None:
        """Make every run in its own processes. A failed one is reported, and others go on until failures repeat."""
        failures: list[tuple[int, FailedRunError]] = []
        special = {"serve": self._serve, "profile": self._profile, "throughput": self._throughput}
        with self.ended:  # the engine's processes are ended too, whichever way this one is
            for run in todo:
                alike = _repeated_failure(failures, run.tp)
                if alike:
                    done(run, {"error": f"not tried, after {LIKE_FAILURES} like failures: {alike.text}"})
                    continue
                try:
                    self._file(run, ".json").unlink(missing_ok=True)
                    record: RunRecord = {**special.get(run.kind, self._latency)(run), "applied": _read_applied(run, self._log(run))}
                except (FailedRunError, ValueError, OSError) as error:
                    record = {"error": str(error)}
                    if isinstance(error, FailedRunError):
                        failures.append((run.tp, error))
                done(run, record)

    def _model_args(self, run: StudyRun) -> list[str]:
        dtype = ["--dtype", DTYPES.get(self.dtype, self.dtype)] if self.dtype else []
        room = min(self.model.max_len, max(self.recipe.longest, 2 * LONGEST if self.order.dataset else 0))
        sizes = ["--tensor-parallel-size", str(run.tp), "--max-model-len", str(room)]
        return [*sizes, *dtype, *self.weights.args, *self.weights.tokenizer, *self.args]

    def _file(self, run: StudyRun, ending: str) -> Path:
        return self.raw / f"{run.name}{ending}"

    def _log(self, run: StudyRun, ending: str = ".log") -> str:
        return self._file(run, ending).read_text(encoding="utf-8", errors="replace")

    def _result(self, run: StudyRun) -> BenchmarkRun:
        return bench.parse(self._file(run, ".json").read_text(encoding="utf-8"), run.name)[0]

    def _command(self, name: str, run: StudyRun, **more: str | int) -> list[str]:
        """Return a command of the table, with this run's figures put in."""
        figures = {"model": self.weights.name, "dataset": self.order.dataset, "spread": SPREAD, **asdict(run), **more}
        figures |= {"folder": self.raw, "file": f"{run.name}.json", "warmup": max(2, run.iters // 2)}
        return [word.format(**figures) for word in _TABLES["commands"][name].split()]

    def _latency(self, run: StudyRun) -> RunRecord:
        self._call([*self._command("latency", run), *self._model_args(run), *self._command("output", run)], run)
        result = self._result(run)
        mean_s = result.seconds("e2el")
        return {"latency_s": list(result.latencies_s) or ([mean_s] if mean_s is not None else []), "prefill_s": [], "decode_s": []}

    def _throughput(self, run: StudyRun) -> RunRecord:
        """Measure throughput. Newer versions have lengths for random prompts that override the plain ones."""
        rest = [*self._model_args(run), *self._command("output", run)]
        new, old = ([*self._command("throughput", run, prefix=prefix), *rest] for prefix in ("--random-", "--"))
        self._call_either(new, old, run)
        result = self._result(run)
        return {"requests_per_s": result.requests_per_s, "total_tokens_per_s": result.total_tokens_per_s}

    def _call_either(self, new: list[str], old: list[str], run: StudyRun, **extra: str) -> None:
        """Call the newer spelling of a command, or the older one where the version does not recognise it."""
        try:
            self._call(new, run)
        except FailedRunError as failure:
            if not failure.unknown_option:
                raise
            self._call(old, run, **extra)

    def _profile(self, run: StudyRun) -> RunRecord:
        """Trace a batch. Newer versions take the profiler as an option, older ones from the environment."""
        folder = self.raw / run.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [*self._command("latency", run), *self._model_args(run), "--profile"]
        facts = {"profiler": "torch", "torch_profiler_dir": str(folder), "torch_profiler_record_shapes": True}
        option = ["--profiler-config", json.dumps({**facts, "torch_profiler_with_stack": False})]
        old = {"VLLM_TORCH_PROFILER_DIR": str(folder), "VLLM_TORCH_PROFILER_RECORD_SHAPES": "1"}
        self._call_either([*command, *option], command, run, **old)
        files = sorted(folder.rglob("*.trace.json*"))
        if not files:
            raise FailedRunError(f"{run.name}: the profiler left no trace")
        traces = {t.rank: t for t in map(kineto.read, files) if t.collectives or run.tp == 1}
        if not traces:
            raise FailedRunError(f"{run.name}: no collective in any of {len(files)} traces")
        return {"profile": allreduces(list(traces.values()))}

    def _serve(self, run: StudyRun) -> RunRecord:
        with self._server(run) as port:
            self._ask(run, port, ("client", "from_dataset" if self.order.dataset else "synthetic", "kept"))
        return serving_record(self._result(run))

    def closed_loops(self, todo: Sequence[StudyRun]) -> Iterator[Mapping[str, object]]:
        """Serve closed loops, as many clients as each run has sequences, and yield what vLLM's own benchmark writes of each."""
        with self.ended, self._server(max(todo, key=lambda run: run.input_len)) as port:
            for run in todo:
                self._ask(run, port, ("closed_loop", "synthetic", "kept"))
                yield files.need_object(files.read_json(self._file(run, ".json"), "raw"))

    @contextmanager
    def _server(self, run: StudyRun) -> Iterator[int]:
        """Start and warm up a server with a run's degree, and yield its port."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        with self._process([*self._command("serve", run, port=port), *self._model_args(run)], run) as process:
            self._wait_healthy(process, port, run)
            self._warm_up(port, run)
            yield port

    def _ask(self, run: StudyRun, port: int, client: Sequence[str]) -> None:
        words = [word for part in client for word in self._command(part, run, port=port)]
        self._call([*words, *self.weights.tokenizer], run, "-client.log")

    def environment(self, tp: int) -> dict[str, str]:
        """Give every CPU rank as many cores at each degree, so that a rank of TP=1 is what a rank of TP=n is."""
        if not self.on_cpu:
            return {**os.environ, **self.program.environment}
        cores, share = machine.cores(), self.share
        bound = "|".join(",".join(map(str, cores[r * share : (r + 1) * share])) for r in range(tp))
        usual = {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_OMP_THREADS_BIND": bound, **self.kv.environment}
        usual |= vllm_setup.NOT_COMPILED if self.eager else {}
        return {**usual, **os.environ, **self.program.environment}

    def _call(self, command: list[str], run: StudyRun, ending: str = ".log", **extra: str) -> None:
        with self._process(command, run, ending, **extra) as process:
            try:
                code = process.wait(RUN_S)
            except subprocess.TimeoutExpired:
                raise FailedRunError(f"{run.name}: longer than {RUN_S:.0f} s", "too long") from None
        if code:
            raise failure(f"vllm {command[0]} {command[1]}", code, self._log(run, ending), self.dtype)

    def _wait_healthy(self, process: subprocess.Popen[bytes], port: int, run: StudyRun) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if process.poll() is not None:
                raise failure("vllm serve", process.returncode, self._log(run), self.dtype)
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.5)
        raise FailedRunError(f"vllm serve was not ready after {START_S:.0f} s", "not ready")

    def _warm_up(self, port: int, run: StudyRun) -> None:
        """Send two requests that do not count: libraries' first touches cost seconds at TP > 1."""
        body = {"model": self.weights.name, "prompt": [5] * run.input_len, "max_tokens": 8, "ignore_eos": True}
        as_json = {"Content-Type": "application/json"}
        warming = urllib.request.Request(f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), as_json)
        for _ in range(2):
            with suppress(urllib.error.URLError, TimeoutError), urllib.request.urlopen(warming, timeout=600) as answer:
                answer.read()

    @contextmanager
    def _process(self, command: list[str], run: StudyRun, ending: str = ".log", **extra: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run a command with its log in a file. It and its children never outlive this, however this ends."""
        environment = {**self.environment(run.tp), **extra}
        process = launch.start_process(leash_command([self.program.path, *command]), self._file(run, ending), environment)
        try:
            yield process
        finally:
            launch.end([process], GRACE_S, self.ended)


def _read_applied(run: StudyRun, log: str) -> Applied:
    """Read the degree from the engine's log: its configuration, and the ranks that introduced themselves."""
    parsed = vllm_log.parse(log)
    ranks, tp = max(len(parsed.ranks), parsed.world_size), parsed.tp
    ok = None if not tp and not ranks else tp in (0, run.tp) and ranks in (0, run.tp)
    shown = f"tensor_parallel_size {tp or 'nothing'}, {ranks or 'no'} rank(s), {len(parsed.weights_bytes)} loading weights"
    return {"ok": ok, "found": f"the log says {shown}"}


def _repeated_failure(failures: Sequence[tuple[int, FailedRunError]], tp: int) -> FailedRunError | None:
    """Return the failure that came too often: of a dead engine at any degree, of another kind at this one."""
    here = [f for degree, f in failures if f.died or degree == tp]
    return next((f for f in here if f.kind and sum(f.kind == other.kind for other in here) >= LIKE_FAILURES), None)


def failure(what: str, code: int, log: str, dtype: str = "") -> FailedRunError:
    """Describe a command that ended with ``code`` (negative: by that signal) after writing ``log``."""
    sign = _signal(code, log)
    if sign is None:
        words = _last_words(log)
        text, kind = f"{what} ended with exit code {code}: {words}", f"{code} {re.sub(r'[0-9]+', '#', words)}"
        return FailedRunError(text, kind, unknown_option=_UNKNOWN_OPTION in words)
    reason = _LIKELY.get(sign, "")
    if sign == signal.SIGILL and machine.bf16_note(machine.facts(), dtype):
        reason += f"; {machine.bf16_note(machine.facts(), dtype)}: use --dtype fp32"
    return FailedRunError(f"{what} died of {sign.name}" + (f": {reason}" if reason else ""), sign.name, died=True)


def _signal(code: int, log: str) -> signal.Signals | None:
    """Return the signal that ended the program, or a child whose end its log tells."""
    if code < 0:
        return signal.Signals(-code)
    tail = log[-LOOKED_AT:]
    children = [int(number) for pattern in _CHILD for number in pattern.findall(tail)]
    deadly = [signal.Signals(number) for number in (code - SHELL, *children) if number in _LIKELY]
    return next(iter((*deadly, *(sign for sign, text in _SAID.items() if text in tail))), None)


def _last_words(log: str) -> str:
    """Return the last lines that mention an error, else the last lines."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line] or lines
    return " / ".join(errors[-KEPT_LINES:])[-KEPT_CHARACTERS:]
