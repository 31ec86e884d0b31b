// Will it fit: the verdict, what a GPU holds, and what every TP size of the cluster would leave.

import { el, figure, paint, tableBox } from "./dom.js";
import { exportBar } from "./export.js";
import { bytes, count } from "./format.js";
import { commandList, memoryBars } from "./panels.js";

function requests(value) {
  return value >= 10 ? count(value) : String(Number(value.toPrecision(2)));
}

function sizeCells(row, trains) {
  if (row.refused) return [el("td", { class: "wide", colspan: trains ? 3 : 5 }, row.refused)];
  const cell = (label, text) => el("td", { class: "number", "data-label": label }, text);
  const verdict = el("td", { "data-label": "fits" }, el("span", { class: row.fits ? "good-text" : "hot-text" }, row.fits ? "✓ fits" : "✕ does not fit"));
  if (trains) return [verdict, cell("weights per GPU", bytes(row.weights_bytes)), cell("free per GPU", row.free_bytes > 0 ? bytes(row.free_bytes) : "none")];
  return [verdict, cell("weights per GPU", bytes(row.weights_bytes)), cell("KV cache per GPU", bytes(row.kv_bytes)), cell("tokens in the cache", count(row.kv_tokens)), cell("requests at once", requests(row.requests))];
}

function sizeTable(answer, own, choose) {
  const trains = !("kv_tokens" in answer);
  const titles = trains ? ["fits", "weights per GPU", "free per GPU"] : ["fits", "weights per GPU", "KV cache per GPU", "tokens in the cache", "requests at once"];
  const name = (row) => (row.patch && choose ? el("button", { type: "button", class: "why-button", "data-k": `tp-${row.tp}`, "aria-label": `Use TP ${row.tp}`, onclick: () => choose(row.patch) }, `TP ${row.tp}`) : `TP ${row.tp}`);
  const rows = answer.sizes.map((row) => el("tr", { class: row.tp === own ? "chosen" : null }, el("th", { scope: "row" }, name(row), row.tp === own ? el("span", { class: "chip role" }, "yours") : null), sizeCells(row, trains)));
  const head = el("tr", null, ["", ...titles].map((title, i) => el("th", { scope: "col", class: i > 1 ? "number" : null }, title)));
  return tableBox("What each TP size leaves", "folds sizes", head, rows);
}

function partTable(answer) {
  const rows = answer.parts.map((part) => el("tr", null, el("th", { scope: "row" }, part.name), el("td", { class: "number" }, bytes(part.nbytes)), el("td", { class: "quiet wrap" }, part.note)));
  return el("details", null, el("summary", null, "What a GPU holds, part by part"), el("table", { class: "held" }, el("tbody", null, rows)));
}

// Parts of the weights in one, for the bar.
function joinedParts(parts) {
  const whole = new Map();
  for (const part of parts) whole.set(part.of, (whole.get(part.of) ?? 0) + part.nbytes);
  return [...whole].map(([name, nbytes]) => ({ name, nbytes })).filter((part) => part.nbytes > 0);
}

// What the cache of the plan holds, where it serves.
function fitFigures(answer) {
  const own = answer.sizes.find((row) => row.tp === answer.plan.tp);
  if (!answer.fits || !("kv_tokens" in answer) || !own?.requests) return null;
  const each = answer.plan.replicas > 1 ? " per replica" : "";
  return el("dl", { class: "figures" }, figure(`tokens in the cache${each}`, count(answer.kv_tokens)), figure(`requests at once${each}`, requests(own.requests)), figure("KV cache per GPU", bytes(own.kv_bytes)), figure("weights per GPU", bytes(own.weights_bytes)));
}

export function drawFit(host, answer, choose) {
  const parts = joinedParts(answer.parts);
  const used = parts.reduce((sum, part) => sum + part.nbytes, 0);
  paint(
    host,
    el("div", { class: answer.fits ? "answer" : "answer none" }, el("p", { class: "plan-sentence" }, answer.sentence), fitFigures(answer), answer.advised.length ? el("div", null, el("h3", null, "This would fit"), el("ul", { class: "why-lines" }, answer.advised.map((line) => el("li", null, line)))) : null),
    memoryBars({ capacity_bytes: answer.capacity_bytes, used_bytes: used, parts, ranks: [{ name: "each GPU", used_bytes: used, parts }] }),
    el("div", { class: "heading-row" }, el("h3", null, "TP sizes of this cluster"), exportBar("commtax-fit", { answer })),
    sizeTable(answer, answer.plan.tp, choose),
    partTable(answer),
    answer.notes.length ? el("ul", { class: "quiet" }, answer.notes.map((note) => el("li", null, note))) : null,
    commandList({ commtax: answer.command }),
  );
}
