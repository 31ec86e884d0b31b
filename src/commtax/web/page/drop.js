// A file dropped on the page: its audit, or the deployment that it starts. It is sent to this server alone, and nothing is kept.

import { Refused, fetchPatiently } from "./api.js";
import { busyLine } from "./busy.js";
import { byId, el, paint, svg, tableBox } from "./dom.js";
import { exportBar } from "./export.js";
import { seconds } from "./format.js";
import { query } from "./state.js";
import { formulaTip, tip } from "./tip.js";

const LANE_HEIGHT = 22;
const KIND_NAMES = { compute: "compute", comm: "communication", copy: "copies", host: "host", idle: "idle" };
const SIGNS_OF = { "█": "compute", "▓": "comm", "▒": "copy", "░": "idle" }; // of a bar of text
const WORDS = { agree: "agrees", disagree: "disagrees", fault: "a fault" };
const VERDICT_TONES = { agree: "good-text", disagree: "hot-text", pass: "good-text", fail: "hot-text" };
const MOST_DRAWN = 3000; // intervals: the longest of them
let files = []; // the last that were dropped
let turn = 0; // of answers
let sent = ""; // the question that they were compared with
let said = 2; // whether to compare; 2: nobody says

// Bars that a terminal draws with signs, in colours.
function barCell(text) {
  if (/^[█▓▒░]+$/.test(text)) return svg("svg", { width: text.length * 9, height: 14, "aria-hidden": "true" }, [...text].map((sign, i) => svg("rect", { x: i * 9, width: 9.5, height: 14, class: `audit-${SIGNS_OF[sign]}` })));
  return SIGNS_OF[text[0]] ? [el("span", { class: `swatch audit-${SIGNS_OF[text[0]]}` }), ` ${text.slice(2)}`] : text;
}

function auditTable({ title, columns, rows }) {
  const head = el("tr", null, columns.map((column) => el("th", { scope: "col", class: column.number ? "number" : null }, barCell(column.name))));
  const cells = (row) => row.map((text, i) => el(i ? "td" : "th", { scope: i ? null : "row", class: columns[i].number ? "number" : null, "data-label": columns[i].name.replace(/^[█▓▒░] /, "") }, el("span", { class: VERDICT_TONES[text] ?? null }, barCell(text))));
  return el("div", { class: "audit-box" }, title ? el("h3", null, title) : null, tableBox(title ?? "Figures", "folds audit-table", head, rows.map((row) => el("tr", null, cells(row)))));
}

