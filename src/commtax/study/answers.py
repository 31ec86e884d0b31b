"""The study's four questions, answered from the figures of one machine."""

from __future__ import annotations

from commtax.files import Document
from commtax.units import format_bytes, format_rate, format_seconds

NEAR = 0.97  # of the ideal gain, or of no gain: nearer than this is the same


def answers(d: Document) -> list[dict[str, str]]:
    """Question and answer, four times."""
    one = next((r for r in d["degrees"] if r["tp"] == 1), None)
    others = [r for r in d["degrees"] if r["tp"] > 1]
    asked = (
        ("Does tensor parallelism divide decode latency by its degree?", [_divides(one, row) for row in others]),
        ("What share of decode time is all-reduce?", [*map(_share, others)]),
        ("At what batch does it beat TP=1?", [*map(_beats, d["crossover"])]),
        ("How much of the link do the all-reduces use?", [*map(_link, others), _counters(d)]),
    )
    return [
        {"question": question, "answer": " ".join(filter(None, said)) or "Not measured: it needs TP=1 and a larger degree."}
        for question, said in asked
    ]


def _divides(one: Document | None, many: Document) -> str:
    tp = many["tp"]
    if not many["decode_ms"]:
        return f"TP={tp} has no decode latency."
    if not one or not one["decode_ms"]:
        return f"TP={tp} takes {many['decode_ms']:.3g} ms a token; there is no TP=1 to compare with."
    gain = one["decode_ms"] / many["decode_ms"]
    word = "Yes" if gain >= NEAR * tp else "No" if gain > 1 / NEAR else "No: it is no faster at all"
    whole = "" if word == "Yes" else f", not {tp}x"
    text = f"{word}. TP=1 takes {one['decode_ms']:.3g} ms a token, TP={tp} {many['decode_ms']:.3g} ms: {gain:.2f}x{whole}."
    guesses = one["decode_predicted_ms"], many["decode_predicted_ms"]
    if all(guesses):
        text += f" Predicted: {guesses[0]:.3g} and {guesses[1]:.3g} ms, {guesses[0] / guesses[1]:.2f}x."
    p = many.get("profile")
    if p and p.get("comm_fraction") is not None:
        comm = p["comm_fraction"] * many["decode_ms"]
        rest = one["decode_ms"] / tp
        fixed = many["decode_ms"] - comm - rest
        text += f" 1/{tp} of TP=1's time is {rest:.3g} ms; collectives, waiting included, take {comm:.3g} ms by the profile's share"
        text += f", and {fixed:.3g} ms did not divide (fixed costs of kernels and host)." if fixed > 0 else "."
    return text


def _share(row: Document) -> str:
    p = row.get("profile")
    if not p:
        return f"TP={row['tp']}: no profile."
    text = f"TP={row['tp']}: {p['comm_fraction']:.1%} of the decode step"
    if p.get("wire_fraction") is not None:
        rest = "the rest is waiting for the other ranks, and other collectives"
        text += f" ({p['wire_fraction']:.1%} all-reduces on the wire; {rest})"
    each = f", {format_seconds(p['allreduce_s'])} each" if p.get("allreduce_s") else ""
    text += f": {p['allreduces']:g} all-reduces a step{each}"
    if "predicted_allreduces" in p:
        guess = p["predicted_comm_fraction"]
        text += f". Predicted: {p['predicted_allreduces']:g} a step" + (f", {guess:.1%}" if guess is not None else "")
    return f"{text} ({p['how']})."


def _beats(cross: Document) -> str:
    rows, tp = cross["ratios"], cross["tp"]
    if not rows:
        return ""
    listed = ", ".join(f"{r['ratio']:.2f}x at {r['batch']}" for r in rows)
    wins = [str(r["batch"]) for r in rows if r["ratio"] > 1 + r["noise"]]
    gains = f"TP={tp} gives more tokens a second than TP=1, beyond the noise, at batch {', '.join(wins)}"
    head = gains if wins else f"TP={tp}: at none"
    guess = f"from batch {cross['predicted_batch']}" if cross["predicted_batch"] else "at none"
    predicted = f" Predicted: {guess}." if any(r["predicted"] for r in rows) else ""
    fair = f" The fair rival of {tp} devices is {tp} TP=1 replicas, up to {tp}x the tokens of one"
    return f"{head} ({listed}).{predicted}{fair}: TP={tp} reaches {max(r['ratio'] for r in rows):.2f}x at most."


def _link(row: Document) -> str:
    link = (row.get("profile") or {}).get("link")
    if not link:
        return f"TP={row['tp']}: no timed all-reduces."
    p = row["profile"]
    size = format_bytes(p["allreduce_bytes"] or p["predicted_bytes"])
    inside = f"{format_rate(link['inside_Bps'])} on the wire, {link['inside_share']:.1%} of {link['name']}"
    whole = f"({format_rate(link['peak_Bps'])}); over the whole step {link['step_share']:.2%}"
    return f"TP={row['tp']}: an all-reduce of {size} runs at {inside} {whole}. Small messages cost latency, not bandwidth."


def _counters(d: Document) -> str:
    top = sorted(d.get("link_counters", []), key=lambda c: -c["bytes"])[:4]
    listed = ", ".join(f"{c['counter']} {format_bytes(c['bytes'])} ({format_rate(c['bytes_per_s'])})" for c in top)
    return f"Counters over the {top[0]['run']} run: {listed}." if top else "The machine has no link counters that moved."
