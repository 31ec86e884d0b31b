"""Lab 03: price tensor parallelism's communication with five functions. Fill in the bodies; the tests are the specification."""


def allreduce_payload_bytes(batch_tokens, hidden, dtype_bytes=2):
    """Bytes of the activation tensor that one all-reduce sums."""
    raise NotImplementedError("one row of `hidden` elements for each token: tokens x hidden x bytes an element")


def ring_allreduce_traffic_per_rank(payload_bytes, num_ranks):
    """Bytes that each rank sends when a ring all-reduces the payload."""
    raise NotImplementedError("a reduce-scatter and an all-gather each send (N-1)/N of the payload; one rank sends nothing")


def allreduce_time_s(payload_bytes, num_ranks, bandwidth_Bps, latency_s):
    """Seconds of one ring all-reduce: traffic over bandwidth, and the hops."""
    raise NotImplementedError("traffic / bandwidth + 2(N-1) latencies: the two halves take N-1 hops each")


def tp_comm_time_per_step(
    batch_tokens, hidden, num_layers, num_ranks, bandwidth_Bps, latency_s, dtype_bytes=2, allreduces_per_layer=2
):
    """Seconds that one pass through all layers spends in all-reduces."""
    raise NotImplementedError("layers x all-reduces a layer x the time of one all-reduce of this step's payload")


def comm_fraction(comm_s, compute_s):
    """Share of the step that is communication when nothing overlaps."""
    raise NotImplementedError("communication / (communication + compute), not communication / compute")
