"""Lab 01: tensor parallelism as algebra. Inputs are rows (tokens), weights are (in, out), products are x @ w.

``group`` is a counting communicator: ``group.all_reduce(parts)`` adds, ``group.all_gather(parts)`` joins columns.
"""


def column_shards(weight, ranks):
    """The weight cut by output columns, one piece a rank."""
    raise NotImplementedError("split the second axis into `ranks` equal pieces; refuse (ValueError) what does not divide")


def row_shards(weight, ranks):
    """The weight cut by input rows, one piece a rank."""
    raise NotImplementedError("split the first axis into `ranks` equal pieces; refuse (ValueError) what does not divide")


def column_parallel(x, shards, group):
    """x @ w from column shards: every rank sees all of x and makes its columns."""
    raise NotImplementedError("each rank multiplies the whole x; the columns are then gathered")


def row_parallel(x, shards, group):
    """x @ w from row shards: every rank sees its columns of x and makes a partial sum."""
    raise NotImplementedError("cut x by columns to match the shards; the partial products are then all-reduced")


def parallel_mlp(x, up, down, ranks, group):
    """relu(x @ up) @ down with exactly one all-reduce and no gather."""
    raise NotImplementedError("column shards of `up`, row shards of `down`: what a rank makes is what it needs next")


def parallel_block(x, wq, wk, wv, wo, up, down, heads, ranks, group):
    """A transformer block (attention by heads, then the feed-forward), residuals added: exactly two all-reduces."""
    raise NotImplementedError("heads divide like columns: q, k, v by columns, attend per rank, wo by rows, then the mlp")


def legal_degrees(heads, width, most):
    """All tensor-parallel degrees up to ``most`` that divide both the heads and the feed-forward width."""
    raise NotImplementedError("every rank needs whole heads and a whole slice of the width")
