"""commtax: what every collective of a distributed LLM costs, what fits, and which plan to run.

``commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8)``, ``commtax.fit("llama-3.1-70b", "8xh100-sxm")``,
``commtax.simulate("llama-3.1-8b", "8xh100-sxm", tp=1, concurrency=32)``, ``commtax.serve("llama-3.1-70b", "8xh100-sxm", tp=4,
request_rate=8)``, ``commtax.expect("all-reduce", "8xh100-sxm", nbytes=2**30)``, ``commtax.plan("llama-3.1-70b", "2x8xh100-sxm",
tpot_s=0.03)`` and ``commtax.compare(...)`` are the verbs; ``commtax.worth`` weighs techniques, ``commtax.why`` explains a line of a
bill, ``commtax.traffic`` says what is sent, ``commtax.napkin`` holds the closed forms.
"""

from __future__ import annotations

from importlib import import_module

from commtax.answer import register

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from commtax import napkin
    from commtax.options import keywords
    from commtax.planner import plan, plan_training
    from commtax.planner.columns import ServingPlans, TrainPlans
    from commtax.planner.fleets import FleetPlans, plan_fleet
    from commtax.planner.several_clusters import SeveralPlans, plan_several
    from commtax.runs.audit.claimed_run import audit_run
    from commtax.runs.evidence.finding import Audit
    from commtax.sim.pipeline import PipelineRun
    from commtax.verbs.billing import StepBill, Traffic, bill, traffic, train_bill
    from commtax.verbs.closed_loop import ClosedLoop, simulate
    from commtax.verbs.comparing import Comparison, PlanTable, compare, compare_plans
    from commtax.verbs.expecting import Expectation, expect
    from commtax.verbs.fit_advice import fit
    from commtax.verbs.fitting import Fit
    from commtax.verbs.pipelining import pipeline
    from commtax.verbs.requests import RequestsInTime, serve
    from commtax.verbs.train_fitting import TrainFit, train_fit
    from commtax.verbs.why import Why, why
    from commtax.verbs.worth import Worth, worth

__version__ = "0.1.0"
HOMES = {
    "options": ("keywords",),
    "planner": ("plan", "plan_training"),
    "planner.columns": ("ServingPlans", "TrainPlans"),
    "planner.fleets": ("FleetPlans", "plan_fleet"),
    "planner.several_clusters": ("SeveralPlans", "plan_several"),
    "sim.pipeline": ("PipelineRun",),
    "verbs.billing": ("StepBill", "Traffic", "bill", "traffic", "train_bill"),
    "verbs.pipelining": ("pipeline",),
    "verbs.comparing": ("Comparison", "PlanTable", "compare", "compare_plans"),
    "verbs.expecting": ("Expectation", "expect"),
    "verbs.fit_advice": ("fit",),
    "verbs.fitting": ("Fit",),
    "verbs.train_fitting": ("TrainFit", "train_fit"),
    "verbs.requests": ("RequestsInTime", "serve"),
    "verbs.closed_loop": ("ClosedLoop", "simulate"),
    "verbs.why": ("Why", "why"),
    "verbs.worth": ("Worth", "worth"),
    "runs.evidence.finding": ("Audit",),
    "runs.audit.claimed_run": ("audit_run",),
}
"""Where each public name lives."""
__all__ = ["napkin", *(name for names in HOMES.values() for name in names)]
register(lambda: import_module("commtax.report.answers"), {"Audit": lambda: import_module("commtax.runs.report.auditing").manner()})


def fetch(name: str) -> Any:
    """Import what a public name stands for when somebody uses it: the package itself imports quickly, and whole."""
    home = next(home for home, names in HOMES.items() if name in names)
    return getattr(import_module(f"commtax.{home}"), name)


def __getattr__(name: str) -> Any:
    if name == "napkin":
        return import_module("commtax.napkin")
    if name in __all__:
        return fetch(name)
    hint = "; commtax.audit_run audits the files of a run" if name == "audit" else ""
    raise AttributeError(f"module 'commtax' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
