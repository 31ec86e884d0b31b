"""Kernels of linear attention (gated delta net, Kimi delta attention, Mamba-2): FLOPs and bytes of one shape at a time.

A convolution, then a chunked scan over a prompt or an update of the state for a new token. What a prompt reads was just written;
states and the last activations of each sequence come from memory (``cold``), unless a benchmark repeats one kernel.
"""

from commtax.cost.forms.linear import Convolution, Scan, Stream
from commtax.cost.kernel import Kernel
from commtax.spec import Number

ACTIVATION_BYTES = 2.0  # bf16
STATE_BYTES = 4.0  # an element of a recurrent state: fp32
CHUNK = 64.0  # tokens that a scan takes at a time
UPDATE_FLOPS = 6.0  # an element of state and token: decay, correction, key times value, query


def convolved(form: str, sequences: Number, tokens: Number, channels: Number, taps: Number) -> Kernel:
    """A causal convolution of whole prompts: 2 taps FLOPs and an activation in and out for each token and channel."""
    elements = sequences * tokens * channels
    shape = Convolution(sequences, tokens, channels)
    return Kernel("convolution", form, 1, 2.0 * taps * elements, 2 * ACTIVATION_BYTES * elements, dtype="fp32", shape=shape)


def convolved_further(form: str, sequences: Number, tokens: Number, channels: Number, taps: Number, cold: bool = True) -> Kernel:
    """The convolution of a few new tokens: the last activations of each sequence are read and written beside."""
    elements, kept = sequences * tokens * channels, 2 * ACTIVATION_BYTES * sequences * channels * (taps - 1)
    nbytes = 2 * ACTIVATION_BYTES * elements + kept
    shape = Stream(tokens, sequences, kept if cold else 0.0)
    return Kernel("convolution", form, 1, 2.0 * taps * elements, nbytes, dtype="fp32", shape=shape)


def delta_scanned(
    form: str, sequences: Number, tokens: Number, key_heads: Number, heads: Number, key_dim: Number, dim: Number
) -> Kernel:
    """A delta rule over whole prompts in chunks of C tokens, ``heads`` states of K x V each (Yang et al. 2024, 2412.06464).

    A token and head cost 2 C (3 K + 2 V) FLOPs inside its chunk (two triangles of keys and queries, their products with keys and
    values) and 6 K V with the state.
    """
    each = 2 * CHUNK * (3 * key_dim + 2 * dim) + 6 * key_dim * dim
    return _scanned(form, each, (sequences, tokens, key_heads, heads, key_dim, dim))


def space_scanned(
    form: str, sequences: Number, tokens: Number, groups: Number, heads: Number, state: Number, dim: Number
) -> Kernel:
    """A state space over whole prompts in chunks (Dao and Gu 2024, 2405.21060): 2 C (N + P) FLOPs inside, 4 N P with the state."""
    each = 2 * CHUNK * (state + dim) + 4 * state * dim
    return _scanned(form, each, (sequences, tokens, groups, heads, state, dim))


def _scanned(form: str, each_flops: Number, sizes: tuple[Number, Number, Number, Number, Number, Number]) -> Kernel:
    """Keys and queries, values and output move once, states in and out; a chain of kernels hands on two of each beside states."""
    sequences, tokens, key_heads, heads, key_dim, dim = sizes
    rows = sequences * tokens
    state_bytes = 2 * STATE_BYTES * sequences * heads * key_dim * dim
    between = 2 * ACTIVATION_BYTES * rows * heads * (2 * key_dim + 2 * dim + key_dim * dim / CHUNK)
    nbytes = ACTIVATION_BYTES * rows * 2 * (key_heads * key_dim + heads * dim) + state_bytes
    return Kernel("scan", form, 1, rows * heads * each_flops, nbytes, shape=Scan(sequences, tokens, CHUNK, state_bytes, between))


def updated(form: str, sequences: Number, tokens: Number, elements: Number, moved_bytes: Number, cold: bool = True) -> Kernel:
    """States of ``elements`` each moved on by a few tokens; an element moves so many bytes, read and written."""
    nbytes = sequences * elements * moved_bytes
    shape = Stream(tokens, sequences, nbytes if cold else 0.0)
    return Kernel("state update", form, 1, UPDATE_FLOPS * sequences * tokens * elements, nbytes, dtype="fp32", shape=shape)
