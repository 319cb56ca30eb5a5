// Sessions: one row each, filtered, opened, interrupted, ended; and a dialog for a new one.

import { at, every, get, may, post, remove } from "../api.js";
import { fill, h, keyed } from "../dom.js";
import { ago, bytes, number, plural, seconds, short, span, until } from "../format.js";
import { visible } from "../highlight.js";
import {
  attempt,
  button,
  cellsOf,
  column,
  commands,
  confirm,
  dialog,
  empty,
  fault,
  field,
  meter,
  stateBadge,
  toast,
} from "../widgets.js";
import { label } from "./overview.js";

const PAGE = 200;
const MOST_ROWS = 200;
const COLUMNS = [
  "State",
  "Session",
  "Isolation",
  "Memory",
  "CPU",
  "Disk",
  "Cells",
  "Age",
  "Idle",
  "Ends",
  "",
];

export async function show(place, { signal, go, keys, query }) {
  const told = h("div");
  const filter = h("input", {
    type: "search",
    placeholder: "Filter by name, id, state or metadata",
    "aria-label": "Filter",
    oninput: () => draw(),
  });
  const count = h("span", { class: "quiet" });
  const body = h("tbody");
  const table = h(
    "div",
    { class: "scroll" },
    h("table", { class: "list sessions" }, h("thead", {}, h("tr", {}, COLUMNS.map(column))), body),
  );
  const nothing = h("div");
  const rest = h("div");
  const open = () => newSession(go);
  fill(
    place,
    h(
      "header",
      { class: "head" },
      h("h1", {}, "Sessions"),
      count,
      button("New session", open, { kind: "primary", sign: "plus", keys: "n" }),
    ),
    told,
    h("div", { class: "bar" }, filter),
    table,
    rest,
    nothing,
  );
  keys({ n: { title: "New session", sign: "plus", run: open } });
  if (query.get("new")) {
    history.replaceState(null, "", "#/sessions");
    open();
  }
  let [sessions, most] = [[], MOST_ROWS];
  const more = button(
    "Show all",
    () => {
      most = Infinity;
      draw();
    },
    { kind: "quiet" },
  );
  fill(rest, more);
  const draw = () => {
    const typed = filter.value.trim().toLowerCase();
    const shown = sessions
      .filter((one) => !typed || words(one).includes(typed))
      .sort((a, b) => b.last_used_at - a.last_used_at);
    count.textContent = sessions.length ? plural(sessions.length, "session") : "";
    table.hidden = !shown.length;
    more.hidden = shown.length <= most;
    more.lastChild.textContent = `Show all ${number(shown.length)}`;
    keyed(
      body,
      shown.slice(0, most),
      (one) => one.id,
      (one) => row(one, refresh),
    );
    fill(
      nothing,
      !sessions.length
        ? firstSession()
        : !shown.length && empty("No session matches", "Press Escape to clear the filter."),
    );
  };
  filter.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      filter.value = "";
      draw();
    }
  });
  const refresh = async () => {
    sessions = await all(signal);
    fill(told);
    draw();
  };
  await every(2000, refresh, signal, (error) => fill(told, fault(error)));
}

async function all(signal) {
  const found = [];
  for (let cursor = ""; cursor !== null;) {
    const page = await get(`/sessions?limit=${PAGE}&cursor=${encodeURIComponent(cursor)}`, {
      signal,
    });
    found.push(...page.items);
    cursor = page.next_cursor ?? null;
  }
  return found;
}

const words = (one) =>
  [
    one.id,
    one.name,
    one.state,
    one.busy ? "busy" : "",
    one.isolation,
    ...Object.entries(one.metadata ?? {}).flat(),
  ]
    .join(" ")
    .toLowerCase();

