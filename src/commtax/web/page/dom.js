// Elements without innerHTML: whatever a name or an answer holds, it stays text.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, props, kids) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...kids.flat(2).filter((kid) => kid !== null && kid !== undefined && kid !== false));
  return node;
}

export function el(tag, props, ...kids) {
  return fill(document.createElement(tag), props, kids);
}

export function svg(tag, props, ...kids) {
  return fill(document.createElementNS(SVG, tag), props, kids);
}

export function byId(id) {
  return document.getElementById(id);
}

// A table that a keyboard can scroll and a screen reader can name.
export function tableBox(name, kind, head, body) {
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": name }, el("table", { class: kind }, el("caption", { class: "unseen" }, name), el("thead", null, head), el("tbody", null, body)));
}

export function figure(title, value, more) {
  return el("div", { class: "figure" }, el("dt", null, title), el("dd", { class: "value" }, value), more ? el("dd", { class: "range" }, more) : null);
}

// New content for a region. A repaint must not throw the keyboard away: what had the focus gets it back by its data-k.
export function paint(host, ...nodes) {
  const active = document.activeElement;
  const key = host.contains(active) && active !== host ? active.closest("[data-k]")?.dataset.k : undefined;
  host.replaceChildren(...nodes.flat(2).filter((node) => node !== null && node !== undefined && node !== false));
  if (key === undefined) return;
  const again = host.querySelector(`[data-k="${CSS.escape(key)}"]`) ?? host.closest("section")?.querySelector("h2");
  again?.focus({ preventScroll: true });
}

// One stop of the Tab key for many marks; arrows move between them.
export function roving(host, selector) {
  const all = () => [...host.querySelectorAll(selector)];
  all().forEach((node, i) => node.setAttribute("tabindex", i ? "-1" : "0"));
  if (host.dataset.roving) return;
  host.dataset.roving = "yes";
  host.addEventListener("keydown", (event) => {
    const nodes = all();
    const at = nodes.indexOf(document.activeElement);
    if (at < 0) return;
    const wide = Number(host.dataset.wide ?? 0);
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: wide || 1, ArrowUp: -(wide || 1), Home: -at, End: nodes.length - 1 - at }[event.key];
    if (step === undefined || !nodes[at + step]) return;
    event.preventDefault();
    nodes[at].setAttribute("tabindex", "-1");
    nodes[at + step].setAttribute("tabindex", "0");
    nodes[at + step].focus();
  });
}
