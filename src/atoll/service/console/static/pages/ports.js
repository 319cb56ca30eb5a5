// The ports that a session listens on, each with a button that opens its preview.

import { get, may, post } from "../api.js";
import { fill, h } from "../dom.js";
import { visible } from "../highlight.js";
import { attempt, button, empty, fault, loading } from "../widgets.js";

const NO_SERVER = "Start a server in a cell: it is listed here, whatever its network may reach.";

export function ports(path, signal) {
  const body = h("div", {}, loading());
  const load = async () => {
    try {
      const found = await get(`${path}/ports`, { signal });
      fill(body, found.items.length ? table(path, found) : empty("Nothing listens", NO_SERVER));
    } catch (error) {
      fill(body, fault(error, load));
    }
  };
  load();
  return h(
    "div",
    {},
    h("div", { class: "bar end" }, button("Look again", load, { kind: "quiet small" })),
    body,
  );
}

function table(path, found) {
  return [
    h(
      "table",
      { class: "variables" },
      h(
        "tbody",
        {},
        found.items.map((one) => row(path, one, found.previews)),
      ),
    ),
    !found.previews &&
      h("p", { class: "quiet" }, "This service shows no previews: atoll serve --preview-port 8438"),
  ];
}

function row(path, one, previews) {
  const open = button(
    "Open",
    () =>
      attempt(async () => {
        const made = await post(`${path}/ports/${one.port}/expose`, { public: one.public });
        window.open(made.url, "_blank", "noopener");
      }),
    { kind: "quiet small", title: "Open its preview in another tab: a page of the sandbox" },
  );
  return h(
    "tr",
    {},
    h("td", {}, h("code", {}, String(one.port))),
    h("td", { class: "quiet" }, visible(one.public ? `${one.address} · public` : one.address)),
    h("td", {}, previews && may("sessions") ? open : null),
  );
}
