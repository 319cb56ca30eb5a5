// The cells of a session: what ran, what it printed as it came, and where the next one is typed.

import { at, events, get, may, post, call } from "../api.js";
import { fill, h, icon } from "../dom.js";
import { editor } from "../editor.js";
import { bytes, clock, milliseconds } from "../format.js";
import { output, python, visible } from "../highlight.js";
import { attempt, badge, button, empty, loading, reachable, toast } from "../widgets.js";
import { displays } from "./displays.js";

// Twice: what is scrolled into view may still grow.
const toEnd = () => {
  for (const time of [0, 350])
    setTimeout(() => scrollTo(0, document.documentElement.scrollHeight), time);
};
const MOST_SHOWN = 400_000;
const PAGE = 100;

export function cells({ path, id, signal, refresh: refreshAll }) {
  const list = h("div", { class: "cells" }, loading());
  const known = new Map();
  let [after, first, begun, typed, last] = [0, true, false, null, ""];
  const runButton = button("Run", () => run(), { kind: "primary", sign: "play", keys: "Ctrl ⏎" });
  const shell = h("input", { type: "checkbox" });
  const box = h(
    "div",
    { class: "composer", hidden: !may("execute") },
    h("div", { class: "composer-code" }, loading("Loading the editor")),
    h(
      "div",
      { class: "composer-bar" },
      h("label", { class: "check" }, shell, "shell command"),
      h("span", { class: "grow" }),
      runButton,
    ),
  );
  editor({
    onrun: () => run(),
    onup: () => {
      if (last) typed.set(last);
    },
  }).then((made) => {
    typed = made;
    fill(box.firstChild, made.element);
  });

  const run = async () => {
    const text = typed?.get().trimEnd() ?? "";
    if (!text.trim()) {
      toast("Type some code first.");
      typed?.focus();
      return;
    }
    runButton.disabled = true;
    await attempt(async () => {
      const body = shell.checked ? { command: text, detach: true } : { code: text, detach: true };
      await post(`${path}/${shell.checked ? "shell" : "executions"}`, body);
      last = text;
      typed.set("");
      await refreshAll();
      toEnd();
    });
    runButton.disabled = false;
    typed.focus();
  };

  const refresh = async () => {
    for (let more = true; more;) {
      const page = await get(`${path}/executions?after=${after}&limit=${PAGE}`, { signal });
      if (first) {
        fill(list);
        first = false;
      }
      for (const one of page.items) {
        after = Math.max(after, one.n);
        if (known.has(one.id)) continue;
        last = one.code;
        known.set(one.id, cell(one, signal, refreshAll));
        list.append(known.get(one.id));
      }
      more = page.items.length === PAGE;
    }
    if (known.size && !begun) toEnd();
    begun = true;
    if (!known.size)
      fill(
        list,
        empty(
          "Nothing has run here yet",
          may("execute")
            ? "Type code below and press Ctrl+Enter. Agents' cells appear here as they run."
            : "Cells appear here as they run.",
        ),
      );
    else list.querySelector(".empty")?.remove();
  };
  return {
    element: h("section", { class: "notebook", "aria-label": `Cells of ${id}` }, list, box),
    refresh,
    focus: () => typed?.focus(),
  };
}

function cell(one, signal, refreshAll) {
  const out = reachable(h("div", { class: "output" }), `Output of cell ${one.n ?? ""}`);
  const source = reachable(
    h(
      "pre",
      {},
      one.verb === "shell"
        ? [h("span", { class: "prompt" }, "$ "), visible(one.code)]
        : python(visible(one.code)),
    ),
    `Code of cell ${one.n ?? ""}`,
  );
  const foot = h("footer", {});
  const number = h("span", { class: "count" }, one.n ?? "");
  const made = h(
    "article",
    { class: "cell", tabindex: "0", "data-row": true, "aria-label": `Cell ${one.n ?? ""}` },
    h("div", { class: "source" }, number, source),
    out,
    foot,
  );
  if (one.done && one.result) finish(made, out, foot, one, one.result);
  else if (one.done)
    finish(made, out, foot, one, one.problem && { kind: "fault", error: one.problem.detail });
  else follow(made, out, foot, one, signal).then(refreshAll, () => {});
  return made;
}

