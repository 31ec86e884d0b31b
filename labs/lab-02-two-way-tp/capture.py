"""The live part: a small random model on two real processes, run once and kept. ``show()`` prints it with remarks."""

import functools
import json
import tempfile
from pathlib import Path

from commtax_lab.measure.job import LiveJob
from commtax_lab.measure.tp import run_all

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 512,
    "max_position_embeddings": 256,
}
PROMPT, OUTPUT, BATCH, BLOCK = 20, 8, 2, 16
SLOW = {"slow_rank": "1:30"}


def run(device, *changes):
    """TP=1, two TP=1 replicas and TP=2 of the same random model, once for each change: what ranks held, sent and waited for."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        question = {"tp": 2, "random": True, "batch": BATCH, "input_len": PROMPT, "output_len": OUTPUT, "device": device}
        if device == "cpu":
            question["dtype"] = "fp32"
        return run_all([LiveJob(model=folder, **{**question, **change}) for change in changes], timeout_s=300)


@functools.cache
def both():
    """As it is, and with a slow rank: one start of two processes serves both."""
    return run("cpu", {}, SLOW)


def live():
    return both()[0]


def dragged():
    return both()[1]


def show():
    """The capture as ``commtax measure tp`` prints it (python capture.py)."""
    from rich.console import Console

    from commtax_lab.cli.measuring import show_tp

    show_tp(Console(width=140), run("cpu", {})[0])


if __name__ == "__main__":
    show()
