// The fork tree: sessions and the checkpoints in them, who came from whom, and ways back.

import { at, get, may, post } from "../api.js";
import { fill, h, icon } from "../dom.js";
import { ago, bytes, plural, short } from "../format.js";
import { visible } from "../highlight.js";
import { ask, attempt, button, column, confirm, dialog, loading, toast } from "../widgets.js";

export function tree({ path, id, signal, refresh: refreshAll }, go) {
  const list = h("ul", { class: "tree" }, loading());
  let drawn = "";

  const fork = async () => {
    const name = await ask("Fork the session", "Name", "Fork", {
      text: "The fork has every variable, file and open object of this session, and goes its own way from here.",
    });
    if (name === null) return;
    await attempt(async () => {
      const [made] = await post(`${path}/fork`, { count: 1, name });
      if (made.problem) throw new Error(made.problem.detail);
      go(`sessions${at(made.session.id)}`);
    });
  };
  const mark = async () => {
    const name = await ask("Checkpoint", "Name", "Keep this state", {
      text: "You can roll the session back to it as often as you like.",
    });
    if (name === null) return;
    await attempt(async () => {
      await post(`${path}/checkpoints`, { name });
      toast("Checkpoint made.");
      await refreshAll();
    });
  };
  const rollback = async (node) => {
    const sure = await confirm(
      "Roll back?",
      `Variables and files become what they were at ${node.name || "this checkpoint"}, ${ago(node.created_at)}. What was done since then is lost; fork first to keep it.`,
      "Roll back",
      { danger: true },
    );
    if (sure)
      await attempt(async () => {
        await post(`${path}/rollback`, { mark: node.id });
        toast("Rolled back.");
        await refreshAll();
      });
  };

  const refresh = async () => {
    const found = await get(`${path}/tree`, { signal });
    const now = JSON.stringify(
      found.nodes.map((one) => [
        one.id,
        one.name,
        one.state,
        one.executions,
        one.current,
        Math.round((one.memory_bytes ?? 0) / 1e6),
      ]),
    );
    if (now === drawn) return;
    drawn = now;
    const known = new Set(found.nodes.map((one) => one.id));
    const roots = found.nodes.filter((one) => !known.has(one.parent));
    fill(
      list,
      roots.map((one) => branch(one, found.nodes, { id, rollback })),
    );
  };
  const actions = h(
    "div",
    { class: "bar" },
    button("Fork", fork, { sign: "fork", keys: "f" }),
    button("Checkpoint", mark, { sign: "flag", keys: "m" }),
  );
  return { element: h("div", {}, may("sessions") && actions, list), refresh, fork, mark };
}

function branch(node, nodes, shared) {
  const children = nodes
    .filter((one) => one.parent === node.id && one.id !== node.id)
    .sort((a, b) => a.created_at - b.created_at);
  return h(
    "li",
    {
      class: `${node.kind} ${node.id === shared.id ? "here" : ""} ${node.state === "ended" ? "ended" : ""}`,
    },
    node.kind === "mark" ? markNode(node, shared) : sessionNode(node, shared),
    children.length
      ? h(
          "ul",
          {},
          children.map((one) => branch(one, nodes, shared)),
        )
      : null,
  );
}

function sessionNode(node, shared) {
  const text = [
    h("b", {}, visible(node.name || short(node.id))),
    h(
      "small",
      {},
      [
        plural(node.executions ?? 0, "cell"),
        node.memory_bytes ? bytes(node.memory_bytes) : null,
        node.state === "running" ? null : node.state,
      ]
        .filter(Boolean)
        .join(" · "),
    ),
  ];
  const inner = [icon("sessions"), h("span", {}, text)];
  if (node.id === shared.id) return h("div", { class: "node", "aria-current": "true" }, inner);
  const others =
    node.state === "ended"
      ? h("div", { class: "node" }, inner)
      : h("a", { class: "node", href: `#/sessions${at(node.id)}` }, inner);
  return h(
    "div",
    { class: "node-row" },
    others,
    node.state === "ended"
      ? null
      : button("Compare", () => compare(shared.id, node), { kind: "quiet small" }),
  );
}

function markNode(node, shared) {
  const own = node.parent === shared.id || node.session === shared.id;
  return h(
    "div",
    { class: "node-row" },
    h(
      "div",
      { class: "node" },
      icon("flag"),
      h(
        "span",
        {},
        h("b", {}, visible(node.name || "checkpoint")),
        h("small", {}, `${ago(node.created_at)}${node.rolled_back ? " · rolled back to" : ""}`),
      ),
    ),
    own && button("Roll back", () => shared.rollback(node), { kind: "quiet small", sign: "back" }),
  );
}

/** Show which variables and files two sessions have that differ. */
async function compare(id, other) {
  const look = async (one) => {
    const [variables, files] = await Promise.all([
      get(`/sessions${at(one)}/variables`),
      get(`/sessions${at(one)}/files?path=.`),
    ]);
    const found = new Map(
      variables.variables.map((v) => [
        v.name,
        [v.type, v.shape?.join(" × ") ?? v.size]
          .filter((part) => part !== null && part !== undefined)
          .join(" · "),
      ]),
    );
    for (const file of files.entries)
      found.set(`file ${file.path}`, file.type === "dir" ? "folder" : bytes(file.size));
    return found;
  };
  await attempt(async () => {
    const [here, there] = await Promise.all([look(id), look(other.id)]);
    const names = [...new Set([...here.keys(), ...there.keys()])]
      .filter((name) => here.get(name) !== there.get(name))
      .sort();
    await dialog(`This session and ${visible(other.name || short(other.id))}`, () =>
      h(
        "div",
        { class: "body" },
        names.length
          ? h(
              "table",
              { class: "variables" },
              h("thead", {}, h("tr", {}, ["Variable", "Here", "There"].map(column))),
              h(
                "tbody",
                {},
                names.map((name) =>
                  h(
                    "tr",
                    {},
                    h("td", {}, h("code", {}, visible(name))),
                    [here, there].map((side) =>
                      h(
                        "td",
                        { class: "value" },
                        side.has(name)
                          ? visible(String(side.get(name)))
                          : h("span", { class: "quiet" }, "–"),
                      ),
                    ),
                  ),
                ),
              ),
            )
          : h("p", {}, "Names, types and sizes of variables and files are the same."),
      ),
    );
  });
}
