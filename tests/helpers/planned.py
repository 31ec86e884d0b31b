"""Questions to the planner, its command, and what its answers are worth."""

import math

from hypothesis import strategies as st

from cli_run import run_here
from commtax.planner import crew
from commtax.planner.columns import objective_value

MODELS = ("llama-3.2-1b", "llama-3.1-8b", "qwen3-8b", "qwen3-30b-a3b", "mixtral-8x7b", "llama-3.1-70b")
CLUSTERS = ("4xh100-sxm", "2x4xa100-80-sxm", "8xl40s", "2x8xh100-sxm")


@st.composite
def questions(draw):
    return {
        "model": draw(st.sampled_from(MODELS)),
        "cluster": draw(st.sampled_from(CLUSTERS)),
        "input_len": draw(st.sampled_from((128, 1024, 4096))),
        "output_len": draw(st.sampled_from((32, 256))),
        "ttft_s": draw(st.sampled_from((0.2, 2.0, math.inf))),
        "tpot_s": draw(st.sampled_from((0.008, 0.02, math.inf))),
        "objective": draw(st.sampled_from(("throughput", "latency", "cost", "gpus"))),
        "engine": draw(st.sampled_from(("vllm", "sglang", "trtllm"))),
    }


def command(*words):
    done = run_here("plan", *words)
    return done.returncode, done.stdout, done.stderr


def value(found):
    """What the objective counts; nothing good is worth nothing."""
    return float(objective_value(found.question, found.plans)[0]) if len(found.plans) else 0.0


def share_out(answers):
    """What a spawned process runs: it must be able to import it."""
    answers.put(sorted(crew.Processes(2).each(abs, [-1, -2])))
