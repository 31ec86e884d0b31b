// One layer to scale: a compute lane above a communication lane (a row an axis) on one time axis. Solid or dotted hot colour is exposed; hatched is
// hidden under the compute above it; dots and thin hatching are latency, solid and dense hatching bandwidth.

import { el, paint, roving, svg } from "./dom.js";
import { niceStep, seconds } from "./format.js";
import { formulaTip, tip } from "./tip.js";

const LANE = 58;
const SENT = 38; // a row of the communication lane: one an axis, because two axes may send at once
const GAP = 8;
const TOP = 6;
const AXIS = 26;
const NAMES = 62;
const LETTER = 6.5;

function patterns() {
  const tile = (id, size, turn, ...marks) =>
    svg("pattern", { id, width: size, height: size, patternUnits: "userSpaceOnUse", patternTransform: turn ? `rotate(${turn})` : null }, ...marks);
  return svg(
    "defs",
    null,
    tile("exposed-latency", 6, 0, svg("rect", { width: 6, height: 6, class: "hot-soft" }), svg("circle", { cx: 3, cy: 3, r: 1.7, class: "hot" })),
    tile("hidden-bandwidth", 6, 45, svg("rect", { width: 6, height: 6, class: "calm" }), svg("rect", { width: 3, height: 6, class: "calm-ink" })),
    tile("hidden-latency", 8, 45, svg("rect", { width: 8, height: 8, class: "calm" }), svg("rect", { width: 1.4, height: 8, class: "calm-ink" })),
    tile("bubble", 7, 45, svg("rect", { width: 7, height: 7, class: "hot-soft" }), svg("rect", { width: 2, height: 7, class: "hot" })),
  );
}

// A bar of the communication lane in pieces: its latency comes first, then its bandwidth, cut where it is exposed, hidden or pausing.
function pieces(bar) {
  const spans = ["exposed", "hidden"].flatMap((kind) => (bar[kind] ?? []).map(([from, to]) => ({ from, to, kind })));
  spans.sort((a, b) => a.from - b.from);
  const busy = spans.reduce((sum, span) => sum + span.to - span.from, 0);
  let latency = busy * (bar.latency_s / (bar.latency_s + bar.bandwidth_s) || 0);
  const found = [];
  for (const { from, to, kind } of spans) {
    const edge = Math.min(to, from + latency);
    latency -= edge - from;
    found.push({ from, to: edge, kind, part: "latency" }, { from: edge, to, kind, part: "bandwidth" });
  }
  return found.filter((piece) => piece.to > piece.from);
}

function inWords(bar) {
  const total = (spans) => (spans ?? []).reduce((sum, [from, to]) => sum + to - from, 0);
  const long = seconds(bar.end_s - bar.start_s);
  if (bar.lane === "compute") return [long];
  return [`${long} = latency ${seconds(bar.latency_s)} + bandwidth ${seconds(bar.bandwidth_s)}`, `exposed ${seconds(total(bar.exposed))}, hidden ${seconds(total(bar.hidden))}`];
}

// The name in two lines at most and the time below, where they fit.
function inside(bar, left, top, width) {
  const room = Math.floor((width - 8) / 7);
  const lines = [""];
  for (const word of bar.name.split(" ")) {
    const last = lines.length - 1;
    if (!lines[last]) lines[last] = word;
    else if (`${lines[last]} ${word}`.length <= room || lines.length === 2) lines[last] += ` ${word}`;
    else lines.push(word);
  }
  if (lines[0].length > room) return []; // a stump of a name says nothing; the tooltip has it whole
  const time = seconds(bar.end_s - bar.start_s);
  if (time.length <= room) lines.push(time);
  const first = top + LANE / 2 - (lines.length - 1) * 7.5;
  return lines.map((line, i) => {
    const text = line.length > room ? `${line.slice(0, room - 1)}…` : line;
    return svg("text", { x: left + 6, y: first + i * 15, class: line === time ? "bar-time" : "bar-name" }, text);
  });
}

// A label in the bar where it is wide enough, else to its left, else (the last one) to its right, without touching its neighbours.
function beside(bar, row, x, top, width) {
  const time = seconds(bar.end_s - bar.start_s);
  const whole = `${bar.name}, ${time}`;
  const from = x(bar.start_s);
  const to = x(bar.end_s);
  // Bars that touch share one label, the longest's: a sliver must not name its neighbour.
  const touch = (a, b) => x(b.start_s) - x(a.end_s) < 6;
  let first = row.indexOf(bar);
  let last = first;
  while (first > 0 && touch(row[first - 1], row[first])) first -= 1;
  while (last + 1 < row.length && touch(row[last], row[last + 1])) last += 1;
  const fits = (room) => [whole, time].find((text) => text.length * LETTER + 14 <= room);
  const y = top + SENT / 2;
  if (whole.length * LETTER + 20 <= to - from) {
    return [svg("rect", { x: from + 6, y: y - 10, width: whole.length * LETTER + 6, height: 20, rx: 4, class: "label-back" }), svg("text", { x: from + 11, y, class: "bar-name" }, whole)];
  }
  const group = row.slice(first, last + 1);
  const longest = Math.max(...group.map((other) => other.end_s - other.start_s));
  if (bar !== group.find((other) => other.end_s - other.start_s === longest)) return [];
  const left = fits(x(row[first].start_s) - (first ? x(row[first - 1].end_s) : NAMES));
  if (left) return [svg("text", { x: x(row[first].start_s) - 7, y, class: "bar-name", "text-anchor": "end" }, left)];
  const right = last + 1 === row.length ? fits(width - x(row[last].end_s)) : null;
  return right ? [svg("text", { x: x(row[last].end_s) + 7, y, class: "bar-name" }, right)] : [];
}

