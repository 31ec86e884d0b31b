// Plans: the recommended one and why, all of them as a table to sort, the picture, clusters side by side, what lost.

import { byId, el, figure, paint } from "./dom.js";
import { exportBar } from "./export.js";
import { frontPicture } from "./front.js";
import { unbroken } from "./format.js";
import { commandList } from "./panels.js";
import { rangeOf, sortableTable, written } from "./sortable.js";
import { place, resort } from "./views.js";

const TWO_COLUMNS = 700; // pixels from which reasons stand beside the picture

function planFigures(row, columns) {
  const shown = columns.filter((column) => column.figure && row.values[column.key] !== null && row.values[column.key] !== undefined);
  return el("dl", { class: "figures" }, shown.map((column) => figure(column.label, written(column, row), rangeOf(column, row))));
}

function startOf(row, key) {
  return row.commands?.launch ? el("details", { class: "start" }, el("summary", { "data-k": key }, "How to run it"), commandList(row.commands)) : null;
}

// The answer: what to run, what it does, and what starts it. Without limits: places to run at, each with its own plan.
function answerCard(plan, tools) {
  if (plan.points?.length) return operatingPoints(plan, tools);
  const chosen = plan.table.rows.find((row) => row.roles.includes("recommended"));
  if (!chosen) return el("div", { class: "answer none" }, el("p", { class: "plan-sentence" }, plan.sentence));
  return el("div", { class: "answer" }, el("p", { class: "plan-sentence" }, unbroken(plan.sentence)), planFigures(chosen, plan.table.columns), startOf(chosen, "start"));
}

function operatingPoints(plan, tools) {
  const card = ({ name, when, row }) => [
    el("h3", null, capital(name)),
    el("p", { class: "quiet small" }, `When ${when}.`),
    el("p", { class: "point-plan" }, unbroken(row.name)),
    planFigures(row, plan.table.columns),
    startOf(row, `start-${name}`),
    tools ? el("button", { type: "button", onclick: () => tools.load(row.patch) }, "Show its decode step") : null,
  ];
  return [el("p", { class: "plan-sentence" }, "No limit on TTFT or TPOT is set: ways to run it"), el("ul", { class: "sides points" }, plan.points.map((one) => el("li", { class: "side" }, card(one))))];
}

// The first reason of all but a fleet names the plan, which the sentence did.
function whyList(plan) {
  if (plan.points?.length) return null;
  const why = "requests_counted" in plan ? plan.why : plan.why.slice(1);
  return why.length ? el("div", { class: "why-this" }, el("h3", null, "Why this plan"), el("ul", { class: "why-lines" }, why.map((line) => el("li", null, line)))) : null;
}

function roleChips(row) {
  return row.roles.map((role) => el("span", { class: role === "recommended" ? "chip role" : "chip" }, role));
}

// A plan's name: a button that opens what runs it.
function nameCell(row, columns, tools, several) {
  const label = [unbroken(row.name), several ? el("small", { class: "below quiet" }, row.cluster) : null];
  const name = el("button", { type: "button", class: "why-button plan-name", "data-k": `row-${row.cluster}-${row.place}`, "aria-expanded": "false", onclick: (event) => toggleRow(event.currentTarget, row, columns, tools) }, label);
  return [name, " ", roleChips(row), el("small", { class: "below quiet note" }, row.note)];
}

function minorFigures(row, columns) {
  const minor = columns.filter((column) => column.minor && row.values[column.key] !== null && row.values[column.key] !== undefined);
  return el("dl", { class: "minor-figures" }, minor.map((column) => el("div", null, el("dt", null, column.title), el("dd", null, written(column, row)))));
}

function toggleRow(button, row, columns, tools) {
  const line = button.closest("tr");
  const open = button.getAttribute("aria-expanded") === "true";
  for (const other of line.parentNode.querySelectorAll(".plan-more")) other.remove();
  for (const other of line.parentNode.querySelectorAll(".plan-name")) other.setAttribute("aria-expanded", "false");
  tools?.open(open ? null : row.patch);
  if (open) return;
  button.setAttribute("aria-expanded", "true");
  const step = tools && row.patch ? el("button", { type: "button", class: "strong", onclick: () => tools.load(row.patch) }, row.values.step_s ? "Show its step" : "Show its decode step") : null;
  const why = row.commands.launch_why ? el("p", { class: "quiet" }, `No command is written: ${row.commands.launch_why}`) : null;
  const more = el("div", { class: "why" }, minorFigures(row, columns), step, why, commandList(row.commands));
  line.after(el("tr", { class: "plan-more" }, el("td", { colspan: line.children.length }, more)));
}

function sideBySide(plan) {
  if (!plan.sides.length) return null;
  return [
    el("h3", null, "Clusters side by side"),
    el("ul", { class: "sides" }, plan.sides.map((side) => el("li", { class: side.row?.roles.includes("recommended") ? "side chosen" : "side" }, el("h4", null, side.cluster, " ", side.row ? roleChips(side.row) : null), side.row ? [el("p", null, side.row.name), planFigures(side.row, plan.table.columns)] : el("p", { class: "quiet" }, side.text)))),
  ];
}

function lostPlans(plan) {
  if (!plan.lost.length) return null;
  const rows = plan.lost.map((row) => el("tr", null, el("th", { scope: "row" }, row.family), el("td", null, row.reason)));
  return el("details", { class: "rejected", open: !plan.table.rows.length }, el("summary", null, `${plan.table.rows.length ? "Why the others lost" : "Why no plan meets the limits"} (${plan.lost.length})`), el("div", { class: "scroll" }, el("table", { class: "lost" }, el("tbody", null, rows))));
}

function capital(text) {
  return text[0].toUpperCase() + text.slice(1);
}

// `tools.load(patch)` shows a plan's step; null where nothing can be asked.
export function drawPlans(host, plan, tools) {
  const several = plan.sides.length > 0;
  byId("plans-title").textContent = `${plan.model} on ${plan.clusters?.join(" or ") ?? plan.cluster}: which plan to run`;
  const again = (sort) => {
    resort(sort);
    drawPlans(host, plan, tools);
  };
  const wide = Math.max(300, host.clientWidth);
  const why = whyList(plan);
  const two = wide > TWO_COLUMNS && why;
  const drawn = plan.front.length ? frontPicture(plan, two ? Math.round((wide - 28) * 0.56) : wide, tools?.load, several) : null;
  const { rows, columns } = plan.table;
  const listed = rows.length ? sortableTable("Plans, best first", columns, rows, place().sort, again, (row) => nameCell(row, columns, tools, several)) : null;
  const picture = drawn ? el("figure", { class: "front" }, el("figcaption", null, capital(`${plan.y_title} against ${plan.x_title}`)), drawn.legend, drawn.picture) : null;
  const saved = rows.length ? exportBar("commtax-plans", { table: plan.table, answer: plan, picture: drawn ? () => drawn.picture : null }) : null;
  const heading = rows.length ? el("div", { class: "heading-row" }, el("h3", null, rows.length === 1 ? "The plan" : `The best ${rows.length} plans`), saved) : null;
  const words = el("div", { class: "plan-words" }, why, lostPlans(plan));
  paint(host, answerCard(plan, tools), sideBySide(plan), el("div", { class: two && drawn ? "plan-top" : "plan-top narrow" }, two ? [words, picture] : [why, picture, lostPlans(plan)]), heading, listed, plan.command ? commandList({ commtax: plan.command }) : null);
  drawn?.walk(host);
}