// One step in time. Of very many intervals the longest are drawn.
function stepPicture(chart, width) {
  const left = Math.min(150, width / 4);
  const height = chart.lanes.length * LANE_HEIGHT + 20;
  const x = (moment) => left + (moment / chart.length) * (width - left - 4);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${chart.name}: ${chart.start.length} intervals on ${chart.lanes.length} lanes, ${seconds(chart.length * 1e-9)}` });
  chart.lanes.forEach((lane, i) => picture.append(svg("text", { x: 0, y: i * LANE_HEIGHT + 14, class: "tick" }, lane.length > 20 ? `${lane.slice(0, 19)}…` : lane)));
  const order = chart.start.map((_, i) => i).sort((a, b) => chart.duration[b] - chart.duration[a]).slice(0, MOST_DRAWN);
  for (const i of order) {
    const bar = svg("rect", { x: x(chart.start[i]), y: chart.lane[i] * LANE_HEIGHT, width: Math.max(0.6, x(chart.start[i] + chart.duration[i]) - x(chart.start[i])), height: LANE_HEIGHT - 5, class: `audit-${chart.kinds[chart.kind_of[i]]}` });
    picture.append(tip(bar, () => formulaTip(chart.names[chart.name_of[i]], [`${seconds(chart.duration[i] * 1e-9)} from ${seconds(chart.start[i] * 1e-9)} on`])));
  }
  for (const share of [0, 0.5, 1]) picture.append(svg("text", { x: x(share * chart.length), y: height - 4, class: "tick", "text-anchor": ["start", "middle", "end"][share * 2] }, seconds(share * chart.length * 1e-9)));
  return picture;
}

function drawAudit(host, found, tools) {
  const bad = found.verdict === "disagree" || found.verdict === "fault";
  const chip = WORDS[found.verdict] ? el("span", { class: bad ? "chip hot-chip" : "chip role" }, WORDS[found.verdict]) : null;
  const kinds = [...new Set(found.charts.flatMap((chart) => chart.kinds))].filter((kind) => KIND_NAMES[kind]);
  paint(
    host,
    el("div", { class: bad ? "answer none" : "answer" }, el("p", { class: "plan-sentence" }, found.title, " ", chip), found.culprit ? el("p", null, found.culprit) : null, found.ran ? el("p", { class: "quiet" }, found.ran) : null, found.hints.map((hint) => el("p", { class: "quiet" }, hint)), el("div", { class: "exports" }, found.sizes.map((n) => el("button", { type: "button", onclick: () => compareOn(n, tools) }, n)))),
    found.kind === "launch" ? el("div", { class: "exports" }, el("button", { type: "button", class: "strong", onclick: () => tools.open(found.patch, "step") }, "Show its step"), el("button", { type: "button", onclick: () => tools.open(found.patch, "fit") }, "Does it fit?"), el("button", { type: "button", onclick: () => tools.open(found.patch, "plan") }, "Find a better plan")) : null,
    found.causes.length ? [el("h3", null, "What it costs, and what to change"), el("ol", { class: "causes" }, found.causes.map((cause) => el("li", null, el("b", null, cause.said), " ", cause.price, el("span", { class: "below quiet" }, cause.rest.join(" · ")))))] : null,
    found.charts.length ? [el("h3", null, "One step in time"), el("ul", { class: "legend" }, kinds.map((kind) => el("li", null, el("span", { class: `swatch audit-${kind}` }), KIND_NAMES[kind]))), found.charts.map((chart) => el("figure", { class: "front" }, el("figcaption", null, chart.name), stepPicture(chart, Math.max(300, host.clientWidth))))] : null,
    found.document ? el("div", { class: "heading-row" }, el("h3", null, "Figures"), exportBar("commtax-audit", { answer: found.document, picture: found.charts.length ? () => host.querySelector("figure svg") : null })) : null,
    found.tables.map(auditTable),
    found.notes.length ? el("ul", { class: "quiet small" }, found.notes.map((note) => el("li", null, note))) : null,
  );
}

// Several files go behind each other, with their names and sizes before them.
function described(all) {
  const names = all.map((file) => file.name.replaceAll("/", " "));
  return all.length === 1 ? { file: names[0] } : { file: names.join("/"), sizes: all.map((file) => file.size).join(",") };
}

async function send(tools) {
  const host = byId("run-body");
  const own = (turn += 1);
  host.setAttribute("aria-busy", "true");
  const named = files.length === 1 ? files[0].name : `${files.length} files`;
  byId("run-named").textContent = named;
  const done = busyLine(byId("run-view"), `Reading ${named}`, "audit");
  sent = query();
  const body = files.length === 1 ? files[0] : new Blob(files);
  try {
    const response = await fetchPatiently(`api/audit?${sent}&claim=${said}&${new URLSearchParams(described(files))}`, { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body });
    const found = await response.json();
    if (own !== turn) return;
    if (!response.ok) throw new Refused(found);
    if (said > 1) byId("run-claim").checked = found.compared;
    drawAudit(host, found, tools);
    if (found.kind !== "launch" && found.patch) tools.take(found.patch);
  } catch (problem) {
    if (!(problem instanceof Refused)) throw problem;
    paint(host, el("div", { class: "no-result", role: "alert" }, el("p", null, problem.message)));
  } finally {
    done(true);
    if (own === turn) host.removeAttribute("aria-busy");
  }
}

function compareOn(tp, tools) {
  said = 1;
  byId("run-claim").checked = true;
  sent = "";
  if (tools.take({ tp, pp: 1, dp: 1, rep: 1 }) === false) send(tools);
}

// Another question: files that are compared with it are compared again.
export function checkAgain(tools) {
  if (files.length && byId("run-claim").checked && sent !== query()) send(tools);
}

// `tools.open(patch, view)` shows a deployment that a file starts; `tools.take(patch)` asks for what a file says that ran.
export function buildDrop(tools) {
  const zone = byId("drop-zone");
  const take = (given) => {
    if (!given?.length) return;
    files = [...given].sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true })); // ranks in their order
    tools.show();
    send(tools);
  };
  byId("in-file").addEventListener("change", (event) => take(event.target.files));
  byId("run-claim").addEventListener("change", (event) => {
    said = Number(event.target.checked);
    if (files.length) send(tools);
  });
  addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  addEventListener("dragleave", () => zone.classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    take(event.dataTransfer?.files);
  });
}
