"""What a sequence keeps on a rank while it is served, keys and values or a state of one size; and how engines keep it.

Blocks of one size that groups of layers share, or a pool for states beside. vLLM (``kv_cache_utils``, ``MambaSpec``): layers of a
kind are cut into groups of equal size, each with a table of blocks of its own. A request takes blocks for its tokens from groups of
attention, a few from groups with a window, and whole states from groups of recurrent layers, whose blocks are raised so that one
holds a state. SGLang: states lie in a pool of their own that gets a fixed share of the memory. Others: states are counted in bytes
beside the blocks.
Change here how many bytes a token or a state takes, and how an engine lays them in blocks.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from commtax.arrays import holds_anywhere, pick
from commtax.records import dataclass
from commtax.spec import DTYPE_BYTES, RECURRENT, Attention, Compressed, DeltaNet, Mamba2, Mixer, Model, Number, Plan, StateHabits
from commtax.spec.hardware import CacheCarrier

SCALE_BYTES = 4  # of an fp32 scale: one for each 128 values of an fp8 latent, and one a key of a selector, which is fp8
STATE_SCALE_GROUP = 64  # values of DeepSeek-V4's fp8 latent that share a scale of one byte
COMPRESSOR_BYTES = 4  # of a value of an unfinished entry: fp32
SHARED_LAYERS = 1.5  # kinds that differ by less than this are padded to the larger one instead of cut to the smaller
PLAIN = StateHabits()  # of an engine whose file says nothing of states
Kind = tuple[int, int, int, int, bool]


def kv_bytes_per_token_layer(mixer: Mixer | None, tp: Number, kv_dtype: str) -> Number:
    """Return the bytes that one rank keeps of one token in one layer, however many follow.
    Grouped-query heads are split over tp until each rank has one, then copied. A latent is kept whole on every rank;
    a token selector adds its keys. Of compressed tokens ``ratio`` share an entry. Recurrent layers keep nothing.

    >>> float(kv_bytes_per_token_layer(Attention(32, 8, 128, 128), 2, "bf16"))
    2048.0
    """
    if not isinstance(mixer, Attention) or not mixer.own_cache:
        return tp * 0.0
    selector = mixer.indexer.head_dim + SCALE_BYTES if mixer.indexer and mixer.indexer.own else 0
    if mixer.compressed:
        ratio = mixer.compressed.ratio
        return tp * 0 + ((entry_bytes(mixer, mixer.compressed, kv_dtype) + selector) / ratio if ratio else 0.0)
    size = DTYPE_BYTES[kv_dtype]
    if mixer.latent:
        latent = (mixer.latent.kv_rank + mixer.latent.rope_dim) * size
        if mixer.indexer and kv_dtype == "fp8":  # fp8 latent with a scale for each 128, the rotary part in bf16
            latent = mixer.latent.kv_rank * (1 + SCALE_BYTES / 128) + mixer.latent.rope_dim * 2
        return tp * 0 + latent + selector
    heads = mixer.num_kv_heads / np.minimum(tp, mixer.num_kv_heads)
    blocks = mixer.indexer.head_dim * DTYPE_BYTES["bf16"] if mixer.indexer else 0  # an index over blocks keeps its keys as they are
    return heads * (mixer.head_dim + mixer.v_head_dim) * size + blocks


def entry_bytes(a: Attention, m: Compressed, kv_dtype: str) -> float:
    """Return the bytes of one latent that is key and value: in fp8 one scale byte per 64, its rotary part in bf16."""
    if kv_dtype != "fp8":
        return a.head_dim * DTYPE_BYTES[kv_dtype]
    plain = a.head_dim - m.rope_dim
    return plain + 8 * math.ceil(plain / STATE_SCALE_GROUP / 8) + 2 * m.rope_dim  # scales are padded to eight bytes


def state_bytes_per_layer(mixer: Mixer | None, tp: Number, plan: Plan) -> Number:
    """Return the bytes that one rank keeps of one sequence in one layer, whatever its length.
    Recurrent layers: the last inputs of the convolution and the recurrent state. Compressed attention: the entries of its
    window, and what the compressors have not finished, values and scores.

    >>> float(state_bytes_per_layer(DeltaNet(16, 48, 128, 128, state_dtype="fp32"), 1, Plan()))
    3207168.0
    """
    if isinstance(mixer, RECURRENT):
        size = DTYPE_BYTES[mixer.state_dtype or plan.state_dtype]
        if isinstance(mixer, DeltaNet):
            channels, elements = mixer.channels / tp, mixer.num_v_heads * mixer.k_dim * mixer.v_dim / tp
        else:
            shared = 2 * mixer.num_groups * mixer.state / np.minimum(tp, mixer.num_groups)
            channels, elements = mixer.inner / tp + shared, mixer.inner * mixer.state / tp
        return (mixer.conv - 1) * channels * DTYPE_BYTES[plan.activations_dtype] + elements * size
    if isinstance(mixer, Attention) and mixer.compressed:
        m = mixer.compressed
        rows = m.overlap * m.ratio
        unfinished = sum(rows * unfinished_bytes(m, width) for width in compressed_widths(mixer))
        return tp * 0 + m.window * entry_bytes(mixer, m, plan.kv_dtype) + unfinished
    return tp * 0.0


def compressed_widths(a: Attention) -> tuple[int, ...]:
    """Return the widths that compressors make entries of: the latent's, and that of the selector's keys."""
    if not a.compressed or not a.compressed.ratio:
        return ()
    return (a.head_dim, a.indexer.head_dim) if a.indexer else (a.head_dim,)


def unfinished_bytes(m: Compressed, width: int) -> int:
    """Return the bytes of one token in an unfinished entry: a value and a score for each window in the entry."""
    return 2 * m.overlap * width * COMPRESSOR_BYTES


def with_states(model: Model, dtype: str) -> Model:
    blocks = (replace(b, mixer=replace(b.mixer, state_dtype=dtype)) if isinstance(b.mixer, RECURRENT) else b for b in model.blocks)
    return replace(model, blocks=tuple(blocks))


def kv_bytes_per_token(model: Model, plan: Plan) -> Number:
    """Return the bytes of one token over all layers, while every layer keeps it, divided among ranks that share a cache."""
    each = (kv_bytes_per_token_layer(model.blocks[i].mixer, plan.tp, plan.kv_dtype) for i in model.layers)
    return sum(each, start=plan.tp * 0.0) / plan.dcp


def state_bytes_per_sequence(model: Model, plan: Plan) -> Number:
    """Return the state bytes of one sequence over all layers."""
    return sum((state_bytes_per_layer(model.blocks[i].mixer, plan.tp, plan) for i in model.layers), start=plan.tp * 0.0)


@dataclass(frozen=True, slots=True)
class CacheGroup:
    """Layers with one table of blocks."""

    tokens: Number  # that a block holds
    window: int = 0  # tokens that are kept of a request; 0: all
    states: Number = 0  # blocks that a request holds whatever its length; 0: as its tokens need

    def blocks(self, length: int, in_flight_tokens: int) -> Number:
        """Return the most blocks that a request of ``length`` tokens takes: a window straddles blocks, and frees what it has passed
        once the steps in flight end."""
        if self.window:
            return 1 + -(-min(self.window - 1 + in_flight_tokens, length) // self.tokens)
        return pick(self.states > 0, self.states, -(-length // self.tokens))


@dataclass(frozen=True, slots=True)
class KvPool:
    """How the memory for caches serves one stage."""

    bytes_per_token: Number  # of one rank, all layers: what a token costs while every layer of attention keeps it
    bytes_per_block: Number  # one block of one group
    block_size: Number  # tokens
    groups: tuple[CacheGroup, ...]
    state_bytes: Number = 0.0  # of one sequence: what it keeps whatever its length
    share: float = 0.0  # bytes of a pool of states over those of the blocks; 0: there is no such pool
    slots: int = 1  # states of such a pool that a running request has
    window_share: float = 0.0  # tokens of a pool of windows over those of the blocks, and …
    window_tokens: int = 0  # … those that a request has there

    @property
    def num_growing(self) -> int:
        """Groups whose blocks a request takes as it grows."""
        return sum(not np.any(g.states) for g in self.groups)

    @property
    def state_tokens(self) -> Number:
        """Tokens whose room the states of one request take."""
        return sum(g.states for g in self.groups) / self.num_growing * self.block_size

    def tokens(self, blocks: Number) -> Number:
        """Return the tokens that this many blocks hold without any states."""
        return blocks // self.num_growing * self.block_size

    def shared_tokens(self, blocks: Number) -> Number:
        """Return the tokens that this many blocks would hold if dealt to all groups alike."""
        return blocks // len(self.groups) * self.block_size

    def blocks_per_request(self, length: int, in_flight_tokens: int) -> Number:
        """Count the blocks that one request of ``length`` tokens occupies."""
        return np.maximum(1, sum(g.blocks(length, in_flight_tokens) for g in self.groups))

    def places(self, tokens: Number) -> Number:
        """Count the requests whose states fit beside blocks for ``tokens``, without limit where states lie in the blocks."""
        if self.window_share:
            return tokens * self.window_share // self.window_tokens
        if not self.share or not np.any(self.state_bytes):
            return math.inf
        return tokens * self.bytes_per_token * self.share / self.state_bytes // self.slots


def kv_pool(model: Model, plan: Plan, layers: range, block_size: int, habits: StateHabits = PLAIN) -> KvPool:
    """Return the pool in which a stage of these layers keeps its caches, where a block holds the tokens of all dcp ranks."""
    pool = _whole_pool(model, plan, layers, block_size, habits)
    if not holds_anywhere(np.asarray(plan.dcp) > 1):
        return pool
    groups = tuple(replace(group, tokens=group.tokens * plan.dcp) for group in pool.groups)
    return replace(pool, bytes_per_token=pool.bytes_per_token / plan.dcp, block_size=pool.block_size * plan.dcp, groups=groups)


def _whole_pool(model: Model, plan: Plan, layers: range, block_size: int, habits: StateHabits) -> KvPool:
    mixers = [model.blocks[model.layers[i]].mixer for i in layers]
    cached = [m for m in mixers if isinstance(m, Attention) and m.own_cache] or [model.attention]
    states = [m for m in mixers if isinstance(m, RECURRENT)]
    nbytes = sum((state_bytes_per_layer(m, plan.tp, plan) for m in mixers), start=plan.tp * 0.0)
    if habits.compressed_block and any(a.compressed for a in cached):
        return (_separate_window_pool if habits.window_share else _compressed_pool)(cached, plan, habits, nbytes)
    if habits.state_pool == "blocks":
        return _grouped_pool(cached, states, plan, block_size, habits, nbytes)
    pool = _grouped_pool(cached, [], plan, block_size, habits, nbytes)
    if not np.any(nbytes):
        return pool
    if states and habits.state_pool == "share":
        return replace(pool, share=habits.state_share, slots=habits.state_slots)
    beside = CacheGroup(block_size, states=np.ceil(nbytes * habits.state_slots / pool.bytes_per_block))
    return replace(pool, groups=(*pool.groups, beside))


def _kind(a: Attention) -> Kind:
    """Return what layers must have in common to share a table: window and width of cache."""
    return a.window, a.num_kv_heads, a.head_dim, a.v_head_dim, a.latent is not None


def _grouped_pool(
    cached: Sequence[Attention], states: Sequence[DeltaNet | Mamba2], plan: Plan, size: int, habits: StateHabits, nbytes: Number
) -> KvPool:
    """Build a pool of equally large groups of layers, with blocks as large as the widest kind's, or one group of a single kind."""
    per_layer = {a: kv_bytes_per_token_layer(a, plan.tp, plan.kv_dtype) for a in dict.fromkeys(cached)}
    if not states and len({a.window for a in cached}) == 1:
        each = sum(per_layer[a] for a in cached)
        return KvPool(each, each * size, size, (CacheGroup(size, cached[0].window),), nbytes)
    widest = max(per_layer.values(), key=lambda v: float(np.max(v)))
    block = _raised_block(cached, states, plan, size, habits, widest)
    page = widest * block
    counts: Counter[Kind | DeltaNet | Mamba2] = Counter(sorted(map(_kind, cached)))
    counts.update(states)
    smallest, largest = min(counts.values()), max(counts.values())
    each = largest if largest < SHARED_LAYERS * smallest else smallest
    widths = {_kind(a): nbytes_ for a, nbytes_ in per_layer.items()}
    groups: list[CacheGroup] = []
    for kind, count in counts.items():
        if isinstance(kind, RECURRENT):
            group = CacheGroup(block, states=habits.state_slots)
        else:  # tokens of a narrower layer in a block of the widest: whole multiples of the usual, where they fill it
            times = page / np.maximum(widths[kind] * block, 1e-9)
            group = CacheGroup(block * np.where(times == np.floor(times), times, 1)[()], kind[0])
        groups += [group] * math.ceil(count / each)
    return KvPool(sum(page * each / g.tokens for g in groups if not g.states), page * each, block, tuple(groups), nbytes)


