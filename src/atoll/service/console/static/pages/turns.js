// The steps of a run: as a tree with costs, as bars over time, and one of them in full.

import { fill, h, svg } from "../dom.js";
import { cut, dollars, milliseconds, number, plural } from "../format.js";
import { python, visible } from "../highlight.js";
import { badge, reachable } from "../widgets.js";

const MOST_BARS = 400;
const MOST_STEPS = 2000;
const ROW = 14;
const KINDS = {
  code_ran: "code",
  model_asked: "model",
  subcall_started: "subcall",
  final_given: "final",
  run_started: "run",
};

/** All steps in order with their depth: [{node, depth}]; the run itself is not a step. */
export function flat(nodes, depth = 0, found = []) {
  for (const node of nodes) {
    const run = node.event.event === "run_started" && depth === 0;
    if (!run) found.push({ node, depth });
    flat(node.children, run ? depth : depth + 1, found);
  }
  return found;
}

/** A step in a few words. */
export function words(node) {
  const one = node.event;
  const first = (text) => cut(visible((text ?? "").trim().split("\n")[0]), 90);
  switch (one.event) {
    case "code_ran":
      return [`Turn ${one.turn}`, first(one.code)];
    case "model_asked":
      return ["Model", visible(one.model ?? "")];
    case "model_answered":
      return ["Model", first(one.text)];
    case "subcall_started":
      return [one.kind === "rlm_query" ? "Sub-run" : "Sub-call", first(one.prompt)];
    case "final_given":
      return ["Answer", first(one.text)];
    case "planned":
      return ["Plan", `${visible(one.way ?? "")} ${first(one.why)}`];
    case "budget_warned":
      return ["Budget", `${visible(one.what ?? "")} ${Math.round(100 * (one.share ?? 0))} % used`];
    case "refused":
      return ["Refused", first(`${one.what}: ${one.why}`)];
    case "explored":
      return ["Explored", `by ${visible(one.strategy ?? "")}`];
    default:
      return [visible(String(one.event ?? one.kind ?? "Event")), ""];
  }
}

const kind = (node) => KINDS[node.event.event] ?? "other";
const failed = (node) =>
  (node.event.event === "code_ran" && node.event.outcome && node.event.outcome !== "ok") ||
  Boolean(node.end?.error) ||
  node.event.event === "refused";
const time = (node) =>
  node.event.duration_ms ?? node.end?.duration_ms ?? Math.max(0, node.end_ms - node.start_ms);

export function turnTree(nodes, choose, chosen, closed = new Set()) {
  let left = MOST_STEPS;
  const draw = (node) => {
    if (left-- <= 0) return null;
    const [name, text] = words(node);
    const cost = node.totals?.usd ? dollars(node.totals.usd) : null;
    const line = h(
      "button",
      {
        type: "button",
        class: `step ${kind(node)} ${failed(node) ? "failed" : ""}`,
        "data-id": node.id,
        "data-row": true,
        "aria-current": node.id === chosen,
        onclick: () => choose(node),
      },
      h("i", { class: "dot" }),
      h("b", {}, name),
      h("span", {}, text),
      h(
        "small",
        {},
        [cost, time(node) ? milliseconds(time(node)) : null].filter(Boolean).join(" · "),
      ),
    );
    if (!node.children.length) return h("li", {}, line);
    const below = h("ul", {}, node.children.map(draw));
    return h(
      "li",
      {},
      line,
      h(
        "details",
        { open: !closed.has(node.id), "data-of": node.id },
        h("summary", {}, plural(node.children.length, "call", "calls")),
        below,
      ),
    );
  };
  const roots = nodes.flatMap((node) =>
    node.event.event === "run_started" ? node.children : [node],
  );
  const list = h("ul", { class: "steps" }, roots.map(draw));
  return left < 0
    ? [
        list,
        h(
          "p",
          { class: "note" },
          `The first ${number(MOST_STEPS)} steps are shown; the trajectory has all.`,
        ),
      ]
    : list;
}

/** Bars over time. What overlaps stands in rows beneath each other, so parallel calls are seen as such. */
export function timeline(all, choose, chosen) {
  const bars = all
    .filter((one) => one.node.end_ms > one.node.start_ms || one.node.event.event === "code_ran")
    .slice(0, MOST_BARS);
  if (!bars.length) return h("p", { class: "quiet" }, "Nothing has taken time yet.");
  const span = bars.map((one) => [
    Math.min(one.node.start_ms, one.node.end_ms - time(one.node)),
    one.node.end_ms,
  ]);
  const begin = Math.min(...span.map(([start]) => start));
  const length = Math.max(1, Math.max(...span.map(([, end]) => end)) - begin);
  const rows = [];
  const place = span.map(([start, end]) => {
    let row = rows.findIndex((until) => until <= start + 0.001);
    if (row < 0) row = rows.push(0) - 1;
    rows[row] = end;
    return row;
  });
  const shown = Math.min(rows.length, 24);
  const x = (at) => (1000 * (at - begin)) / length;
  const note = h("p", { class: "quiet" }, legend());
  const picture = svg(
    "svg",
    {
      class: "timeline",
      viewBox: `0 0 1000 ${shown * ROW}`,
      preserveAspectRatio: "none",
      style: { height: `${shown * ROW}px` },
      role: "group",
      "aria-label": `${bars.length} steps in ${milliseconds(length)}`,
    },
    bars.map((one, n) => {
      if (place[n] >= shown) return null;
      const [start, end] = span[n];
      const tell = () => {
        const [name, text] = words(one.node);
        note.textContent = `${name}: ${cut(text, 80)} · ${milliseconds(end - start)}`;
      };
      return svg("rect", {
        class: `${kind(one.node)} ${failed(one.node) ? "failed" : ""} ${one.node.id === chosen ? "chosen" : ""}`,
        "data-id": one.node.id,
        x: x(start),
        y: place[n] * ROW + 1,
        width: Math.max(2, x(end) - x(start)),
        height: ROW - 3,
        rx: 2,
        onclick: () => choose(one.node),
        onmouseenter: tell,
      });
    }),
  );
  picture.addEventListener("mouseleave", () => {
    fill(note, legend());
  });
  return [
    picture,
    h(
      "div",
      { class: "axis" },
      [0, 0.25, 0.5, 0.75, 1].map((share) => h("span", {}, milliseconds(share * length))),
    ),
    note,
  ];
}

