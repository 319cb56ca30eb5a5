// The terminals of a session: shells beside its cells, which run on when the page is left.

import { call, events, get, may, me, pause, post } from "../api.js";
import { fill, h } from "../dom.js";
import { terminal } from "../terminal.js";
import { attempt, button, empty, fault } from "../widgets.js";

const MISSING = "This build has none: npm was not reached. Type: python tools/vendor_console.py";
const INPUT_BYTES = 1 << 16;
const PAUSE_MS = 30; // what is typed meanwhile is one request
const AGAIN_MS = 300;

export function terminals({ path, signal }, onleave) {
  const bar = h("div", { class: "bar", role: "group", "aria-label": "Terminals" });
  const place = h("div", { class: "screen" });
  const told = h("p", { class: "quiet", role: "status" });
  const help = h("small", {}, h("kbd", {}, "Ctrl Shift L"), " leaves the terminal");
  let [shown, leaving] = [null, new AbortController()];
  signal.addEventListener("abort", () => leaving.abort());

  const list = async () => {
    const found = await get(`${path}/processes`, { signal });
    return found.items.filter((one) => one.pty && one.running);
  };
  const refresh = async () => {
    const running = await list();
    fill(
      bar,
      running.map((one) =>
        h(
          "button",
          {
            type: "button",
            class: "small",
            "aria-pressed": String(one.id === shown?.process),
            onclick: () => attempt(() => open(one)),
          },
          `Terminal ${one.id}`,
        ),
      ),
      button("New", () => attempt(() => open(null)), { kind: "quiet small", sign: "plus" }),
      h("span", { class: "grow" }),
      help,
      shown &&
        button("End", () => attempt(end), {
          kind: "quiet small",
          sign: "close",
          title: "Kill this shell",
        }),
    );
    return running;
  };
  const end = () => post(`${path}/processes/${shown.process}/signal`, { signal: "SIGKILL" });

  /** Show a terminal that runs, or a new one. */
  const open = async (one) => {
    leaving.abort();
    leaving = new AbortController();
    const mine = leaving.signal;
    fill(place);
    fill(told);
    const own = connection(path, mine, one !== null);
    const screen = await terminal(place, {
      oninput: own.input,
      onsize: own.resize,
      onleave,
      signal: mine,
    });
    const started =
      one ??
      (await post(`${path}/processes`, {
        env: { COLORTERM: "truecolor" },
        pty: screen.size(),
      }));
    if (mine.aborted) return;
    shown = own;
    own.process = started.id;
    own.resize(...Object.values(screen.size()));
    await refresh();
    screen.focus();
    own.follow(screen).then(
      async (words) => {
        if (mine.aborted) return;
        fill(told, words);
        shown = null;
        await refresh();
      },
      (error) =>
        !mine.aborted &&
        fill(
          told,
          fault(error, () => open(one)),
        ),
    );
  };

  return {
    element: h("section", { class: "terminals", "aria-label": "Terminals" }, bar, place, told),
    /** Show the last terminal that runs; the first time there is one to start. */
    show: () =>
      attempt(async () => {
        if (!me.terminal) return fill(place, empty("No terminal", MISSING));
        if (!may("execute")) return fill(place, empty("No terminal", "This key runs no programs."));
        const running = await refresh();
        return shown ? place.querySelector("textarea")?.focus() : open(running.at(-1) ?? null);
      }),
  };
}

/** What is between a terminal on the page and its process: output from where it was, input in order. */
function connection(path, signal, again) {
  let [waiting, sending, silent, size] = [[], false, again, null];
  const own = {
    process: null,
    input: (bytes) => {
      if (silent) return; // the answer to a question in output that is shown again
      waiting.push(bytes);
      if (!sending) send();
    },
    resize: async (rows, cols) => {
      size = { rows, cols };
      await pause(50, signal).catch(() => {});
      if (own.process && size?.rows === rows && size.cols === cols && !signal.aborted)
        await attempt(() => post(`${path}/processes/${own.process}/resize`, size, { signal }));
    },
    follow: async (screen) => {
      const at = `${path}/processes/${own.process}`;
      const old = await get(`${at}/output?err=none`, { signal });
      await screen.write(Uint8Array.from(atob(old.stdout), (one) => one.charCodeAt(0)));
      [silent, own.at] = [false, old.stdout_end];
      const where = () => `${at}/events?out=${own.at}&err=none`;
      for await (const event of events(where, { last: ["exited", "fault"], signal })) {
        if (event.type === "stdout") {
          await screen.write(event.text);
          own.at = event.offset;
        } else if (event.type === "exited") return `It has ended with ${event.exit_code}.`;
        else if (event.type === "fault") return event.problem.detail;
      }
      return "It has ended.";
    },
  };
  /** Send what was typed, in order; a request that the service is too busy for is sent again. */
  const send = async () => {
    sending = true;
    while (waiting.length && !signal.aborted) {
      const bytes = new Uint8Array(await new Blob(waiting.splice(0)).arrayBuffer());
      try {
        const body = bytes.slice(0, INPUT_BYTES).buffer;
        const place = `${path}/processes/${own.process}/input`;
        const { written } = await call("POST", place, { body, signal });
        if (written < bytes.length) waiting.unshift(bytes.slice(written));
        await pause(PAUSE_MS, signal);
      } catch (error) {
        if (![0, 429, 503].includes(error.status)) {
          await attempt(() => Promise.reject(error));
          continue;
        }
        waiting.unshift(bytes);
        await pause(AGAIN_MS, signal).catch(() => {});
      }
    }
    sending = false;
  };
  return own;
}
