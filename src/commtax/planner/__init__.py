"""The best plan for a cluster: every legal one priced, memory and limits checked, and why the others lost."""

from commtax.planner.answers import ServingPlans, Standing, TrainPlans
from commtax.planner.best import plan, plan_training
from commtax.planner.columns import Columns, Rejected
from commtax.planner.serving import WORKLOADS
from commtax.planner.standing import apart_standing, standing, training_standing

__all__ = [
    "WORKLOADS",
    "Columns",
    "Rejected",
    "ServingPlans",
    "Standing",
    "TrainPlans",
    "apart_standing",
    "plan",
    "plan_training",
    "standing",
    "training_standing",
]
