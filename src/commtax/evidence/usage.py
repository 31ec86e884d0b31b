"""How the seconds of a step were spent."""

from __future__ import annotations

from dataclasses import dataclass, fields

ROUNDING = 1e-13


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of some windows, each second once: what computes hides what communicates, and both hide what copies."""

    total_s: float
    compute_s: float
    exposed_s: float  # communication that no compute covers
    hidden_s: float  # communication under compute, which ``compute_s`` holds already
    copy_s: float

    @property
    def busy_s(self) -> float:
        return self.compute_s + self.exposed_s + self.copy_s

    @property
    def idle_s(self) -> float:
        left = self.total_s - self.busy_s
        return left if left > ROUNDING * self.total_s else 0.0

    @property
    def exposed_share(self) -> float:
        return self.exposed_s / self.total_s if self.total_s > 0 else 0.0

    @property
    def idle_share(self) -> float:
        return self.idle_s / self.total_s if self.total_s > 0 else 0.0

    def of(self, steps: int) -> Usage:
        """The mean of so many steps."""
        return Usage(*(getattr(self, f.name) / steps for f in fields(self)))
