"""A stand-in for the ``vllm`` program where the real one cannot run: it answers with results, logs and traces of a real run.

Recorded with vLLM 0.32 on CPU (tests/fixtures). It keeps to what the real program does with the driver's options; what it cannot
show is time. FAKE_VLLM_FAIL makes commands that contain a word fail, FAKE_VLLM_OLD refuses the newer profiler option,
FAKE_VLLM_DIES ends every benchmark by SIGILL (in the program itself, or told of a child as vLLM tells it), and
FAKE_VLLM_STUBBORN does not end when asked. FAKE_VLLM_NAMELESS asks for its own metadata, as the CPU wheel of 0.32 does;
FAKE_VLLM_BROKEN says why it cannot be loaded.
"""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

FIXTURES = Path(os.environ["FAKE_VLLM_FIXTURES"])


def option(name, default=""):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def say_log(tp):
    applied = os.environ.get("FAKE_VLLM_APPLIED", tp)
    sys.stdout.write((FIXTURES / f"vllm-cpu-tp{applied}.log").read_text())


def latency(tp):
    found = json.loads((FIXTURES / f"vllm-cpu-tp{tp}.latency.json").read_text())
    share = float(option("--batch-size")) ** 0.5 * (1 if int(option("--output-len")) > 1 else 0.1)
    found["latencies"] = [x * share for x in found["latencies"]]
    found["avg_latency"] *= share
    Path(option("--output-json")).write_text(json.dumps(found))


def profile():
    if "--profiler-config" in sys.argv:
        if "FAKE_VLLM_OLD" in os.environ:
            sys.exit("vllm: error: unrecognized arguments: --profiler-config")
        folder = json.loads(option("--profiler-config"))["torch_profiler_dir"]
    else:
        folder = os.environ["VLLM_TORCH_PROFILER_DIR"]
    for rank in (0, 1):
        shutil.copy(FIXTURES / f"vllm-cpu-tp2-rank{rank}.trace.json.gz", Path(folder) / f"rank{rank}.1.pt.trace.json.gz")


def serve():
    import http.server  # a tenth of a second, which no other command needs

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

    http.server.HTTPServer((option("--host"), int(option("--port"))), Answer).serve_forever()


def closed_loop(found):
    """The recorded run as if so many clients had waited for their answers, in requests of the lengths asked for."""
    count, clients = int(option("--num-prompts")), int(option("--max-concurrency"))
    lengths = {f"total_{kind}_tokens": count * int(option(f"--random-{kind}-len")) for kind in ("input", "output")}
    times = {key: found[key] * clients**0.5 for key in ("mean_ttft_ms", "mean_tpot_ms")}
    return {
        "completed": count, "max_concurrency": clients, "request_rate": "inf", "output_lens": [], "input_lens": [], **lengths,
        **times,
    }  # fmt: skip


def own_version():
    import importlib.metadata

    return importlib.metadata.version("vllm")


def die():
    if os.environ["FAKE_VLLM_DIES"] == "itself":
        os.kill(os.getpid(), signal.SIGILL)
    sys.exit("RuntimeError: Engine core initialization failed. Failed core proc(s): {'EngineCore_DP0': -4}\nasyncio.CancelledError")


def main():
    with open(os.environ["FAKE_VLLM_CALLS"], "a") as file:
        told = {name: os.environ.get(f"VLLM_CPU_{name}", "") for name in ("OMP_THREADS_BIND", "KVCACHE_SPACE")}
        file.write(json.dumps({"words": sys.argv[1:], "bind": told["OMP_THREADS_BIND"], "kv": told["KVCACHE_SPACE"]}) + "\n")
    words = " ".join(sys.argv[1:])
    if "FAKE_VLLM_BROKEN" in os.environ:
        sys.exit(os.environ["FAKE_VLLM_BROKEN"])
    version = own_version() if "FAKE_VLLM_NAMELESS" in os.environ else "0.32.0+cpu"
    if os.environ.get("FAKE_VLLM_FAIL") and os.environ["FAKE_VLLM_FAIL"] in words:
        sys.exit("ValueError: not enough devices")
    tp = option("--tensor-parallel-size", "1")
    if words != "--version" and "FAKE_VLLM_DIES" in os.environ:
        die()
    if words != "--version" and "FAKE_VLLM_STUBBORN" in os.environ:
        for sign in (signal.SIGINT, signal.SIGTERM):
            signal.signal(sign, signal.SIG_IGN)
        time.sleep(600)
    if words == "--version":
        sys.stdout.write(f"{version}\n")
    elif words.startswith("serve"):
        say_log(tp)
        sys.stdout.flush()
        serve()
    elif words.startswith("bench serve"):
        found = json.loads((FIXTURES / "vllm-cpu-tp1.serve.json").read_text())
        if "--max-concurrency" in sys.argv:
            found |= closed_loop(found)
        (Path(option("--result-dir")) / option("--result-filename")).write_text(json.dumps(found))
    elif words.startswith("bench throughput"):
        if "FAKE_VLLM_OLD" in os.environ and "--random-input-len" in words:
            sys.exit("vllm: error: unrecognized arguments: --random-input-len")
        say_log(tp)
        shutil.copy(FIXTURES / "vllm-cpu-tp1.throughput.json", option("--output-json"))
    else:
        say_log(tp)
        profile() if "--profile" in sys.argv else latency(tp)


main()
