// Techniques weighed on whole requests that keep the step that is shown running: best first, those that lose as losing, and why others cannot be had.

import { el, paint, tableBox } from "./dom.js";
import { change, count, seconds } from "./format.js";

const NUMBERS = new Set(["gain", "range", "step", "TTFT", "TPOT", "KV tokens"]);

function gainCell(row) {
  if (row.verdict === "changes nothing") return el("span", { class: "quiet" }, "none");
  return el("span", { class: row.verdict === "gains" ? "change-by better" : "change-by" }, `${row.gain > 1 ? "▲ " : "▼ "}${change(row.gain - 1)}`);
}

const TIMES = { TTFT: "ttft_s", TPOT: "tpot_s", step: "step_s" };
const LEAST = "step"; // the first column to go where room is short
const COLUMNS = ["technique", "verdict", "gain", "range", ...Object.keys(TIMES), "KV tokens", "pays", "set"];

function cells(row, worth, apply) {
  const nothing = row.verdict === "changes nothing";
  const name = row.patch && apply ? el("button", { type: "button", class: "technique", "data-k": `technique-${row.technique}`, onclick: () => apply(row.patch) }, row.name) : row.name;
  return [
    [name, el("small", { class: "below quiet" }, row.title)],
    row.fits ? row.verdict : el("span", { class: "hot-text" }, row.verdict),
    gainCell(row),
    nothing ? "" : `${change(row.low - 1)} to ${change(row.high - 1)}`,
    ...Object.values(TIMES).map((name) => seconds(row[name])),
    row.kv_tokens === worth.kv_tokens ? "" : count(row.kv_tokens),
    row.words,
    el("code", null, row.flag),
  ];
}

const looks = (title) => (title === LEAST ? "number extra" : NUMBERS.has(title) ? "number" : null);

export function drawWorth(host, worth, apply) {
  const idle = (row) => row.verdict === "changes nothing" && !row.pays.length;
  const here = worth.weighed.filter((row) => !row.refused && !idle(row));
  const rest = worth.weighed.filter((row) => row.refused || idle(row));
  const head = el("tr", null, COLUMNS.map((title) => el("th", { scope: "col", class: looks(title) }, title)));
  const body = here.map((row) => el("tr", null, cells(row, worth, apply).map((cell, i) => el(i ? "td" : "th", { scope: i ? null : "row", class: COLUMNS[i] === "set" ? "how" : looks(COLUMNS[i]), "data-label": i ? COLUMNS[i] : null }, i ? el("div", null, cell) : cell))));
  const others = rest.map((row) => el("tr", null, el("th", { scope: "row" }, row.technique), el("td", null, row.refused || "changes nothing here")));
  paint(
    host,
    el("p", null, worth.verdict),
    worth.basis ? el("p", { class: "quiet" }, worth.basis) : null,
    tableBox("Techniques, best first", "worth stack", head, body),
    rest.length ? el("details", { class: "rejected" }, el("summary", null, "Techniques that change nothing or cannot be had here"), el("div", { class: "scroll" }, el("table", null, el("tbody", null, others)))) : null,
  );
}
