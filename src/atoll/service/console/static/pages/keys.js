// Keys: who may do what, how much, and what was used; made, shown once, revoked.

import { at, call, get, me, post, remove } from "../api.js";
import { fill, h } from "../dom.js";
import { ago, bytes, date, milliseconds, number, seconds } from "../format.js";
import { visible } from "../highlight.js";
import {
  attempt,
  badge,
  button,
  cellsOf,
  column,
  confirm,
  copyButton,
  dialog,
  empty,
  fault,
  field,
  loading,
  toast,
} from "../widgets.js";

const SCOPES = [
  ["execute", "run code"],
  ["sessions", "open, fork, end sessions"],
  ["files", "read and write files, contexts"],
  ["runs", "ask agents"],
  ["metrics", "read counters"],
  ["admin", "keys, draining"],
];
const USUAL = ["execute", "sessions", "files"];
const MB = 2 ** 20;
/** The limits of a key: name, title, what one of it is, the usual value; null: it may be none. */
const LIMITS = [
  ["requests_per_second", "Requests a second", 1, 100],
  ["burst", "Requests at once", 1, null],
  ["connections", "Connections", 1, 256],
  ["executions", "Executions at once", 1, 32],
  ["sessions", "Sessions", 1, 64],
  ["stored_bytes", "Stored, MB", MB, 4096],
  ["cpu_seconds_per_day", "CPU seconds a day", 1, null],
  ["memory_bytes", "Memory, MB", MB, 2048],
  ["disk_bytes", "Disk, MB", MB, null],
  ["timeout_ms", "Seconds of a cell", 1000, 600],
  ["preview_requests_per_second", "Preview requests a second", 1, 200],
  ["preview_connections", "Preview connections", 1, 512],
  ["preview_bytes_per_day", "Preview MB a day", MB, 65536],
];
const MAY_BE_NONE = [
  "burst",
  "cpu_seconds_per_day",
  "memory_bytes",
  "disk_bytes",
  "preview_bytes_per_day",
];

export async function show(place, { signal, keys }) {
  const body = h("div", {}, loading());
  const add = () => make(refresh);
  const used = h("section", { class: "panel usage", hidden: true });
  fill(
    place,
    h(
      "header",
      { class: "head" },
      h("h1", {}, "Keys"),
      button("New key", add, { kind: "primary", sign: "plus", keys: "a" }),
    ),
    body,
    used,
  );
  keys({ a: { title: "New key", sign: "plus", run: add } });
  const refresh = async () => {
    try {
      const { items } = await get("/keys", { signal });
      const shown = items.sort((a, b) => state(a).localeCompare(state(b)) || b.created - a.created);
      fill(
        body,
        shown.length
          ? h(
              "div",
              { class: "scroll" },
              h(
                "table",
                { class: "list" },
                h(
                  "thead",
                  {},
                  h(
                    "tr",
                    {},
                    ["State", "Key", "Tenant", "Scopes", "Limits", "Today", "Last used", ""].map(
                      column,
                    ),
                  ),
                ),
                h(
                  "tbody",
                  {},
                  shown.map((one) => row(one, refresh)),
                ),
              ),
            )
          : empty("No key", "Make one with a."),
      );
    } catch (error) {
      if (!signal.aborted) fill(body, fault(error, refresh));
    }
  };
  await refresh();
  const days = await get(
    `/usage?from=${new Date(Date.now() - 29 * 864e5).toISOString().slice(0, 10)}`,
    { signal },
  );
  used.hidden = !days.items.length;
  fill(
    used,
    h("h2", {}, "Use by day"),
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Use by day" },
      h(
        "table",
        {},
        h("thead", {}, h("tr", {}, ["Day", "Key", "Tenant", "Executions", "CPU"].map(column))),
        h(
          "tbody",
          {},
          days.items
            .reverse()
            .slice(0, 60)
            .map((one) =>
              h(
                "tr",
                {},
                h("td", { class: "n" }, one.day),
                h("td", {}, visible(one.name || one.key)),
                h("td", {}, visible(one.tenant ?? "–")),
                h("td", { class: "n" }, number(one.executions)),
                h("td", { class: "n" }, seconds(one.cpu_seconds)),
              ),
            ),
        ),
      ),
    ),
  );
}

function state(one) {
  if (one.revoked) return "revoked";
  return one.expires && one.expires <= Date.now() / 1000 ? "expired" : "active";
}

