"""``bill --phase train``: options to a priced training step."""

from __future__ import annotations

from typing import Any

from commtax.api import traffic, train_bill
from commtax.cli.emitting import show_priced
from commtax.cli.output import print_json, terminal
from commtax.spec import Cluster, Profile
from commtax.statement import Refusal
from commtax.units import parse_tokens

SERVING = {"kv_dtype": "", "speculative": 0, "ep_backend": "", "overlap": 0.0}
"""Options of serving alone, and what they are when nobody gives them."""


def bill_training(
    model: str,
    place: Cluster,
    batch: int,
    options: dict[str, Any],
    kinds: dict[str, Any],
    *,
    exact: bool,
    as_json: bool,
    profile: Profile | None,
    emit: str = "",
    html: str = "",
) -> None:
    """Price the step, or with ``exact`` only list what it sends."""
    words = training_words(options, kinds)
    num_tokens = parse_tokens(words.pop("tokens"), "tokens") if words["tokens"] else words.pop("tokens") or 0.0
    measured = words.pop("measured_mfu")
    if measured is not None and not 0 < measured <= 1:
        raise Refusal(f"measured_mfu={measured:g}: above 0 and at most 1 (write 40% or 0.4)", "measured_mfu")
    if exact:
        if emit:
            raise Refusal("emit: comes with a priced step; leave --exact out", "emit")
        if num_tokens or measured is not None:
            raise Refusal(f"{'tokens' if num_tokens else 'measured_mfu'}: needs seconds, and --exact has none")
        _exact(model, place, batch, words, as_json)
        return
    priced = train_bill(model, place, batch=batch, profile=profile, **words)
    show_priced(priced, emit, html, as_json, num_tokens=num_tokens, measured_mfu=measured)


def training_words(options: dict[str, Any], kinds: dict[str, Any]) -> dict[str, Any]:
    """Arguments of ``train_bill``; what belongs to serving is refused."""
    options = dict(options)
    options.pop("phase")
    for name, default in SERVING.items():
        if options.pop(name) != default:
            raise Refusal(f"{name}: belongs to serving, not to phase train", name)
    axes = kinds.get("async_axes")
    if axes is not None:
        kinds = {**kinds, "async_axes": () if axes == "none" else tuple(axes.split(","))}
    options["sequence_parallel"] = options["sequence_parallel"] or None
    return {**options, **kinds}


def _exact(model: str, place: Cluster, batch: int, words: dict[str, Any], as_json: bool) -> None:
    plain = {
        "slow_rank": 1.0,
        "library": "",
        "eager": False,
        "async_axes": None,
        "imbalance": 1.0,
        "flops": "full",
    }
    given = [name for name, default in plain.items() if words.pop(name) != default]
    if given:
        raise Refusal(f"{given[0]}: changes seconds, and --exact has none")
    found = traffic(model, place, phase="train", batch=batch, shard=words.pop("hsdp"), **words)
    if as_json:
        from commtax.report.documents import traffic_document

        print_json(traffic_document(found))
    else:
        from commtax.report.tables import show_traffic

        show_traffic(terminal(), found)
