"""Lab 02: read a live two-rank run and say beforehand what every line of it must be. Sizes are bytes, times seconds."""


def rank_weight_bytes(split_bytes, copied_bytes, ranks):
    """Bytes of weights on one rank: ``split_bytes`` of the model are cut, ``copied_bytes`` (norms) are whole everywhere."""
    raise NotImplementedError("only what is cut divides by the ranks; what is copied stays as it is on each")


def split_parameters(hidden, width, layers, heads, kv_heads, vocab):
    """Parameters of a Llama-like model that tensor parallelism cuts: embedding, head, attention and feed-forward."""
    raise NotImplementedError(
        "two tables of vocab x hidden; per layer q and o of hidden x hidden, k and v of the KV width, three of hidden x width"
    )


def kv_blocks(tokens, block_size, sequences):
    """KV blocks that a rank needs: every sequence has whole blocks of its own."""
    raise NotImplementedError("round up per sequence, not in total")


def kv_bytes_per_rank(blocks, block_size, layers, kv_heads, head_dim, dtype_bytes, ranks):
    """Bytes of those blocks on one rank; with more ranks than KV heads every rank still holds one head."""
    raise NotImplementedError("keys and values, for every layer, of the heads that this rank holds")


def collectives_per_step(layers):
    """How often one step communicates: a dict with the counts of 'all-reduce' and 'all-gather'."""
    raise NotImplementedError("two all-reduces a layer and the embedding's; the logits are gathered once")


def largest_difference(logits, reference):
    """The largest absolute difference between two lists of rows; infinite if a value is not a number."""
    raise NotImplementedError("compare value by value; a NaN must never pass as equal")


def wire_and_waits(seconds_by_rank):
    """One collective, timed on every rank: (the wire, each rank's extra waiting, the rank that came last)."""
    raise NotImplementedError("the rank that waited least came last, and its time is the wire; the rest is waiting for it")


def step_seconds(compute_by_rank, comm_s):
    """A lockstep step: everybody waits for the slowest."""
    raise NotImplementedError("the largest compute time, and the communication after it")


def winner(tp1_step_s, tp_step_s, ranks, batch, goal):
    """'tp' or 'replicas': who is better on the same ranks, for the goal 'latency' or 'throughput'?"""
    raise NotImplementedError("replicas decode one batch each in tp1_step_s, all at once; tp decodes one batch in tp_step_s")
