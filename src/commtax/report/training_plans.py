"""Training plans as rows: steps with their ranges, tokens a second, and the days and dollars of a run."""

from commtax.planner.columns import ColumnTable, TrainColumns, TrainPlans
from commtax.planner.money import of_run
from commtax.report.documents import Record, facts
from commtax.report.money import price_notes
from commtax.spec import SIZES
from commtax.units import format_bytes, format_seconds

KINDS = ("zero", "recompute", "schedule", "chunks")
TRAINED = (*SIZES, "micro_batch", "gpus", "step_s", "mfu", "memory_bytes", "bubble_fraction", "exposed_comm_fraction")


def tokens_per_s(a: TrainPlans, rows: TrainColumns, i: int) -> float:
    return a.question.goal.global_batch * float(a.question.context) / float(rows.step_s[i])


def ranked_columns(a: TrainPlans, rows: TrainColumns, first: list[int]) -> dict[str, list[str]]:
    """Columns of a table of some plans."""
    steps = [a.step_of(rows, i) for i in first]
    rates = [tokens_per_s(a, rows, i) for i in first]
    runs = [of_run(a.question, int(rows.gpus[i]), rate) for i, rate in zip(first, rates, strict=True)]
    return {
        "plan": [a.gpu_words(rows, i) for i in first],
        ">microbatch": [str(int(rows.micro_batch[i])) for i in first],
        "kind": [a.kind_words(rows, i) for i in first],
        ">step": [format_seconds(rows.step_s[i]) for i in first],
        ">80 % range": [f"{format_seconds(b.low_s)}-{format_seconds(b.high_s)}" for b in steps],
        ">tokens/s": [f"{rate:,.0f}" for rate in rates],
        ">days": [f"{run.days:,.1f}" for run in runs],
        ">$": ["" if run.usd is None else f"{run.usd:,.0f}" for run in runs],
        ">MFU": [f"{rows.mfu[i]:.1%}" for i in first],
        ">bubble": [f"{rows.bubble_fraction[i]:.1%}" for i in first],
        ">comm": [f"{rows.exposed_comm_fraction[i]:.1%}" for i in first],
        ">memory": [format_bytes(rows.memory_bytes[i]) for i in first],
    }


def run_words(a: TrainPlans) -> str:
    """The run's tokens: ``15T``.

    >>> from types import SimpleNamespace as Any
    >>> run_words(Any(question=Any(goal=Any(train_tokens=1.5e12))))
    '1.5T'
    """
    tokens = a.question.goal.train_tokens
    size, unit = next(((size, unit) for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")) if tokens >= size), (1, ""))
    return f"{tokens / size:,g}{unit}"


def run_notes(a: TrainPlans) -> list[str]:
    """What days and dollars are of."""
    run = f"days and dollars are those of {run_words(a)} tokens (--tokens), of steps without a pause"
    return [f"{run}; {'; '.join(price_notes([a.question]))}"]


def trained_row(a: TrainPlans, rows: TrainColumns, i: int) -> Record:
    b, rate = a.step_of(rows, i), tokens_per_s(a, rows, i)
    run = of_run(a.question, int(rows.gpus[i]), rate)
    figures = trained_figures(rows, i)
    figures |= {"step_low_s": b.low_s, "step_high_s": b.high_s, "tokens_per_s": rate, "tokens_per_s_per_gpu": rate / rows.gpus[i]}
    figures |= {"days": run.days, "usd": run.usd, "usd_per_gpu_hour": run.usd_per_gpu_hour or None}
    return figures | facts(a.kinds[int(rows.kind[i])].plan, *KINDS) | {"verdict": a.gpu_words(rows, i)}


def trained_figures(rows: TrainColumns, i: int) -> Record:
    """The sizes and figures of one plan."""
    return facts_at(rows, i, *TRAINED) | {"memory_bytes": round(float(rows.memory_bytes[i]))}


def facts_at(rows: ColumnTable, i: int, *names: str) -> Record:
    """Some columns of one row under their own names."""
    return {name: getattr(rows, name)[i] for name in names}