const legend = () =>
  h(
    "span",
    { class: "key" },
    [
      ["model", "model"],
      ["code", "code"],
      ["subcall", "sub-call"],
      ["failed", "failed"],
    ].map(([name, text]) => h("span", {}, h("i", { class: name }), text)),
  );

/** One step in full. */
export function detail(node) {
  const one = node.event;
  const [name, text] = words(node);
  const totals = node.totals ?? { usage: {} };
  const cost = totals.calls
    ? h(
        "span",
        { class: "quiet" },
        `${plural(totals.calls, "call")} · ${number(totals.usage.input)} in · ${number(totals.usage.output)} out · ${dollars(totals.usd)}${totals.unpriced ? ` (${totals.unpriced} without a price)` : ""}`,
      )
    : null;
  const head = h(
    "div",
    { class: "bar" },
    h("h2", {}, name),
    one.outcome && badge(one.outcome),
    node.end?.ended && badge(node.end.ended),
    h("span", { class: "quiet" }, milliseconds(time(node))),
    cost,
  );
  return [head, ...(BODIES[one.event] ?? other)(one, node.end, text)];
}

const part = (title, content) => (content ? [h("h3", {}, title), content] : []);
const pre = (text, type = "") =>
  text ? reachable(h("pre", { class: type }, visible(String(text))), "Text of the step") : null;

const BODIES = {
  code_ran: (one) => [
    ...part("Code", reachable(h("pre", {}, python(visible(one.code ?? ""))), "Code of the step")),
    ...part("What the model was told", pre(one.observation)),
    ...part(
      "Tools",
      one.calls?.length
        ? h(
            "ul",
            { class: "calls" },
            one.calls.map((tool) =>
              h(
                "li",
                {},
                h("code", {}, visible(String(tool.tool ?? ""))),
                " ",
                visible(String(tool.outcome ?? "")),
              ),
            ),
          )
        : null,
    ),
    ...part(
      "Network",
      one.network?.length
        ? h(
            "ul",
            { class: "calls" },
            one.network.map((row) =>
              h(
                "li",
                {},
                visible(
                  `${row.method ?? ""} ${row.place ?? ""}${row.path ?? ""} ${row.refused ? `refused: ${row.refused}` : (row.status ?? "")}`,
                ),
              ),
            ),
          )
        : null,
    ),
    one.repeated ? h("p", { class: "note" }, "The same code as in an earlier turn.") : null,
  ],
  model_asked: (one, end) => [
    ...part("Asked", messages(one)),
    ...part("Answered", pre(end?.text, "prose")),
  ],
  model_answered: (one) => part("Answered", pre(one.text, "prose")),
  subcall_started: (one, end) => [
    ...part("Prompt", pre(one.prompt, "prose")),
    one.shared_with
      ? h("p", { class: "note" }, "It takes its answer from an identical call, and costs nothing.")
      : null,
    ...part("Answer", pre(end?.answer, "prose")),
    ...part("Error", pre(end?.error, "error")),
    end?.downgraded
      ? h("p", { class: "note" }, "Answered as an llm_query: depth or budget was used up.")
      : null,
  ],
  final_given: (one) => [
    ...part("Answer", pre(one.text, "prose")),
    one.reason ? h("p", { class: "note" }, visible(one.reason)) : null,
  ],
};

function messages(one) {
  const repeated = one.repeated
    ? h("p", { class: "quiet" }, `${plural(one.repeated, "message")} as in the call before`)
    : null;
  if (!one.messages?.length)
    return h(
      "p",
      { class: "quiet" },
      `${plural(one.messages_count ?? 0, "message")}, ${number(one.input_tokens ?? 0)} tokens; the trajectory does not have their text.`,
    );
  return h(
    "div",
    { class: "messages" },
    repeated,
    one.messages.map((row) =>
      h(
        "div",
        {},
        h("small", {}, visible(String(row.role ?? ""))),
        pre(
          typeof row.content === "string" ? row.content : JSON.stringify(row.content, null, 1),
          "prose",
        ),
      ),
    ),
  );
}

const other = (one, end) => [pre(JSON.stringify({ ...one, ...(end && { end }) }, null, 1))];
