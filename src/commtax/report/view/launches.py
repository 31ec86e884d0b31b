"""What starts each plan of the page's table, and the benchmark that would check it."""

import re

from commtax.catalog.programs import program_of
from commtax.launch.forms import start_commands
from commtax.question import Question
from commtax.report.documents import Record

EMIT = re.compile(r"^emit[^:]*: ")  # the command line's name for what is asked here


def plan_launch(q: Question, copies: int = 1, prompts: int = 0) -> Record:
    engine, made, why = program_of(q.engine).emitted_as, dict[str, str](), ""
    try:
        made = start_commands(q, engine, copies, prompts)
    except ValueError as error:
        why = EMIT.sub("", str(error))
    return {"launch": made.get("launch", ""), "launch_engine": engine, "launch_why": why, "benchmark": made.get("benchmark", "")}
