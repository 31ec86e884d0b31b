"""Seconds of any step of one replica, tabulated once and looked up ever after.

A simulation asks for one step after the other, and pricing each anew would take a thousand times as long as looking it up.
Its tables are made of whole priced steps, each with and without the lines that see earlier tokens (``Item.sees``):

    step = rest(rows, samples) + decode attention(sequences, mean context) + prompt attention(new, past of each prompt)

``rest`` is a step that only knows how many rows pass and how many of them need logits, and attention is what it is longer by.
Between its nodes a table is linear; nodes are as dense as tiles and captured graphs make the price step.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, field, fields, replace
from math import inf
from typing import NamedTuple, Self

import numpy as np

from commtax.arrays import Array, unique_values
from commtax.cost.kernel import PricingTerms
from commtax.cost.pricing import expose_lines, in_step, num_launches, step_lines
from commtax.ledger import Bill
from commtax.records import dataclass
from commtax.spec import Number, Workload

FINE, COARSE, TILE = 512, 4096, 64  # rows up to which every number is priced, and up to which every tile is: its first and last row
MANY = 256.0  # prompts beside which one is one of many
BLEND = 1.5  # exponent by which work blends with the longest block: 1.07 to 1.5 where prompts were measured (catalog/kernels)
SAMPLES = (1, 2, 8, 32, 128, 512, 2048, 8192)
ROOT2 = 2**0.5
MOST_KEPT = 100_000  # prompts whose attention is remembered
SCALED = (
    *("alone", "mixed", "decode", "prompt", "among", "prompt_fixed_s"),
    *("alone_comm", "mixed_comm", "sample_s", "launch_s", "mixed_launch_s"),
)
"""What of a table is seconds."""


@dataclass(slots=True)
class Surface:
    """Lists, because single numbers are looked up: seconds by rows, sequences, contexts and lengths."""

    alone: list[float]  # a step of decodes without their attention, by sequences
    samples: list[int]  # nodes: rows that need logits
    mixed: Array  # a step with prompt tokens without attention, by node of samples and by rows
    contexts: list[float]  # nodes: mean cached tokens of a sequence
    decode: Array  # attention of decodes, by sequences and node of context
    new: list[float]  # nodes: prompt tokens of a step
    past: list[float]  # nodes: tokens of a prompt that are cached
    prompt: list[list[float]]  # attention of the tokens of a step's only prompt, by node of past and of new …
    among: list[list[float]]  # … of one of many prompts, which fill the chip together …
    prompt_fixed_s: float  # … and what it costs once a step
    alone_comm: Array  # of ``alone``: communication
    mixed_comm: Array  # of ``mixed``, by rows
    sample_s: float = 0.0  # of the host, for each row of a step with prompts that needs logits
    launch_s: float = 0.0  # a step of decodes takes no less: the host launches it kernel by kernel …
    mixed_launch_s: float = 0.0  # … and one with prompts no less than this
    rows_per_seq: int = 1  # of a request that decodes: more where steps check drafts …
    per_step: float = 1.0  # … and yield so many tokens of each
    # What was looked up once: by sequences, samples, a prompt's new and past tokens.
    _pieces: dict[int, tuple[list[float], list[float]]] = field(default_factory=dict)
    _slopes: list[Array] = field(default_factory=list)
    _samples: dict[int, tuple[list[float], list[float], float]] = field(default_factory=dict)
    _rows: dict[int, list[float]] = field(default_factory=dict)
    _chunks: dict[tuple[int, int], tuple[float, float, float]] = field(default_factory=dict)
    _scaled: dict[float, Self] = field(default_factory=dict)

    def decoding(self, seqs: int, cached: float) -> tuple[float, float, float]:
        """Return the seconds of a step of decodes alone, how much longer the next one is, and for how many steps that holds, all
        per token where a step yields several."""
        start, slope = self._pieces.get(seqs) or self._piece(seqs)
        contexts, mean = self.contexts, cached / seqs
        at = min(bisect_right(contexts, mean), len(contexts) - 1) - 1
        more = slope[at]
        end = contexts[at + 1] if at + 2 < len(contexts) else inf
        seconds = self.alone[seqs] + start[at] + more * (mean - contexts[at])
        each = self.per_step
        if seconds < self.launch_s:
            return self.launch_s / each, 0.0, min(end - mean, (self.launch_s - seconds) / more if more > 0 else inf)
        return seconds / each, more / each, end - mean

    def mixing(self, seqs: int, cached: float, tokens: int, prompts: int, attention_s: float) -> float:
        """Return the seconds of decodes beside prompt tokens whose attention takes ``attention_s``, whatever the step yields."""
        return max(self._mixing(seqs, cached, tokens, prompts, attention_s), self.mixed_launch_s)

    def prompting(self, seqs: int, cached: float, new: int, past: int) -> tuple[float, float, float]:
        """Return the same as ``decoding`` for steps that each compute the next ``new`` tokens of one prompt beside decodes."""
        across, (at, part) = _node_below(self.new, new), _node_below(self.past, past)
        before, after = (_interpolate_in(self.prompt, across, (at, end)) for end in (0.0, 1.0))
        more = (after - before) * new / (self.past[at + 1] - self.past[at])
        holds = (1 - part) * (self.past[at + 1] - self.past[at]) / new if at + 2 < len(self.past) else inf
        if seqs:
            _, slope = self._pieces.get(seqs) or self._piece(seqs)
            node = min(bisect_right(self.contexts, cached / seqs), len(self.contexts) - 1) - 1
            more += slope[node]
            holds = min(holds, self.contexts[node + 1] - cached / seqs if node + 2 < len(self.contexts) else inf)
        seconds = self._mixing(seqs, cached, new, 1, self.prompts_s([(0, new, past)]))
        if seconds < self.mixed_launch_s:
            return self.mixed_launch_s, 0.0, min(holds, (self.mixed_launch_s - seconds) / more if more > 0 else inf)
        return seconds, more, holds

    def _mixing(self, seqs: int, cached: float, tokens: int, prompts: int, attention_s: float) -> float:
        seconds = self._rest(seqs * self.rows_per_seq + tokens, seqs + prompts) + self.prompt_fixed_s + attention_s
        seconds += self.sample_s * (seqs + prompts)
        if not seqs and prompts > 1:  # more rows need logits, but no kernels of decodes run as in tables of more samples than one
            seconds += self._rest(tokens, 1) - self._rest(tokens, 2)
        if seqs:
            start, slope = self._pieces.get(seqs) or self._piece(seqs)
            mean = cached / seqs
            at = min(bisect_right(self.contexts, mean), len(self.contexts) - 1) - 1
            seconds += start[at] + slope[at] * (mean - self.contexts[at])
        return seconds

    def prompts_s(self, chunks: Sequence[tuple[int, int, int]]) -> float:
        """Return the attention seconds of a step's prompts, each (request, new tokens, tokens cached before them): [ (sum work)^p +
        max longest^p ]^(1/p), which of a prompt alone is its price."""
        chunks_s = self._chunks
        if len(chunks) == 1:
            _, new, past = chunks[0]
            return (chunks_s.get((new, past)) or self._chunk(new, past))[0]
        work = longest = 0.0
        for _, new, past in chunks:
            _, alone, block = chunks_s.get((new, past)) or self._chunk(new, past)
            work += alone
            longest = max(longest, block)
        blended: float = (work**BLEND + longest) ** (1 / BLEND)
        return blended

    def _chunk(self, new: int, past: int) -> tuple[float, float, float]:
        """Return a prompt's attention alone and among many, and by how much the longest block is longer, to the power."""
        across, down = _node_below(self.new, new), _node_below(self.past, past)
        one, shared = _interpolate_in(self.prompt, across, down), _interpolate_in(self.among, across, down)
        if len(self._chunks) > MOST_KEPT:  # prompts of any length
            self._chunks.clear()
        self._chunks[new, past] = times = (one, shared, one**BLEND - shared**BLEND)
        return times

    def scaled(self, factor: float) -> Self:
        if factor in self._scaled:
            return self._scaled[factor]
        kept = {f.name: f.default_factory() for f in fields(self) if f.default_factory is not MISSING}
        old = ((name, getattr(self, name)) for name in SCALED)
        longer = {name: (np.array(x) * factor).tolist() if isinstance(x, list) else x * factor for name, x in old}
        self._scaled.clear()  # several runs with one factor follow each other
        self._scaled[factor] = replace(self, **longer, **kept)
        return self._scaled[factor]

    def _rest(self, rows: int, samples: int) -> float:
        if samples not in self._samples:
            i, part = _node_below(self.samples, samples)
            for node in {i, i + 1}.difference(self._rows):
                self._rows[node] = self.mixed[node].tolist()
            self._samples[samples] = self._rows[i], self._rows[i + 1], part
        low, high, x = self._samples[samples]
        last = len(low) - 1
        if rows > last:  # beyond the table: as the last rows grow
            return low[last] + (rows - last) * (low[last] - low[last // 2]) / (last - last // 2)
        return low[rows] + x * (high[rows] - low[rows])

    def _piece(self, seqs: int) -> tuple[list[float], list[float]]:
        """Return decode attention of this many sequences: its value and slope at each node of context."""
        if not self._slopes:
            self._slopes.append(np.diff(self.decode) / np.diff(self.contexts))
        self._pieces[seqs] = piece = self.decode[seqs].tolist(), self._slopes[0][seqs].tolist()
        return piece


def _node_below(nodes: Sequence[float], value: float) -> tuple[int, float]:
    """Return the node below, and the fraction of the way to the next, extrapolated beyond the last."""
    at = min(max(bisect_right(nodes, value) - 1, 0), len(nodes) - 2)
    return at, (value - nodes[at]) / (nodes[at + 1] - nodes[at])


def _interpolate_in(table: list[list[float]], across: tuple[int, float], down: tuple[int, float]) -> float:
    (i, x), (j, y) = across, down
    low, high = table[j], table[j + 1]
    return (1 - y) * (low[i] + x * (low[i + 1] - low[i])) + y * (high[i] + x * (high[i + 1] - high[i]))


class _Priced(NamedTuple):
    """Seconds of a step without the lines that see earlier tokens, of its communication, and of those lines."""

    unseeing_s: Number
    comm_s: Number
    seeing_s: Number
    seeing_fixed_s: Number


def surface(terms: PricingTerms, most_rows: int, most_seqs: int, most_tokens: int, drafts: int = 0) -> Surface:
    """Tabulate a plan's steps: up to so many rows and sequences of up to so many tokens, each with so many drafts."""
    host = terms.engine.host
    each_s = host.launch_s if terms.settings.eager or host.launches else 0.0
    # Launches are a floor of the whole step, not of its parts; what each sequence costs the host is linear and needs no table.
    launched = replace(terms, engine=terms.engine.but(launch_s=0.0, host_s_per_seq=0.0))

    def priced(work: Workload) -> _Priced:
        work = replace(work, rows_per_seq=1 + drafts)
        ran = in_step(launched, work)
        lines = step_lines(ran, work)
        whole, rest = (Bill(expose_lines(some, ran), 1) for some in (lines, [x for x in lines if not x.item.sees]))
        return _Priced(rest.step_s, whole.exposed_comm_s, whole.step_s - rest.step_s, whole.fixed_s - rest.fixed_s)

    def launches(work: Workload) -> float:
        work = replace(work, rows_per_seq=1 + drafts)
        lines = (line for line in step_lines(in_step(launched, work), work) if line.kind != "host")
        return float(num_launches(lines, terms.engine))

    # Mean contexts that are priced: finer than octaves, and where a window or a selector cuts
    cuts = [*terms.model.windows, *(a.indexer.top_k for a in terms.model.attentions if a.indexer)]
    contexts: Array = unique_values([0.0, *_geometric(max(most_tokens, 2)), *(float(c) for c in cuts if 0 < c < most_tokens)])
    alone, alone_comm, decode = _decodes(priced, contexts, most_seqs)  # each table is one bill: lines cost more than numbers
    samples, mixed, mixed_comm = _mixed_steps(priced, most_rows, most_seqs, 1 + drafts)
    new, past = _geometric(most_rows), np.concatenate([[0.0], _geometric(most_tokens)])
    prompt, among, once = _prompts(priced, new, past)
    return Surface(
        alone=(alone + host.host_s_per_seq * np.arange(alone.size)).tolist(),
        samples=samples,
        mixed=mixed,
        contexts=contexts.tolist(),
        decode=decode,
        new=new.tolist(),
        past=past.tolist(),
        prompt=prompt.tolist(),
        among=among.tolist(),
        prompt_fixed_s=once,
        alone_comm=alone_comm,
        mixed_comm=mixed_comm,
        sample_s=host.host_s_per_seq,
        launch_s=each_s * launches(Workload(decode_seqs=1, cached_tokens=1)) if each_s else 0.0,
        mixed_launch_s=each_s * launches(Workload(1, 1, 1, 1, 0)) if each_s else 0.0,
        rows_per_seq=1 + drafts,
        per_step=terms.techniques.per_step,
    )


def _decodes(priced: Callable[[Workload], _Priced], contexts: Array, most_seqs: int) -> tuple[Array, Array, Array]:
    """Tabulate decodes by sequences: steps without attention, their communication, and attention by node of context."""
    every, nodes = np.arange(most_seqs + 1.0), unique_values(np.round(_geometric(most_seqs)))
    seqs, context = np.repeat(nodes, contexts.size), np.tile(contexts, nodes.size)
    step = priced(Workload(decode_seqs=np.append(np.maximum(1, every), seqs), cached_tokens=np.append(every * 0, seqs * context)))
    rest, comm, attention = (_broadcast(seconds, every.size + seqs.size) for seconds in step[:3])
    columns = attention[every.size :].reshape(nodes.size, contexts.size)
    return rest[: every.size], comm[: every.size], np.stack([np.interp(every, nodes, column) for column in columns.T], axis=-1)


def _mixed_steps(
    priced: Callable[[Workload], _Priced], most_rows: int, most_seqs: int, rows_per_seq: int
) -> tuple[list[int], Array, Array]:
    """Tabulate steps with prompts without attention: nodes of rows with logits, seconds by these and rows, communication."""
    # Rows that need logits: one more than the most, so that a prompt has room beside all decodes.
    nodes = [*(n for n in SAMPLES if n <= most_seqs), most_seqs + 1]
    rows, every = _rows(most_rows), np.arange(most_rows + 1)
    # Some rows are one prompt's tokens and the others decode, as many as need logits and there are rows for.
    samples, each = np.repeat(nodes, rows.size), np.tile(rows, len(nodes))
    decodes = np.minimum(samples - 1, (each - 1) // rows_per_seq)
    step = priced(Workload(decodes, decodes * 0, 1.0, each - decodes * rows_per_seq, 0.0))
    rest, comm = (_broadcast(seconds, each.size) for seconds in step[:2])
    seconds = [np.interp(every, rows, part) for part in rest.reshape(len(nodes), rows.size)]
    return nodes, np.stack(seconds), np.interp(every, rows, comm[: rows.size])


def _prompts(priced: Callable[[Workload], _Priced], new: Array, past: Array) -> tuple[Array, Array, float]:
    """Tabulate attention of a step's only prompt and of one of many, by cached and new tokens, and its cost once a step."""
    seqs = np.repeat([1.0, MANY], new.size * past.size)
    tokens, before = np.tile(new, 2 * past.size), np.tile(np.repeat(past, new.size), 2)
    step = priced(Workload(0, 0, seqs, seqs * tokens, seqs * before))
    once = float(np.min(np.minimum(step.seeing_fixed_s, step.seeing_s)))
    one, many = ((step.seeing_s - once) / seqs).reshape(2, past.size, new.size)
    return one, many, once


def _broadcast(values: Number, size: int) -> Array:
    return np.broadcast_to(values, (size,)).astype(float)


def _rows(most: int) -> Array:
    """List the row counts that are priced: graphs make small ones step, tiles all."""
    tiles = np.arange(FINE, COARSE, TILE)
    parts: Iterable[Array] = (np.arange(1, FINE), tiles, tiles + 1, np.arange(COARSE, most, 256))
    return np.array([*sorted(n for part in parts for n in part if n < most), most], float)


def _geometric(most: float) -> Array:
    """List 1, 1.4, 2, 2.8 … up to and with ``most``."""
    steps = int(np.ceil(np.log(max(most, 2.0)) / np.log(ROOT2)))
    return np.array([*(ROOT2**i for i in range(steps)), max(most, 2.0)])
