// The smaller regions: the figures under the sentence, buttons that change the answer, memory, commands to copy.

import { byId, el } from "./dom.js";
import { formulaTip, tip } from "./tip.js";
import { bytes, change, percent, rate, seconds } from "./format.js";
import { written } from "./sortable.js";

function stepFigure(title, value, chips, hot) {
  return el("div", { class: hot ? "figure hot-figure" : "figure" }, el("dt", null, title), el("dd", { class: "value" }, value), el("dd", null, chips.filter(Boolean).map((chip) => (typeof chip === "string" ? el("span", { class: "chip" }, chip) : chip))));
}

function mfuChip(all) {
  if (!all.mfu_definition) return null;
  const chip = el("button", { type: "button", class: "chip source", "data-k": "mfu", "aria-label": "how MFU is counted" }, "how counted");
  return tip(chip, () => formulaTip(`MFU ${percent(all.mfu)}, HFU ${percent(all.hfu)}`, [all.mfu_definition]));
}

export function figures(view) {
  const all = view.totals;
  const memory = view.memory;
  const used = memory && memory.used_bytes ? `${bytes(memory.used_bytes)} of ${bytes(memory.capacity_bytes)}` : null;
  return [
    stepFigure("step", seconds(all.step_s), [`${seconds(all.low_s)} to ${seconds(all.high_s)}`, all.source]),
    stepFigure("exposed communication", percent(all.comm_fraction), [all.comm_s ? `${seconds(all.exposed_comm_s)} of ${seconds(all.comm_s)}` : "nothing is sent"], all.comm_fraction >= 0.01),
    stepFigure("tokens/s", rate(all.tokens_per_s), []),
    all.mfu ? stepFigure("MFU", percent(all.mfu), [mfuChip(all), all.bubble_fraction ? `bubble ${percent(all.bubble_fraction)}` : null]) : null,
    stepFigure("memory per GPU", all.fits === false ? "does not fit" : all.fits ? "fits" : "–", [used], all.fits === false),
    ...(view.figures ?? []).map((one) => stepFigure(one.name, written(one, { values: { [one.key]: one.value } }), [])),
  ];
}

export function changeButtons(changes, apply) {
  // Longer than twice the step is off the scale: the others stay readable.
  const widest = Math.min(1, Math.max(...changes.map((item) => Math.abs(item.change)), 0.01));
  return el(
    "ul",
    { class: "changes" },
    changes.map((item) => {
      const better = item.change <= -5e-4;
      const bar = el("span", { class: better ? "gain" : "loss" });
      bar.style.width = `${Math.min(1, Math.abs(item.change) / widest) * 100}%`;
      const inside = [
        el("span", { class: "change-name" }, item.label),
        el("span", { class: "change-step" }, seconds(item.step_s)),
        el("span", { class: better ? "change-by better" : "change-by" }, `${better ? "▼ " : item.change >= 5e-4 ? "▲ " : ""}${change(item.change)}`),
        el("span", { class: "change-bar", "aria-hidden": "true" }, bar),
        el("span", { class: "change-note" }, item.patch && apply ? el("b", null, "Apply") : null, item.patch && apply && item.note ? " · " : null, item.note || null),
      ];
      if (!item.patch || !apply) return el("li", { class: "change fixed" }, inside);
      return el("li", null, el("button", { type: "button", class: "change", "data-k": `change-${item.label}`, onclick: () => apply(item.patch) }, inside));
    }),
  );
}

function memoryBar(title, parts, used, capacity) {
  const full = Math.max(used, capacity);
  const bar = el("div", { class: "memory-bar", role: "img", "aria-label": `${title}: ${bytes(used)} of ${bytes(capacity)}: ${parts.map((part) => `${part.name} ${bytes(part.nbytes)}`).join(", ")}` });
  parts.forEach((part, i) => {
    const piece = el("span", { class: `memory-part tone-${i % 8}`, title: `${part.name}: ${bytes(part.nbytes)}` });
    piece.style.width = `${(part.nbytes / full) * 100}%`;
    bar.append(piece);
  });
  const edge = el("span", { class: used > capacity ? "memory-edge over" : "memory-edge" });
  edge.style.left = `${(capacity / full) * 100}%`;
  bar.append(edge);
  return el("div", { class: "memory-row" }, el("div", { class: "memory-title" }, el("span", null, title), el("span", { class: used > capacity ? "hot-text" : "quiet" }, `${bytes(used)} of ${bytes(capacity)}`)), bar);
}

export function memoryBars(memory) {
  const rows = memory.ranks?.length ? memory.ranks : [{ name: "each GPU", used_bytes: memory.used_bytes, parts: memory.parts }];
  return [
    rows.map((row) => memoryBar(row.name, row.parts, row.used_bytes, memory.capacity_bytes)),
    el("ul", { class: "legend" }, rows[0].parts.map((part, i) => el("li", null, el("span", { class: `swatch tone-${i % 8}` }), `${part.name} `, el("b", null, bytes(part.nbytes))))),
    memory.note ? el("p", { class: "quiet" }, memory.note) : null,
  ];
}

async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a secure context there is no clipboard: select the line, so that the usual key copies it.
    const line = button.closest("li").querySelector("code");
    getSelection().selectAllChildren(line);
    byId("said").textContent = "Selected: copy with the keyboard.";
    return;
  }
  button.textContent = "Copied";
  byId("said").textContent = "Copied.";
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

export function commandList(commands) {
  const lines = [
    ["commtax", "asks the same on the command line", commands.commtax],
    [commands.launch_engine || "launch", "starts this plan", commands.launch],
    ["benchmark", "checks the prediction once it runs", commands.benchmark],
    ["nccl-tests", commands.nccl_why || "measures the assumption that matters most", commands.nccl],
  ];
  return el(
    "ul",
    { class: "commands" },
    lines.filter(([, , text]) => text).map(([name, why, text]) => {
      const button = el("button", { type: "button", class: "copy", "data-k": `copy-${name}`, "aria-label": `Copy the ${name} line` }, "Copy");
      button.addEventListener("click", () => copy(text, button));
      return el("li", null, el("div", { class: "command-head" }, el("b", null, name), el("span", { class: "quiet" }, why), button), el("pre", null, el("code", null, text)));
    }),
  );
}
