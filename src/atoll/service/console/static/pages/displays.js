// What guests display. Untrusted: markup only in frames without scripts and without our origin, pictures as pictures, the rest as text.

import { at, get, call } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes } from "../format.js";
import { visible } from "../highlight.js";
import { button, confirm, fault } from "../widgets.js";

const MOST_TEXT = 200_000;

export function displays(execution, found) {
  return h(
    "div",
    { class: "displays" },
    best(found).map((one) => display(execution, one)),
  );
}

/** A value often has several forms: a table is HTML, so its text is left out. */
function best(found) {
  return found.filter((one) => !(one.media_type === "text/plain" && found.length > 1));
}

function display(execution, one) {
  const address = `/console/displays${at(execution, one.n)}`;
  const kind = one.media_type;
  if (kind === "image/png" || kind === "image/svg+xml")
    return h(
      "figure",
      {},
      h("img", { src: address, alt: "A picture that the cell displays", loading: "lazy" }),
    );
  if (kind === "text/html") return framed(execution, one, address);
  return asText(execution, one, kind);
}

function framed(execution, one, address) {
  const scheme =
    getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1"
      ? "dark"
      : "light";
  const place = h("div", { class: "frame" });
  const draw = (scripts) => {
    const frame = h("iframe", {
      sandbox: scripts ? "allow-scripts" : "",
      referrerpolicy: "no-referrer",
      loading: "lazy",
      title: "What the cell displays",
      src: `${address}?scheme=${scheme}${scripts ? "&scripts=1" : ""}`,
    });
    const note = h(
      "div",
      { class: "frame-note" },
      h(
        "span",
        { class: "quiet" },
        `HTML · ${bytes(one.size)}${scripts ? " · scripts run, without network" : ""}`,
      ),
    );
    fill(place, frame, note);
    measure(execution, one).then(
      ({ rows, scripted }) => {
        frame.style.setProperty("height", `${Math.min(460, Math.max(64, 26 * rows + 34))}px`);
        if (scripted && !scripts)
          note.append(
            button(
              "Run its scripts",
              async () => {
                if (
                  await confirm(
                    "Run the guest's scripts?",
                    "They run in a frame of their own: no network, no access to this page or to your key. They can use your CPU.",
                    "Run them",
                  )
                )
                  draw(true);
              },
              { kind: "quiet small" },
            ),
          );
      },
      () => {},
    );
  };
  draw(false);
  return place;
}

/** Guess how tall a page will be from its source: a frame without scripts cannot say so. */
async function measure(execution, one) {
  const text = await (
    await call("GET", `/executions${at(execution)}/displays${at(one.n)}`, { raw: true })
  ).text();
  return {
    rows: (text.match(/<(tr|p|li|h\d|div|br|pre|svg)\b/gi) ?? []).length || text.length / 90,
    scripted: /<script/i.test(text),
  };
}

function asText(execution, one, kind) {
  const pre = h("pre", { class: "value" });
  call("GET", `/executions${at(execution)}/displays${at(one.n)}`, { raw: true })
    .then((response) => response.text())
    .then(
      (text) => {
        let shown = text;
        if (kind === "application/json") {
          try {
            shown = JSON.stringify(JSON.parse(text), null, 2);
          } catch {
            /* shown as it is */
          }
        }
        pre.textContent = visible(shown.slice(0, MOST_TEXT));
      },
      (error) => pre.replaceWith(fault(error)),
    );
  return h("div", {}, h("small", { class: "quiet" }, kind), pre);
}
