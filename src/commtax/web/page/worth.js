// Techniques weighed on the step that is shown: best first, those that lose as losing, and why others cannot be had.

import { el, paint } from "./dom.js";
import { change, count, seconds } from "./format.js";

const COLUMNS = ["technique", "gain", "range", "step", "KV tokens", "pays", "flag"];
const NUMBERS = new Set(["gain", "range", "step", "KV tokens"]);

function gainCell(row) {
  if (row.verdict === "changes nothing") return el("span", { class: "quiet" }, "none");
  return el("span", { class: row.verdict === "gains" ? "change-by better" : "change-by" }, `${row.gain > 1 ? "▲ " : "▼ "}${change(row.gain - 1)}`);
}

function cells(row, room, apply) {
  const nothing = row.verdict === "changes nothing";
  const name = row.patch && apply ? el("button", { type: "button", class: "technique", "data-k": `technique-${row.technique}`, onclick: () => apply(row.patch) }, row.asked) : row.asked;
  return [
    [name, el("small", { class: "below quiet" }, row.title)],
    [gainCell(row), row.fits ? null : el("small", { class: "below hot-text" }, "does not fit")],
    nothing ? "" : `${change(row.low - 1)} to ${change(row.high - 1)}`,
    seconds(row.step_s),
    row.kv_tokens === room ? "" : count(row.kv_tokens),
    row.words,
    el("code", null, row.flag),
  ];
}

export function drawWorth(host, worth, apply) {
  const idle = (row) => row.verdict === "changes nothing" && !row.pays.length;
  const here = worth.weighed.filter((row) => !row.refused && !idle(row));
  const rest = worth.weighed.filter((row) => row.refused || idle(row));
  const head = el("tr", null, COLUMNS.map((title) => el("th", { scope: "col", class: NUMBERS.has(title) ? "number" : null }, title)));
  const body = here.map((row) => el("tr", null, cells(row, worth.kv_tokens, apply).map((cell, i) => el(i ? "td" : "th", { scope: i ? null : "row", class: NUMBERS.has(COLUMNS[i]) ? "number" : null }, cell))));
  const others = rest.map((row) => el("tr", null, el("th", { scope: "row" }, row.technique), el("td", null, row.refused || "changes nothing here")));
  paint(
    host,
    el("p", null, worth.verdict),
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Techniques, best first" }, el("table", { class: "worth" }, el("caption", { class: "unseen" }, "What each technique is worth here"), el("thead", null, head), el("tbody", null, body))),
    rest.length ? el("details", { class: "rejected" }, el("summary", null, "Techniques that change nothing or cannot be had here"), el("div", { class: "scroll" }, el("table", null, el("tbody", null, others)))) : null,
  );
}
