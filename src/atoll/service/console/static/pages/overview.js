// Overview: what runs now, what ran in the last quarter of an hour, and how to begin.

import { every, get, may, at } from "../api.js";
import { fill, h, keyed } from "../dom.js";
import { ago, bytes, number, percent, plural, seconds } from "../format.js";
import {
  badge,
  button,
  column,
  commands,
  empty,
  fault,
  loading,
  meter,
  sparkline,
  stateBadge,
  toneOf,
  wideColumn,
} from "../widgets.js";

const SAMPLES = 180;

export async function show(place, { signal, go }) {
  const told = h("div");
  const cards = h("section", { class: "cards", "aria-label": "Now" }, loading());
  const outcomes = h("section", { class: "panel" });
  const tiers = h("section", { class: "panel" });
  const nodes = h("section", { class: "panel span-2", hidden: true });
  const recent = h("section", { class: "panel span-2" });
  fill(
    place,
    h(
      "header",
      { class: "head" },
      h("h1", {}, "Overview"),
      button("New session", () => go("sessions?new=1"), {
        kind: "primary",
        sign: "plus",
        keys: "n",
      }),
    ),
    told,
    cards,
    h("div", { class: "grid" }, outcomes, tiers, nodes, recent),
  );
  const list = h("div", { class: "rows" });
  await every(
    2000,
    async () => {
      const [stats, sessions] = await Promise.all([
        may("metrics") ? get("/stats", { signal }) : null,
        may("sessions") ? get("/sessions?limit=8", { signal }) : { items: [] },
      ]);
      fill(told);
      cards.hidden = outcomes.hidden = tiers.hidden = !stats;
      if (stats) {
        fill(cards, figuresOf(stats));
        fill(
          outcomes,
          h("h2", {}, "Outcomes"),
          tally(stats.outcomes, "Nothing has run since the service started."),
          refusals(stats.rejected_by_code),
        );
        fill(tiers, h("h2", {}, "Warm sandboxes"), tierRows(stats.tiers));
        nodes.hidden = !stats.fleet;
        if (stats.fleet)
          fill(nodes, h("h2", {}, `Fleet ${stats.fleet.address}`), nodeRows(stats.fleet));
      }
      const rows = sessions.items.sort((a, b) => b.last_used_at - a.last_used_at);
      if (rows.length)
        fill(
          recent,
          h("h2", {}, "Sessions"),
          keyed(list, rows, (one) => one.id, sessionRow),
        );
      else fill(recent, h("h2", {}, "Sessions"), welcome());
    },
    signal,
    (error) => fill(told, fault(error)),
  );
}

function figuresOf(stats) {
  const history = padded(stats.history ?? []);
  const card = (title, value, note, values) =>
    h(
      "article",
      { class: "card" },
      h("h2", {}, title),
      h("p", { class: "big" }, number(value)),
      h("small", {}, note),
      sparkline(values, { label: `${title}, last 15 minutes` }),
    );
  const executions = steps(history.map((one) => one.executions));
  const refused = steps(history.map((one) => one.rejected));
  return [
    card(
      "Running",
      stats.executing,
      plural(sum(executions), "execution") + " in 15 min",
      history.map((one) => one.executing),
    ),
    card(
      "Queued",
      stats.queued,
      stats.queued ? "waiting for a free place" : "nothing waits",
      history.map((one) => one.queued),
    ),
    card(
      "Sessions",
      stats.sessions,
      `${number(stats.live)} in memory`,
      history.map((one) => one.sessions),
    ),
    card("Executions", stats.executions, `${seconds(stats.cpu_seconds ?? 0)} of CPU`, executions),
    card("Refused", stats.rejected, "requests, since the start", refused),
  ];
}

/** As many samples as a quarter of an hour has; before the service started there was nothing. */
function padded(history) {
  const none = { executing: 0, queued: 0, sessions: 0, executions: 0, rejected: 0 };
  return [...Array(Math.max(0, SAMPLES - history.length)).fill(none), ...history];
}

const sum = (values) => values.reduce((total, one) => total + one, 0);
/** Counters that only grow, as what was added in each step. */
const steps = (values) => values.map((one, n) => (n ? Math.max(0, one - values[n - 1]) : 0));

function tally(counts, none) {
  const rows = Object.entries(counts ?? {})
    .filter(([, count]) => count)
    .sort((a, b) => b[1] - a[1]);
  if (!rows.length) return h("p", { class: "quiet" }, none);
  const most = Math.max(...rows.map(([, count]) => count));
  return h(
    "div",
    { class: "tally" },
    rows.map(([kind, count]) =>
      h(
        "div",
        {},
        badge(kind),
        meter(count, most, `${kind}: ${count}`, toneOf(kind)),
        h("b", {}, number(count)),
      ),
    ),
  );
}

