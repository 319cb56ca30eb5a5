// Health: whether sandboxes can be opened, how they are isolated, what is missing, and draining.

import { every, get, may, post, remove } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, number, seconds } from "../format.js";
import { visible } from "../highlight.js";
import {
  attempt,
  badge,
  button,
  commands,
  confirm,
  fault,
  figures,
  loading,
  meter,
} from "../widgets.js";
import { tierRows } from "./overview.js";

const LEVELS = {
  jailed: "Each guest has its own namespaces, system-call filter, user and limits.",
  confined: "Guests have no namespaces here: system-call filter, Landlock and limits hold them.",
  none: "Guests are not isolated.",
};

export async function show(place, { signal }) {
  const told = h("div");
  const head = h("span");
  const action = h("span");
  const body = h("div", {}, loading());
  fill(place, h("header", { class: "head" }, h("h1", {}, "Health"), head, action), told, body);
  const refresh = async () => {
    const [found, stats] = await Promise.all([
      get("/health/detailed", { signal }),
      may("metrics") ? get("/stats", { signal }) : null,
    ]);
    fill(told);
    fill(head, badge(found.draining ? "draining" : found.status));
    if (may("admin"))
      fill(
        action,
        found.draining
          ? button("Take work again", () =>
              attempt(async () => {
                await remove("/drain");
                await refresh();
              }),
            )
          : button("Drain", () => drain(refresh), {
              kind: "quiet",
              title: "Refuse new work; what runs goes on",
            }),
      );
    fill(body, page(found, stats?.limits ?? {}));
  };
  await every(3000, refresh, signal, (error) => fill(told, fault(error)));
}

async function drain(refresh) {
  if (
    await confirm(
      "Drain the service?",
      "New work is refused with 503 from now on. What runs goes on, and pages can be read.",
      "Drain",
    )
  )
    await attempt(async () => {
      await post("/drain");
      await refresh();
    });
}

function page(found, limits) {
  const box = found.sandbox;
  const of = (value, most) =>
    most
      ? h(
          "span",
          { class: "with-meter" },
          `${number(value)} of ${number(most)}`,
          meter(value, most, `${value} of ${most}`),
        )
      : number(value);
  return [
    found.problems.length
      ? h(
          "section",
          { class: "panel" },
          h("h2", {}, "To mend"),
          h(
            "ul",
            { class: "problems" },
            found.problems.map((one) => h("li", {}, visible(one))),
          ),
          h("p", { class: "quiet" }, "On the machine that serves, this tells more:"),
          commands("atoll doctor"),
        )
      : null,
    h(
      "div",
      { class: "grid" },
      h(
        "section",
        { class: "panel" },
        h("h2", {}, "Isolation"),
        h("p", { class: "big" }, box.isolation ?? "none"),
        h("p", { class: "quiet" }, LEVELS[box.isolation] ?? "No sandbox can be opened."),
      ),
      h(
        "section",
        { class: "panel" },
        h("h2", {}, "Now"),
        figures([
          ["Sessions", of(box.sessions, limits.sessions)],
          ["In memory", of(box.live, limits.live)],
          ["Running", of(box.executing, limits.executing)],
          ["Queued", of(box.queued, limits.queued)],
          ["Free space", bytes(found.free_bytes)],
          ["Up for", seconds(found.uptime_seconds)],
          ["Version", found.version],
        ]),
      ),
      h("section", { class: "panel span-2" }, h("h2", {}, "Warm sandboxes"), tierRows(box.tiers)),
    ),
  ];
}
