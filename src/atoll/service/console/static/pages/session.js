// One session: its cells on the left, its tree, files, variables and facts beside them.

import { at, every, get, may, post } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, date, milliseconds, percent, plural, seconds, short, until } from "../format.js";
import { visible } from "../highlight.js";
import {
  attempt,
  button,
  copyButton,
  empty,
  fault,
  figures,
  loading,
  meter,
  reachable,
  stateBadge,
  tabs,
} from "../widgets.js";
import { cells } from "./cells.js";
import { files } from "./files.js";
import { label } from "./overview.js";
import { ports } from "./ports.js";
import { endSession } from "./sessions.js";
import { terminals } from "./terminals.js";
import { tree } from "./tree.js";

export async function show(place, { id, signal, go, title, keys }) {
  const path = `/sessions${at(id)}`;
  let session = await get(path, { signal });
  title(label(session));
  const state = h("span");
  const told = h("div");
  const facts = h("div", { class: "facts" });
  const shared = {
    path,
    id,
    signal,
    get session() {
      return session;
    },
    refresh: () => refresh(),
  };
  const notebook = cells(shared);
  const forks = tree(shared, go);
  const folder = files(shared);
  const panes = [
    ["tree", "Tree", () => forks.element],
    [
      "files",
      "Files",
      () => {
        folder.refresh();
        return folder.element;
      },
    ],
    ["variables", "Variables", () => variables(path, signal)],
    ["ports", "Ports", () => ports(path, signal)],
    ["facts", "Facts", () => facts],
  ];
  const side = h("aside", { "aria-label": "Beside the cells" }, tabs(panes));
  const stop = button("Interrupt", () => attempt(() => post(`${path}/cancel`)), {
    sign: "stop",
    title: "Interrupt what runs; variables are kept",
  });
  const pause = button(
    "Pause",
    () =>
      attempt(async () => {
        await post(`${path}/${session.state === "paused" ? "resume" : "pause"}`);
        await refresh();
      }),
    { kind: "quiet", title: "Stop all that it runs; its memory is kept" },
  );
  const end = button(
    "End",
    async () => {
      if (await endSession(session)) go("sessions");
    },
    { sign: "trash", kind: "quiet" },
  );
  const shells = terminals(shared, () => other.focus());
  const split = h("div", { class: "split" }, notebook.element, shells.element, side);
  shells.element.hidden = true;
  const other = button(
    "Terminal",
    () => {
      const shown = shells.element.hidden;
      [shells.element.hidden, notebook.element.hidden] = [!shown, shown];
      other.lastChild.textContent = shown ? "Cells" : "Terminal";
      if (shown) shells.show();
    },
    { sign: "sessions", title: "A shell in the sandbox, beside its cells" },
  );
  const beside = button(
    "Tree and files",
    () => {
      beside.lastChild.textContent = split.classList.toggle("beside") ? "Cells" : "Tree and files";
    },
    { kind: "narrow-only", sign: "fork" },
  );
  fill(
    place,
    h(
      "header",
      { class: "head" },
      h("div", { class: "crumbs" }, h("a", { href: "#/sessions" }, "Sessions"), h("span", {}, "/")),
      h("h1", {}, visible(label(session))),
      state,
      beside,
      may("execute") && other,
      may("execute") && stop,
      may("sessions") && pause,
      end,
    ),
    told,
    split,
  );
  keys({
    f: { title: "Fork the session", sign: "fork", run: () => forks.fork() },
    m: { title: "Checkpoint: keep this state", sign: "flag", run: () => forks.mark() },
    e: { title: "Write code", sign: "right", run: () => notebook.focus() },
    t: { title: "Terminal, or cells", sign: "sessions", run: () => other.click() },
    i: { title: "Interrupt what runs", sign: "stop", run: () => stop.click() },
  });
  const refresh = async () => {
    session = await get(path, { signal });
    fill(told);
    fill(state, stateBadge(session));
    stop.disabled = !session.busy;
    pause.lastChild.textContent = session.state === "paused" ? "Resume" : "Pause";
    fill(facts, factsOf(session));
    await Promise.all([notebook.refresh(), forks.refresh()]);
  };
  await every(1500, refresh, signal, (error) =>
    fill(told, [404, 410].includes(error.status) ? gone(error) : fault(error)),
  );
}

