// Runs: questions that agents work on over a context, newest first, as they go.

import { at, call, every, get, may, post } from "../api.js";
import { fill, h, keyed } from "../dom.js";
import { ago, bytes, cut, dollars, number, plural, seconds, short } from "../format.js";
import { visible } from "../highlight.js";
import {
  attempt,
  badge,
  button,
  cellsOf,
  column,
  commands,
  dialog,
  empty,
  fault,
  field,
  toast,
} from "../widgets.js";

const PAGE = 50;

export async function show(place, { signal, go, keys }) {
  const told = h("div");
  const body = h("tbody");
  const filter = h("input", {
    type: "search",
    placeholder: "Filter by question, model or outcome",
    "aria-label": "Filter",
    oninput: () => draw(),
  });
  const table = h(
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
          ["State", "Question", "Model", "Turns", "Calls", "Tokens", "Cost", "Time", "Begun"].map(
            column,
          ),
        ),
      ),
      body,
    ),
  );
  const nothing = h("div");
  const more = button(
    "Show more",
    () => {
      most += PAGE;
      refresh();
    },
    { kind: "quiet" },
  );
  let [items, most] = [[], PAGE];
  const picked = h("input", {
    type: "file",
    hidden: true,
    onchange: () =>
      attempt(async () => {
        const made = await call("POST", "/runs/upload", { body: picked.files[0] });
        toast("The trajectory is there.");
        go(`runs${at(made.id)}`);
      }),
  });
  fill(
    place,
    h(
      "header",
      { class: "head" },
      h("h1", {}, "Runs"),
      picked,
      button("Open a trajectory", () => picked.click(), { sign: "upload" }),
      may("runs") && button("Ask", () => ask(go), { kind: "primary", sign: "plus", keys: "a" }),
    ),
    told,
    h("div", { class: "bar" }, filter),
    table,
    nothing,
    more,
  );
  keys({ a: { title: "Ask a question", sign: "plus", run: () => may("runs") && ask(go) } });
  const draw = () => {
    const typed = filter.value.trim().toLowerCase();
    const shown = items.filter(
      (one) =>
        !typed ||
        `${one.question} ${one.model} ${one.outcome} ${one.id}`.toLowerCase().includes(typed),
    );
    table.hidden = !shown.length;
    keyed(
      body,
      shown,
      (one) => one.id,
      (one) => row(one, go),
    );
    fill(
      nothing,
      !items.length
        ? firstRun()
        : !shown.length && empty("No run matches", "Clear the filter to see all of them."),
    );
  };
  const refresh = async () => {
    const found = [];
    let cursor = "";
    while (cursor !== null && found.length < most) {
      const page = await get(`/runs?limit=${PAGE}&cursor=${encodeURIComponent(cursor)}`, {
        signal,
      });
      found.push(...page.items);
      cursor = page.next_cursor ?? null;
    }
    more.hidden = cursor === null;
    items = found;
    fill(told);
    draw();
  };
  await every(2000, refresh, signal, (error) => fill(told, fault(error)));
}

function row(run, go) {
  const open = () => go(`runs${at(run.id)}`);
  const made = h("tr", {
    tabindex: "0",
    "data-row": true,
    onclick: open,
    onkeydown: (event) => {
      if (event.key === "Enter") open();
    },
  });
  made.update = (one) => {
    const time = one.seconds ?? (one.ended_at ?? Date.now() / 1000) - one.created_at;
    const tokens = one.usage ? number((one.usage.input ?? 0) + (one.usage.output ?? 0)) : "–";
    fill(
      made,
      cellsOf([
        ["", "state", badge(one.state === "running" ? "running" : (one.outcome ?? one.state))],
        [
          "",
          "name",
          h("b", {}, visible(cut(one.question || "(no question yet)", 120))),
          h("small", {}, short(one.id)),
        ],
        ["", "n", visible(cut(one.model ?? "–", 24))],
        ["Turns", "n", number(one.turns)],
        ["Calls", "n", number(one.calls)],
        ["Tokens", "n", tokens],
        ["Cost", "n", dollars(one.usd)],
        ["Time", "n", seconds(time)],
        ["", "n", ago(one.created_at)],
      ]),
    );
  };
  made.update(run);
  return made;
}

async function ask(go) {
  const question = h("textarea", {
    rows: 3,
    autofocus: true,
    required: true,
    placeholder: "How many errors are in the log, and what do they have in common?",
  });
  const model = h("input", {
    type: "text",
    required: true,
    placeholder: "a model that the operator offers",
  });
  const context = h("select", {}, h("option", { value: "" }, "none"));
  const budget = h("input", { type: "number", min: "0", step: "0.01", placeholder: "no limit" });
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
    },
    () => {},
  );
  const told = h("div");
  const made = await dialog("Ask a question", (close) =>
    h(
      "form",
      {
        class: "body",
        onsubmit: async (event) => {
          event.preventDefault();
          const body = {
            question: question.value,
            model: model.value.trim(),
            ...(context.value && { context: { id: context.value } }),
            ...(budget.value && { budget: { usd: Number(budget.value) } }),
          };
          try {
            close(await post("/runs", body));
          } catch (error) {
            fill(told, fault(error));
          }
        },
      },
      field("Question", question),
      field("Context", context),
      h("div", { class: "two" }, field("Model", model), field("At most, in dollars", budget)),
      told,
      h(
        "footer",
        {},
        button("Cancel", () => close(null)),
        h("button", { class: "primary" }, "Ask"),
      ),
    ),
  );
  if (made) go(`runs${at(made.id)}`);
}

function firstRun() {
  return empty(
    "No run yet",
    `A run is a question that a model answers by writing code over a context. Runs elsewhere can be watched here too: send their trajectory, and its ${plural(2, "line")} appear as they come.`.replace(
      "2 lines",
      "lines",
    ),
    commands(
      `curl ${location.origin}/api/v1/runs/upload -H "Authorization: Bearer $ATOLL_API_KEY" -T run.jsonl -X POST`,
    ),
  );
}
