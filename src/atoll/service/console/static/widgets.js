// Parts that several pages share: badges, bars, small charts, dialogs, messages, empty states.

import { fill, h, icon, svg } from "./dom.js";
import { visible } from "./highlight.js";

const TONES = {
  running: "live",
  busy: "live",
  started: "live",
  ok: "ok",
  healthy: "ok",
  ready: "ok",
  answered: "ok",
  active: "ok",
  paused: "quiet",
  ended: "quiet",
  revoked: "quiet",
  expired: "quiet",
  unanswered: "warn",
  forced: "warn",
  degraded: "warn",
  cancelled: "warn",
  refused: "warn",
  error: "bad",
  timeout: "bad",
  memory: "bad",
  cpu: "bad",
  crashed: "bad",
  failed: "bad",
  unhealthy: "bad",
  fault: "bad",
  broken: "bad",
  exited: "bad",
  draining: "warn",
};

/** A word with a dot whose colour repeats what the word says. */
export function badge(word, tone = TONES[word] ?? "quiet", title = null) {
  return h(
    "span",
    { class: `badge ${tone}`, title },
    h("i", { class: "dot" }),
    h("span", {}, visible(String(word))),
  );
}

/** What a session is doing, in a word. */
export const stateBadge = (one) =>
  one.busy ? badge("running") : one.state === "running" ? badge("idle", "ok") : badge(one.state);
export const toneOf = (word) => TONES[word] ?? "quiet";

/** A share of a limit as a bar; it warns when little is left, unless it has a tone of its own. */
export function meter(value, limit, label, own = null) {
  const share = limit ? Math.min(1, (value ?? 0) / limit) : 0;
  const tone = own ?? (share > 0.9 ? "bad" : share > 0.7 ? "warn" : "");
  return h(
    "span",
    { class: "meter", title: label, role: "img", "aria-label": label },
    h("i", { class: tone, style: { width: `${(100 * share).toFixed(1)}%` } }),
  );
}

/** A line of the last values, with the area beneath. */
export function sparkline(values, { width = 240, height = 44, label = "" } = {}) {
  const most = Math.max(1, ...values);
  const step = width / Math.max(1, values.length - 1);
  const points = values.map(
    (one, n) => `${(n * step).toFixed(1)},${(height - 3 - (one / most) * (height - 8)).toFixed(1)}`,
  );
  const line = points.length > 1 ? points : [`0,${height - 3}`, `${width},${height - 3}`];
  return svg(
    "svg",
    {
      class: values.some(Boolean) ? "spark" : "spark flat",
      viewBox: `0 0 ${width} ${height}`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": label,
    },
    svg("polygon", { points: `0,${height} ${line.join(" ")} ${width},${height}` }),
    svg("polyline", { points: line.join(" ") }),
  );
}

export function button(
  text,
  onclick,
  { kind = "", sign = null, title = null, keys = null, disabled = false } = {},
) {
  return h(
    "button",
    { type: "button", class: kind, onclick, title, disabled },
    sign && icon(sign),
    text && h("span", {}, text),
    keys && h("kbd", {}, keys),
  );
}

/** What to show where there is nothing yet: what this place is for, and what to type. */
export function empty(title, text, ...more) {
  return h(
    "div",
    { class: "empty" },
    h("p", { class: "title" }, title),
    text && h("p", {}, text),
    ...more,
  );
}

/** Commands to copy. */
export function commands(...rows) {
  return h(
    "div",
    { class: "commands" },
    rows.map((row) => h("div", {}, h("code", {}, row), copyButton(row))),
  );
}

export function copyButton(text) {
  const made = button(
    "",
    async () => {
      try {
        await navigator.clipboard.writeText(text);
      } catch {
        return;
      }
      fill(made, icon("check"));
      setTimeout(() => fill(made, icon("copy")), 1200);
    },
    { kind: "ghost icon-only", sign: "copy", title: "Copy" },
  );
  return made;
}

export function loading(text = "Loading") {
  return h(
    "div",
    { class: "loading", role: "status" },
    h("i"),
    h("i"),
    h("i"),
    h("span", { class: "sr" }, text),
  );
}

/** A fault in words, and a way on. */
export function fault(error, again = null) {
  const request = error.request ? h("small", {}, `Request ${error.request}`) : null;
  return h(
    "div",
    { class: "fault", role: "alert" },
    h("div", {}, h("strong", {}, heading(error)), h("p", {}, visible(error.message)), request),
    again && button("Try again", again),
  );
}

function heading(error) {
  if (error.status === 0) return "No connection";
  if (error.status === 403) return "This key may not do that";
  if (error.status === 404 || error.status === 410) return "It is not there any more";
  if (error.status === 429 || error.status === 503) return "The service is busy";
  return "That did not work";
}

const shelf = () =>
  document.querySelector(".toasts") ??
  document.body.appendChild(h("div", { class: "toasts", role: "status" }));

/** Say something that needs no answer. */
export function toast(text, tone = "") {
  const made = h("div", { class: `toast ${tone}` }, visible(text));
  shelf().append(made);
  setTimeout(() => made.remove(), tone === "bad" ? 8000 : 3500);
}

/** Do something that a person asked for; a fault becomes a message. */
export async function attempt(work) {
  try {
    return await work();
  } catch (error) {
    if (error.name !== "AbortError") toast(error.message, "bad");
    return undefined;
  }
}

