"""The Pareto front of plans, drawn with signs."""

import numpy as np

from commtax.planner.columns import ServingColumns, ServingPlans
from commtax.report.drawing import Sketch
from commtax.report.operating_points import point_name
from commtax.report.plan_tables import MARK

WIDTH, HEIGHT, EDGE = 60, 10, 10  # signs of the picture at most, and of the figures at its left
HEAD = "Pareto front: tokens/s per GPU (upwards) against tokens/s per user (to the right)"


def drawn_front(a: ServingPlans, room: int) -> list[Sketch]:
    """The Pareto front: what a user gets (across) against what a GPU gives (up)."""
    width = min(WIDTH, room - EDGE)
    front = a.front
    if len(front) < 3 or a.question.requests.output_len == 1:
        return []
    x, y = front.tokens_per_s_per_user, front.tokens_per_s_per_gpu
    grid = [[" "] * width for _ in range(HEIGHT)]

    def place(u: float, g: float) -> tuple[int, int]:
        across, up = (u - x.min()) / max(1e-9, np.ptp(x)), (g - y.min()) / max(1e-9, np.ptp(y))
        return round(across * (width - 1)), HEIGHT - 1 - round(up * (HEIGHT - 1))

    for column, row in map(place, x, y):
        grid[row][column] = "•"
    marked = _marked(a)
    for sign, (_, rows, i) in marked.items():
        column, row = place(rows.tokens_per_s_per_user[i], rows.tokens_per_s_per_gpu[i])
        if 0 <= row < HEIGHT and 0 <= column < width:
            grid[row][column] = sign
    lines = [Sketch(f"{HEAD}; {', '.join(f'{sign} is {name}' for sign, (name, _, _) in marked.items())}", style="dim")]
    for i, cells in enumerate(grid):
        edge = f"{y.max() - (y.max() - y.min()) * i / (HEIGHT - 1):{EDGE - 2},.0f} │"
        lines.append(Sketch(edge + "".join(cells).rstrip()))
    lines.append(Sketch(" " * (EDGE - 1) + "└" + "─" * width))
    lines.append(Sketch(f"{x.min():{EDGE + 4},.1f}{x.max():{width - 4},.1f}", style="dim"))
    return lines


def _marked(a: ServingPlans) -> dict[str, tuple[str, ServingColumns, int]]:
    """Points with a sign of their own: the recommended plan, or the operating points by their first letters."""
    if not a.places:
        return {MARK: ("the recommended plan", a.plans, a.recommended)}
    named = [(point_name(a, point), point) for point in a.places]
    return {name[0].upper(): (name, point.plans, point.recommended) for name, point in named}
