"""Turn per-request lengths into the tables that ship: ``python benchmarks/curate_lengths.py OPEN_LOOP_DIR [SHAREGPT_CSV]``.

OPEN_LOOP_DIR holds ``mlperf_lengths`` and ``arrivals``. SHAREGPT_CSV has ``num_prefill_tokens,num_decode_tokens`` in the order in
which ``vllm bench serve`` samples ShareGPT_V3 with seed 0 (JonnyKong/vidur, data/processed_traces/sharegpt_v3_filtered.csv, tokens
of Llama-3.1); of it the first 1,000 are taken, which is what benchmarks send by default. Without it that table stays as it is.
Writes ``src/commtax/catalog/lengths/*.toml``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from commtax.catalog.distributions import quantile_lengths, rank_correlation
from commtax_lab.published.tables import read

OUT = Path(__file__).parents[1] / "src" / "commtax" / "catalog" / "lengths"
SHAREGPT_PROMPTS = 1000
MLPERF_SOURCE = "MLPerf inference data sets, by openshift-psap/performance-dashboard at 71007029fb5bced1d79808e7e64dc4c2af82ea55"
AZURE_SOURCE = "Azure/AzurePublicDataset at b469a113cedca53ddc3bdea71a143dc4b7d8700c, Azure LLM inference trace 2023"
SHAREGPT_SOURCE = (
    "ShareGPT_V3_unfiltered_cleaned_split as vllm bench serve filters and samples it (seed 0, 1,000 prompts, Llama-3 tokens), "
    "by JonnyKong/vidur at 941a76c34cc3135db0dd13250252e4b23f7ea103; "
    "the sums, 215,196 and 198,343 tokens, are those of published runs of that benchmark"
)
NAMES = {
    "llama2-70b": (
        "OpenOrca, as MLPerf sends it to Llama-2-70B",
        "outputs are GPT-4's reference answers; runs produce 271 to 301 on average",
    ),
    "mixtral-8x7b": ("OpenOrca, GSM8K and MBXP, as MLPerf sends them to Mixtral-8x7B", ""),
    "llama3.1-405b": ("LongBench, LongDataCollections, RULER and GovReport summaries, as MLPerf sends them to Llama-3.1-405B", ""),
    "llama3.1-8b": ("CNN/DailyMail, as MLPerf sends it to Llama-3.1-8B", "every answer has 128 tokens, the benchmark's limit"),
    "deepseek-r1": (
        "Mathematics, code and questions, as MLPerf sends them to DeepSeek-R1",
        "outputs are the reference's; runs produce 3,676 to 3,767",
    ),
    "gpt-oss-120b": ("Questions with reasoning, as MLPerf sends them to gpt-oss-120b", "outputs are not published"),
}
FIXED_OUTPUTS = {"llama3.1-8b": 128}
Column = np.ndarray


def columns(path: Path, *names: str) -> list[Column]:
    header, rows = read(path)
    return [np.array([float(row[header.index(name)]) for row in rows]) for name in names if name in header]


def side(title: str, values: Column) -> str:
    table = quantile_lengths(values)
    points = ", ".join(f"{q:.5g}" for q in table.quantiles)
    return f"\n[{title}]\nmean = {table.mean:.6g}\nquantiles = [{points}]\n"


def write(key: str, name: str, source: str, licence: str, note: str, sides: list[Column]) -> None:
    facts = [f'key = "{key}"', f'name = "{name}"', f"samples = {len(sides[0])}", f'source = "{source}"', f'licence = "{licence}"']
    if note:
        facts.append(f'note = "{note}"')
    if len(sides) == 2:
        facts.append(f"correlation = {rank_correlation(*sides):.3f}")
    text = "\n".join(facts) + "\n" + "".join(side(*pair) for pair in zip(("inputs", "outputs"), sides, strict=False))
    (OUT / f"{key}.toml").write_text(text, encoding="utf-8")
    print(f"{key}: {len(sides[0]):,} requests, means {[round(float(s.mean()), 1) for s in sides]}")


def main(folder: Path, sharegpt: Path | None) -> None:
    OUT.mkdir(exist_ok=True)
    for key, (name, note) in NAMES.items():
        sides = columns(folder / "mlperf_lengths" / f"{key}.csv.gz", "input_tokens", "output_tokens")
        if key in FIXED_OUTPUTS:
            sides.append(np.full(len(sides[0]), float(FIXED_OUTPUTS[key])))
        write(f"mlperf-{key}", name, MLPERF_SOURCE, "Apache-2.0", note, sides)
    for key, name in {"conv": "Conversations on Azure, 2023", "code": "Code completion on Azure, 2023"}.items():
        sides = columns(folder / "arrivals" / f"azure_2023_{key}.csv.gz", "input_tokens", "output_tokens")
        write(f"azure-{key}", name, AZURE_SOURCE, "CC-BY-4.0", "", sides)
    if sharegpt:
        sides = [s[:SHAREGPT_PROMPTS] for s in columns(sharegpt, "num_prefill_tokens", "num_decode_tokens")]
        write(
            "sharegpt",
            "ShareGPT conversations' first turns, as vllm bench serve sends them",
            SHAREGPT_SOURCE,
            "Apache-2.0",
            "",
            sides,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
