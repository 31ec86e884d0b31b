"""commtax: what every collective of a distributed LLM costs, what fits, and which plan to run."""

__version__ = "0.1.0"
