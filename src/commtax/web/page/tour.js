// The guided tour: the two flips of the lesson, each before and after, with the lesson's number beside the real one.

import { byId, el, paint } from "./dom.js";
import { dropHash, replaceAll } from "./state.js";
import { lessonCards } from "./tables.js";

let steps = [];
let step = -1;

function fromHash() {
  const found = /^#tour=(\d+)$/.exec(location.hash);
  return found && steps[Number(found[1]) - 1] ? Number(found[1]) - 1 : -1;
}

function goTo(next) {
  step = next;
  replaceAll(steps[step].state, `#tour=${step + 1}`);
}

function closeTour() {
  step = -1;
  light(null);
  byId("tour").hidden = true;
  dropHash();
  byId("start-tour").focus();
}

function light(name) {
  for (const node of document.querySelectorAll(".watched")) node.classList.remove("watched");
  if (name) byId(name)?.classList.add("watched");
}

export function buildTour(catalog) {
  steps = catalog.tour ?? [];
  byId("start-tour").hidden = steps.length === 0;
  byId("start-tour").addEventListener("click", () => goTo(0));
  byId("tour-close").addEventListener("click", closeTour);
  byId("tour-back").addEventListener("click", () => goTo(step - 1));
  byId("tour-next").addEventListener("click", () => (step + 1 < steps.length ? goTo(step + 1) : closeTour()));
  byId("tour").addEventListener("keydown", (event) => event.key === "Escape" && closeTour());
}

// Called with each new answer: the panel follows the address, and the numbers in it are those of the picture.
export function syncTour(view) {
  const before = byId("tour").hidden ? -1 : Number(byId("tour").dataset.step);
  step = fromHash();
  byId("tour").hidden = step < 0;
  if (step < 0) return light(null);
  const now = steps[step];
  byId("tour").dataset.step = step;
  byId("tour-title").textContent = now.title;
  byId("tour-count").textContent = `${step + 1} of ${steps.length}`;
  byId("tour-back").disabled = step === 0;
  byId("tour-next").textContent = step + 1 < steps.length ? "Next" : "Done";
  const rows = (view.lesson?.rows ?? []).filter((row) => !now.lesson || row.name === now.lesson);
  paint(byId("tour-text"), el("p", null, now.text), view.lesson?.applies && rows.length ? lessonCards({ rows }) : null);
  if (before === step) return undefined;
  light(now.watch);
  byId("tour").scrollTop = 0;
  byId("tour-title").focus({ preventScroll: true });
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  byId(now.watch)?.scrollIntoView({ block: "start", behavior: calm ? "auto" : "smooth" });
  return undefined;
}
