"""A profiler's trace of our own engine, its steps named as vLLM names them, so that the readers of traces take it from there."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor
from torch.profiler import ProfilerActivity, profile, record_function

from commtax_lab.measure.engine import LiveEngine


@contextmanager
def trace(engine: LiveEngine, file: Path) -> Iterator[None]:
    """Trace what is run meanwhile."""
    watched = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if engine.device.type == "cuda" else [])]
    with profile(activities=watched, record_shapes=True) as seen:
        yield
    seen.export_chrome_trace(str(file))


class NamedStepsEngine(LiveEngine):
    """An engine whose steps have names in a trace."""

    def prefill(self, tokens: Tensor) -> Tensor:
        with record_function(f"execute_context_{self.batch}({tokens.numel()})_generation_0(0)"):
            return super().prefill(tokens)

    def decode(self, tokens: Tensor, position: int) -> Tensor:
        with record_function(f"execute_context_0(0)_generation_{self.batch}({self.batch})"):
            return super().decode(tokens, position)
