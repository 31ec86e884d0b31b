// Why a line of the bill takes as long as it does: below the line that was clicked, one at a time.

import { el } from "./dom.js";
import { percent, seconds } from "./format.js";

function plainTable(titles, rows, numbers) {
  const cell = (tag, text, i) => el(tag, { class: numbers.includes(i) ? "number" : null, scope: tag === "th" ? "col" : null }, text);
  return el("div", { class: "scroll" }, el("table", null, el("thead", null, el("tr", null, titles.map((title, i) => cell("th", title, i)))), el("tbody", null, rows.map((row) => el("tr", null, row.map((text, i) => cell("td", text, i)))))));
}

function effectRow(effect) {
  const value = effect.kind === "host" ? seconds(effect.value) : String(Number(effect.value.toPrecision(4)));
  return [effect.name, value, effect.on, effect.mechanism, effect.source];
}

function whyBox(why) {
  const parts = why.parts.map((part) => [part.name, part.what, part.alone_s === null ? "" : seconds(part.alone_s), seconds(part.seconds), percent(why.each_s ? part.seconds / why.each_s : 0)]);
  return el(
    "div",
    { class: "why" },
    el("strong", null, why.heading),
    why.told.map((text) => el("p", null, text)),
    plainTable(["part", "what of one launch", "alone", "here", "share"], parts, [2, 3, 4]),
    why.effects.length ? plainTable(["effect", "value", "on", "mechanism", "source"], why.effects.map(effectRow), [1]) : null,
    el("p", null, why.range),
    el("ul", { class: "quiet small" }, why.reasons.map((text) => el("li", null, text))),
  );
}

// A line's name as a button; `explain(number)` gives its explanation, or a promise of it.
export function whyButton(number, label, explain) {
  const button = el("button", { type: "button", class: "why-button", "data-k": `why-${number}`, "aria-expanded": "false", title: "Why?" }, label);
  button.addEventListener("click", () => toggleWhy(button, number, explain));
  return button;
}

async function toggleWhy(button, number, explain) {
  const row = button.closest("tr");
  const open = button.getAttribute("aria-expanded") === "true";
  for (const other of row.parentNode.querySelectorAll(".why-row")) other.remove();
  for (const other of row.parentNode.querySelectorAll(".why-button")) other.setAttribute("aria-expanded", "false");
  if (open) return;
  button.setAttribute("aria-expanded", "true");
  const cell = el("td", { colspan: row.children.length }, el("p", { class: "quiet" }, "…"));
  row.after(el("tr", { class: "why-row" }, cell));
  try {
    cell.replaceChildren(whyBox(await explain(number)));
  } catch (problem) {
    cell.replaceChildren(el("p", { class: "quiet" }, problem.message));
  }
}