function refusals(rejected) {
  const rows = Object.entries(rejected ?? {}).filter(([, count]) => count);
  return rows.length
    ? h(
        "p",
        { class: "quiet" },
        "Refused: ",
        rows.map(([code, count]) => `${code} ${number(count)}`).join(" · "),
      )
    : null;
}

export function tierRows(tiers) {
  const rows = Object.entries(tiers ?? {});
  if (!rows.length) return h("p", { class: "quiet" }, "None: each sandbox starts cold here.");
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h("tr", {}, [
        column("Tier"),
        column("Parked"),
        wideColumn("Taken parked"),
        column("Restarts"),
        wideColumn("Warm in"),
        column("Missing"),
      ]),
    ),
    h(
      "tbody",
      {},
      rows.map(([name, one]) =>
        h(
          "tr",
          {},
          h("td", {}, name),
          h("td", { class: "n" }, number(one.parked)),
          h("td", { class: "n wide-only" }, warmShare(one)),
          h(
            "td",
            { class: "n" },
            one.restarts ? h("span", { class: "warn-text" }, number(one.restarts)) : "0",
          ),
          h(
            "td",
            { class: "n wide-only" },
            one.warm_seconds === null || one.warm_seconds === undefined
              ? "–"
              : seconds(one.warm_seconds),
          ),
          h(
            "td",
            {},
            one.missing?.length
              ? h("span", { class: "warn-text" }, one.missing.join(", "))
              : h("span", { class: "quiet" }, "none"),
          ),
        ),
      ),
    ),
  );
}

/** How many of the guests that were asked for were waiting: 97 % of 1,204 */
function warmShare(one) {
  const all = (one.taken_parked ?? 0) + (one.taken_new ?? 0);
  return all ? `${percent(one.taken_parked / all)} of ${number(all)}` : "–";
}

/** The nodes of the fleet that the sandboxes are on. */
function nodeRows(fleet) {
  const parked = (node) =>
    Object.entries(node.tiers)
      .map(([tier, one]) => `${tier} ${number(one.parked)}`)
      .join(", ") || "none";
  const rows = fleet.nodes.map((one) =>
    h(
      "tr",
      {},
      h("td", {}, one.name, one.draining ? h("span", { class: "warn-text" }, " draining") : null),
      h(
        "td",
        {},
        h(
          "span",
          { class: "with-meter" },
          meter(one.sessions, one.capacity, `${one.sessions} of ${one.capacity} sessions`),
          `${number(one.sessions)} of ${number(one.capacity)}`,
        ),
      ),
      h("td", { class: "n" }, number(one.executing)),
      h("td", { class: "n wide-only" }, number(one.queued)),
      h("td", { class: "wide-only" }, parked(one)),
      h("td", { class: "n wide-only" }, number(one.durable)),
      h("td", { class: "n" }, seconds(one.save_lag)),
    ),
  );
  const problems = fleet.problems.map((text) => h("p", { class: "warn-text" }, text));
  if (!rows.length) return [h("p", { class: "quiet" }, "No node takes sessions."), problems];
  return [
    h(
      "div",
      { class: "scroll", tabindex: "0", role: "region", "aria-label": "Nodes" },
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h("tr", {}, [
            column("Node"),
            column("Sessions"),
            column("Running"),
            ...["Waiting", "Parked", "With a state"].map(wideColumn),
            column("Lag of saves"),
          ]),
        ),
        h("tbody", {}, rows),
      ),
    ),
    problems,
  ];
}

function sessionRow(session) {
  const row = h("a", { class: "row", "data-row": true, href: `#/sessions${at(session.id)}` });
  row.update = (one) =>
    fill(
      row,
      stateBadge(one),
      h("b", {}, label(one)),
      h("span", { class: "quiet" }, plural(one.executions, "cell")),
      h(
        "span",
        { class: "quiet wide-only" },
        bytes(one.usage?.memory_bytes ?? one.usage?.peak_memory_bytes),
      ),
      h("span", { class: "quiet" }, ago(one.last_used_at)),
    );
  row.update(session);
  return row;
}

export const label = (one) => one.name || Object.values(one.metadata ?? {})[0] || one.id;

function welcome() {
  return empty(
    "No session yet",
    "Open one here with n, or from a terminal:",
    commands(
      `export ATOLL_URL=${location.origin} ATOLL_API_KEY=atl_…`,
      "atoll repl --url $ATOLL_URL",
      "atoll run --url $ATOLL_URL -c 'print(6 * 7)'",
    ),
  );
}