function row(one, refresh) {
  const quota = one.quota ?? {};
  const use = one.use ?? {};
  const revoke = async () => {
    const own =
      one.id === me.key
        ? " It is the key that you are signed in with: you will be signed out."
        : "";
    if (
      await confirm(
        "Revoke the key?",
        `Requests with ${one.name || one.id} are refused from now on.${own}`,
        "Revoke",
        { danger: true },
      )
    )
      await attempt(async () => {
        await remove(`/keys${at(one.id)}`);
        toast("Revoked.");
        await refresh();
      });
  };
  return h(
    "tr",
    { tabindex: "0", "data-row": true },
    cellsOf([
      ["", "state", badge(state(one))],
      [
        "",
        "name",
        h("b", {}, visible(one.name || "(no name)")),
        h("small", {}, `atl_${one.id}_…`, one.id === me.key ? " · you" : ""),
      ],
      ["Tenant", "", visible(one.tenant)],
      ["", "scopes", one.scopes.map((scope) => h("span", { class: "chip" }, scope))],
      [
        "",
        "limits",
        h(
          "small",
          {},
          `${number(quota.sessions)} sessions · ${quota.memory_bytes ? bytes(quota.memory_bytes) : "any memory"} · ${milliseconds(quota.timeout_ms)}`,
          one.expires ? ` · until ${date(one.expires)}` : "",
        ),
      ],
      [
        "Today",
        "limits",
        h(
          "small",
          {},
          `${seconds(use.cpu_seconds_today ?? 0)} CPU`,
          use.sessions ? ` · ${number(use.sessions)} sessions` : "",
        ),
      ],
      ["Last used", "n", one.used ? ago(one.used) : "never"],
    ]),
    h(
      "td",
      { class: "actions" },
      state(one) === "active" && [
        button("Limits", () => change(one, refresh), { kind: "quiet small" }),
        button("Revoke", revoke, { kind: "quiet small" }),
      ],
    ),
  );
}

/** Fields for all limits; `quota()` is what was typed, `given` what holds now. */
function limitFields(given = null) {
  const inputs = LIMITS.map(([name, , unit, usual]) => {
    const now = given?.[name];
    return h("input", {
      type: "number",
      min: "0",
      step: "any",
      placeholder: given ? "none" : (usual ?? "none"),
      value: now === null || now === undefined ? "" : now / unit,
    });
  });
  const quota = () => {
    const typed = LIMITS.map(([name, , unit], n) => {
      const text = inputs[n].value;
      if (text !== "") return [name, Math.round(Number(text) * unit * 1000) / 1000];
      return given && MAY_BE_NONE.includes(name) ? [name, null] : null;
    });
    return Object.fromEntries(
      typed.filter(Boolean).filter(([name, value]) => value !== given?.[name]),
    );
  };
  const fields = h(
    "div",
    { class: "three" },
    LIMITS.map(([, title], n) => field(title, inputs[n])),
  );
  return { fields, quota };
}

async function change(one, refresh) {
  const { fields, quota } = limitFields(one.quota);
  const told = h("div");
  const changed = await dialog(`Limits of ${one.name || one.id}`, (close) =>
    h(
      "form",
      {
        class: "body",
        onsubmit: async (event) => {
          event.preventDefault();
          try {
            close(await call("PATCH", `/keys${at(one.id)}`, { body: { quota: quota() } }));
          } catch (error) {
            fill(told, fault(error));
          }
        },
      },
      h("p", { class: "quiet" }, "They hold from the key's next request on."),
      fields,
      told,
      h(
        "footer",
        {},
        button("Cancel", () => close(null)),
        h("button", { class: "primary" }, "Change"),
      ),
    ),
  );
  if (!changed) return;
  toast("The limits are changed.");
  await refresh();
}

async function make(refresh) {
  const name = h("input", {
    type: "text",
    autofocus: true,
    maxlength: 200,
    placeholder: "laptop, agent, …",
  });
  const tenant = h("input", {
    type: "text",
    value: me.tenant,
    maxlength: 64,
    pattern: "[A-Za-z0-9._\\-]{1,64}",
    required: true,
  });
  const scopes = SCOPES.map(([scope, text]) => [
    scope,
    h("input", { type: "checkbox", checked: USUAL.includes(scope) }),
    text,
  ]);
  const days = h("input", { type: "number", min: "0", step: "any", placeholder: "never" });
  const { fields, quota } = limitFields();
  const told = h("div");
  const made = await dialog("New key", (close) =>
    h(
      "form",
      {
        class: "body",
        onsubmit: async (event) => {
          event.preventDefault();
          const body = {
            name: name.value,
            tenant: tenant.value,
            scopes: scopes.filter(([, box]) => box.checked).map(([scope]) => scope),
            quota: quota(),
            ...(days.value && { expires_seconds: Number(days.value) * 86400 }),
          };
          try {
            close(await post("/keys", body));
          } catch (error) {
            fill(told, fault(error));
          }
        },
      },
      h(
        "div",
        { class: "two" },
        field("Name", name),
        field("Tenant", tenant, "sees its own sessions only"),
      ),
      h(
        "fieldset",
        {},
        h("legend", {}, "Scopes"),
        scopes.map(([scope, box, text]) =>
          h("label", { class: "check" }, box, h("b", {}, scope), h("small", {}, text)),
        ),
      ),
      field("Days", days, "after which it is refused"),
      h("details", {}, h("summary", {}, "Limits"), fields),
      told,
      h(
        "footer",
        {},
        button("Cancel", () => close(null)),
        h("button", { class: "primary" }, "Make"),
      ),
    ),
  );
  if (!made) return;
  await refresh();
  await dialog("The new key", (close) =>
    h(
      "div",
      { class: "body" },
      h("p", {}, "Copy it now: it is not shown again."),
      h("div", { class: "commands" }, h("div", {}, h("code", {}, made.key), copyButton(made.key))),
      h(
        "footer",
        {},
        h(
          "button",
          { type: "button", class: "primary", autofocus: true, onclick: () => close(true) },
          "Done",
        ),
      ),
    ),
  );
}
