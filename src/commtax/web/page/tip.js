// The one tooltip: what is shown on hover is shown on focus too, Escape closes it, and it never leaves the window.

import { byId, el, paint } from "./dom.js";

let shownFor = null;

export function tip(node, content) {
  const open = () => show(node, content());
  node.addEventListener("pointerenter", open);
  node.addEventListener("focus", open);
  node.addEventListener("pointerleave", hide);
  node.addEventListener("blur", hide);
  return node;
}

export function hide() {
  byId("tip").hidden = true;
  shownFor?.removeAttribute("aria-describedby");
  shownFor = null;
}

function show(node, content) {
  hide();
  shownFor = node;
  const box = byId("tip");
  paint(box, content);
  box.hidden = false;
  node.setAttribute("aria-describedby", "tip");
  const at = node.getBoundingClientRect();
  const { width, height } = box.getBoundingClientRect();
  const room = document.documentElement.clientWidth;
  const middle = Math.max(0, Math.min(room, at.left + Math.min(at.width, room) / 2));
  const left = Math.max(8, Math.min(middle - width / 2, room - width - 8));
  const above = at.top - height - 10;
  box.style.left = `${left}px`;
  box.style.top = `${above > 8 ? above : at.bottom + 10}px`;
}

export function formulaTip(title, lines, formula, source) {
  return [
    el("strong", null, title),
    lines.filter(Boolean).map((line) => el("div", null, line)),
    formula ? el("code", { class: "formula" }, formula) : null,
    source ? el("div", { class: "tip-source" }, `source: ${source}`) : null,
  ];
}

// A number's source as a small button: its tooltip holds the formula with the numbers in it.
export function sourceChip(title, formula, source, key) {
  const brief = source || "formula";
  const chip = el("button", { type: "button", class: "chip source", "data-k": key, "aria-label": `${brief}: how ${title} is computed` }, brief);
  return tip(chip, () => formulaTip(title, [], formula, source));
}

addEventListener("keydown", (event) => event.key === "Escape" && hide());
addEventListener("scroll", hide, { passive: true, capture: true });
