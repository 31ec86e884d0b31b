// A page about one run or two: steps in time on a common axis, the rest is text that was made elsewhere. No figure is computed here.

import { byId, el, paint } from "./dom.js";
import { niceStep, seconds } from "./format.js";

const ROW = 18;
const LABEL = 176;
const AXIS = 22;
const KEYS = { compute: ["compute", "--compute-line"], comm: ["communication", "--hot"], copy: ["copies", "--calm-ink"], host: ["host", "--line-strong"] };
const SIGNS = { "█": "compute", "▓": "comm", "▒": "copy", "░": "idle" }; // of a bar of text
const data = JSON.parse(byId("data").textContent);
const longest = Math.max(1, ...data.charts.map((chart) => chart.length));
const view = { begin: 0, span: longest };
const drawn = [];

function colour(name) {
  const probe = el("span", { style: `color: var(${name})` });
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}

// The first interval of a lane that may be in view: starts are in order, and the longest one tells how far to look back.
function lanesOf(chart) {
  const lanes = chart.lanes.map(() => ({ at: [], reach: 0 }));
  chart.start.forEach((_, i) => {
    const lane = lanes[chart.lane[i]];
    lane.at.push(i);
    lane.reach = Math.max(lane.reach, chart.duration[i]);
  });
  for (const lane of lanes) lane.at.sort((a, b) => chart.start[a] - chart.start[b]);
  return lanes;
}

function firstFrom(at, starts, moment) {
  let [low, high] = [0, at.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[at[middle]] < moment) low = middle + 1;
    else high = middle;
  }
  return low;
}

function visible(chart, lane) {
  const from = firstFrom(lane.at, chart.start, view.begin - lane.reach);
  const found = [];
  for (let n = from; n < lane.at.length && chart.start[lane.at[n]] <= view.begin + view.span; n += 1) found.push(lane.at[n]);
  return found;
}

function short(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let kept = text;
  while (kept && context.measureText(`${kept}…`).width > width) kept = kept.slice(0, -1);
  return kept && `${kept}…`;
}

function drawChart({ chart, canvas, lanes }) {
  const width = canvas.clientWidth;
  const height = chart.lanes.length * (ROW + 4) + AXIS;
  const ratio = devicePixelRatio || 1;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.font = "12px system-ui, sans-serif";
  context.textBaseline = "middle";
  const [ink, quiet, line, paper] = ["--ink", "--quiet", "--line", "--paper"].map(colour);
  const colours = chart.kinds.map((kind) => colour((KEYS[kind] ?? KEYS.host)[1]));
  const x = (moment) => LABEL + ((moment - view.begin) / view.span) * (width - LABEL);
  const step = niceStep(view.span, (width - LABEL) / 110);
  for (let moment = Math.ceil(view.begin / step) * step; moment <= view.begin + view.span; moment += step) {
    context.fillStyle = line;
    context.fillRect(x(moment), 0, 1, height - AXIS + 4);
    context.fillStyle = quiet;
    context.fillText(seconds(moment * 1e-9), Math.min(x(moment) + 3, width - 52), height - AXIS / 2 + 3);
  }
  lanes.forEach((lane, number) => {
    const top = number * (ROW + 4);
    context.fillStyle = quiet;
    context.fillText(short(context, chart.lanes[number], LABEL - 10), 0, top + ROW / 2);
    context.save();
    context.beginPath();
    context.rect(LABEL, top, width - LABEL, ROW);
    context.clip();
    context.fillStyle = paper;
    context.fillRect(LABEL, top, Math.max(0, Math.min(x(chart.length), width) - LABEL), ROW);
    for (const i of visible(chart, lane)) {
      const from = x(chart.start[i]);
      const wide = Math.max(0.6, x(chart.start[i] + chart.duration[i]) - from);
      context.fillStyle = colours[chart.kind_of[i]];
      context.fillRect(from, top, wide > 3 ? wide - 0.6 : wide, ROW);
      if (wide > 44) {
        context.fillStyle = chart.kinds[chart.kind_of[i]] === "comm" ? paper : ink;
        context.fillText(short(context, chart.names[chart.name_of[i]], wide - 8), Math.max(from, LABEL) + 4, top + ROW / 2 + 1);
      }
    }
    context.restore();
  });
}

function drawAll() {
  for (const one of drawn) drawChart(one);
}

function look(begin, span) {
  view.span = Math.max(100, Math.min(longest, span));
  view.begin = Math.max(0, Math.min(longest - view.span, begin));
  requestAnimationFrame(drawAll);
}

function zoom(factor, at = view.begin + view.span / 2) {
  const span = Math.max(100, Math.min(longest, view.span * factor));
  look(at - ((at - view.begin) / view.span) * span, span);
}

function momentAt(canvas, clientX) {
  const box = canvas.getBoundingClientRect();
  return view.begin + (Math.max(0, clientX - box.left - LABEL) / (box.width - LABEL)) * view.span;
}

