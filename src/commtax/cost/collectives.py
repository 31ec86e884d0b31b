"""Closed forms of the ring: what a collective moves and, on a link of given latency and bandwidth, how long it takes."""

from __future__ import annotations

from commtax.spec import Number


def ring_allreduce_bytes(nbytes: Number, ranks: Number) -> Number:
    """Bytes each rank sends to all-reduce ``nbytes``: 2 (N-1)/N of them, nothing on one rank.

    A reduce-scatter and an all-gather of (N-1)/N each (Patarasuk and Yuan 2009): bandwidth-optimal.

    >>> ring_allreduce_bytes(8192, 2), ring_allreduce_bytes(8192, 1)
    (8192.0, 0.0)
    """
    return 2 * (ranks - 1) * nbytes / ranks


def ring_allreduce_s(nbytes: Number, ranks: Number, bandwidth_Bps: Number, latency_s: Number) -> Number:
    """Seconds of a ring all-reduce: its bytes over the link, and 2 (N-1) hops one after the other.

    >>> round(ring_allreduce_s(8192, 2, 1.25e9, 50e-6) * 1e6, 4)
    106.5536
    """
    return ring_allreduce_bytes(nbytes, ranks) / bandwidth_Bps + 2 * (ranks - 1) * latency_s


def ring_crossover_bytes(ranks: Number, bandwidth_Bps: Number, latency_s: Number) -> Number:
    """The payload at which a ring spends as long on latency as on bytes: N x latency x bandwidth."""
    return ranks * latency_s * bandwidth_Bps


def alltoall_bytes(nbytes: Number, ranks: Number) -> Number:
    """Bytes each rank sends of the ``nbytes`` it puts in: all but its own share, (N-1)/N."""
    return nbytes * (ranks - 1) / ranks


def step_allreduce_s(
    nbytes: Number, num_layers: Number, per_layer: Number, ranks: Number, bandwidth_Bps: Number, latency_s: Number
) -> Number:
    """All-reduces of one pass through the layers, one after the other on the critical path."""
    return num_layers * per_layer * ring_allreduce_s(nbytes, ranks, bandwidth_Bps, latency_s)
