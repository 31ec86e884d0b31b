"""The commands that would check a prediction: a serving benchmark, and one collective."""

from __future__ import annotations

from commtax.cost.placement import span
from commtax.emit.job import SERVING, model_id
from commtax.ledger import Line
from commtax.question import SPREAD
from commtax.readers.launch.flags import spelled
from commtax.readers.nccl_tests import OPS
from commtax.spec import Model
from commtax.statement import Refusal
from commtax.units import format_bytes
from commtax.verbs.billing import StepBill

BENCHMARKS = {
    "vllm": ("vllm bench serve", ["--ignore-eos"], "--save-result"),
    "sglang": ("python -m sglang.bench_serving --backend sglang", [], "--output-file bench.jsonl"),
    "trtllm": (
        "python -m tensorrt_llm.serve.scripts.benchmark_serving --backend openai",
        ["--random-ids --ignore-eos"],
        "--save-result",
    ),
}
"""Each engine's own tool, what makes its requests as long as they are told to be, and where it keeps the result."""
PERF = {op: f"{program}_perf" for program, op in OPS.items()}


def benchmark_command(
    model: Model,
    engine: str,
    *,
    input_len: int = 1024,
    output_len: int = 128,
    concurrency: int = 1,
    num_prompts: int = 0,
    spread: float = SPREAD,
) -> str:
    """The closed-loop benchmark of the engine's own tool that ``commtax simulate`` predicts and ``commtax audit`` reads.

    vLLM's and TensorRT-LLM's range ratio is the spread around the stated length, SGLang's the shortest over the longest.
    """
    name = model_id(model)
    if engine not in SERVING:
        raise Refusal(
            f"emit '{engine}': {', '.join(SERVING)} have a serving benchmark; training is checked with its own log", "emit"
        )
    tool, exact, kept = BENCHMARKS[engine]
    top = 1 + spread if engine == "sglang" else 1.0
    ratio = (1 - spread) / (1 + spread) if engine == "sglang" else spread
    lengths = spelled(engine, input_len=round(input_len * top), output_len=round(output_len * top), range_ratio=f"{ratio:.4g}")
    load = [*spelled(engine, concurrency=concurrency), f"--num-prompts {num_prompts or max(10 * concurrency, 10)}"]
    return " ".join([tool, f"--model {name} --dataset-name random", *lengths, *exact, *load, kept])


def nccl_command(priced: StepBill, line: Line | None = None) -> str:
    """nccl-tests on one collective of a bill, the one that costs most unless told; "" where nothing is sent."""
    lines = [x for x in priced.items if x.kind == "comm" and float(x.exposed_s) > 0]
    if not lines:
        return ""
    top = line or max(lines, key=lambda x: float(x.exposed_s))
    ranks, size = int(top.item.ranks), max(4, int(top.item.nbytes))
    cluster, crosses = priced.question.cluster, str(top.link) == priced.question.cluster.inter.key
    tool, sizes = PERF[top.item.op], f"-b {size} -e {size} -n 100 -w 20"
    remark = f"# {top.item.what}: {top.item.op} of {format_bytes(float(top.item.nbytes))} over {ranks} ranks"
    if not crosses:
        return f"{tool} {sizes} -g {ranks}  {remark}"
    lies = span(top.item.axis, priced.question.plan, cluster, priced.question.engine)
    per = max(1, min(cluster.gpus_per_host, ranks, int(lies.ranks_per_domain)))
    return f"mpirun -np {ranks} -N {per} {tool} {sizes} -g 1  {remark}"
