// One context: a map of what was seen of it, a search, and its text at any place.

import { at, get, post } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, cut, number, plural, short } from "../format.js";
import { visible } from "../highlight.js";
import { attempt, button, copyButton, empty, fault, figures, loading } from "../widgets.js";
import { coverageMap } from "./coverage.js";
import { newSession } from "./sessions.js";

const WINDOW = 6000;

export async function show(place, { id, signal, go, title, query, keys }) {
  const path = `/contexts${at(id)}`;
  const context = await get(path, { signal });
  const { length } = await get(`${path}/text?start=0&end=0`, { signal });
  title(context.name || short(id));
  const text = h("section", { class: "panel reading", "aria-label": "Text" }, loading());
  const map = h("section", { class: "panel" }, loading());
  const hits = h("div", { class: "hits" });
  let marked = null;

  const read = (start, end = null, mark = null) =>
    attempt(async () => {
      const from = Math.max(0, Math.min(start, Math.max(0, length - 1)));
      const found = await get(
        `${path}/text?start=${from}&end=${Math.min(length, end ?? from + WINDOW)}`,
        { signal },
      );
      marked = mark;
      fill(text, reader(found, marked, length, read));
      history.replaceState(null, "", `#/contexts${at(id)}?at=${from}`);
    });
  const search = h("input", {
    type: "search",
    placeholder: "Text or pattern",
    "aria-label": "Search",
  });
  const literal = h("input", { type: "checkbox" });
  const find = (event) => {
    event?.preventDefault();
    if (!search.value) {
      fill(hits);
      return;
    }
    fill(hits, loading());
    attempt(async () => {
      try {
        const found = await post(
          `${path}/search`,
          {
            pattern: search.value,
            literal: literal.checked,
            ignore_case: search.value === search.value.toLowerCase(),
            most: 200,
          },
          { signal },
        );
        fill(hits, hitList(found, read));
        cover();
      } catch (error) {
        fill(hits, fault(error));
      }
    });
  };
  const runs = await get("/runs?limit=100", { signal }).then(
    (found) => found.items.filter((one) => (one.context?.id ?? one.context) === id),
    () => [],
  );
  const chosen = h(
    "select",
    { "aria-label": "Run", onchange: () => cover() },
    h("option", { value: "" }, "what was read here"),
    runs.map((one) => h("option", { value: one.id }, visible(cut(one.question ?? one.id, 60)))),
  );
  const cover = () =>
    attempt(async () => {
      const found = await get(
        `${path}/coverage${chosen.value ? `?run=${encodeURIComponent(chosen.value)}` : ""}`,
        { signal },
      );
      fill(
        map,
        h(
          "div",
          { class: "bar" },
          h("h2", {}, "What was seen of it"),
          h("span", { class: "grow" }),
          runs.length ? chosen : null,
        ),
        coverageMap(found, (start, end) => read(start, Math.min(end, start + WINDOW * 4))),
        found.shown || found.scanned
          ? null
          : h(
              "p",
              { class: "quiet" },
              "Nothing yet: no run has read it. A click on the map reads there.",
            ),
      );
    });
  fill(
    place,
    h(
      "header",
      { class: "head" },
      h("div", { class: "crumbs" }, h("a", { href: "#/contexts" }, "Contexts"), h("span", {}, "/")),
      h("h1", {}, visible(context.name || short(id))),
      button("Session with it", () => newSession(go, { context: id }), { sign: "play" }),
    ),
    figures([
      ["Characters", number(length)],
      ["Size", bytes(context.size)],
      [
        "SHA-256",
        h(
          "span",
          { class: "id" },
          h("code", {}, (context.sha256 ?? "").slice(0, 12)),
          copyButton(context.sha256 ?? ""),
        ),
      ],
      ["Id", h("span", { class: "id" }, h("code", {}, short(id)), copyButton(id))],
    ]),
    map,
    h(
      "div",
      { class: "split even" },
      h(
        "section",
        { class: "panel" },
        h(
          "form",
          { class: "bar", onsubmit: find },
          search,
          h("button", {}, "Search"),
          h("label", { class: "check" }, literal, "plain text, no pattern"),
        ),
        hits,
      ),
      text,
    ),
  );
  keys({});
  fill(hits, empty("Search the text", "Press / and type. Lower case finds both cases."));
  await Promise.all([cover(), read(Number(query.get("at")) || 0, null, spanOf(query))]);
}

function spanOf(query) {
  const [start, end] = [Number(query.get("at")), Number(query.get("to"))];
  return end > start ? [start, end] : null;
}

function reader(found, marked, length, read) {
  const body = h("pre", {
    class: "text",
    tabindex: "0",
    role: "region",
    "aria-label": "The text here",
  });
  const put = (from, to) => visible(found.text.slice(from - found.start, to - found.start));
  if (marked && marked[0] >= found.start && marked[0] < found.end) {
    const end = Math.min(marked[1], found.end);
    body.append(
      put(found.start, marked[0]),
      h("mark", {}, put(marked[0], end)),
      put(end, found.end),
    );
    requestAnimationFrame(() => body.querySelector("mark")?.scrollIntoView({ block: "nearest" }));
  } else body.append(visible(found.text));
  return [
    h(
      "div",
      { class: "bar" },
      h("h2", {}, `${number(found.start)} – ${number(found.end)}`),
      h("span", { class: "quiet" }, `of ${number(length)}`),
      h("span", { class: "grow" }),
      button("Before", () => read(found.start - WINDOW), {
        kind: "quiet small",
        disabled: found.start <= 0,
      }),
      button("After", () => read(found.end), {
        kind: "quiet small",
        disabled: found.end >= length,
      }),
    ),
    length ? body : empty("The context is empty", null),
  ];
}

function hitList(found, read) {
  if (!found.hits.length) return empty("No hit", "Try fewer words, or another spelling.");
  return [
    h(
      "p",
      { class: "quiet" },
      `${plural(found.total ?? found.hits.length, "hit")}${found.more ? `, the first ${found.hits.length} shown` : ""}`,
    ),
    found.hits.map((one) => {
      const open = () =>
        read(Math.max(0, one.start - 400), null, [one.start, Math.max(one.end, one.start + 1)]);
      return h(
        "button",
        { type: "button", class: "hit", "data-row": true, onclick: open },
        h("small", {}, `line ${number(one.line)}`),
        h("span", {}, visible(cut(one.text ?? "", 240))),
      );
    }),
  ];
}
