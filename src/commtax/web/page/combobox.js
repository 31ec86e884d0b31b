// A text field with suggestions (the ARIA combobox pattern): search by any part of a name, free text allowed.

import { el } from "./dom.js";

const MOST = 60;

export function combobox(input, choices, chosen) {
  const list = el("ul", { role: "listbox", class: "options", id: `${input.id}-options`, hidden: true, "aria-label": `${input.id} suggestions` });
  input.after(list);
  for (const [name, value] of Object.entries({ role: "combobox", autocomplete: "off", spellcheck: "false", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": list.id })) {
    input.setAttribute(name, value);
  }
  let at = -1;
  let settled = input.value;

  const close = () => {
    list.hidden = true;
    at = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const take = (value) => {
    close();
    input.value = value;
    if (value === settled) return;
    settled = value;
    chosen(value);
  };
  const mark = (next) => {
    const rows = list.children;
    if (!rows.length) return;
    at = (next + rows.length) % rows.length;
    [...rows].forEach((row, i) => row.setAttribute("aria-selected", i === at ? "true" : "false"));
    rows[at].scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", rows[at].id);
  };
  const open = (text) => {
    const words = text.toLowerCase().split(/\s+/).filter(Boolean);
    const found = choices().filter((choice) => words.every((word) => `${choice.key} ${choice.name ?? ""}`.toLowerCase().includes(word)));
    list.replaceChildren(
      ...found.slice(0, MOST).map((choice, i) =>
        el(
          "li",
          { role: "option", id: `${list.id}-${i}`, "aria-selected": "false", "data-value": choice.key, onpointerdown: (event) => event.preventDefault(), onclick: () => take(choice.key) },
          el("span", null, choice.key),
          el("small", null, choice.note ?? ""),
        ),
      ),
    );
    at = -1;
    list.hidden = found.length === 0;
    input.setAttribute("aria-expanded", String(!list.hidden));
  };

  input.addEventListener("focus", () => input.select());
  input.addEventListener("click", () => open(""));
  input.addEventListener("input", () => open(input.value));
  input.addEventListener("blur", () => {
    close();
    if (input.value.trim() && input.value !== settled) take(input.value.trim());
    else input.value = settled;
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) open("");
      mark(event.key === "ArrowDown" ? at + 1 : at < 0 ? -1 : at - 1);
    } else if (event.key === "Enter") {
      event.preventDefault();
      const best = at >= 0 ? list.children[at] : null;
      take(best ? best.dataset.value : input.value.trim());
    } else if (event.key === "Escape") {
      input.value = settled;
      close();
    }
  });
  return {
    set(value) {
      settled = value;
      if (document.activeElement !== input || list.hidden) input.value = value;
    },
  };
}
