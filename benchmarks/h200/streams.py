"""Kernels beside each other on one GPU: a shared expert beside routed ones on another stream, and products beside a kernel that
keeps some SMs busy, as an exchange of tokens does. Prints rows as CSV; needs torch with CUDA alone.

``python benchmarks/h200/streams.py > streams.csv``
"""

import sys
from functools import partial

import torch

DEVICE = torch.device("cuda")
ROUNDS, REPEATS = 20, 7
HIDDEN, EXPERTS, TOP = 7168, 256, 8


def graphed(work):
    """Work as one graph, and the seconds of a replay: the median of several rounds."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(ROUNDS):
            work()
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / ROUNDS * 1e-3)
    return sorted(times)[REPEATS // 2]


def beside(first, second):
    """Both on streams of their own, joined again."""
    other = torch.cuda.Stream()

    def work():
        here = torch.cuda.current_stream()
        other.wait_stream(here)
        with torch.cuda.stream(other):
            second()
        first()
        here.wait_stream(other)

    return work


def routed(rows, width, experts):
    """Grouped products of a layer's routed experts on one rank: ``experts`` of them, each with an equal share of the copies."""
    copies = max(1, rows * TOP * experts // EXPERTS)
    reached = min(experts, copies)
    each = -(-copies // reached)
    x = torch.randn(reached * each, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    up = torch.randn(reached, HIDDEN, 2 * width, device=DEVICE, dtype=torch.bfloat16)
    down = torch.randn(reached, width, HIDDEN, device=DEVICE, dtype=torch.bfloat16)

    def work():
        h = torch.bmm(x.view(reached, each, HIDDEN), up)
        torch.bmm(h[..., :width].contiguous(), down)

    return work


def shared(rows, width):
    x = torch.randn(rows, HIDDEN, device=DEVICE, dtype=torch.bfloat16)
    up = torch.randn(HIDDEN, 2 * width, device=DEVICE, dtype=torch.bfloat16)
    down = torch.randn(width, HIDDEN, device=DEVICE, dtype=torch.bfloat16)

    def work():
        h = x @ up
        h[:, :width].contiguous() @ down

    return work


def in_turn(first, second):
    def work():
        first()
        second()

    return work


def streams():
    for width, experts, name in ((256, 256, "tp8"), (2048, 32, "ep8"), (2048, 8, "ep32")):
        for rows in (1, 4, 16, 64, 128, 256, 512, 1024):
            if experts * rows * TOP > EXPERTS * 65536:
                continue
            first, second = routed(rows if name == "tp8" else rows * EXPERTS // experts, width, experts), shared(rows, width)
            alone, small = graphed(first), graphed(second)
            serial, both = graphed(in_turn(first, second)), graphed(beside(first, second))
            print(f"shared,{name},{rows},{alone:.3e},{small:.3e},{serial:.3e},{both:.3e}", flush=True)


def busy_sms():
    """A product alone and beside a kernel that keeps ``sms`` SMs busy for longer than it takes."""
    import triton
    import triton.language as tl

    @triton.jit
    def spin(out, count, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        x = at.to(tl.float32)
        for _ in range(count):
            x = x * 1.000001 + 0.5
        tl.store(out + tl.program_id(0) * BLOCK + at, x)

    out = torch.zeros(132 * 32768, device=DEVICE)
    for m, n, k in ((128, 4096, 7168), (1024, 4096, 7168), (4096, 4096, 7168), (16, 8192, 8192)):
        a = torch.randn(m, k, device=DEVICE, dtype=torch.bfloat16)
        b = torch.randn(k, n, device=DEVICE, dtype=torch.bfloat16)
        work = partial(torch.matmul, a, b)
        alone = graphed(work)
        for sms in (4, 8, 12, 20, 24, 32, 64):
            spinner = torch.cuda.Stream()
            for _ in range(3):
                work()
            torch.cuda.synchronize()
            with torch.cuda.stream(spinner):
                spin[(sms,)](out, 2_000_000, BLOCK=32768, num_warps=32)
            times = []
            torch.cuda._sleep(2_000_000)
            for _ in range(15):
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                work()
                end.record()
                times.append((start, end))
            still = not spinner.query()
            torch.cuda.synchronize()
            took = sorted(s.elapsed_time(e) * 1e-3 for s, e in times)[7]
            print(f"sms,{m}x{n}x{k},{sms},{alone:.3e},{took:.3e},{still}", flush=True)


if __name__ == "__main__":
    print("kind,what,rows,first_s,second_s,serial_s,beside_s")
    streams()
    try:
        busy_sms()
    except ImportError as error:
        print(error, file=sys.stderr)
