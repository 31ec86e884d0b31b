// The steps of one engine on a time axis: a slider moves the window; a list, a pinch and keys set its length. Nothing is asked.

import { el, paint, svg } from "./dom.js";
import { seconds } from "./format.js";
import { formulaTip, tip } from "./tip.js";

const STEP_ROW = 30;
const LEFT = 62;
const WINDOWS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120];
let span = 2; // seconds that are seen
let from = null; // where it begins: at the first step, until somebody moves it

function laneRects(timeline, x, end) {
  const seen = timeline.slices.filter(([, start, stop]) => stop > from && start < end);
  return seen.map(([lane, start, stop, kind, label]) => {
    const left = Math.max(start, from);
    const bar = svg("rect", { x: x(left), y: 6 + lane * STEP_ROW, width: Math.max(0.7, x(Math.min(stop, end)) - x(left)), height: STEP_ROW - 8, class: `step-${kind}` });
    return tip(bar, () => formulaTip(`from ${seconds(start)}`, [label]));
  });
}

function counterLine(counter, x, end, top) {
  const seen = counter.at_s.map((at, i) => [at, counter.values[i]]);
  const first = Math.max(0, seen.findIndex(([at]) => at > from) - 1);
  const inside = seen.slice(first).filter(([at]) => at <= end);
  const high = Math.max(...counter.values, 1);
  const y = (value) => top + 34 - (value / high) * 30;
  const path = inside.map(([at, value], i) => `${i ? `H${x(Math.max(at, from))}V${y(value)}` : `M${x(Math.max(at, from))} ${y(value)}`}`).join("");
  const name = svg("text", { x: LEFT - 7, y: top + 24, class: "tick", "text-anchor": "end" }, counter.short);
  return [name, svg("text", { x: LEFT + 4, y: top + 12, class: "tick" }, `up to ${Math.round(high)}`), svg("path", { d: path ? `${path}H${x(end)}` : "", class: "counter-line" })];
}

function drawWindow(host, timeline) {
  const width = Math.max(300, host.clientWidth);
  const end = from + span;
  const x = (at) => LEFT + ((at - from) / span) * (width - LEFT - 10);
  const lanes = timeline.lanes.length;
  const height = 6 + lanes * STEP_ROW + timeline.counters.length * 42 + 24;
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Steps of ${timeline.engine} from ${seconds(from)} to ${seconds(end)}` });
  timeline.lanes.forEach((lane, i) => picture.append(svg("text", { x: LEFT - 7, y: 6 + i * STEP_ROW + 15, class: "tick", "text-anchor": "end" }, lane)));
  picture.append(...laneRects(timeline, x, end));
  timeline.counters.forEach((counter, i) => picture.append(...counterLine(counter, x, end, 6 + lanes * STEP_ROW + i * 42)));
  for (const share of [0, 0.5, 1]) picture.append(svg("text", { x: x(from + share * span), y: height - 6, class: "tick", "text-anchor": ["start", "middle", "end"][share * 2] }, seconds(from + share * span)));
  paint(host, picture);
}

export function stepTimeline(timeline) {
  const host = el("div", { class: "steps-window" });
  span = WINDOWS.includes(span) && span < timeline.until_s ? span : (WINDOWS.findLast((length) => length <= timeline.until_s) ?? WINDOWS[0]);
  from = Math.min(from ?? timeline.slices[0]?.[1] ?? 0, Math.max(0, timeline.until_s - span));
  const move = el("input", { type: "range", min: "0", max: String(Math.max(0, timeline.until_s - span)), step: String(span / 20), value: String(from), "data-k": "scrub", "aria-label": "Time in the run" });
  const lengths = WINDOWS.filter((one) => one <= Math.max(timeline.until_s, WINDOWS[0]));
  const length = el("select", { "data-k": "scrub-span", "aria-label": "Length of the window" }, lengths.map((one) => el("option", { value: one, selected: one === span }, seconds(one))));
  const again = () => {
    move.setAttribute("aria-valuetext", `from ${seconds(from)} to ${seconds(from + span)}`);
    drawWindow(host, timeline);
  };
  move.addEventListener("input", () => {
    from = Number(move.value);
    again();
  });
  // What lies at a share of the window stays there.
  const resize = (wanted, share) => {
    if (!wanted) return;
    move.max = String(Math.max(0, timeline.until_s - wanted));
    move.step = String(wanted / 20);
    from = Math.max(0, Math.min(from + share * (span - wanted), Number(move.max)));
    span = wanted;
    move.value = String(from);
    length.value = String(span);
    again();
  };
  const zoom = (steps, share = 0.5) => resize(lengths[lengths.indexOf(span) + steps], share);
  length.addEventListener("change", () => resize(Number(length.value), 0));
  host.addEventListener("wheel", (event) => {
    if (!event.ctrlKey) return; // a pinch; without it the page scrolls
    event.preventDefault();
    const { left, width } = host.getBoundingClientRect();
    zoom(Math.sign(event.deltaY), Math.max(0, (event.clientX - left - LEFT) / (width - LEFT - 10)));
  }, { passive: false });
  const key = (kind, name) => el("li", null, el("span", { class: `swatch step-${kind}` }), name);
  const legend = el("ul", { class: "legend" }, key(0, "decode alone"), key(1, "prompts alone"), key(2, "prompts beside decodes"));
  const node = el("div", { class: "steps" }, el("div", { class: "scrub" }, el("label", null, "Time ", move), el("label", { title: "+, − or a pinch zooms" }, "window ", length)), legend, host);
  node.addEventListener("keydown", (event) => zoom({ "+": -1, "=": -1, "-": 1 }[event.key] ?? NaN));
  return { node, draw: again };
}
