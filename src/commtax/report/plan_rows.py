"""All plans of a search as rows for tables: words where the search has codes."""

from commtax.planner import ranking as choosing
from commtax.planner.columns import ServingPlans, TrainPlans
from commtax.report.documents import Record
from commtax.report.plan_tables import facts_at
from commtax.report.trained_plans import trained_figures

CODED = ("mode", "dtype", "exchange", "sure_ttft_s", "sure_tpot_s")
"""Columns of a search that no table shows: codes, and times with a margin that limits were held against."""


def served_rows(a: ServingPlans) -> list[Record]:
    """Every good plan, best first; ranges and dollars per month are in the document."""
    rows, q, usd = a.plans, a.question, a.usd_per_million_tokens(a.plans)
    kinds, figures = choosing.kinds(rows, q.cluster), [name for name in rows.names() if name not in CODED]
    return [
        {
            "plan": a.gpu_words(rows, i),
            "recommended": i == a.recommended,
            "mode": "disaggregated" if rows.mode[i] else "together",
            "kind": choosing.KINDS[int(kinds[i])],
            "dtype": q.goal.dtypes[int(rows.dtype[i])] or "as stored",
            **facts_at(rows, i, *figures, "tokens_per_s_per_gpu", "tokens_per_s_per_user"),
            "usd_per_million_tokens": usd[i] if q.goal.usd_per_gpu_hour else None,
            **a.exchanges[int(rows.exchange[i])].told,
        }
        for i in range(len(rows))
    ]


def trained_rows(a: TrainPlans) -> list[Record]:
    """Every plan that fits, fastest first."""
    rows = a.plans
    return [
        {"plan": a.gpu_words(rows, i), "recommended": i == a.recommended, "kind": a.kind_words(rows, i), **trained_figures(rows, i)}
        for i in range(len(rows))
    ]
