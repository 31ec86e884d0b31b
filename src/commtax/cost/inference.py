"""The bill of one inference step: its kernels, its collectives and the host, priced and put in one list."""

from __future__ import annotations

import numpy as np

from commtax.cost.compute import Kernel, step_kernels
from commtax.cost.kernels import seconds, sigma
from commtax.cost.pricing import Pricer, Terms, comm_line, kernel_line
from commtax.cost.traffic import inference, padded_rows
from commtax.ledger import Bill, Item, Line
from commtax.spec import Number, Workload
from commtax.statement import Source


def inference_bill(t: Terms, work: Workload, tokens: Number) -> Bill:
    """Price one step: what every kernel and every collective of it costs one rank, one after the other.

    Decode and prefill collectives sit on the critical path: nothing of them hides unless ``settings.overlap`` says so.
    """
    ran = t.settings
    rows = padded_rows(work.rows, work, t.engine, t.plan.tp, ran.eager)
    kernels = [_served_line(k, t) for k in step_kernels(t.model, t.plan, work, rows, t.engine)]
    pricer = Pricer(t)
    items = inference(t.model, t.plan, work, t.engine, ep_backend=ran.ep_backend, eager=ran.eager)
    comm = [comm_line(i, pricer, ran) for i in items]
    return Bill((*kernels, _host_line([*kernels, *comm], work, t), *comm), tokens)


def _served_line(kernel: Kernel, t: Terms) -> Line:
    idle = np.ndim(kernel.count) == 0 and kernel.count == 0
    # In a whole step the chip heats up: arithmetic runs at a lower clock than in a kernel that is measured alone.
    clock, slow = t.constants.tables["step.bf16"]["clock"], t.settings.slow_rank
    fixed, moving = (0.0, 0.0) if idle else seconds(kernel, t.cluster.chip, t.constants, clock)
    return kernel_line(kernel, kernel.count, (fixed * slow, moving * slow), sigma(kernel, t.constants), t)


def _host_line(lines: list[Line], work: Workload, t: Terms) -> Line:
    """Time that the GPU waits for the host: scheduling each step, and without graphs launching every kernel."""
    host = t.engine.host
    waiting: Number = host.host_s + host.host_s_per_doubling * np.log2(t.plan.tp * 1.0) + host.host_s_per_seq * work.samples
    if t.settings.eager:
        launches = sum((line.item.count for line in lines), start=0.0)
        busy = sum((line.total_s for line in lines), start=0.0)
        waiting = waiting + np.maximum(0, launches * host.launch_s - busy)
    unmeasured = Source("assumed" if host.host_s else "by definition")
    source = (host.host_label or Source("calibrated")) if host.calibrated else unmeasured
    item = Item("scheduling and launches", "", "host", 0.0, 1, waiting * 0 + 1)
    return Line("host", item, waiting, 0.0, source=source, sigma=host.sigma_host)
