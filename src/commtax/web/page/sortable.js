// A table that is sorted by a click on a title. On a narrow window each row is a card, and a list of titles sorts.

import { el, tableBox } from "./dom.js";
import { bytes, count, days, percent, rate, seconds, unbroken, usd } from "./format.js";
import { formulaTip, tip } from "./tip.js";

function share(value) {
  return value > 0.9995 && value < 1 ? ">99.9%" : percent(value, value > 0.995 && value < 1 ? 1 : 0);
}

const WRITTEN = { count, seconds, rate, usd, bytes, days, share };

export function written(column, row) {
  if (column.kind === "setup") return row.setup;
  return (WRITTEN[column.kind] ?? String)(row.values[column.key]);
}

export function rangeOf(column, row) {
  const ends = column.range && row.ranges[column.key];
  if (!ends || ends[0] === null) return null;
  return unbroken(ends.map((end) => written(column, { values: { [column.key]: end } })).join(" – "));
}

// Best first by a column; "-key" is worst first, "" the given order. Rows without a figure come last.
function sortRows(rows, columns, sort) {
  const column = columns.find((one) => one.key === sort.replace(/^-/, ""));
  if (!column) return rows;
  const sign = (column.less ? 1 : -1) * (sort.startsWith("-") ? -1 : 1);
  const value = (row) => row.values[column.key] ?? null;
  return [...rows].sort((a, b) => (value(a) === null) - (value(b) === null) || sign * (value(a) - value(b)));
}

function nextSort(sort, key) {
  return sort === key ? `-${key}` : sort === `-${key}` ? "" : key;
}

function direction(column, sort) {
  if (sort.replace(/^-/, "") !== column.key) return null;
  return column.less === sort.startsWith("-") ? "descending" : "ascending";
}

function headCell(column, sort, order) {
  const found = direction(column, sort);
  const arrow = el("span", { class: "sort-arrow", "aria-hidden": "true" }, found ? (found === "ascending" ? "▲" : "▼") : "");
  const button = el("button", { type: "button", class: "sort", "data-k": `sort-${column.key}`, onclick: () => order(nextSort(sort, column.key)) }, column.title, arrow);
  return el("th", { scope: "col", class: column.minor ? "number minor" : "number", "aria-sort": found ?? "none" }, tip(button, () => formulaTip(column.title, [column.help])));
}

function sortList(columns, sort, order) {
  const options = [el("option", { value: "" }, "rank"), ...columns.map((column) => el("option", { value: column.key, selected: column.key === sort.replace(/^-/, "") }, column.label))];
  return el("label", { class: "sort-list" }, "Sort by ", el("select", { "data-k": "sort-list", onchange: (event) => order(event.target.value) }, options));
}

const SHOWN = 8; // rows before all are asked for; the recommended one is always shown
let every = false;

function foldButton(found, hidden) {
  const words = () => (every ? "Show fewer plans" : `Show ${hidden} more plans`);
  const button = el("button", { type: "button", class: "fold", "data-k": "every-plan", "aria-expanded": String(every) }, words());
  button.addEventListener("click", () => {
    every = !every;
    found.classList.toggle("whole", every);
    button.setAttribute("aria-expanded", String(every));
    button.textContent = words();
  });
  return button;
}

// `first(row)` is the cell of a plan's name; `order(sort)` is called with the order that was asked for.
export function sortableTable(caption, columns, rows, sort, order, first) {
  const head = el("tr", null, el("th", { scope: "col" }, "plan"), columns.map((column) => headCell(column, sort, order)));
  const foldable = rows.length > SHOWN + 2;
  const body = sortRows(rows, columns, sort).map((row, i) =>
    el(
      "tr",
      { class: row.roles.includes("recommended") ? "chosen" : foldable && i >= SHOWN ? "more-lines" : null },
      el("th", { scope: "row" }, first(row)),
      columns.map((column) => {
        const range = rangeOf(column, row);
        return el("td", { class: column.minor ? "number minor" : "number", "data-label": column.title }, el("span", null, written(column, row), range ? el("small", { class: "below quiet" }, range) : null));
      }),
    ),
  );
  const hidden = body.filter((row) => row.className === "more-lines").length;
  const found = tableBox(caption, "sortable", head, body);
  found.classList.toggle("whole", every);
  return el("div", { class: "sort-box" }, sortList(columns, sort, order), found, hidden ? foldButton(found, hidden) : null);
}