/** Open a dialog; resolves to what `close(value)` was given, or null if it was dismissed. */
export function dialog(title, build) {
  return new Promise((resolve) => {
    const made = h("dialog", { "aria-label": title });
    const close = (value) => {
      resolve(value);
      made.close();
    };
    fill(
      made,
      h(
        "header",
        {},
        h("h2", {}, title),
        button("", () => close(null), { kind: "ghost icon-only", sign: "close", title: "Close" }),
      ),
      build(close),
    );
    made.addEventListener("close", () => {
      resolve(null);
      made.remove();
    });
    made.addEventListener("click", (event) => {
      if (event.target === made) close(null);
    });
    document.body.append(made);
    made.showModal();
    made.querySelector("[autofocus]")?.focus();
  });
}

export function confirm(title, text, action, { danger = false } = {}) {
  return dialog(title, (close) =>
    h(
      "div",
      { class: "body" },
      h("p", {}, visible(text)),
      h(
        "footer",
        {},
        button("Cancel", () => close(null)),
        h(
          "button",
          {
            type: "button",
            class: danger ? "danger" : "primary",
            autofocus: true,
            onclick: () => close(true),
          },
          action,
        ),
      ),
    ),
  );
}

/** Ask for one text. */
export function ask(title, label, action, { value = "", text = null } = {}) {
  return dialog(title, (close) => {
    const input = h("input", { type: "text", autofocus: true, value, maxlength: 200 });
    return h(
      "form",
      {
        class: "body",
        onsubmit: (event) => {
          event.preventDefault();
          close(input.value.trim());
        },
      },
      text && h("p", {}, text),
      field(label, input),
      h(
        "footer",
        {},
        button("Cancel", () => close(null)),
        h("button", { class: "primary" }, action),
      ),
    );
  });
}

export function field(label, input, hint = null) {
  return h("label", { class: "field" }, h("span", {}, label), input, hint && h("small", {}, hint));
}

/** Tabs; `panes` are [name, title, function that returns the pane's content]. */
export function tabs(panes, chosen = panes[0][0], onchange = () => {}) {
  const body = h("div", { class: "pane", role: "tabpanel" });
  const bar = h("div", { class: "tabs", role: "tablist" });
  const choose = (name) => {
    for (const one of bar.children)
      one.setAttribute("aria-selected", String(one.dataset.name === name));
    const [, title, content] = panes.find((pane) => pane[0] === name);
    body.setAttribute("aria-label", title);
    fill(body, h("h2", { class: "sr" }, title), content());
    onchange(name);
  };
  for (const [name, title] of panes)
    bar.append(
      h(
        "button",
        { type: "button", role: "tab", "data-name": name, onclick: () => choose(name) },
        title,
      ),
    );
  bar.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const all = [...bar.children];
    const next = all[(all.indexOf(document.activeElement) + step + all.length) % all.length];
    next.focus();
    next.click();
  });
  choose(chosen);
  return Object.assign(h("div", { class: "tabbed" }, bar, body), { choose });
}

/** The head of a column; without a name it holds what can be done with a row. */
export const column = (name) =>
  h("th", { scope: "col" }, name || h("span", { class: "sr" }, "Actions"));
/** The head of a table whose rows can be sorted: [name, value of a row], without a value if not.
 *  Returns the row, and `sorted(items)`; what is chosen twice is turned round. */
export function sortable(columns, onchange, chosen) {
  let [by, up] = [chosen, false];
  const heads = columns.map(([name, value]) => {
    if (!value) return column(name);
    const choose = () => {
      [by, up] = [name, by === name ? !up : true];
      mark();
      onchange();
    };
    return h(
      "th",
      { scope: "col" },
      h("button", { type: "button", class: "sort", onclick: choose }, name),
    );
  });
  const mark = () => {
    columns.forEach(([name], n) => {
      if (name === by) heads[n].setAttribute("aria-sort", up ? "ascending" : "descending");
      else heads[n].removeAttribute("aria-sort");
    });
  };
  mark();
  const sorted = (items) => {
    const value = columns.find(([name]) => name === by)[1];
    const order = (a, b) =>
      typeof value(a) === "number" ? value(a) - value(b) : String(value(a)).localeCompare(value(b));
    return [...items].sort((a, b) => (up ? order(a, b) : order(b, a)));
  };
  return { row: h("tr", {}, heads), sorted };
}

/** The head of a column that a phone has no room for. */
export const wideColumn = (name) => h("th", { scope: "col", class: "wide-only" }, name);

/** A row of a table: [column's name, class, content]. On a phone the names stand beside the values. */
export function cellsOf(columns) {
  return columns
    .filter(Boolean)
    .map(([name, type, ...content]) => h("td", { class: type, "data-label": name }, ...content));
}

/** A strip of figures: [name, value, note]. */
export function figures(rows) {
  return h(
    "dl",
    { class: "figures" },
    rows
      .filter(Boolean)
      .map(([name, value, note]) =>
        h("div", {}, h("dt", {}, name), h("dd", {}, value, note && h("small", {}, note))),
      ),
  );
}

const scrolled = new ResizeObserver((changes) => {
  for (const { target } of changes) {
    const own = { tabindex: "0", role: "region", "aria-label": target.dataset.what };
    for (const [name, value] of Object.entries(own)) {
      if (target.scrollHeight > target.clientHeight) target.setAttribute(name, value);
      else target.removeAttribute(name);
    }
  }
});

/** Let Tab reach an element while it scrolls, so that a keyboard can scroll it; what fits needs no stop. */
export function reachable(element, what) {
  element.dataset.what = what;
  scrolled.observe(element);
  return element;
}