def _raised_block(
    cached: Sequence[Attention], states: Sequence[DeltaNet | Mamba2], plan: Plan, size: int, habits: StateHabits, per_token: Number
) -> Number:
    """Return the tokens of a block that holds the largest state, in whole multiples of what kernels take."""
    if not states:
        return size
    grain = max(size, habits.state_block_multiple_latent if any(a.latent for a in cached) else habits.state_block_multiple)
    state: Number = np.max([state_bytes_per_layer(m, plan.tp, plan) * np.ones_like(per_token) for m in set(states)], axis=0)
    return np.maximum(1, np.ceil(state / (grain * per_token))) * grain


def _compressed_pool(cached: Sequence[Attention], plan: Plan, habits: StateHabits, nbytes: Number) -> KvPool:
    """Build a pool with entries of all lengths in one group and windows and unfinished entries in others, as many layers of each
    page in all of them. A stage of windows alone has pages of their size."""
    plain = [habits.window_block * entry_bytes(a, a.compressed, plan.kv_dtype) for a in cached if a.compressed]
    pages = Counter(page for a in cached for page in _entry_pages(a, plan, habits))
    pages = pages or Counter(_page_bytes(n, habits) for n in plain)
    kinds = [(a, a.compressed) for a in cached if a.compressed]
    kept = [(m.window, habits.window_block) for _, m in kinds]
    for ratio in dict.fromkeys(m.ratio for _, m in kinds if m.ratio):
        for a, m in (pair for pair in kinds if pair[1].ratio == ratio):
            each_token = unfinished_bytes(m, max(compressed_widths(a)))  # a block has the most tokens, of a power of two, in a page
            kept.append((m.overlap * m.ratio, 2 ** math.floor(math.log2(max(pages) / each_token))))
    counts, most = Counter(kept), max(pages.values())
    groups = [most, *counts.values()]
    # Layers of a group, at least those of the most pages, with the fewest padded in all groups; of equals the most.
    each = min(range(most, max(groups) + 1), key=lambda size: (sum(-count % size for count in groups), -size))
    windows = tuple(
        CacheGroup(tokens, window, states=math.ceil(window / tokens) + 1)
        for (window, tokens), count in counts.items()
        for _ in range(math.ceil(count / each))
    )
    packed = max(sum(page * count for page, count in pages.items()), max(pages) * each)
    block = packed if habits.packed_pages else sum(pages) * each
    size = plan.tp * 0 + habits.compressed_block
    return KvPool(plan.tp * 0 + block / habits.compressed_block, plan.tp * 0 + block, size, (CacheGroup(size), *windows), nbytes)


