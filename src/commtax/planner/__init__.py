"""The best plan for a cluster: every legal one priced, memory and limits checked, and why the others lost."""

from commtax.planner.columns import Columns, Goal, Rejected
from commtax.planner.serving import WORKLOADS, ServingPlans, plan
from commtax.planner.training import TrainPlans, plan_training

__all__ = ["WORKLOADS", "Columns", "Goal", "Rejected", "ServingPlans", "TrainPlans", "plan", "plan_training"]
