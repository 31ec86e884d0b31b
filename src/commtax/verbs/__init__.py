"""Verbs: a question in, an answer out. ``commtax.bill(...)``, ``commtax.fit(...)`` and their like are these functions."""

from commtax.verbs.asking import AUTO_EP, ask, describe_gpus
from commtax.verbs.billing import StepBill, Traffic, bill, price, traffic, train_bill
from commtax.verbs.comparing import Comparison, PlanTable, compare, compare_plans
from commtax.verbs.expecting import Expectation, expect
from commtax.verbs.fitting import Fit, TrainFit, fit, train_fit
from commtax.verbs.serving import Simulation, simulate

__all__ = ["AUTO_EP", "ask", "bill", "compare", "compare_plans", "describe_gpus", "expect", "fit", "price", "simulate", "traffic"]
__all__ += ["Comparison", "Expectation", "Fit", "PlanTable", "Simulation", "StepBill", "Traffic"]
__all__ += ["TrainFit", "train_bill", "train_fit"]
