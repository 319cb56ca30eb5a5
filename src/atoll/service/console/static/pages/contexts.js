// Contexts: the texts that sessions and runs read, uploaded once and shared.

import { at, call, every, get, may, remove } from "../api.js";
import { fill, h, keyed } from "../dom.js";
import { ago, bytes, cut, short, until } from "../format.js";
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
  toast,
} from "../widgets.js";
import { newSession } from "./sessions.js";

export async function show(place, { signal, go, keys }) {
  const told = h("div");
  const body = h("tbody");
  const table = h(
    "div",
    { class: "scroll" },
    h(
      "table",
      { class: "list" },
      h("thead", {}, h("tr", {}, ["Context", "Size", "Added", "Kept", ""].map(column))),
      body,
    ),
  );
  const nothing = h("div");
  const add = () => upload(go);
  fill(
    place,
    h(
      "header",
      { class: "head" },
      h("h1", {}, "Contexts"),
      may("files") && button("Add a context", add, { kind: "primary", sign: "plus", keys: "a" }),
    ),
    told,
    table,
    nothing,
  );
  keys({ a: { title: "Add a context", sign: "plus", run: add } });
  const refresh = async () => {
    const { items } = await get("/contexts", { signal });
    fill(told);
    table.hidden = !items.length;
    keyed(
      body,
      items.sort((a, b) => b.created_at - a.created_at),
      (one) => one.id,
      (one) => row(one, go, refresh),
    );
    fill(
      nothing,
      !items.length &&
        empty(
          "No context yet",
          "A context is one large text: a log, a book, a code base. Code sees it as the variable context, and only what it looks at costs tokens.",
          commands(
            `curl ${location.origin}/api/v1/contexts -H "Authorization: Bearer $ATOLL_API_KEY" --data-binary @big.log`,
          ),
        ),
    );
  };
  await every(4000, refresh, signal, (error) => fill(told, fault(error)));
}

function row(context, go, refresh) {
  const open = () => go(`contexts${at(context.id)}`);
  const drop = async () => {
    if (
      await confirm(
        "Delete the context?",
        "Sessions that have it keep it; new ones cannot get it.",
        "Delete",
        { danger: true },
      )
    )
      await attempt(async () => {
        await remove(`/contexts${at(context.id)}`);
        await refresh();
      });
  };
  return h(
    "tr",
    {
      tabindex: "0",
      "data-row": true,
      onclick: (event) => {
        if (!event.target.closest("button")) open();
      },
      onkeydown: (event) => {
        if (event.key === "Enter" && event.target === event.currentTarget) open();
      },
    },
    cellsOf([
      [
        "",
        "name",
        h("b", {}, visible(context.name || short(context.id))),
        h("small", {}, short(context.id)),
      ],
      ["", "n", bytes(context.size)],
      ["Added", "n", ago(context.created_at)],
      ["Kept until", "n", until(context.expires_at)],
    ]),
    h(
      "td",
      { class: "actions" },
      button("Session", () => newSession(go, { context: context.id }), {
        kind: "quiet small",
        sign: "play",
      }),
      button("", drop, { kind: "ghost icon-only", sign: "trash", title: "Delete" }),
    ),
  );
}

async function upload(go) {
  const file = h("input", { type: "file" });
  const text = h("textarea", {
    rows: 8,
    placeholder: "… or paste a text here",
    "aria-label": "Text",
  });
  const told = h("div");
  const made = await dialog("Add a context", (close) =>
    h(
      "form",
      {
        class: "body",
        onsubmit: async (event) => {
          event.preventDefault();
          const body = file.files[0] ?? new Blob([text.value]);
          if (!body.size) {
            fill(told, h("p", { class: "warn-text" }, "Choose a file, or paste a text."));
            return;
          }
          try {
            close(
              await call(
                "POST",
                `/contexts?name=${encodeURIComponent(file.files[0]?.name ?? cut(text.value.trim().split("\n")[0], 60))}`,
                { body },
              ),
            );
          } catch (error) {
            fill(told, fault(error));
          }
        },
      },
      field("A file of text (UTF-8)", file),
      text,
      told,
      h(
        "footer",
        {},
        button("Cancel", () => close(null)),
        h("button", { class: "primary" }, "Add"),
      ),
    ),
  );
  if (made) {
    toast("The context is there.");
    go(`contexts${at(made.id)}`);
  }
}
