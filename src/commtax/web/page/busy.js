// What is said while an answer is computed: how long it has taken, and how long it took before.

import { el } from "./dom.js";

const SILENT_MS = 350; // what comes sooner needs no word
const TICK_MS = 250;
const USUAL_S = { plan: 1.5, several: 4, fleet: 8, traffic: 3 }; // before anything was measured here
const lasted = new Map(); // seconds of the last answer of a kind
let crowded = 0; // questions that wait because the server is busy

export function whileCrowded(wait) {
  crowded += 1;
  return wait.finally(() => (crowded -= 1));
}

function words(verb, kind, seconds) {
  if (crowded) return `${verb}… ${Math.round(seconds)} s. The server is busy with other questions; this one waits its turn.`;
  const usual = Math.round(lasted.get(kind) ?? USUAL_S[kind] ?? 1);
  return seconds < 1 ? `${verb}…` : `${verb}… ${Math.round(seconds)} s${usual > 1 ? `, usually about ${usual} s` : ""}`;
}

// A line with a bar at the top of a section; the returned function takes it away and remembers how long it was there.
export function busyLine(section, verb, kind) {
  const begin = performance.now();
  const usual = lasted.get(kind) ?? USUAL_S[kind] ?? 1;
  const text = el("span", null, `${verb}…`);
  const bar = el("progress", { max: "1", value: "0", "aria-label": verb });
  const line = el("div", { class: "busy-line" }, text, bar);
  const step = () => {
    const seconds = (performance.now() - begin) / 1000;
    text.textContent = words(verb, kind, seconds);
    bar.value = 1 - Math.exp((-1.5 * seconds) / usual); // it slows down where an answer takes longer than usual
  };
  const start = setTimeout(() => {
    section.querySelector(".first-wait")?.remove();
    section.querySelector("h2")?.after(line);
    step();
  }, SILENT_MS);
  const tick = setInterval(step, TICK_MS);
  return (answered) => {
    clearTimeout(start);
    clearInterval(tick);
    line.remove();
    if (answered) lasted.set(kind, (performance.now() - begin) / 1000);
  };
}
