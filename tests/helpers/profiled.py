"""Traces of a profiler made from a predicted step: what should be read back is known."""

from commtax.cost.kernel import Kernel
from commtax.cost.kernels import pace_of
from made_traces import document, event, kernel, launch

NAMES = {
    "pace_products": "nvjet_sm90_tst_64x8_64x16_4x1_v_bz_NNT",
    "pace_experts": "fused_moe_kernel",
    "pace_decoding": "void flash::flash_fwd_splitkv_kernel<x>(y)",
    "pace_prompting": "void flash::flash_fwd_kernel<x>(y)",
    "pace_small": "void vllm::fused_add_rms_norm_kernel<x>(y)",
}
SENT = {"all-reduce": "void vllm::cross_device_reduce_1stage<x, 2>(y)", "all-gather": "ncclDevKernel_AllGather_RING_LL(x)"}


def device(name="NVIDIA H100 80GB HBM3", memory_bytes=85_029_158_912, sms=132):
    return [{"id": 0, "name": name, "totalGlobalMem": memory_bytes, "numSms": sms}]


def trace_of(bill, named, steps=4, rank=0, world=1, late_s=0.0, rename=None, graphs=True, times=1.0, before_s=0.0, **head):
    """The kernels and collectives of a bill one after the other, and the host's time behind them, in steps that are named. A rank
    waits ``late_s`` in every collective, or begins each ``before_s`` late; ``rename`` tells other names of kernels, and all of
    them take so many ``times`` as long."""
    events, at, names = [], 1000.0, {**NAMES, **(rename or {})}
    for step in range(steps):
        correlation, begin = step + 1, at
        events.append(launch(at, correlation, "cudaGraphLaunch" if graphs else "cudaLaunchKernel"))
        for line in bill.lines:
            count = int(line.item.count)
            if line.kind == "host" or not count:
                continue
            compute = line.kind == "compute" and isinstance(line.priced_from, Kernel)
            name = names[pace_of(line.priced_from)] if compute else SENT[line.item.op]
            for _ in range(count):
                at += 0.0 if compute else before_s * 1e6
                lasted = float(line.exposed_s) * 1e6 * times / count + (0.0 if compute else late_s * 1e6)
                events.append(kernel(name, at, lasted, correlation))
                at += lasted
        at += sum(float(line.exposed_s) for line in bill.lines if line.kind == "host") * 1e6
        events.append(event("user_annotation", named, begin, at - begin - 1))
    return document(events, rank, world, deviceProperties=device(), **head)
