"""Kernels that carry tokens to the ranks of their experts and back, as tables of single launches time them."""

import numpy as np

from commtax.cost.forms.form import Form, Parts, Table
from commtax.cost.kernel import Kernel
from commtax.records import dataclass
from commtax.spec import Number

SHARPNESS = 4.0  # of the turn from what multiprocessors copy to what the link carries


@dataclass(frozen=True, slots=True)
class Exchange:
    """``sms``: multiprocessors that copy; 0: as many as the kernel likes."""

    ranks: Number
    sms: Number = 0.0


def exchanged_kernel(what: str, form: str, sent_bytes: Number, ranks: Number, sms: Number = 0.0) -> Kernel:
    """One way of an exchange: ``sent_bytes`` of one rank, of which 1/ranks stay where they are."""
    return Kernel(what, form, 1, 0.0, sent_bytes * (1 - 1 / ranks), stored=what, shape=Exchange(ranks, sms))


def exchange(k: Kernel, c: Table, bandwidth_Bps: float, flops_per_s: float) -> Parts:  # noqa: ARG001
    """t = t0 + bytes / rate seconds; the rate is the link's, or that of the multiprocessors that copy where they are few."""
    e: Exchange = k.shape
    few = np.asarray(e.sms) > 0
    copied = np.where(few, 1 / (c["sm_Bps"] * np.where(few, e.sms, 1)), 0.0)
    slowness = np.maximum(1 / bandwidth_Bps, (copied**SHARPNESS + c["link_Bps"] ** -SHARPNESS) ** (1 / SHARPNESS))
    return c["t0"], k.nbytes * slowness


WAYS = ("low", "high", "low2", "high2")
"""Low latency, high throughput, and the second version of both."""
FORMS: dict[str, Form] = {f"exchange_{way}": exchange for way in WAYS}
