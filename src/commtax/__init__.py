"""commtax: what every collective of a distributed LLM costs, what fits, and which plan to run.

``commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8)``, ``commtax.fit("llama-3.1-70b", "8xh100-sxm")``,
``commtax.simulate("llama-3.1-8b", "8xh100-sxm", tp=1, concurrency=32)``, ``commtax.expect("all-reduce", "8xh100-sxm",
nbytes=2**30)`` and ``commtax.compare(...)`` are the verbs;
``commtax.traffic`` says what is sent, ``commtax.napkin`` holds the closed forms.
"""

from commtax import napkin
from commtax.api import (
    Comparison,
    Expectation,
    Fit,
    PlanTable,
    Simulation,
    StepBill,
    Traffic,
    TrainBill,
    TrainFit,
    bill,
    compare,
    compare_plans,
    expect,
    fit,
    simulate,
    traffic,
    train_bill,
    train_fit,
)

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "Expectation",
    "Fit",
    "PlanTable",
    "Simulation",
    "StepBill",
    "Traffic",
    "TrainBill",
    "TrainFit",
    "bill",
    "compare",
    "compare_plans",
    "expect",
    "fit",
    "napkin",
    "simulate",
    "traffic",
    "train_bill",
    "train_fit",
]
