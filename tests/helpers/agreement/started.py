"""What ``plan --emit`` prints, pasted into ``simulate --from`` or ``bill --from``: the same plan, with the same figures."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from random import Random
from typing import Any

from cli_run import told_here
from commtax.catalog.programs import programs
from commtax.judgement.margins import ratio_error
from commtax.launch.deployment import FORMS, TRAINING
from commtax.planner.columns import USUAL
from commtax.verbs.settling import resolve_question

ROUNDED = 1e-4  # less than what is printed shows: what is emitted caps requests at their peak, where almost none waits
CHIPS = ("h100-sxm", "h200-sxm", "a100-80-sxm", "b200-sxm", "l40s", "mi300x")
MODELS = (
    "llama-3.2-1b", "llama-3.1-8b", "qwen2.5-7b", "gpt-oss-20b", "qwen3-30b-a3b", "mixtral-8x7b", "gpt-oss-120b", "llama-3.3-70b",
)  # fmt: skip
SERVED = ("ttft_s", "tpot_s", "tokens_per_s")


def _some(rng: Random, **choices: tuple[object, ...]) -> list[str]:
    """Some options, each said or left out."""
    said = [(f"--{name.replace('_', '-')}", str(rng.choice(values))) for name, values in choices.items() if rng.random() < 0.4]
    return [word for pair in said for word in pair]


def emitted_servers_have_the_plan_s_times(rng: Random) -> str | None:
    """TTFT, TPOT and tokens/s of the plan that is named first, whatever starts it: an engine, Slurm, Kubernetes and the others."""
    chip, engine = rng.choice(CHIPS), rng.choice(("vllm", "vllm", "sglang", "trtllm"))
    places = ["-c", f"{rng.choice((1, 2, 4, 8))}x{chip}"]
    if rng.random() < 0.2:
        places += ["--prefill-cluster", f"{rng.choice((1, 2, 4))}x{rng.choice(CHIPS)}"]
    lengths = ["--input-len", str(rng.choice((128, 1024, 3000))), "--output-len", str(rng.choice((16, 128, 300)))]
    fp8 = _some(rng, dtype=("fp8",))
    asked = fp8 + _some(rng, ttft=("300ms", "2s"), tpot=("10ms", "30ms", "80ms"), objective=("latency", "cost", "gpus"))
    asked += _some(rng, techniques=("auto",), kv_dtype=("fp8",), max_concurrency=(8, 64)) if rng.random() < 0.5 else []
    form, model = rng.choice((engine, engine, *FORMS)), rng.choice(MODELS)
    told = told_here("plan", model, *places, "--engine", engine, *lengths, *asked, "--emit", form)
    if told.returncode:
        return None
    document = json.loads(told.document)
    usual = next((point["recommended"] for point in document["places"] if point["place"] == USUAL), document["recommended"])
    pasted = document["emit"]["launch"], *places, *lengths, "--concurrency", usual["concurrency"]
    said = f"{model} {' '.join([*places, '--engine', engine, *lengths, *asked])} --emit {form}: {usual['verdict']}"
    again = told_here("simulate", "--from", *pasted, *(fp8 if "needs a checkpoint" in pasted[0] else ()))
    if again.returncode:
        return f"{said}: exit code {again.returncode}, {again.stderr or again.stdout}"
    answer = json.loads(again.document)
    freed = 1e-3 if "max-num-seqs" in pasted[0] else ROUNDED  # fewer sequences sample fewer logits, whose room goes to the cache
    differs = list(_differences(usual, answer["runs"][0], SERVED, freed))
    if answer["gpus"] != usual["gpus"]:
        differs.append(f"{answer['gpus']} GPUs instead of {usual['gpus']}")
    return f"{said}: {'; '.join(differs)}\n{pasted[0]}" if differs else ""


def emitted_jobs_take_the_plan_s_step(rng: Random) -> str | None:
    """The step of the training plan that is recommended, which leaves GPUs idle only where it is surely faster."""
    engine = rng.choice([one for one in programs() if one.trains])
    place = ["-c", f"{rng.choice(('', '2x'))}{rng.choice((2, 4, 8))}x{rng.choice(CHIPS)}", "--engine", engine.key]
    asked = ["--global-batch", str(rng.choice((8, 24, 32))), *_some(rng, input_len=(1024, 4096, 8192))]
    form, model = rng.choice((engine.emitted_as, engine.emitted_as, *TRAINING)), rng.choice(MODELS[:7])
    told = told_here("plan", model, *place, "--phase", "train", *asked, "--emit", form)
    if told.returncode:
        return None
    document = json.loads(told.document)
    own, launch = document["recommended"], document["emit"]["launch"]
    again = told_here("bill", model, "--from", launch, *place[:2])
    said = f"{model} {' '.join([*place, *asked])} --emit {form}: {own['verdict']}"
    if again.returncode not in (0, 1):
        return f"{said}: exit code {again.returncode}, {again.stderr or again.stdout}\n{launch}"
    differs = list(_differences(own, json.loads(again.document), ("step_s", "tokens_per_s")))
    error = ratio_error(resolve_question(model, place[1], {}, "train"))
    near = own["step_s"] * (1 + error)
    wider = [row["verdict"] for row in document["plans"] if row["gpus"] > own["gpus"] and row["step_s"] <= near]
    differs += [f"{wider[0]} uses more GPUs and is too close to call"] if wider else []
    return f"{said}: {'; '.join(differs)}\n{launch}" if differs else ""


def _differences(promised: dict[str, Any], found: dict[str, Any], names: tuple[str, ...], within: float = ROUNDED) -> Iterator[str]:
    for name in names:
        one, other = promised[name], found[name]
        if (one is None) != (other is None) or not math.isclose(one or 0.0, other or 0.0, rel_tol=within):
            yield f"{name} {one} in the plan, {other} of what is emitted"


LAWS = {law.__name__: (law, 2) for law in (emitted_servers_have_the_plan_s_times, emitted_jobs_take_the_plan_s_step)}
