// One run, live: the answer and its evidence, a timeline, and the tree of turns and calls with what each cost.

import { at, call, events, get, post } from "../api.js";
import { fill, h } from "../dom.js";
import { dollars, number, percent, plural, seconds } from "../format.js";
import { visible } from "../highlight.js";
import { attempt, badge, button, fault, figures, loading, meter } from "../widgets.js";
import { coverageMap } from "./coverage.js";
import { detail, flat, timeline, turnTree } from "./turns.js";

const REDRAW_MS = 700;

export async function show(place, { id, signal, title, keys }) {
  const path = `/runs${at(id)}`;
  const head = h("div");
  const strip = h("div");
  const answer = h("div");
  const time = h("section", { class: "panel" }, loading());
  const list = h("div", { class: "turns" });
  const side = h("section", {
    class: "panel detail",
    tabindex: "-1",
    "aria-label": "The chosen step",
  });
  let [nodes, chosen, drawing, following] = [[], null, null, true];

  const choose = (node, own = true) => {
    chosen = node.id;
    if (own) following = false;
    fill(side, detail(node));
    for (const one of list.querySelectorAll("[data-id]"))
      one.toggleAttribute("aria-current", one.dataset.id === chosen);
    for (const one of time.querySelectorAll("[data-id]"))
      one.classList.toggle("chosen", one.dataset.id === chosen);
  };
  const draw = async () => {
    const [run, tree] = await Promise.all([get(path, { signal }), get(`${path}/tree`, { signal })]);
    nodes = tree.nodes;
    title(run.question ?? id);
    fill(head, heading(run, path));
    fill(strip, stripOf(run, nodes));
    fill(answer, answerOf(run));
    const all = flat(nodes);
    fill(time, h("h2", {}, "Timeline"), timeline(all, choose, chosen));
    const open = new Set(
      [...list.querySelectorAll("details:not([open])")].map((one) => one.dataset.of),
    );
    fill(list, turnTree(nodes, choose, chosen, open));
    const wanted =
      (!following && all.find((one) => one.node.id === chosen)) ||
      (run.state === "running"
        ? lastTurn(all)
        : (all.find((one) => one.node.event.event === "code_ran") ?? all[0]));
    if (wanted) choose(wanted.node, false);
  };
  const soon = () => {
    drawing ??= setTimeout(async () => {
      const begun = performance.now();
      try {
        await draw();
      } catch (error) {
        if (!signal.aborted) fill(head, fault(error, draw));
      }
      // A large tree is drawn less often.
      setTimeout(
        () => {
          drawing = null;
        },
        Math.min(5000, 2 * (performance.now() - begun)),
      );
    }, REDRAW_MS);
  };
  fill(
    place,
    head,
    strip,
    answer,
    time,
    h(
      "div",
      { class: "split even" },
      h("section", { class: "panel" }, h("h2", {}, "Turns"), list),
      side,
    ),
  );
  const move = (step) => {
    const all = flat(nodes);
    const next =
      all[
        Math.max(0, Math.min(all.length - 1, all.findIndex((one) => one.node.id === chosen) + step))
      ];
    if (next) {
      choose(next.node);
      list.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" });
    }
  };
  keys({
    j: { title: "Next step", run: () => move(1) },
    k: { title: "Step before", run: () => move(-1) },
    ArrowDown: { run: () => move(1) },
    ArrowUp: { run: () => move(-1) },
  });
  await draw();
  for await (const event of events(`${path}/events`, { signal })) {
    if (signal.aborted) return;
    if (event.type === "end") await draw();
    else soon();
  }
}

const lastTurn = (all) =>
  all.filter((one) => one.node.event.event === "code_ran").pop() ?? all[all.length - 1];

function heading(run, path) {
  const stop = button("Stop", () => attempt(() => post(`${path}/cancel`)), { sign: "stop" });
  const save = button(
    "Trajectory",
    () =>
      attempt(async () => {
        const response = await call("GET", `${path}/trajectory.jsonl`, { raw: true });
        const link = h("a", {
          href: URL.createObjectURL(await response.blob()),
          download: `${run.id}.jsonl`,
        });
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
      }),
    { sign: "download", kind: "quiet" },
  );
  return h(
    "header",
    { class: "head" },
    h("div", { class: "crumbs" }, h("a", { href: "#/runs" }, "Runs"), h("span", {}, "/")),
    h("h1", { class: "question" }, visible(run.question || "A run that has not begun")),
    badge(run.state === "running" ? "running" : (run.outcome ?? run.state)),
    run.state === "running" && stop,
    save,
  );
}

function stripOf(run, nodes) {
  const totals = nodes[0]?.totals ?? { usage: {} };
  const usage = run.usage ?? totals.usage;
  const limit = run.budget ?? {};
  const spent = run.usd ?? totals.usd;
  const used = (run.ended_at ?? Date.now() / 1000) - run.created_at;
  const of = (value, most, show) =>
    most
      ? h(
          "span",
          { class: "with-meter" },
          `${show(value)} of ${show(most)}`,
          meter(value, most, percent(value / most)),
        )
      : show(value);
  return figures([
    ["Turns", of(run.turns, limit.turns ?? limit.max_turns, number)],
    ["Model calls", number(run.calls)],
    [
      "Tokens",
      of((usage.input ?? 0) + (usage.output ?? 0), limit.tokens ?? limit.max_tokens, number),
      `${number(usage.input)} in · ${number(usage.output)} out${usage.cached ? ` · ${number(usage.cached)} cached` : ""}`,
    ],
    [
      "Cost",
      of(spent, limit.usd ?? limit.max_usd, dollars),
      totals.unpriced ? `${plural(totals.unpriced, "call")} without a price` : null,
    ],
    ["Time", of(run.seconds ?? used, limit.seconds ?? limit.max_seconds, seconds)],
    [
      "Model",
      visible(run.model ?? "–"),
      run.sub_model ? `sub-calls: ${visible(run.sub_model)}` : null,
    ],
  ]);
}

function answerOf(run) {
  if (!run.answer && !run.error) return null;
  const where = run.context?.id ?? null;
  return h(
    "section",
    { class: "panel answer" },
    h("h2", {}, "Answer", run.how ? h("small", {}, ` by ${visible(run.how)}`) : null),
    run.answer && h("pre", { class: "prose" }, visible(run.answer)),
    run.error && h("pre", { class: "error" }, visible(run.error)),
    run.reason && h("p", { class: "note" }, visible(run.reason)),
    run.evidence?.length
      ? [
          h("h3", {}, "Evidence"),
          h(
            "ul",
            { class: "evidence" },
            run.evidence.map((one) => evidence(one, where)),
          ),
        ]
      : null,
    run.coverage?.map ? [h("h3", {}, "Seen of the context"), coverageMap(run.coverage)] : null,
  );
}

function evidence(one, context) {
  const place = one.path
    ? `${visible(String(one.path))}${one.line ? `:${one.line}` : ""}`
    : one.line
      ? `line ${number(one.line)}`
      : one.start !== undefined && one.start !== null
        ? `at ${number(one.start)}`
        : "";
  const text = h("q", {}, visible(String(one.quote ?? "")));
  const known = one.found && context && Number.isFinite(one.start);
  return h(
    "li",
    {},
    badge(one.found ? "found" : "not found", one.found ? "ok" : "bad"),
    known
      ? h(
          "a",
          { href: `#/contexts${at(context)}?at=${one.start}&to=${one.end ?? one.start + 1}` },
          text,
        )
      : text,
    h("small", {}, place),
  );
}
