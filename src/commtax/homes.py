"""Where each public name of the package lives."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

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


def fetch(name: str) -> Any:
    """Import what a public name stands for when it is asked for: the package itself imports quickly, and whole."""
    home = next(home for home, names in HOMES.items() if name in names)
    return getattr(import_module(f"commtax.{home}"), name)
