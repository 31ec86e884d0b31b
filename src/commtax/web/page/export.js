// What leaves the page: a table as CSV, an answer as JSON, a picture as SVG or PNG. Made here, sent nowhere.

import { byId, el } from "./dom.js";

const KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-family", "font-size", "opacity", "text-anchor", "dominant-baseline"];

function save(name, blob) {
  const address = URL.createObjectURL(blob);
  const link = el("a", { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
  byId("said").textContent = `Saved ${name}.`;
}

function quoted(value) {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

// Figures as they are, not as they are written: seconds, shares and dollars for a spreadsheet.
function csvText(table) {
  const ends = table.columns.flatMap((column) => (column.range ? [column.key, `${column.key}_low`, `${column.key}_high`] : [column.key]));
  const cells = (row) =>
    table.columns.flatMap((column) => {
      const value = column.kind === "setup" ? row.setup : row.values[column.key];
      return column.range ? [value, ...(row.ranges[column.key] ?? ["", ""])] : [value];
    });
  const lines = [["rank", "plan", "cluster", "role", ...ends], ...table.rows.map((row) => [row.place, row.name, row.cluster, row.roles.join(" "), ...cells(row)])];
  return `${lines.map((line) => line.map(quoted).join(",")).join("\n")}\n`;
}

// The picture with the colours and sizes that it has here, on the page's paper.
function standalone(picture) {
  const copy = picture.cloneNode(true);
  const from = [picture, ...picture.querySelectorAll("*")];
  const to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    for (const name of KEPT) if (style.getPropertyValue(name)) to[i].setAttribute(name, style.getPropertyValue(name));
    to[i].removeAttribute("class");
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  paper.setAttribute("width", "100%");
  paper.setAttribute("height", "100%");
  paper.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
  copy.prepend(paper);
  return new XMLSerializer().serializeToString(copy);
}

async function savePng(name, picture) {
  const { width, height } = picture.getBoundingClientRect();
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(standalone(picture))}`;
  await image.decode();
  const canvas = el("canvas", { width: Math.round(2 * width), height: Math.round(2 * height) });
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((blob) => save(name, blob), "image/png");
}

// Buttons for what there is: `table` (columns and rows), `answer` (JSON), `picture()` (an SVG element).
export function exportBar(name, { table, answer, picture }) {
  const button = (kind, work) => el("button", { type: "button", class: "export", "data-k": `export-${name}-${kind}`, "aria-label": `Save as ${kind}`, onclick: work }, kind);
  return el(
    "div",
    { class: "exports", role: "group", "aria-label": "Save" },
    el("span", { class: "quiet small" }, "Save as"),
    table ? button("CSV", () => save(`${name}.csv`, new Blob([csvText(table)], { type: "text/csv" }))) : null,
    answer ? button("JSON", () => save(`${name}.json`, new Blob([JSON.stringify(answer, null, 1)], { type: "application/json" }))) : null,
    picture ? button("SVG", () => save(`${name}.svg`, new Blob([standalone(picture())], { type: "image/svg+xml" }))) : null,
    picture ? button("PNG", () => savePng(`${name}.png`, picture())) : null,
  );
}
