// Heat maps as tables: the hotter a cell, the larger the exposed share of its step; the thick line is break-even; yours is outlined.

import { el, roving } from "./dom.js";
import { percent, seconds, shortRate } from "./format.js";
import { formulaTip, tip } from "./tip.js";

// On a phone the whole map is seen: smaller figures, and no table that is wider than the window.
function narrow() {
  return innerWidth <= 680;
}

function briefRate(value) {
  return value >= 1000 ? `${Number((value / 1000).toPrecision(2))}k` : String(Math.round(value));
}

function mapCell(grid, cell, at, load) {
  const own = grid.here && grid.here[0] === cell.row && grid.here[1] === cell.column;
  const name = `${grid.rows[cell.row]}, ${grid.columns[cell.column]}`;
  const borders = [];
  // The first row has nothing to be compared with: it counts as paying. What is refused or does not fit has no side.
  const side = (other) => (!other?.fits ? null : (other.pays ?? true));
  const differs = (other) => side(other) !== null && side(cell) !== null && side(other) !== side(cell);
  if (differs(at(cell.row, cell.column - 1))) borders.push("edge-left");
  if (differs(at(cell.row - 1, cell.column))) borders.push("edge-top");
  const box = el("td", { class: [own ? "own" : "", ...borders].join(" ").trim() || null });
  const lines = cell.refused ? [cell.refused] : [`${shortRate(cell.rate)} ${grid.rate_unit ?? "tokens/s"}, step ${seconds(cell.step_s)}`, `exposed communication ${percent(cell.comm_fraction)}`, ...(cell.fits ? [] : ["does not fit in memory"])];
  const inside = cell.refused ? [el("b", null, "–")] : [el(cell.fits ? "b" : "s", null, narrow() ? briefRate(cell.rate) : shortRate(cell.rate)), el("small", null, percent(cell.comm_fraction, 0))];
  const button = el("button", { type: "button", "data-k": name, "aria-label": `${name}: ${lines.join("; ")}${own ? "; your state" : ""}`, "aria-disabled": cell.refused || !load ? "true" : null }, inside);
  if (!cell.refused && cell.patch && load) button.addEventListener("click", () => load(cell.patch));
  if (!cell.refused) box.style.setProperty("--heat", `${Math.min(100, 100 * (cell.comm_fraction ?? 0))}%`);
  else box.classList.add("refused");
  box.append(tip(button, () => formulaTip(name, lines)));
  return box;
}

export function heatMap(grid, title, load) {
  const cells = new Map(grid.cells.map((cell) => [`${cell.row},${cell.column}`, cell]));
  const at = (row, column) => cells.get(`${row},${column}`);
  const body = grid.rows.map((row, r) =>
    el("tr", null, el("th", { scope: "row" }, row), grid.columns.map((_, c) => (at(r, c) ? mapCell(grid, at(r, c), at, load) : el("td", null)))),
  );
  const table = el("table", { class: "map" }, el("caption", null, title), el("thead", null, el("tr", null, el("td", { class: "corner" }), grid.columns.map((column) => el("th", { scope: "col" }, column)))), el("tbody", null, body));
  table.dataset.wide = grid.columns.length;
  const each = grid.columns.length > 8 ? 44 : 62; // names of links need more room than batches
  if (!narrow()) table.style.minWidth = `${grid.columns.length * each + 56}px`;
  roving(table, "td button");
  const legend = el("ul", { class: "legend" }, el("li", null, el("span", { class: "key-heat" }), "exposed share of the step"), el("li", null, el("span", { class: "key-line" }), "break-even"), el("li", null, el("span", { class: "key-own" }), "you"), grid.cells.some((cell) => cell.fits === false) ? el("li", null, el("s", null, "123"), "does not fit") : null);
  const figure = el("figure", { class: "map-figure" }, el("div", { class: "scroll" }, table), legend, el("figcaption", null, grid.note ?? ""));
  if (!narrow()) figure.style.flexBasis = `${grid.columns.length * each + 60}px`;
  return figure;
}
