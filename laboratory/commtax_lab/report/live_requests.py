"""Requests served for real, measured beside predicted."""

from commtax.report.drawing import Console
from commtax.report.tables import notes, say, show_table
from commtax.units import format_seconds
from commtax_lab.study.study_documents import ServedRun, ServingDocument

_SERVED = {"ttft": "TTFT", "tpot": "TPOT", "e2el": "E2E", "queue": "queue"}
_WHO = ("measured", "predicted")
_DISTURBED = 0.15  # steps that took longer than this beyond what they took when timed


def show_serving(console: Console, d: ServingDocument) -> None:
    """Requests at each rate, measured beside predicted."""
    what = f"{d['model']} ({d['weights_source']} weights, {d['dtype']}) on {d['device']}: TP {d['tp_size']}"
    say(console, f"{what}, at most {d['max_num_seqs']} requests at once; load {d['load'][0]:.1f}", "bold")
    say(console, f"by the steps timed here it can serve {d['most_requests_per_s']:.3g} requests/s", "dim")
    for run in d["runs"]:
        _show_rate(console, run, run["request_rate"] / d["most_requests_per_s"])
    notes(console, d["notes"])


def _show_rate(console: Console, run: ServedRun, share: float) -> None:
    """One rate: times, then tokens; and a word where the machine was not its own."""
    keys = {f"{name}, {s}": f"{s}_{metric}_ms" for metric, name in _SERVED.items() for s in ("mean", "median", "p90", "p99")}
    both = (run["measured"], run["predicted"])
    rows = [(name, *(format_seconds(float(one[key]) * 1e-3) for one in both), _error_text(run, key)) for name, key in keys.items()]
    rate = ("output tokens/s", *(f"{one['output_throughput']:.4g}" for one in both), _error_text(run, "output_throughput"))
    title = f"{run['request_rate']:.3g} requests/s, {share:.0%} of that: {run['measured']['num_prompts']} requests"
    show_table(console, ("", *(f">{who}" for who in _WHO), ">error"), [*rows, rate], title=title)
    if abs(run["steps_over_timed"] - 1) > _DISTURBED:
        times = f"{run['steps_over_timed']:.2f} times what the same steps took when they were timed"
        left = ", ".join(f"{_SERVED[m]} {run['errors_at_its_pace'][f'mean_{m}_ms']:+.0%}" for m in ("ttft", "tpot", "e2el"))
        say(console, f"while it served, its steps took {times}: this machine was busy with something else", "bold")
        say(console, f"with steps that long the means would be off by {left}", "bold")


def _error_text(run: ServedRun, key: str) -> str:
    """How far the prediction is off; nothing where nothing was measured."""
    return f"{run['errors'][key]:+.0%}" if key in run["errors"] else ""
