"""Caches in motion: the pieces that they travel in, what hides behind computing, what loading takes."""

import numpy as np

from commtax.arrays import pick
from commtax.records import dataclass
from commtax.spec import RECURRENT, Attention, Model, Number
from commtax.spec.hardware import CacheCarrier


@dataclass(frozen=True, slots=True)
class CachePieces:
    """How many stretches of memory a rank's cache of a request lies in."""

    of_tokens: Number  # for each block: keys and values of a layer, or its latent; keys of a selector
    of_states: Number  # whatever the length


def cache_pieces(model: Model) -> CachePieces:
    """Of one block of tokens, and of the states of a sequence.

    Engines keep keys and values of a layer apart; a latent is both.
    """
    mixers = [model.blocks[i].mixer for i in model.layers]
    cached = [m for m in mixers if isinstance(m, Attention) and m.own_cache]
    tokens = sum((1 if m.latent or m.compressed else 2) + bool(m.indexer and m.indexer.own) for m in cached)
    return CachePieces(tokens, sum(isinstance(m, RECURRENT) for m in mixers))


def pieces_sent(
    model: Model, carrier: CacheCarrier, engine: str, tokens: Number, page: Number, tp: Number, ahead_tp: Number
) -> Number:  # fmt: skip
    """Pieces that one rank takes of a request's cache.

    Where both sides have the same heads on a rank, whole blocks go, or all blocks of a layer at once. Else heads are cut out of
    each block, or of each token, and a rank that has more heads than those who send takes them from several.
    """
    latents = any(m.latent for m in model.attentions)
    each, blocks = cache_pieces(model), np.ceil(tokens / np.maximum(page, carrier.latent_page if latents else 1))
    heads = max((m.num_kv_heads for m in model.attentions if not m.latent), default=1)
    before, after = np.minimum(ahead_tp, heads), np.minimum(tp, heads)
    cut = tokens if carrier.cuts_heads == "token" else blocks
    whole = np.minimum(1, blocks) if engine in carrier.gathers else blocks
    copies = pick(before == after, whole, cut * np.maximum(1, before / after))
    return each.of_tokens * copies + each.of_states


def posted_pieces(carrier: CacheCarrier, pieces: Number, tp: Number, ahead_tp: Number) -> Number:
    """Pieces that one rank has to post: its own where it fetches, those for all whom it serves where it sends."""
    return pieces * tp / np.minimum(tp, ahead_tp) if carrier.pushes else pieces * 1.0


def hidden_s(moving_s: Number, computing_s: Number, stages: Number) -> Number:
    """What of a transfer runs beside the computing of a prompt, where each of its equal stages leaves when it is computed.

    The first stage's computing and the last one's transfer overlap with nothing: of m stages, m - 1 hide the shorter of both.

    >>> float(hidden_s(8.0, 4.0, 4)), float(hidden_s(8.0, 4.0, 1))
    (3.0, 0.0)
    """
    return (1 - 1 / np.maximum(1.0, stages)) * np.minimum(moving_s, computing_s)


def loading_s(nbytes: Number, blocks: Number, Bps: Number, piece_s: float, transfer_s: float) -> Number:
    """Of a prefix from another tier, in so many blocks: nothing where there is none.

    >>> round(float(loading_s(1e9, 100, 50e9, 2.6e-6, 0.0)) * 1e3, 2)
    20.26
    """
    return pick(blocks > 0, transfer_s + piece_s * blocks + nbytes / Bps, 0.0)
