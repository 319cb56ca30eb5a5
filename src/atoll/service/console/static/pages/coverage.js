// The coverage map: the context from its start to its end in cells; how much of each was scanned or shown.

import { h } from "../dom.js";
import { number, percent } from "../format.js";

const KINDS = {
  ".": "unseen",
  "-": "scanned",
  "#": "shown",
  unseen: "unseen",
  scanned: "scanned",
  shown: "shown",
};

/** Draw a map; `onopen(start, end)` is called for the cell that was chosen. */
export function coverageMap(found, onopen = null) {
  const cells =
    typeof found.map === "string" ? [...found.map] : Array.isArray(found.map) ? found.map : [];
  const length = found.length ?? 0;
  const note = h("span", { class: "quiet" }, legend(found));
  const grid = h(
    "div",
    {
      class: "map",
      role: "group",
      "aria-label": `Shown ${percent(found.shown_share)}, scanned ${percent(found.scanned_share)}`,
    },
    cells.map((one, n) => {
      const [start, end] = [
        Math.floor((length * n) / cells.length),
        Math.floor((length * (n + 1)) / cells.length),
      ];
      const kind = KINDS[one] ?? "unseen";
      return h("button", {
        type: "button",
        class: kind,
        tabindex: onopen && n === 0 ? "0" : "-1",
        title: `${number(start)} – ${number(end)}: ${kind}`,
        onclick: () => onopen?.(start, end),
        onmouseenter: () => {
          note.textContent = `${number(start)} – ${number(end)}: ${kind}`;
        },
      });
    }),
  );
  grid.addEventListener("mouseleave", () => {
    note.textContent = legend(found);
  });
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const all = [...grid.children];
    all[Math.max(0, Math.min(all.length - 1, all.indexOf(document.activeElement) + step))]?.focus();
  });
  return h(
    "div",
    { class: "coverage" },
    grid,
    h(
      "div",
      { class: "key" },
      ["shown", "scanned", "unseen"].map((one) => h("span", {}, h("i", { class: one }), one)),
      h("span", { class: "grow" }),
      note,
    ),
  );
}

const legend = (found) =>
  `${percent(found.shown_share ?? 0)} shown · ${percent(found.scanned_share ?? 0)} scanned`;
