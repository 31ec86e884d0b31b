"""commtax: what every collective of a distributed LLM costs, what fits, and which plan to run.

``commtax.bill("llama-3.1-8b", "8xh100-sxm", tp=8)``, ``commtax.fit("llama-3.1-70b", "8xh100-sxm")``,
``commtax.simulate("llama-3.1-8b", "8xh100-sxm", tp=1, concurrency=32)``, ``commtax.expect("all-reduce", "8xh100-sxm",
nbytes=2**30)``, ``commtax.plan("llama-3.1-70b", "2x8xh100-sxm", tpot_s=0.03)`` and ``commtax.compare(...)`` are the verbs;
``commtax.traffic`` says what is sent, ``commtax.napkin`` holds the closed forms.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Any

    from commtax import napkin
    from commtax.planner import plan, plan_training
    from commtax.planner.columns import ServingPlans, TrainPlans
    from commtax.verbs.billing import StepBill, Traffic, bill, traffic, train_bill
    from commtax.verbs.comparing import Comparison, PlanTable, compare, compare_plans
    from commtax.verbs.expecting import Expectation, expect
    from commtax.verbs.fitting import Fit, TrainFit, fit, train_fit
    from commtax.verbs.serving import Simulation, simulate

__version__ = "0.1.0"
__all__ = ["bill", "compare", "compare_plans", "expect", "fit", "napkin", "plan", "simulate", "traffic"]
__all__ += ["Comparison", "Expectation", "Fit", "PlanTable", "ServingPlans", "Simulation", "StepBill", "Traffic"]
__all__ += ["TrainFit", "TrainPlans", "plan_training", "train_bill", "train_fit"]
_PLANNER = ("ServingPlans", "TrainPlans", "plan", "plan_training")


def __getattr__(name: str) -> Any:
    """Names are fetched when they are asked for: importing the package is quick, and an interrupt finds nothing half done."""
    if name not in __all__:
        raise AttributeError(f"module 'commtax' has no attribute {name!r}")
    from importlib import import_module

    if name == "napkin":
        return import_module("commtax.napkin")
    return getattr(import_module("commtax.planner" if name in _PLANNER else "commtax.verbs"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