/** Show output as it comes, from the first event: a page that is loaded again shows all of it once. */
async function follow(made, out, foot, one, signal) {
  made.classList.add("running");
  const stop = button("Interrupt", () => attempt(() => post(`/executions${at(one.id)}/cancel`)), {
    kind: "small quiet",
    sign: "stop",
  });
  const time = h("span", { class: "quiet" });
  const begun = Date.now();
  const timer = setInterval(() => {
    time.textContent = milliseconds(Date.now() - begun);
  }, 100);
  signal.addEventListener("abort", () => clearInterval(timer), { once: true });
  fill(foot, badge("running"), time, may("execute") && stop);
  try {
    const streams = new Streams(out);
    for await (const event of events(`/executions${at(one.id)}/events`, { signal })) {
      if (event.type === "stdout" || event.type === "stderr") streams.add(event.type, event.text);
      else if (event.type === "dropped")
        streams.note(`${event.events} pieces of output were dropped: this page was too slow`);
      else if (event.type === "tool_call")
        streams.note(`waits for the tool ${event.name ?? event.id}`);
      else if (event.type === "result")
        finish(made, out, foot, one, event.result, streams.size > 0);
      else if (event.type === "fault")
        finish(made, out, foot, one, {
          ...event.problem,
          kind: "fault",
          error: event.problem.detail,
        });
    }
  } catch (error) {
    if (!signal.aborted) finish(made, out, foot, one, { kind: "fault", error: error.message });
  } finally {
    clearInterval(timer);
  }
}

class Streams {
  constructor(place) {
    Object.assign(this, { place, size: 0, pre: null, kind: "", styles: new Set() });
  }

  add(kind, text) {
    if (this.size > MOST_SHOWN) return;
    this.size += text.length;
    if (this.kind !== kind || !this.pre) {
      this.styles = new Set();
      this.kind = kind;
      this.place.append((this.pre = h("pre", { class: kind })));
    }
    output(this.pre, text, this.styles);
    if (this.size > MOST_SHOWN) this.note("the rest is not shown here: it is in the result");
  }

  note(text) {
    this.pre = null;
    this.place.append(h("p", { class: "note" }, visible(text)));
  }
}

function finish(made, out, foot, one, result, streamed = false) {
  made.classList.remove("running");
  if (!result) {
    fill(foot, badge("ended"), h("span", { class: "quiet" }, "its result is not kept any more"));
    return;
  }
  made.classList.toggle("failed", result.success === false || result.kind === "fault");
  if (!streamed) {
    const streams = new Streams(fill(out));
    if (result.stdout) streams.add("stdout", result.stdout);
    if (result.stderr) streams.add("stderr", result.stderr);
    if (result.output) streams.add("stdout", result.output);
  }
  if (result.truncated)
    out.append(h("p", { class: "note" }, "Output was cut: it passed the limit."));
  // A traceback that was printed ends with the error already.
  if (result.error && !(result.stderr ?? "").trimEnd().endsWith(result.error.trim()))
    out.append(h("pre", { class: "error" }, visible(result.error)));
  if (result.value_repr && result.value_repr !== "None" && !result.displays?.length)
    out.append(h("pre", { class: "value" }, visible(result.value_repr)));
  if (result.displays?.length) out.append(displays(one.id, result.displays));
  if (result.artifacts?.length) out.append(artifacts(result.artifacts, result.session));
  const outcome = result.kind === "shell" ? (result.exit_code ? "error" : "ok") : result.kind;
  fill(
    foot,
    badge(outcome),
    result.exit_code ? h("span", {}, `exit code ${result.exit_code}`) : null,
    figure(result.duration_ms, milliseconds, ""),
    figure(result.cpu_ms, milliseconds, "CPU"),
    figure(result.memory_used_bytes, bytes, "peak"),
    h("span", { class: "quiet wide-only" }, clock(one.created_at)),
    result.state_lost &&
      h("span", { class: "warn-text" }, "its variables were lost: the guest was restarted"),
  );
}

const figure = (value, show, unit) =>
  value === null || value === undefined
    ? null
    : h("span", { class: "quiet" }, `${show(value)}${unit ? ` ${unit}` : ""}`);

function artifacts(found, session) {
  return h(
    "div",
    { class: "artifacts" },
    found.map((one) =>
      h(
        "button",
        {
          type: "button",
          class: "chip",
          title: `${one.change}: download`,
          onclick: () => attempt(() => download(session, one.path)),
        },
        icon("file"),
        visible(one.path),
        h("small", {}, bytes(one.size)),
      ),
    ),
  );
}

/** Save a file of a session under its name. */
export async function download(session, path) {
  const response = await call(
    "GET",
    `/sessions${at(session)}/files/content?path=${encodeURIComponent(path)}`,
    { raw: true },
  );
  const link = h("a", {
    href: URL.createObjectURL(
      new Blob([await response.blob()], { type: "application/octet-stream" }),
    ),
    download: path.split("/").pop(),
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
