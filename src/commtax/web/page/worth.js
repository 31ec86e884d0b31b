// Techniques weighed on whole requests that keep the step that is shown running: best first, those that lose as losing, and why others cannot be had.

import { el, paint, tableBox } from "./dom.js";
import { change, count, seconds } from "./format.js";

function gainCell(row) {
  if (row.same) return el("span", { class: "quiet" }, "none");
  return el("span", { class: row.gains ? "change-by better" : "change-by" }, `${row.gain > 1 ? "▲ " : "▼ "}${change(row.gain - 1)}`);
}

const TIMES = { TTFT: "ttft_s", TPOT: "tpot_s", step: "step_s" };
// The columns, and how each looks; the one that is extra goes first where room is short.
const COLUMNS = { technique: null, verdict: null, gain: "number", range: "number", TTFT: "number", TPOT: "number", step: "number extra", "KV tokens": "number", pays: null, set: "how" };

function cells(row, worth, apply) {
  const name = row.patch && apply ? el("button", { type: "button", class: "technique", "data-k": `technique-${row.technique}`, onclick: () => apply(row.patch) }, row.name) : row.name;
  return [
    [name, el("small", { class: "below quiet" }, row.title)],
    row.fits ? row.verdict : el("span", { class: "hot-text" }, row.verdict),
    gainCell(row),
    row.same ? "" : `${change(row.low - 1)} to ${change(row.high - 1)}`,
    ...Object.values(TIMES).map((name) => seconds(row[name])),
    row.kv_tokens === worth.kv_tokens ? "" : count(row.kv_tokens),
    row.words,
    el("code", null, row.flag),
  ];
}

export function drawWorth(host, worth, apply) {
  const idle = (row) => row.same && !row.pays.length;
  const titles = Object.keys(COLUMNS);
  const here = worth.weighed.filter((row) => !row.refused && !idle(row));
  const rest = worth.weighed.filter((row) => row.refused || idle(row));
  const head = el("tr", null, titles.map((title) => el("th", { scope: "col", class: COLUMNS[title] }, title)));
  const body = here.map((row) => el("tr", null, cells(row, worth, apply).map((cell, i) => el(i ? "td" : "th", { scope: i ? null : "row", class: COLUMNS[titles[i]], "data-label": i ? titles[i] : null }, i ? el("div", null, cell) : cell))));
  const others = rest.map((row) => el("tr", null, el("th", { scope: "row" }, row.technique), el("td", null, row.refused || "changes nothing here")));
  paint(
    host,
    el("p", null, worth.verdict),
    worth.basis ? el("p", { class: "quiet" }, worth.basis) : null,
    tableBox("Techniques, best first", "worth stack", head, body),
    rest.length ? el("details", { class: "rejected" }, el("summary", null, "Techniques that change nothing or cannot be had here"), el("div", { class: "scroll" }, el("table", null, el("tbody", null, others)))) : null,
  );
}
