"""commtax: what every collective of a distributed LLM costs, what fits, and which plan to run.

``commtax.fit("llama-3.1-70b", "8xh100-sxm")`` and ``commtax.traffic("llama-3.1-8b", "8xh100-sxm", tp=8)`` are the verbs;
``commtax.napkin`` holds the closed forms.
"""

from commtax import napkin
from commtax.api import Fit, Traffic, TrainFit, fit, traffic, train_fit

__version__ = "0.1.0"
__all__ = ["Fit", "Traffic", "TrainFit", "fit", "napkin", "traffic", "train_fit"]