def _separate_window_pool(cached: Sequence[Attention], plan: Plan, habits: StateHabits, nbytes: Number) -> KvPool:
    """Build a pool with entries for all tokens and windows for a share of them (SGLang's DSV4PoolConfigurator). Entries that
    overlap are unfinished beside their window's tokens; of others a request has room for one."""
    size, entries = habits.compressed_block, sum(kv_bytes_per_token_layer(a, plan.tp, plan.kv_dtype) for a in cached)
    kinds = [(a, a.compressed) for a in cached if a.compressed]
    windows = 0.0
    for a, m in kinds:  # of a token its latent, and its part of what the window keeps of unfinished entries that overlap
        rows = m.overlap * m.ratio / m.window if m.overlap > 1 else 0.0
        windows += entry_bytes(a, m, plan.kv_dtype) + rows * sum(unfinished_bytes(m, width) for width in compressed_widths(a))
    each = entries + habits.window_share * windows
    unfinished = sum(m.ratio * unfinished_bytes(m, width) for a, m in kinds if m.overlap == 1 for width in compressed_widths(a))
    beside = CacheGroup(size, states=np.ceil(unfinished / (each * size)))
    kept = max(math.ceil(m.window / habits.window_block) + 1 for _, m in kinds) * habits.window_block
    groups = (CacheGroup(size), beside) if unfinished else (CacheGroup(size),)
    return KvPool(each, each * size, size, groups, nbytes, window_share=habits.window_share, window_tokens=kept)