function gone(error) {
  return empty(
    "This session has ended",
    error.message,
    h("a", { class: "button", href: "#/sessions" }, "All sessions"),
  );
}

function factsOf(one) {
  const usage = one.usage ?? {};
  const limit = one.policy ?? {};
  const bar = (value, most) =>
    most
      ? h(
          "span",
          { class: "with-meter" },
          `${bytes(value)} of ${bytes(most)}`,
          meter(value, most, percent((value ?? 0) / most)),
        )
      : bytes(value);
  return [
    figures([
      ["Memory", bar(usage.memory_bytes ?? usage.peak_memory_bytes, limit.memory_bytes)],
      ["Highest", bytes(usage.peak_memory_bytes)],
      ["CPU", seconds(usage.cpu_seconds ?? 0)],
      ["Disk", bar(usage.disk_bytes, limit.disk_bytes)],
      [
        "Processes",
        `${usage.processes ?? "–"}${limit.max_processes ? ` of ${limit.max_processes}` : ""}`,
      ],
      ["Time limit", milliseconds(one.timeout_ms)],
      ["Isolation", one.isolation],
      ["Backend", one.backend],
      ["Opened", date(one.created_at)],
      ["Ends if idle", until(one.idle_expires_at)],
      ["Ends anyway", until(one.expires_at)],
      one.context && ["Context", plural(one.context.length ?? 0, "character")],
    ]),
    h("h3", {}, "Id"),
    h("p", { class: "id" }, h("code", {}, one.id), copyButton(one.id)),
    Object.keys(one.metadata ?? {}).length
      ? [
          h("h3", {}, "Metadata"),
          figures(
            Object.entries(one.metadata).map(([name, value]) => [visible(name), visible(value)]),
          ),
        ]
      : null,
    one.parent &&
      h("p", {}, "A fork of ", h("a", { href: `#/sessions${at(one.parent)}` }, short(one.parent))),
  ];
}

function variables(path, signal) {
  const body = h("div", {}, loading());
  const load = async () => {
    try {
      const found = await get(`${path}/variables`, { signal });
      const rows = found.variables;
      fill(
        body,
        rows.length
          ? h(
              "table",
              { class: "variables" },
              h(
                "tbody",
                {},
                rows.map((one) => variable(path, one)),
              ),
            )
          : empty("No variables", "Assign one: x = 42"),
      );
    } catch (error) {
      fill(body, fault(error, load));
    }
  };
  load();
  return h(
    "div",
    {},
    h("div", { class: "bar end" }, button("Read again", load, { kind: "quiet small" })),
    body,
  );
}

function variable(path, one) {
  const value = h("td", { class: "value" });
  const look = button(
    "Show",
    () =>
      attempt(async () => {
        const found = await get(`${path}/variables${at(one.name)}`);
        fill(
          value,
          reachable(
            h("pre", {}, visible(JSON.stringify(found.value ?? found, null, 1)).slice(0, 4000)),
            `Value of ${one.name}`,
          ),
        );
      }),
    { kind: "quiet small" },
  );
  fill(value, look);
  return h(
    "tr",
    {},
    h("td", {}, h("code", {}, visible(String(one.name)))),
    h("td", { class: "quiet" }, visible(kindOf(one))),
    value,
  );
}

/** A variable's type with its size or shape: list · 3, DataFrame · 100 × 4 */
export const kindOf = (one) =>
  [
    one.type,
    one.shape
      ? one.shape.join(" × ")
      : one.size === null || one.size === undefined
        ? null
        : String(one.size),
  ]
    .filter(Boolean)
    .join(" · ");
