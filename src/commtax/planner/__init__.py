"""The best plan for a cluster: every legal one priced, memory and limits checked, and why the others lost."""

from commtax.planner.columns import Columns, Goal, Rejected
from commtax.planner.serving import WORKLOADS, ServingPlans, plan
from commtax.planner.standing import Standing, apart_standing, standing, training_standing
from commtax.planner.training import TrainPlans, plan_training

__all__ = [
    "WORKLOADS",
    "Columns",
    "Goal",
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
