// The axes (what each collective costs, what hides it) and the bill, line by line.

import { el, tableBox } from "./dom.js";
import { bytes, count, percent, seconds } from "./format.js";
import { sourceChip } from "./tip.js";
import { whyButton } from "./why.js";

function table(caption, columns, rows, groups = []) {
  const head = columns.map((column) => el("th", { scope: "col", class: [column.number ? "number" : null, column.minor ? "minor" : null, column.extra ? "extra" : null].filter(Boolean).join(" ") || null }, column.title));
  const body = rows.map((row) =>
    el("tr", { class: row.name ?? null }, row.cells.map((cell, i) => el(i ? "td" : "th", { scope: i ? null : "row", class: [columns[i].number ? "number" : columns[i].name, columns[i].minor ? "minor" : null, columns[i].extra ? "extra" : null].filter(Boolean).join(" ") || null, "data-label": i ? columns[i].title : null }, i ? el("div", null, cell) : cell))),
  );
  const above = groups.length ? el("tr", { class: "groups" }, groups.map((group) => el("th", { scope: "colgroup", colspan: group.span }, group.title))) : null;
  return tableBox(caption, "stack", [above, el("tr", null, head)], body);
}

function meter(share, hot) {
  const bar = el("span", { class: hot ? "meter hot-meter" : "meter" }, el("span", null));
  bar.firstChild.style.width = `${Math.max(0, Math.min(1, share || 0)) * 100}%`;
  return bar;
}

export function axesTable(view) {
  if (!view.axes.length) return el("p", { class: "quiet" }, "One GPU holds the whole model: nothing is sent.");
  const number = (title, minor) => ({ title, number: true, minor, extra: ["buffer", "times", "ranks"].includes(title) });
  const columns = [{ title: "axis" }, ...["takes", "exposed", "tax"].map((title) => number(title)), { title: "verdict" }, { title: "costliest collective", name: "wide" }, ...["takes", "window", "buffer", "times", "ranks"].map((title) => number(title, true)), { title: "link", minor: true }, { title: "source", minor: true, extra: true }];
  const rows = view.axes.map((axis, i) => ({
    name: axis.binding ? "binding" : null,
    cells: [
      el("span", { class: "axis-name" }, axis.axis.toUpperCase()),
      seconds(axis.comm_s),
      [seconds(axis.exposed_s), axis.bubble_s ? el("small", { class: "below" }, `+ bubble ${seconds(axis.bubble_s)}`) : null],
      percent(axis.tax),
      axis.binding ? el("span", { class: "chip hot-chip" }, "binding") : el("span", { class: "chip" }, !axis.exposed_s ? "hidden" : axis.exposed_s < axis.comm_s ? "partly hidden" : "exposed"),
      [axis.collective, axis.more ? el("small", null, ` and ${axis.more} more`) : null],
      seconds(axis.top_s),
      axis.window_s ? seconds(axis.window_s) : "none",
      bytes(axis.nbytes),
      count(axis.times),
      count(axis.ranks),
      axis.link,
      sourceChip(`${axis.axis} ${axis.collective}`, axis.formula, axis.source, `axis-${i}`),
    ],
  }));
  const groups = [{ span: 5, title: "all collectives of the axis, per step" }, { span: 8, title: "the costliest of them" }];
  const paid = view.axes.some((axis) => axis.window_s && axis.exposed_s);
  return [table("What each axis sends and what hides it", columns, rows, groups), paid ? el("p", { class: "quiet small" }, "What fits in its window is still paid in part: beside compute a collective takes SMs and bandwidth from it, and the last bucket has nothing to hide under.") : null];
}

function named(line, number, explain) {
  const label = line.axis ? [el("span", { class: "axis-name" }, line.axis.toUpperCase()), " ", line.what] : line.what;
  return explain ? whyButton(number, label, explain) : label;
}

const FIRST = 12; // lines of a bill shown before all are asked for; what is sent is always shown
let wholeBill = false;

export function billTable(view, explain) {
  const columns = [{ title: "line", name: "what" }, { title: "total", number: true }, { title: "share of the step" }, { title: "how", name: "how", minor: true }, ...["bytes", "times", "each", "latency"].map((title) => ({ title, number: true, minor: true, extra: title === "times" || title === "latency" })), { title: "source", minor: true, extra: true }];
  const rows = view.bill.map((line, i) => ({
    name: line.axis || i < FIRST || view.bill.length < FIRST + 4 ? null : "more-lines",
    cells: [
      named(line, i + 1, explain),
      seconds(line.total_s),
      el("span", { class: "share" }, meter(line.share, line.axis && line.exposed_s > 0), percent(line.share)),
      line.how,
      line.nbytes ? bytes(line.nbytes) : "",
      line.times ? count(line.times) : "",
      line.each_s === null || line.each_s === undefined ? "" : seconds(line.each_s),
      line.latency_s === null || line.latency_s === undefined ? "" : seconds(line.latency_s),
      sourceChip(line.what, line.formula, line.source, `bill-${i}`),
    ],
  }));
  const found = table("The bill of one step, line by line", columns, rows);
  const more = rows.filter((row) => row.name).length;
  found.classList.toggle("whole", wholeBill);
  if (!more) return found;
  const button = el("button", { type: "button", class: "fold", "data-k": "whole-bill", "aria-expanded": String(wholeBill) }, wholeBill ? "Show fewer lines" : `Show ${more} more lines`);
  button.addEventListener("click", () => {
    wholeBill = !wholeBill;
    found.classList.toggle("whole", wholeBill);
    button.setAttribute("aria-expanded", String(wholeBill));
    button.textContent = wholeBill ? "Show fewer lines" : `Show ${more} more lines`;
  });
  return [found, button];
}

// The textbook's figure and ours side by side, and why they differ.
export function lessonCards(lesson) {
  return el(
    "ul",
    { class: "lesson-cards" },
    lesson.rows.map((row) =>
      el("li", null, el("h3", null, row.name), el("dl", null, el("div", null, el("dt", null, "textbook"), el("dd", null, row.lesson)), el("div", null, el("dt", null, "here"), el("dd", null, row.ours))), el("p", { class: "quiet" }, row.why)),
    ),
  );
}