function pointed({ chart, canvas, lanes }, event) {
  const number = Math.floor((event.clientY - canvas.getBoundingClientRect().top) / (ROW + 4));
  if (!lanes[number]) return null;
  const moment = momentAt(canvas, event.clientX);
  const near = (view.span / canvas.clientWidth) * 2;
  return visible(chart, lanes[number]).findLast((i) => chart.start[i] - near <= moment && moment <= chart.start[i] + chart.duration[i] + near) ?? null;
}

function watch(one) {
  const { canvas, chart } = one;
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    held = { x: event.clientX, begin: view.begin };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => (held = null));
  canvas.addEventListener("pointermove", (event) => {
    if (held) {
      look(held.begin - ((event.clientX - held.x) / (canvas.clientWidth - LABEL)) * view.span, view.span);
      return;
    }
    const i = pointed(one, event);
    if (i === null) return;
    const kind = (KEYS[chart.kinds[chart.kind_of[i]]] ?? KEYS.host)[0];
    byId("hover").textContent = `${chart.lanes[chart.lane[i]]}: ${chart.names[chart.name_of[i]]} (${kind}), ${seconds(chart.duration[i] * 1e-9)} from ${seconds(chart.start[i] * 1e-9)} on`;
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, momentAt(canvas, event.clientX));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: -0.1, ArrowRight: 0.1 }[event.key];
    if (moves) look(view.begin + moves * view.span, view.span);
    if (event.key === "+") zoom(0.5);
    if (event.key === "-") zoom(2);
  });
}

function buildCharts() {
  byId("time").hidden = !data.charts.length;
  const kinds = new Set();
  for (const chart of data.charts) {
    const canvas = el("canvas", { tabindex: "0", role: "img", "aria-label": `${chart.name}: ${chart.start.length} intervals on ${chart.lanes.length} lanes` });
    byId("charts").append(el("p", { class: "chart-name" }, chart.name), canvas);
    const one = { chart, canvas, lanes: lanesOf(chart) };
    drawn.push(one);
    watch(one);
    for (const kind of new Set(chart.kind_of)) kinds.add(chart.kinds[kind]);
  }
  paint(byId("legend"), [...kinds].map((kind) => el("li", null, el("span", { class: `key kind-${kind}` }), (KEYS[kind] ?? KEYS.host)[0])));
  byId("nearer").addEventListener("click", () => zoom(0.5));
  byId("farther").addEventListener("click", () => zoom(2));
  byId("whole").addEventListener("click", () => look(0, longest));
  addEventListener("resize", () => requestAnimationFrame(drawAll));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  drawAll();
}

function verdict() {
  const bad = data.verdict === "disagree" || data.verdict === "fault";
  const words = { audit: { agree: "agrees", disagree: "disagrees", fault: "a fault", unknown: "undecided" }, diff: { agree: "not worse", disagree: "worse" } };
  const chip = el("span", { class: `chip ${bad ? "bad" : data.verdict === "agree" ? "good" : ""}` }, words[data.kind][data.verdict] ?? data.verdict);
  const shown = data.kind === "audit" && data.verdict === "unknown" ? null : el("p", null, chip);
  const ran = data.ran ? el("p", { class: "quiet" }, data.ran) : null;
  paint(byId("verdict"), shown, el("h1", null, data.title), ran, data.culprit ? el("p", { id: "blamed" }, data.culprit) : null);
  document.title = `${data.title.slice(0, 80)} · commtax`;
}

// Bars that a terminal draws with signs, in colours.
function told(text) {
  if (/^[█▓▒░]+$/.test(text)) return (text.match(/(.)\1*/gu) ?? []).map((run) => el("span", { class: `run kind-${SIGNS[run[0]]}`, style: `width: ${run.length * 9}px`, "aria-hidden": "true" }));
  return SIGNS[text[0]] ? [el("span", { class: `key kind-${SIGNS[text[0]]}` }), text.slice(2)] : text;
}

function table({ title, columns, rows }) {
  const cell = (tag, text, column) => el(tag, { class: column.number ? "number" : null }, told(text));
  return el("div", { class: "scroll" }, title ? el("h3", null, title) : null, el("table", null,
    el("thead", null, el("tr", null, columns.map((column) => cell("th", column.name, column)))),
    el("tbody", null, rows.map((row) => el("tr", null, row.map((text, i) => cell("td", text, columns[i])))))));
}

verdict();
byId("causes").hidden = !data.causes.length;
paint(byId("cause-list"), data.causes.map((cause) => el("li", { class: "cause" }, el("b", null, cause.said), el("span", null, cause.price), el("span", { class: "quiet" }, cause.rest.join(" · ")))));
buildCharts();
byId("figures-told").hidden = !data.tables.length;
paint(byId("tables"), data.tables.map(table));
paint(byId("remarks"), data.notes.map((note) => el("li", null, note)));
byId("command").textContent = data.command;
