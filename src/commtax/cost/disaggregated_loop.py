"""The closed loop of servers with workers of their own for prompts."""

import numpy as np

from commtax.cost.closed_form import LEAST_S, ClosedLoopMeans, knee
from commtax.cost.network import Flow, QueueNetwork
from commtax.spec import Engine, Number


def disaggregated_means(
    net: QueueNetwork, passed: Flow, engine: Engine, num_prompts: Number = np.inf, loading_s: Number = 0.0
) -> ClosedLoopMeans:  # fmt: skip
    """Means over the requests of a closed loop with prompts on workers of their own (``network``).

    The first prompts of a benchmark arrive at once: they wait, and share steps that are as full as steps can be; where the wire is
    slower than their workers, their caches wait for it. The front ends of both kinds of workers limit as those of one do.
    """
    full = net.prompting.full(net.clients)
    first, full_s = np.minimum(1.0, net.clients / num_prompts), net.prompting.step_s(full)
    burst: Number = np.maximum(0.0, net.clients / net.prompting.workers / full - 1) / 2 * full_s
    wait = passed.ahead_s + first * np.maximum(0.0, burst - passed.ahead_s)
    own = passed.prefill_s + first * np.maximum(0.0, full_s - passed.prefill_s)
    moved = passed.moved_s + first * np.maximum(0.0, net.clients / 2 / net.limits[1] - burst - passed.moved_s)
    life = passed.life_s(net) + wait - passed.ahead_s + own - passed.prefill_s + moved - passed.moved_s
    tokens_s = engine.host.frontend_token_s * (net.decodes / net.steps_per_token + 1) / net.decoding.workers
    least = net.clients * np.maximum(np.maximum(engine.host.frontend_request_s, loading_s) / net.prompting.workers, tokens_s)
    frontend = knee(np.maximum(LEAST_S, life), least)
    after = np.where(net.decodes > 0, frontend / 2, 0.0)
    return ClosedLoopMeans(
        tpot_s=(passed.step_s + after / np.maximum(1.0, net.decodes)) * net.steps_per_token,
        request_s=net.request_s + passed.per_s * 0,
        boundary_s=passed.boundary_s,
        prefill_s=own,
        ahead_s=wait,
        slot_s=passed.slot_s,
        frontend_s=frontend - after,
        ahead=wait / net.prompting.one_s,
        stretch_s=0.0,
        moved_s=moved,
    )
