"""What is asked beside model, cluster and plan."""

from __future__ import annotations

from dataclasses import dataclass

from commtax.spec import Engine


@dataclass(frozen=True, slots=True)
class WhatIf:
    """How a step is run beside its plan: each field but the last is a labelled change of the plain answer."""

    eager: bool = False  # every kernel is launched by the host; in training, element-wise kernels are not fused
    ep_backend: str = ""  # how tokens reach their experts; "": the engine's own
    overlap: float = 0.0  # share of communication that a user supposes hidden
    slow_rank: float = 1.0  # the slowest rank's compute time over the others': all wait for it
    latency_scale: float = 1.0  # of every collective
    bandwidth_scale: float = 1.0
    library: str = ""  # whose collectives run; "": the engine's own
    async_axes: tuple[str, ...] | None = None  # axes whose collectives run beside compute; None: the engine's own
    imbalance: float = 1.0  # tokens of the busiest expert rank over the mean
    slow_axis: str = ""  # the axis whose links alone …
    slow_links: float = 1.0  # … have this share of their bandwidth
    flops: str = "full"  # which query-key pairs MFU counts: all of them, or causal ones

    def beside(self, engine: Engine) -> tuple[str, ...]:
        """Axes whose collectives run beside compute."""
        return engine.trains.async_axes if self.async_axes is None else self.async_axes


AS_IT_IS = WhatIf()
