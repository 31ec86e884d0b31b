"""Lab 03, reference: the library's closed forms under the lab's names."""

from commtax.napkin import (
    allreduce_payload_bytes,
    allreduce_time_s,
    comm_fraction,
    ring_allreduce_traffic_per_rank,
    tp_comm_time_per_step,
)

__all__ = [
    "allreduce_payload_bytes",
    "allreduce_time_s",
    "comm_fraction",
    "ring_allreduce_traffic_per_rank",
    "tp_comm_time_per_step",
]
