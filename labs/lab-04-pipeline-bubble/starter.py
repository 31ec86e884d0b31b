"""Lab 04: the pipeline and its bubble, by algebra and by a grid that must agree. Fill in the bodies."""


def bubble_fraction(num_stages, num_microbatches):
    """Idle share of the total time of a fill-drain pipeline with equal stages."""
    raise NotImplementedError("the pipeline takes p + m - 1 slots; each stage works in m of them")


def schedule_grid(num_stages, num_microbatches):
    """The grid of a fill-drain pipeline: a list for each stage with the microbatch of every slot, or None."""
    raise NotImplementedError("stage s works on microbatch i in slot s + i; the grid has p + m - 1 slots")


def grid_bubble(grid):
    """Idle cells over all cells."""
    raise NotImplementedError("count the cells that hold None")


def min_microbatches(num_stages, max_bubble):
    """The smallest number of microbatches whose bubble is within the budget."""
    raise NotImplementedError("solve (p-1)/(p+m-1) <= budget for m; mind rounding: 4 stages within 0.2 need 12, not 13")


def pipeline_time_s(stage_s, num_microbatches):
    """Seconds until the last microbatch leaves, when stage s takes ``stage_s[s]`` seconds for each."""
    raise NotImplementedError("a stage starts when the stage before has finished this microbatch and it has finished the last one")


def step_latency_s(compute_s, tp, pp, tp_comm_s, handoff_s):
    """Seconds for one token through all stages: tensor parallelism divides compute, the pipeline does not."""
    raise NotImplementedError("compute / tp + its all-reduces + a hand-off between neighbouring stages")


def tokens_per_s(batch, latency_s, pp, in_flight):
    """Tokens a second when ``in_flight`` microbatches of ``batch`` sequences are on the way, at most one a stage."""
    raise NotImplementedError("in one latency every microbatch in flight (no more than pp) finishes a token a sequence")