def _entry_pages(a: Attention, plan: Plan, habits: StateHabits) -> Iterator[int]:
    """Yield the bytes of a layer's parts of a block: latent entries, and the selector's keys."""
    m = a.compressed
    if m and m.ratio:
        entries = habits.compressed_block / m.ratio
        yield _page_bytes(entries * entry_bytes(a, m, plan.kv_dtype), habits)
        if a.indexer:
            yield _page_bytes(entries * (a.indexer.head_dim + SCALE_BYTES), habits)


def _page_bytes(nbytes: float, habits: StateHabits) -> int:
    return math.ceil(nbytes / habits.page_multiple) * habits.page_multiple


def pieces_sent(
    model: Model, carrier: CacheCarrier, engine: str, tokens: Number, page: Number, tp: Number, ahead_tp: Number
) -> Number:  # fmt: skip
    """Count the pieces that one rank takes of a request's cache: whole blocks or layers where both sides have the same heads on a
    rank, else heads cut out of each block or token, of several senders."""
    mixers = [model.blocks[i].mixer for i in model.layers]
    cached = [m for m in mixers if isinstance(m, Attention) and m.own_cache]
    # Of each block: keys and values of a layer apart, or its latent, which is both, and keys of a selector.
    of_tokens = sum((1 if m.latent or m.compressed else 2) + bool(m.indexer and m.indexer.own) for m in cached)
    blocks = np.ceil(tokens / np.maximum(page, carrier.latent_page if any(m.latent for m in model.attentions) else 1))
    heads = max((m.num_kv_heads for m in model.attentions if not m.latent), default=1)
    before, after = np.minimum(ahead_tp, heads), np.minimum(tp, heads)
    cut = tokens if carrier.cuts_heads == "token" else blocks
    whole = np.minimum(1, blocks) if engine in carrier.gathers else blocks
    copies = pick(before == after, whole, cut * np.maximum(1, before / after))
    return of_tokens * copies + sum(isinstance(m, RECURRENT) for m in mixers)


