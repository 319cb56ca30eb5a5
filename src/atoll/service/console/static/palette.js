// The command palette: everything the console can do, and every session and run, by a few letters.

import { at, get, may } from "./api.js";
import { fill, h, icon } from "./dom.js";
import { cut } from "./format.js";
import { visible } from "./highlight.js";
import { dialog } from "./widgets.js";

/** Whether all letters of `typed` come in `text` in this order; lower is a better match. */
export function matches(text, typed) {
  const [hay, needle] = [text.toLowerCase(), typed.toLowerCase()];
  const direct = hay.indexOf(needle);
  if (direct >= 0) return direct;
  let from = 0;
  for (const sign of needle) {
    from = hay.indexOf(sign, from) + 1;
    if (!from) return -1;
  }
  return 1000 + from;
}

export function openPalette(todo, go) {
  if (document.querySelector("dialog[open]")) return;
  let [found, chosen] = [[], 0];
  const input = h("input", {
    type: "text",
    placeholder: "Type a page, an action, a session, a run",
    autofocus: true,
    role: "combobox",
    "aria-expanded": "true",
    "aria-controls": "found",
  });
  const list = h("ul", { class: "found", id: "found", role: "listbox" });
  dialog("Go to, or do", (close) => {
    const draw = () => {
      const typed = input.value.trim();
      const scored = todo
        .map((one) => [matches(`${one.title} ${one.note ?? ""}`, typed), one])
        .filter(([score]) => score >= 0);
      found = scored
        .sort((a, b) => a[0] - b[0])
        .slice(0, 12)
        .map(([, one]) => one);
      chosen = Math.min(chosen, Math.max(0, found.length - 1));
      fill(
        list,
        found.length
          ? found.map((one, n) =>
              h(
                "li",
                {
                  role: "option",
                  "aria-selected": String(n === chosen),
                  onclick: () => {
                    close(null);
                    one.run();
                  },
                },
                icon(one.sign),
                h("span", {}, visible(one.title)),
                one.note && h("small", {}, visible(one.note)),
                one.hint && h("kbd", {}, one.hint),
              ),
            )
          : h("li", { class: "none" }, "Nothing by that name."),
      );
    };
    input.addEventListener("input", () => {
      chosen = 0;
      draw();
    });
    input.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step) {
        event.preventDefault();
        chosen = (chosen + step + found.length) % Math.max(1, found.length);
        draw();
      }
      if (event.key === "Enter" && found[chosen]) {
        event.preventDefault();
        const one = found[chosen];
        close(null);
        one.run();
      }
    });
    draw();
    addKnown(todo, go).then(draw, () => {});
    return h("div", { class: "body palette" }, input, list);
  });
}

async function addKnown(todo, go) {
  const [sessions, runs] = await Promise.allSettled([
    may("sessions") ? get("/sessions?limit=100") : { items: [] },
    get("/runs?limit=50"),
  ]);
  for (const one of sessions.value?.items ?? []) {
    const label = Object.values(one.metadata ?? {}).join(" ");
    todo.push({
      title: one.name || one.id,
      note: `session ${label}`,
      sign: "sessions",
      run: () => go(`sessions${at(one.id)}`),
    });
  }
  for (const one of runs.value?.items ?? [])
    todo.push({
      title: cut(one.question || one.id, 70),
      note: "run",
      sign: "runs",
      run: () => go(`runs${at(one.id)}`),
    });
}

export function openHelp(pages, shortcuts) {
  const row = (keys, text) =>
    h(
      "div",
      {},
      h(
        "dt",
        {},
        keys.split(" ").map((key) => h("kbd", {}, key)),
      ),
      h("dd", {}, text),
    );
  dialog("Keyboard", () =>
    h(
      "div",
      { class: "body" },
      h(
        "dl",
        { class: "shortcuts" },
        row("Ctrl K", "Go to a page, session or run; do something"),
        pages.map((page) => row(`g ${page.key}`, page.title)),
        row("n", "New session"),
        row("j", "Next row"),
        row("k", "Row before"),
        row("Enter", "Open the row"),
        row("/", "Filter or search"),
        row("Ctrl Enter", "Run the cell"),
        row("Esc", "Leave the editor, close a dialog"),
        Object.entries(shortcuts)
          .filter(([, one]) => one.title)
          .map(([key, one]) => row(key, one.title)),
      ),
    ),
  );
}
