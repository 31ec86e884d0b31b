"""Public start-up logs of vLLM, and what fits by the question that each was started with."""

import json
from dataclasses import replace

import commtax
from commtax import catalog
from commtax.catalog.hf import from_config
from commtax.catalog.quantisation import quant_from
from paths import FIXTURES

GIB = 2**30
LOGS = json.loads((FIXTURES / "vllm_logs.json").read_text())


def of_log(row):
    """The model, the cluster and the fit of one logged start."""
    model = from_config(row["config"], row["model"]) if "config" in row else catalog.model(row["model"])
    if "quantization_config" in row:
        model = replace(model, quant=quant_from(row["quantization_config"], model.key))
    args = row["args"]
    cluster = catalog.cluster(f"{args['tp'] * args.get('pp', 1)}x{row['chip']}")
    if "total_gib" in row:
        cluster = replace(cluster, chip=replace(cluster.chip, visible_bytes=row["total_gib"] * GIB))
    return model, commtax.fit(model, cluster, **args)


def name(row):
    return f"{row['model']}-{row['chip']}-tp{row['args']['tp']}-{row['version'].split()[0]}"
