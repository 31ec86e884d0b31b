"""Names in, records out: what ``commtax.bill(...)``, ``commtax.fit(...)`` and their like call."""

from commtax.api.billing import StepBill, bill
from commtax.api.comparing import Comparison, compare
from commtax.api.expecting import Expectation, expect
from commtax.api.fitting import Fit, TrainFit, fit, train_fit
from commtax.api.plans import PlanTable, compare_plans
from commtax.api.sending import Traffic, traffic
from commtax.api.serving import Simulation, simulate
from commtax.api.setup import AUTO_EP, PHASES, Setup, describe_gpus, setup
from commtax.api.train_billing import TrainBill, train_bill

__all__ = [
    "AUTO_EP",
    "PHASES",
    "Comparison",
    "Expectation",
    "Fit",
    "PlanTable",
    "Setup",
    "Simulation",
    "StepBill",
    "Traffic",
    "TrainBill",
    "TrainFit",
    "bill",
    "compare",
    "compare_plans",
    "describe_gpus",
    "expect",
    "fit",
    "setup",
    "simulate",
    "traffic",
    "train_bill",
    "train_fit",
]
