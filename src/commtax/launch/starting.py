"""What starts a plan, all of its servers, and the benchmark that would check it: for the command line and the page alike."""

from commtax.catalog.programs import program_of
from commtax.launch.forms import FORMS, written
from commtax.launch.writing import apart_command, benchmark_command, launch_command
from commtax.question import Question


def start_commands(q: Question, word: str, copies: int = 1, prompts: int = 0, devices: str = "") -> dict[str, str]:
    """Commands by what they are for. ``word`` names the engine or the place; ``prompts`` are servers for prompts alone.

    >>> from commtax.verbs.settling import ask
    >>> start_commands(ask("llama-3.1-8b", "8xh100-sxm", tp=2), "vllm")["launch"]
    'vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 2'
    """
    if word in FORMS:
        launch = written(q, word, copies, prompts)
    elif prompts:
        launch = {"launch": apart_command(q.but(prefill_workers=prompts, decode_workers=copies), word)}
    else:
        launch = {"launch": launch_command(q if q.trains else q.but(replicas=copies), word, devices)}
    engine = program_of(q.engine).emitted_as if word in FORMS else word
    return launch if q.trains else launch | {"benchmark": benchmark_command(q, engine)}
