"""Does a collective hide behind compute? ``t_comm <= t_window``, and the thresholds that follow from it."""

from __future__ import annotations

import numpy as np

from commtax.spec import Number


def dp_token_threshold(flops_per_s: Number, bandwidth_Bps: Number) -> Number:
    """Local tokens from which the gradient all-reduce hides behind backward: FLOP/s over B/s, whatever the model.

    Follows from 4N/BW <= 4N tokens/(FLOP/s).
    """
    return flops_per_s / bandwidth_Bps


def tp_tax(flops_per_s: Number, bandwidth_Bps: Number, hidden: Number, tp: Number) -> Number:
    """Forward tensor-parallel all-reduce time over compute time: (T-1)/3 x FLOP/s / (BW h).

    Per layer and token: two all-reduces of 2h bytes, each 2 (T-1)/T on the wire, against 24 h^2 / T FLOPs. Each rank
    computes 1/T of the layer but reduces the whole activation, so the tax grows with T-1.
    """
    return (tp - 1) / 3 * flops_per_s / (bandwidth_Bps * hidden)


def hidden_s(comm_s: Number, window_s: Number, efficiency: float) -> Number:
    """Seconds of a collective that cost nothing: what its window covers, times an efficiency below 1.

    A collective beside compute takes SMs and memory bandwidth from it, so of what runs beside it a part is paid anyway.

    >>> hidden_s(2.0, 5.0, 0.9), hidden_s(2.0, 1.0, 0.9)
    (np.float64(1.8), np.float64(0.9))
    """
    return efficiency * np.minimum(comm_s, window_s)