function drawBar(bar, x, top, row, room) {
  const left = x(bar.start_s);
  const width = Math.max(1, x(bar.end_s) - left);
  const tall = row ? SENT : LANE;
  const group = svg("g", { class: `bar ${bar.lane}`, role: "img", "data-k": `${bar.name}@${bar.start_s.toPrecision(4)}`, "aria-label": `${bar.name}: ${inWords(bar).join("; ")}` });
  if (row) {
    for (const piece of pieces(bar)) {
      const at = x(piece.from);
      group.append(svg("rect", { x: at, y: top, width: Math.max(0.8, x(piece.to) - at), height: tall, class: `${piece.kind}-${piece.part}` }));
    }
    group.append(svg("rect", { x: left, y: top, width, height: tall, class: "plan-target" }), ...beside(bar, row, x, top, room));
  } else {
    group.append(svg("rect", { x: left, y: top, width: Math.max(1, width - 1), height: tall, rx: Math.min(3, width / 3), class: "compute-bar" }), ...inside(bar, left, top, width));
  }
  group.append(svg("rect", { x: left - 1, y: top - 2, width: width + 2, height: tall + 4, rx: 4, class: "focus-ring" }));
  return tip(group, () => formulaTip(bar.name, inWords(bar), bar.formula, bar.source));
}

export function drawWaterfall(host, layer) {
  const bars = [...layer.bars].sort((a, b) => a.start_s - b.start_s || (a.lane < b.lane ? 1 : -1));
  const sent = bars.filter((bar) => bar.lane === "comm");
  const axes = [...new Set(sent.map((bar) => bar.axis))];
  const width = Math.max(300, host.clientWidth);
  const bottom = TOP + LANE + Math.max(1, axes.length) * (GAP + SENT) + 6;
  const height = bottom + AXIS;
  const x = (time) => NAMES + (time / layer.length_s) * (width - NAMES - 2);
  const rowTop = (axis) => TOP + LANE + GAP + Math.max(0, axes.indexOf(axis)) * (SENT + GAP);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `One layer, ${seconds(layer.length_s)}, to scale. Arrow keys walk through its parts.` }, patterns());
  const step = niceStep(layer.length_s, (width - NAMES) / 120);
  for (let time = 0; time <= layer.length_s * 1.0001; time += step) {
    const anchor = time === 0 ? "start" : x(time) > width - 26 ? "end" : "middle";
    picture.append(svg("line", { x1: x(time), x2: x(time), y1: TOP, y2: bottom, class: "grid-line" }), svg("text", { x: x(time), y: bottom + 17, class: "tick", "text-anchor": anchor }, time ? seconds(time) : "0"));
  }
  for (const [from, to] of sent.flatMap((bar) => bar.exposed ?? [])) {
    picture.append(svg("rect", { x: x(from), y: TOP, width: Math.max(0.8, x(to) - x(from)), height: LANE, class: "tax-band" }));
  }
  picture.append(svg("text", { x: 0, y: TOP + LANE / 2, class: "lane-name" }, "compute"));
  for (const axis of axes) picture.append(svg("text", { x: 0, y: rowTop(axis) + SENT / 2, class: "lane-name" }, `${axis.toUpperCase()} comm`));
  if (!axes.length) picture.append(svg("text", { x: NAMES + 6, y: rowTop("") + SENT / 2, class: "lane-name" }, "nothing is sent"));
  picture.append(...bars.map((bar) => (bar.lane === "comm" ? drawBar(bar, x, rowTop(bar.axis), sent.filter((other) => other.axis === bar.axis), width) : drawBar(bar, x, TOP, null, width))));
  paint(host, picture);
  roving(host, ".bar");
}

export function waterfallLegend() {
  const key = (name, text) => el("li", null, svg("svg", { width: 26, height: 16, "aria-hidden": "true" }, svg("rect", { width: 26, height: 16, rx: 2, class: name })), text);
  return el(
    "ul",
    { class: "legend" },
    key("compute-bar", "compute"),
    key("exposed-latency", "exposed, latency"),
    key("exposed-bandwidth", "exposed, bandwidth"),
    key("hidden-latency", "hidden, latency"),
    key("hidden-bandwidth", "hidden, bandwidth"),
  );
}