def posted_pieces(carrier: CacheCarrier, pieces: Number, tp: Number, ahead_tp: Number) -> Number:
    """Count the pieces that one rank posts: its own where it fetches, those of all its receivers where it sends."""
    return pieces * tp / np.minimum(tp, ahead_tp) if carrier.pushes else pieces * 1.0


def hidden_s(moving_s: Number, computing_s: Number, stages: Number) -> Number:
    """Return the transfer seconds hidden behind computing a prompt, when each of its equal stages leaves once computed.
    The first stage's computing and the last one's transfer overlap with nothing: of m stages, m - 1 hide the shorter of both.

    >>> float(hidden_s(8.0, 4.0, 4)), float(hidden_s(8.0, 4.0, 1))
    (3.0, 0.0)
    """
    return (1 - 1 / np.maximum(1.0, stages)) * np.minimum(moving_s, computing_s)


def loading_s(nbytes: Number, blocks: Number, Bps: Number, piece_s: float, transfer_s: float) -> Number:
    """Return the seconds to load a prefix of this many blocks from another tier, or 0 without blocks.

    >>> round(float(loading_s(1e9, 100, 50e9, 2.6e-6, 0.0)) * 1e3, 2)
    20.26
    """
    return pick(blocks > 0, transfer_s + piece_s * blocks + nbytes / Bps, 0.0)
