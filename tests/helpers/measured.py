"""Runs of deployments as a machine would have measured them whose constants are not the catalogue's."""

import numpy as np

from commtax import catalog
from commtax.runs.calibrate.learning import learn
from commtax.runs.calibrate.measurements import MeasuredRun
from commtax.spec import Profile
from commtax.verbs.closed_loop import simulate

MODEL, CLUSTER = "llama-3.1-70b", "8xh100-sxm"
LOADS = [(1, 1024, 256), (8, 1024, 256), (32, 1024, 256), (64, 1024, 256), (16, 4096, 512), (64, 4096, 512)]


def slower(**times):
    """The usual engine with constants that are so many times the catalogue's."""
    engine = catalog.engine("vllm")
    return engine.but(**{n: getattr(engine.paces if n.startswith("pace_") else engine.host, n) * x for n, x in times.items()})


def measured(loads=LOADS, scatter=0.0, seed=0, model=MODEL, tp=4, **times):
    """Runs at some loads on such a machine, with a scatter of logarithms."""
    draw, place, made = np.random.default_rng(seed), catalog.cluster(CLUSTER), []
    for clients, prompt, output in loads:
        options = {"tp": tp, "concurrency": clients, "input_len": prompt, "output_len": output, "num_prompts": 10 * clients}
        told = simulate(model, place, engine=slower(**times), **options)
        seen = {m: float(getattr(told, f"{m}_s")) * np.exp(scatter * draw.standard_normal()) for m in ("tpot", "ttft")}
        put = {**options, "engine": catalog.engine("vllm")}
        made.append(MeasuredRun(model, place, put, seen, {}, f"{clients} at {prompt}/{output}"))
    return made


def profile(runs, name="box"):
    return learn(runs, Profile(name)).profile
