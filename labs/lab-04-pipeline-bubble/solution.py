"""Lab 04, reference: the library's closed forms and its simulator under the lab's names."""

from commtax.cost.schedules import SCHEDULES
from commtax.napkin import bubble_fraction
from commtax.napkin import min_microbatches_for_bubble as min_microbatches
from commtax.sim.pipeline import Durations, run

__all__ = ["bubble_fraction", "min_microbatches"]


def schedule_grid(num_stages, num_microbatches):
    timeline = run(SCHEDULES["fill-drain"], num_stages, num_microbatches)
    grid = [[None] * (num_stages + num_microbatches - 1) for _ in range(num_stages)]
    for stage, start, name in zip(timeline.lane, timeline.start_s, timeline.name, strict=True):
        grid[int(stage)][round(float(start))] = int(name[1:])
    return grid


def grid_bubble(grid):
    cells = [cell for row in grid for cell in row]
    return sum(cell is None for cell in cells) / len(cells)


def pipeline_time_s(stage_s, num_microbatches):
    slow = Durations(forward=1.0, stage_factors=tuple(stage_s))
    return run(SCHEDULES["fill-drain"], len(stage_s), num_microbatches, slow).span_s


def step_latency_s(compute_s, tp, pp, tp_comm_s, handoff_s):
    return compute_s / tp + tp_comm_s + (pp - 1) * handoff_s


def tokens_per_s(batch, latency_s, pp, in_flight):
    return batch * min(pp, in_flight) / latency_s
