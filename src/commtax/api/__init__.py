"""Names in, records out: what ``commtax.fit(...)`` and ``commtax.traffic(...)`` call."""

from commtax.api.fitting import Fit, TrainFit, fit, train_fit
from commtax.api.sending import Traffic, traffic
from commtax.api.setup import AUTO_EP, PHASES, Setup, describe_gpus, setup

__all__ = [
    "AUTO_EP",
    "PHASES",
    "Fit",
    "Setup",
    "Traffic",
    "TrainFit",
    "describe_gpus",
    "fit",
    "setup",
    "traffic",
    "train_fit",
]
