"""Verbs: a question in, an answer out. ``commtax.bill(...)``, ``commtax.fit(...)`` and their like are these functions."""

from commtax.api.asking import AUTO_EP, ask, describe_gpus
from commtax.api.billing import StepBill, bill, price, train_bill
from commtax.api.comparing import Comparison, compare
from commtax.api.expecting import Expectation, expect
from commtax.api.fitting import Fit, TrainFit, fit, train_fit
from commtax.api.plans import PlanTable, compare_plans
from commtax.api.sending import Traffic, traffic
from commtax.api.serving import Simulation, simulate

__all__ = [
    "AUTO_EP",
    "Comparison",
    "Expectation",
    "Fit",
    "PlanTable",
    "Simulation",
    "StepBill",
    "Traffic",
    "TrainFit",
    "ask",
    "bill",
    "compare",
    "compare_plans",
    "describe_gpus",
    "expect",
    "fit",
    "price",
    "simulate",
    "traffic",
    "train_bill",
    "train_fit",
]
