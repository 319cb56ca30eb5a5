// For operators: the sessions of every tenant, and the record of what operators did.

import { at, every, get, post, remove } from "../api.js";
import { fill, h } from "../dom.js";
import { ago, bytes, cut, date, number, plural, seconds, short, span } from "../format.js";
import { visible } from "../highlight.js";
import {
  attempt,
  button,
  cellsOf,
  column,
  confirm,
  empty,
  fault,
  loading,
  sortable,
  stateBadge,
  tabs,
  toast,
} from "../widgets.js";
import { label } from "./overview.js";

const PAGE = 200;
const ENTRIES = 100;
const EXPORTED = 1000;

export async function show(place, { signal }) {
  const sessions = h("div", {}, loading());
  const record = h("div");
  const reload = showRecord(record, signal);
  fill(
    place,
    h("header", { class: "head" }, h("h1", {}, "Operators")),
    tabs(
      [
        ["sessions", "Sessions of all tenants", () => sessions],
        ["audit", "Audit log", () => record],
      ],
      "sessions",
      (name) => name === "audit" && reload(),
    ),
  );
  showSessions(sessions, signal);
}

function showSessions(place, signal) {
  const told = h("div");
  const filter = h("input", {
    type: "search",
    placeholder: "Filter by tenant, key, name, id or state",
    "aria-label": "Filter sessions",
    oninput: () => draw(),
  });
  const count = h("span", { class: "quiet" });
  const body = h("tbody");
  let items = [];
  const head = sortable(
    [
      ["Tenant", (one) => one.tenant],
      ["State", (one) => (one.busy ? "busy" : one.state)],
      ["Session", (one) => label(one)],
      ["Key", (one) => one.key],
      ["Memory", (one) => one.usage?.memory_bytes ?? 0],
      ["CPU", (one) => one.usage?.cpu_seconds ?? 0],
      ["Cells", (one) => one.executions],
      ["Age", (one) => -one.created_at],
      ["Idle", (one) => -one.last_used_at],
      [""],
    ],
    () => draw(),
    "Memory",
  );
  const draw = () => {
    const typed = filter.value.trim().toLowerCase();
    const shown = items.filter((one) =>
      [one.tenant, one.key, one.id, one.name, one.state].join(" ").toLowerCase().includes(typed),
    );
    count.textContent = `${plural(shown.length, "session")} of ${plural(new Set(shown.map((one) => one.tenant)).size, "tenant")}`;
    fill(
      body,
      head
        .sorted(shown)
        .slice(0, PAGE)
        .map((one) => row(one, refresh)),
    );
  };
  const refresh = async () => {
    const found = [];
    for (let total = 1; found.length < total;) {
      const page = await get(`/admin/sessions?limit=${PAGE}&offset=${found.length}`, { signal });
      if (!page.items.length) break;
      found.push(...page.items);
      total = page.total;
    }
    items = found;
    fill(told);
    draw();
  };
  fill(
    place,
    told,
    h("div", { class: "bar" }, filter, count),
    h("div", { class: "scroll" }, h("table", { class: "list" }, h("thead", {}, head.row), body)),
  );
  every(3000, refresh, signal, (error) => fill(told, fault(error)));
}

function row(one, refresh) {
  const now = Date.now() / 1000;
  const path = `/admin/sessions${at(one.id)}`;
  const pause = () =>
    attempt(async () => {
      await post(`${path}/pause`);
      toast("Paused. Its next call lets it go on.");
      await refresh();
    });
  const end = async () => {
    const text = `Variables and files of ${label(one)} (tenant ${one.tenant}) are gone then. Its client is told that an operator ended it.`;
    if (await confirm("End the session?", text, "End it", { danger: true }))
      await attempt(async () => {
        await remove(path);
        toast("The session has ended.");
        await refresh();
      });
  };
  return h(
    "tr",
    { tabindex: "0", "data-row": true },
    cellsOf([
      ["", "name", h("b", {}, visible(one.tenant))],
      ["", "state", stateBadge(one)],
      ["", "name", visible(cut(label(one), 40)), h("small", {}, short(one.id))],
      ["Key", "n", one.key],
      ["Memory", "n", bytes(one.usage?.memory_bytes ?? one.usage?.peak_memory_bytes)],
      ["CPU", "n", seconds(one.usage?.cpu_seconds ?? 0)],
      ["Cells", "n", number(one.executions)],
      ["Age", "n", span(now - one.created_at)],
      ["Idle", "n", one.busy ? "–" : span(now - one.last_used_at)],
    ]),
    h(
      "td",
      { class: "actions" },
      one.state === "running" && button("Pause", pause, { kind: "quiet small" }),
      button("End", end, { kind: "quiet small" }),
    ),
  );
}

/** Show the audit log; returns what reads it again. */
function showRecord(place, signal) {
  const body = h("tbody");
  const told = h("div");
  const more = button("Older", () => load(true), { kind: "quiet" });
  const search = h("input", {
    type: "search",
    placeholder: "Search keys, sessions, tenants, actions",
    "aria-label": "Search the audit log",
    oninput: () => load(false),
  });
  let before = 0;
  let asked = 0;
  const load = async (older) => {
    const turn = ++asked;
    const query = `search=${encodeURIComponent(search.value)}&limit=${ENTRIES}&before=${older ? before : 0}`;
    try {
      const page = await get(`/audit?${query}`, { signal });
      if (turn !== asked) return;
      fill(
        told,
        !older &&
          !page.items.length &&
          empty(
            "No entries",
            "Who made and revoked keys, ended sessions of others or drained the service is listed here.",
          ),
      );
      if (!older) fill(body);
      body.append(...page.items.map(entry));
      before = page.next_before ?? 0;
      more.hidden = page.next_before === null;
    } catch (error) {
      if (!signal.aborted) fill(told, fault(error));
    }
  };
  fill(
    place,
    h(
      "div",
      { class: "bar" },
      search,
      button("Download", () => attempt(() => download(search.value, signal)), {
        kind: "quiet",
        sign: "download",
        title: "All entries of this search, as JSON lines",
      }),
    ),
    h(
      "div",
      { class: "scroll" },
      h(
        "table",
        { class: "list" },
        h("thead", {}, h("tr", {}, ["When", "Who", "What", "Of", "Detail"].map(column))),
        body,
      ),
    ),
    told,
    more,
  );
  return () => load(false);
}

function entry(one) {
  const who = one.name || one.key;
  const detail = Object.entries(one.detail)
    .map(([name, value]) => `${name}: ${value ?? "none"}`)
    .join(" · ");
  return h(
    "tr",
    { tabindex: "0", "data-row": true },
    cellsOf([
      ["", "n", h("span", { title: date(one.at) }, ago(one.at))],
      ["", "name", visible(who), h("small", {}, visible(one.tenant || "this machine"))],
      ["", "", one.action],
      ["", "n", one.target],
      ["", "", h("small", {}, visible(cut(detail, 200)))],
    ]),
  );
}

/** Save all entries of a search as a file of JSON lines. */
async function download(search, signal) {
  const lines = [];
  for (let before = 0; before !== null;) {
    const query = `search=${encodeURIComponent(search)}&limit=${EXPORTED}&before=${before}`;
    const page = await get(`/audit?${query}`, { signal });
    lines.push(...page.items.map((one) => JSON.stringify(one)));
    before = page.next_before;
  }
  const address = URL.createObjectURL(new Blob([`${lines.join("\n")}\n`]));
  h("a", { href: address, download: "audit.jsonl" }).click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}