function row(session, refresh) {
  const made = h("tr", { tabindex: "0", "data-row": true, "data-id": session.id });
  const open = () => {
    location.hash = `#/sessions${at(session.id)}`;
  };
  made.addEventListener("click", (event) => {
    if (!event.target.closest("button")) open();
  });
  made.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.target === made) open();
  });
  const stop = button("", () => attempt(() => post(`/sessions${at(session.id)}/cancel`)), {
    kind: "ghost icon-only",
    sign: "stop",
    title: "Interrupt what runs",
  });
  const end = button(
    "",
    async () => {
      if (await endSession(session)) refresh();
    },
    { kind: "ghost icon-only", sign: "trash", title: "End the session" },
  );
  const cells = h("td", { class: "actions" }, may("execute") && stop, end);
  let drawn = "";
  made.update = (one) => {
    const now = Date.now() / 1000;
    const looks = JSON.stringify([
      one.state,
      one.busy,
      one.usage,
      one.executions,
      one.name,
      one.metadata,
      span(now - one.created_at),
      span(now - one.last_used_at),
    ]);
    if (looks === drawn) return;
    drawn = looks;
    const memory = one.usage?.memory_bytes ?? one.usage?.peak_memory_bytes;
    const limit = one.policy?.memory_bytes;
    stop.disabled = !one.busy;
    fill(
      made,
      cellsOf([
        ["", "state", stateBadge(one)],
        [
          "",
          "name",
          h("b", {}, visible(label(one))),
          h("small", {}, short(one.id), one.parent && " · a fork"),
        ],
        ["", "wide-only", one.isolation],
        [
          "",
          "",
          h(
            "span",
            { class: "with-meter" },
            h("span", {}, bytes(memory)),
            meter(memory, limit, limit ? `${bytes(memory)} of ${bytes(limit)}` : bytes(memory)),
          ),
        ],
        ["CPU", "n", seconds(one.usage?.cpu_seconds ?? 0)],
        ["Disk", "n wide-only", bytes(one.usage?.disk_bytes)],
        ["Cells", "n", number(one.executions)],
        ["Age", "n", span(now - one.created_at)],
        ["Idle", "n wide-only", one.busy ? "–" : span(now - one.last_used_at)],
        ["Ends", "n", until(Math.min(one.idle_expires_at, one.expires_at))],
      ]),
      cells,
    );
  };
  made.update(session);
  return made;
}

/** Ask, then end a session; return whether it was. */
export async function endSession(session) {
  const sure = await confirm(
    "End the session?",
    `Variables and files of ${label(session)} are gone then. It was used ${ago(session.last_used_at)}.`,
    "End it",
    { danger: true },
  );
  if (!sure) return false;
  return attempt(async () => {
    await remove(`/sessions${at(session.id)}`);
    toast("The session has ended.");
    return true;
  });
}

const MEMORY = [
  ["128 MB", 128 << 20],
  ["256 MB", 256 << 20],
  ["512 MB", 512 << 20],
  ["1 GB", 1 << 30],
  ["2 GB", 2 ** 31],
];

export async function newSession(go, preset = {}) {
  const name = h("input", {
    type: "text",
    autofocus: true,
    maxlength: 200,
    placeholder: "what it is for",
  });
  const template = h(
    "select",
    {},
    h("option", { value: "" }, "the service's default"),
    ["bare", "numeric", "full"].map((one) => h("option", { value: one }, one)),
  );
  const memory = h(
    "select",
    {},
    h("option", { value: "" }, "Atoll's default"),
    MEMORY.map(([text, value]) => h("option", { value }, text)),
  );
  const context = h("select", {}, h("option", { value: "" }, "none"));
  get("/contexts").then(
    (found) => {
      for (const one of found.items)
        context.append(
          h(
            "option",
            { value: one.id },
            visible(`${one.name || short(one.id)} · ${bytes(one.size)}`),
          ),
        );
      if (preset.context) context.value = preset.context;
    },
    () => {},
  );
  const told = h("div");
  const made = await dialog("New session", (close) =>
    h(
      "form",
      {
        class: "body",
        onsubmit: async (event) => {
          event.preventDefault();
          const body = {
            ...(template.value && { template: template.value }),
            ...(memory.value && { policy: { memory_bytes: Number(memory.value) } }),
            ...(context.value && { context: { id: context.value } }),
            ...(name.value.trim() && { metadata: { name: name.value.trim() } }),
          };
          try {
            close(await post("/sessions", body));
          } catch (error) {
            fill(told, fault(error));
          }
        },
      },
      field("Name", name),
      h(
        "div",
        { class: "two" },
        field("Libraries", template, "imported before it starts"),
        field("Memory", memory),
      ),
      field("Context", context, "the variable context in it"),
      told,
      h(
        "footer",
        {},
        button("Cancel", () => close(null)),
        h("button", { class: "primary" }, "Open"),
      ),
    ),
  );
  if (made) go(`sessions${at(made.id)}`);
}

function firstSession() {
  return empty(
    "No session yet",
    "A session keeps its variables between cells. Press n, or from a terminal:",
    commands(`atoll repl --url ${location.origin}`),
  );
}
