"""A plan -> the command that launches it, and the commands that would check it.

Flags are those of November 2026, read in the engines' own parsers and documents; their names stand in the tables by which
``readers.launch`` reads them back.
"""

from commtax.emit.checks import benchmark_command, nccl_command
from commtax.emit.job import SERVING, Limits
from commtax.emit.launching import ENGINES, apart_command, launch_command

__all__ = ["ENGINES", "SERVING", "Limits", "apart_command", "benchmark_command", "launch_command", "nccl_command"]
