"""The study on an installed vLLM: drives its ``bench latency``, ``throughput`` and ``serve``, and reads what they leave.

vLLM stays a program of its own, found on PATH or given; nothing of it is imported. Its log says whether the degree
was really applied.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from commtax import catalog
from commtax.measure import machine
from commtax.measure.launch import Ended
from commtax.readers import bench, kineto, vllm_log
from commtax.statement import Refusal
from commtax.study import recipe
from commtax.study.deaths import Failure, failure
from commtax.study.leash import leashed
from commtax.study.outcomes import allreduces, served

KINDS = ("latency", "first", "batch", "profile", "serve", "throughput")
START_S = 1200.0  # a large model takes minutes to load
RUN_S = 7200.0
GRACE_S = {signal.SIGINT: 20.0, signal.SIGTERM: 5.0, signal.SIGKILL: 5.0}
POLL_S = 0.1
LIKE_FAILURES = 2  # after as many of one kind the rest would fail alike
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
Record = dict[str, Any]


class FailedRunError(RuntimeError):
    """A command of the engine ended badly: ``failure`` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class Vllm:
    """Driver of an installed vLLM."""

    kinds = KINDS
    library = ""

    def __init__(
        self, model: str, degrees: Sequence[int], recipe: recipe.Recipe, dataset: str, raw: Path, path: str, args: str, dtype: str
    ) -> None:
        self.path = _found(path)
        self.name, self.degrees, self.recipe, self.dataset, self.raw = model, tuple(degrees), recipe, dataset, raw
        self.model = catalog.model(model)
        self.version = _version(self.path)
        self.on_cpu = "cpu" in self.version
        self.args = [*shlex.split(args), *(["--enforce-eager"] if self.on_cpu and "--enforce-eager" not in args else [])]
        self.eager = "--enforce-eager" in self.args
        # quantised weights keep their own type
        self.dtype = dtype or ("" if self.model.quant else machine.served_dtype(machine.facts(), self.on_cpu))
        self.ended = Ended()
        self.gpus = [] if self.on_cpu else _gpus()

    @property
    def device(self) -> str:
        if self.on_cpu:
            return f"{os.cpu_count()} CPU cores, {self._share()} a rank"
        return f"{len(self.gpus)} x {self.gpus[0]}" if self.gpus else "unknown device"

    @property
    def where(self) -> str:
        """The cluster that is priced: this machine's chips where the catalogue has them."""
        size = max(2, *self.degrees)
        if self.on_cpu:
            return f"{size}xcpu"
        words = self.gpus[0].lower().replace("-", " ").split() if self.gpus else []
        scored = [(sum(part in words for part in key.split("-")), key) for key in catalog.keys("chips")]
        score, key = max(scored)
        return f"{size}x{key}" if score else ""

    def checks(self) -> list[Record]:
        found = [{"check": "vLLM found", "ok": True, "found": self.version}]
        if self.on_cpu:
            cores = len(machine.cores())
            text = f"{cores} cores, {self._share()} a rank at every degree"
            slow = machine.bf16_note(machine.facts(), self.dtype)
            found += [{"check": "bf16 instructions", "ok": False, "found": f"{slow}; use --dtype fp32"}] if slow else []
            return [*found, {"check": "a core for each rank", "ok": cores >= max(self.degrees), "found": text}]
        return [*found, {"check": "GPUs for the largest degree", "ok": len(self.gpus) >= max(self.degrees), "found": self.device}]

    def run(self, todo: Sequence[recipe.Run], done: Callable[[recipe.Run, Record], None]) -> None:
        """Every run in its own processes; one that fails is told as such, and the others go on, until failures are alike."""
        failures: list[tuple[int, Failure]] = []
        with self.ended:  # the engine's processes are ended too, whichever way this one is
            for run in todo:
                alike = _alike(failures, run.tp)
                if alike:
                    done(run, {"error": f"not tried, after {LIKE_FAILURES} like failures: {alike.text}"})
                    continue
                try:
                    record = self._one(run)
                except FailedRunError as error:
                    failures.append((run.tp, error.failure))
                    record = {"error": str(error)}
                except (ValueError, OSError) as error:
                    record = {"error": str(error)}
                done(run, record)

    def _one(self, run: recipe.Run) -> Record:
        if run.kind == "serve":
            return self._serve(run)
        if run.kind == "profile":
            return self._profile(run)
        file, log = self.raw / f"{run.name}.json", self.raw / f"{run.name}.log"
        file.unlink(missing_ok=True)
        if run.kind == "throughput":
            self._either(self._throughput(run, file, "--random-"), self._throughput(run, file, "--"), run, log)
        else:
            self._call(self._latency(run, file), run, log)
        found = bench.parse(file.read_text(encoding="utf-8"), run.name)[0]
        record: Record = {"applied": self._applied(run, log)}
        if run.kind == "throughput":
            return {**record, "requests_per_s": found.requests_per_s, "total_tokens_per_s": found.total_tokens_per_s}
        return {**record, "latency_s": list(found.latencies_s) or [found.seconds("e2el")], "prefill_s": [], "decode_s": []}

    def _model_args(self, run: recipe.Run) -> list[str]:
        dtype = ["--dtype", DTYPES.get(self.dtype, self.dtype)] if self.dtype else []
        needed = max(self.recipe.longest, 2 * recipe.LONGEST if self.dataset else 0)
        room = min(self.model.max_len, needed)
        return ["--tensor-parallel-size", str(run.tp), "--max-model-len", str(room), *dtype, *self.args]

    def _latency(self, run: recipe.Run, file: Path | None) -> list[str]:
        sizes = ["--batch-size", str(run.batch), "--input-len", str(run.input_len), "--output-len", str(run.output_len)]
        turns = ["--num-iters-warmup", str(max(2, run.iters // 2)), "--num-iters", str(run.iters)]
        kept = ["--output-json", str(file)] if file else []
        return ["bench", "latency", "--model", self.name, *sizes, *turns, *self._model_args(run), *kept]

    def _throughput(self, run: recipe.Run, file: Path, prefix: str) -> list[str]:
        """Newer versions have lengths of their own for random prompts, and let these win over the plain ones."""
        sizes = [f"{prefix}input-len", str(run.input_len), f"{prefix}output-len", str(run.output_len)]
        sent = [*sizes, "--num-prompts", str(run.iters)]
        return ["bench", "throughput", "--model", self.name, *sent, *self._model_args(run), "--output-json", str(file)]

    def _either(self, new: list[str], old: list[str], run: recipe.Run, log: Path, extra: dict[str, str] | None = None) -> None:
        """The newer spelling of a command; where the version does not know it, the older one."""
        try:
            self._call(new, run, log)
        except FailedRunError as error:
            if "unrecognized" not in str(error):
                raise
            self._call(old, run, log, extra)

    def _profile(self, run: recipe.Run) -> Record:
        """A traced batch. Newer versions take the profiler as an option, older ones from the environment."""
        folder, log = self.raw / run.name, self.raw / f"{run.name}.log"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        command = [*self._latency(run, None), "--profile"]
        facts = {"profiler": "torch", "torch_profiler_dir": str(folder), "torch_profiler_record_shapes": True}
        option = ["--profiler-config", json.dumps({**facts, "torch_profiler_with_stack": False})]
        old = {"VLLM_TORCH_PROFILER_DIR": str(folder), "VLLM_TORCH_PROFILER_RECORD_SHAPES": "1"}
        self._either([*command, *option], command, run, log, old)
        files = sorted(folder.rglob("*.trace.json*"))
        if not files:
            raise FailedRunError(Failure(f"{run.name}: the profiler left no trace"))
        traces = {t.rank: t for t in map(kineto.read, files) if t.collectives or run.tp == 1}
        if not traces:
            raise FailedRunError(Failure(f"{run.name}: no collective in any of {len(files)} traces"))
        return {"applied": self._applied(run, log), "profile": allreduces(list(traces.values()))}

    def _serve(self, run: recipe.Run) -> Record:
        port = _free_port()
        log, file = self.raw / f"{run.name}.log", self.raw / f"{run.name}.json"
        file.unlink(missing_ok=True)
        server = ["serve", self.name, "--host", "127.0.0.1", "--port", str(port), *self._model_args(run)]
        with self._process(server, run, log) as process:
            self._wait_healthy(process, port, log)
            _warm(port, self.name, run)
            self._call(self._client(run, port, file), run, self.raw / f"{run.name}-client.log")
        found = bench.parse(file.read_text(encoding="utf-8"), run.name)[0]
        return {"applied": self._applied(run, log), **served(found)}

    def _client(self, run: recipe.Run, port: int, file: Path) -> list[str]:
        sent = ["--num-prompts", str(run.iters), "--request-rate", str(run.rate_per_s), "--ignore-eos"]
        if self.dataset:
            sent += ["--dataset-name", "sharegpt", "--dataset-path", self.dataset]
        else:
            sizes = ["--random-input-len", str(run.input_len), "--random-output-len", str(run.output_len)]
            sent += ["--dataset-name", "random", *sizes, "--random-range-ratio", str(recipe.SPREAD)]
        kept = ["--save-result", "--result-dir", str(file.parent), "--result-filename", file.name]
        told = ["--percentile-metrics", "ttft,tpot,itl,e2el", "--metadata", f"tensor_parallel_size={run.tp}"]
        where = ["--backend", "vllm", "--host", "127.0.0.1", "--port", str(port), "--model", self.name]
        return ["bench", "serve", *where, *sent, *kept, *told]

    def _applied(self, run: recipe.Run, log: Path) -> Record:
        """What the engine's own log says of the degree: its configuration, and the ranks that introduced themselves."""
        said = vllm_log.parse(log.read_text(encoding="utf-8", errors="replace"))
        ranks = max(len(said.ranks), said.world_size)
        loaded = len(said.weights_bytes)
        ok = None if not said.tp and not ranks else said.tp in (0, run.tp) and ranks in (0, run.tp)
        words = f"the log says tensor_parallel_size {said.tp or 'nothing'}, {ranks or 'no'} rank(s), {loaded} loading weights"
        return {"ok": ok, "found": words}

    def _share(self) -> int:
        return machine.share(max(self.degrees))

    def environment(self, tp: int) -> dict[str, str]:
        """On CPUs every rank gets as many cores at each degree, so that a rank of TP=1 is what a rank of TP=n is."""
        if not self.on_cpu:
            return dict(os.environ)
        cores, share = machine.cores(), self._share()
        bound = "|".join(",".join(map(str, cores[r * share : (r + 1) * share])) for r in range(tp))
        return {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_OMP_THREADS_BIND": bound, **os.environ}

    def _call(self, words: list[str], run: recipe.Run, log: Path, extra: dict[str, str] | None = None) -> None:
        with self._process(words, run, log, extra) as process:
            try:
                code = process.wait(RUN_S)
            except subprocess.TimeoutExpired:
                raise FailedRunError(Failure(f"{run.name}: longer than {RUN_S:.0f} s", "too long")) from None
        if code:
            raise FailedRunError(self._failure(" ".join(words[:2] if words[0] == "bench" else words[:1]), code, log))

    def _failure(self, verb: str, code: int, log: Path) -> Failure:
        return failure(f"vllm {verb}", code, log.read_text(encoding="utf-8", errors="replace"), self.dtype)

    def _wait_healthy(self, process: Any, port: int, log: Path) -> None:
        until = time.monotonic() + START_S
        while time.monotonic() < until:
            if process.poll() is not None:
                raise FailedRunError(self._failure("serve", process.returncode, log))
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
            time.sleep(0.5)
        raise FailedRunError(Failure(f"vllm serve was not ready after {START_S:.0f} s", "not ready"))

    @contextmanager
    def _process(self, words: list[str], run: recipe.Run, log: Path, extra: dict[str, str] | None = None) -> Iterator[Any]:
        """One command with its log in a file; it and its children never outlive this, however this ends."""
        environment = {**self.environment(run.tp), **(extra or {})}
        command = leashed([self.path, *words])
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
            )
            try:
                yield process
            finally:
                self._stop(process)

    def _stop(self, process: Any) -> None:
        """Interrupt, then insist, at once when asked a second time; the session's other processes go too."""
        for sign, patience in GRACE_S.items():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, sign)
            until = time.monotonic() + patience
            while process.poll() is None and time.monotonic() < until and not self.ended.urgent:
                time.sleep(POLL_S)
        process.wait()


def _alike(failures: Sequence[tuple[int, Failure]], tp: int) -> Failure | None:
    """The failure that has come too often: of a dead engine at any degree, of another kind at this one."""
    mine = [f for degree, f in failures if f.died or degree == tp]
    return next((f for f in mine if f.kind and sum(f.kind == other.kind for other in mine) >= LIKE_FAILURES), None)


def _found(path: str) -> str:
    found = shutil.which(path or "vllm")
    if not found:
        raise Refusal(f"vllm '{path or 'vllm'}': no such program; install vLLM, or say where it is with --vllm PATH")
    return found


def _version(path: str) -> str:
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=300)
    words = done.stdout.split()
    if done.returncode or not words:
        raise Refusal(f"vllm '{path}': it does not run ({' '.join(done.stderr.split())[-200:]})")
    return words[-1]


def _gpus() -> list[str]:
    tool = shutil.which("nvidia-smi")
    if not tool:
        return []
    asked = [tool, "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60).stdout.splitlines()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _warm(port: int, model: str, run: recipe.Run) -> None:
    """Two requests that do not count: libraries' first touches cost seconds at TP > 1."""
    body = {"model": model, "prompt": [5] * run.input_len, "max_tokens": 8, "ignore_eos": True}
    for _ in range(2):
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with suppress(urllib.error.URLError, TimeoutError), urllib.request.urlopen(asked, timeout=600) as answer:
            answer.read()
