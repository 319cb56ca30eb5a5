// The frame around all pages: signing in, where we are, what keys do, light and dark.

import { bus, me, signIn, signOut, whoAmI } from "./api.js";
import { fill, h, icon, logo } from "./dom.js";
import { openPalette, openHelp } from "./palette.js";
import { button, fault, field, loading, toast } from "./widgets.js";

const PAGES = [
  { path: "overview", title: "Overview", key: "o", load: () => import("./pages/overview.js") },
  {
    path: "sessions",
    title: "Sessions",
    key: "s",
    load: () => import("./pages/sessions.js"),
    one: () => import("./pages/session.js"),
  },
  {
    path: "contexts",
    title: "Contexts",
    key: "c",
    load: () => import("./pages/contexts.js"),
    one: () => import("./pages/context.js"),
  },
  {
    path: "runs",
    title: "Runs",
    key: "r",
    load: () => import("./pages/runs.js"),
    one: () => import("./pages/run.js"),
  },
  { path: "health", title: "Health", key: "h", load: () => import("./pages/health.js") },
  { path: "keys", title: "Keys", key: "k", load: () => import("./pages/keys.js"), admin: true },
  {
    path: "operators",
    title: "Operators",
    key: "p",
    load: () => import("./pages/operators.js"),
    admin: true,
  },
];
const THEME = "atoll.theme";
const place = h("main", { id: "main", tabindex: "-1" });
let leaving = new AbortController();
let shortcuts = {};
let waitingForPage = 0;

export const go = (where) => {
  location.hash = `#/${where}`;
};

async function start() {
  document.documentElement.dataset.theme = localStorage.getItem(THEME) ?? "auto";
  addEventListener("hashchange", () => {
    if (!takeLink()) show();
  });
  addEventListener("keydown", onKey);
  bus.addEventListener("signedout", () => {
    if (!document.querySelector(".sign-in")) showSignIn();
  });
  bus.addEventListener("palette", palette);
  if (takeLink()) return;
  try {
    if (!(await whoAmI())) showSignIn();
    else enter();
  } catch (error) {
    fill(
      document.body,
      h(
        "main",
        { class: "sign-in" },
        fault(error, () => location.reload()),
      ),
    );
  }
}

/** Sign in with the secret in the address, which is not sent to the service and not kept. */
function takeLink() {
  const secret = /^#login=([\w-]{43})$/.exec(location.hash)?.[1];
  if (!secret) return false;
  history.replaceState(null, "", "/console");
  signIn({ link: secret }).then(enter, async (error) =>
    (await whoAmI().catch(() => false)) ? enter() : showSignIn(error),
  );
  return true;
}

function enter() {
  fill(
    document.body,
    h(
      "a",
      {
        class: "skip",
        href: "#main",
        onclick: (event) => {
          event.preventDefault();
          place.focus();
        },
      },
      "Skip to the page",
    ),
    rail(),
    place,
  );
  show();
}

const mayOpen = (page) => !page.admin || me.scopes.includes("admin");

function rail() {
  const links = PAGES.filter(mayOpen).map((page) =>
    h(
      "a",
      { href: `#/${page.path}`, "data-path": page.path },
      icon(page.path),
      h("span", {}, page.title),
      h("kbd", {}, `g ${page.key}`),
    ),
  );
  return h(
    "nav",
    { class: "rail", "aria-label": "Pages" },
    h("a", { class: "brand", href: "#/overview" }, logo(), h("span", {}, "Atoll")),
    h(
      "button",
      { type: "button", class: "find", onclick: palette },
      icon("search"),
      h("span", {}, "Go to, or do"),
      h("kbd", {}, "Ctrl K"),
    ),
    h(
      "div",
      { class: "links" },
      links,
      h(
        "button",
        { type: "button", class: "more", onclick: palette },
        icon("more"),
        h("span", {}, "More"),
      ),
    ),
    h(
      "div",
      { class: "who" },
      h("div", {}, h("strong", {}, me.tenant), h("small", {}, `key ${me.key}`)),
      button("", toggleTheme, { kind: "ghost icon-only", sign: "sun", title: "Light or dark" }),
      button("", signOut, { kind: "ghost icon-only", sign: "out", title: "Sign out" }),
    ),
  );
}

async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(safeDecode);
  const page = PAGES.find((one) => one.path === name) ?? PAGES[0];
  for (const link of document.querySelectorAll(".rail .links a"))
    link.toggleAttribute("aria-current", link.dataset.path === page.path);
  shortcuts = {};
  document.title = `${page.title} · Atoll`;
  fill(place, loading());
  scrollTo(0, 0);
  const head = {
    title: (text) => {
      document.title = `${text} · Atoll`;
    },
    keys: (more) => {
      shortcuts = more;
    },
  };
  try {
    const module = rest.length && page.one ? await page.one() : await page.load();
    if (signal.aborted) return;
    await module.show(place, {
      id: rest[0],
      query: new URLSearchParams(query ?? ""),
      signal,
      go,
      ...head,
    });
  } catch (error) {
    if (!signal.aborted)
      fill(
        place,
        h("header", { class: "head" }, h("h1", {}, page.title)),
        fault(error, show),
        h("a", { class: "button", href: `#/${page.path}` }, `All ${page.title.toLowerCase()}`),
      );
  }
}

function safeDecode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function palette() {
  const todo = PAGES.filter(mayOpen).map((page) => ({
    title: page.title,
    hint: `g ${page.key}`,
    sign: page.path,
    run: () => go(page.path),
  }));
  todo.push({ title: "New session", hint: "n", sign: "plus", run: () => go("sessions?new=1") });
  for (const [key, one] of Object.entries(shortcuts))
    if (one.title)
      todo.push({ title: one.title, hint: key, sign: one.sign ?? "right", run: one.run });
  todo.push(
    { title: "Light or dark", sign: "sun", run: toggleTheme },
    { title: "Keyboard", hint: "?", sign: "more", run: help },
    { title: "Sign out", sign: "out", run: signOut },
  );
  openPalette(todo, go);
}

const help = () => openHelp(PAGES, shortcuts);

function onKey(event) {
  if (!document.querySelector(".rail")) return;
  if (event.composedPath()[0].closest?.(".xterm")) return; // its keys are the program's
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    palette();
    return;
  }
  const typing = event
    .composedPath()[0]
    .closest?.("input, textarea, select, [contenteditable=true]");
  if (
    typing ||
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    document.querySelector("dialog[open]")
  )
    return;
  if (Date.now() < waitingForPage) {
    waitingForPage = 0;
    const page = PAGES.find((one) => one.key === event.key);
    if (page) {
      event.preventDefault();
      go(page.path);
      return;
    }
  }
  const own = shortcuts[event.key];
  if (own) {
    event.preventDefault();
    own.run();
  } else if (event.key === "g") waitingForPage = Date.now() + 1500;
  else if (event.key === "?") help();
  else if (event.key === "n") go("sessions?new=1");
  else if (event.key === "/") {
    event.preventDefault();
    document.querySelector("main input[type=search]")?.focus();
  } else if (event.key === "j" || event.key === "k") moveInList(event.key === "j" ? 1 : -1);
}

/** Move the focus between rows of the page's list. */
function moveInList(step) {
  const rows = [...place.querySelectorAll("[data-row]")].filter((one) => one.offsetParent);
  const now = rows.indexOf(document.activeElement?.closest("[data-row]"));
  rows[Math.max(0, Math.min(rows.length - 1, now + step))]?.focus();
}

function toggleTheme() {
  const dark =
    getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem(THEME, document.documentElement.dataset.theme);
}

function showSignIn(error = null) {
  leaving.abort();
  const input = h("input", {
    type: "password",
    autocomplete: "current-password",
    name: "key",
    placeholder: "atl_…",
    autofocus: true,
    required: true,
  });
  const told = h("div", { class: "told" }, error && fault(error));
  const submit = async (event) => {
    event.preventDefault();
    try {
      await signIn({ key: input.value });
      enter();
    } catch (failure) {
      fill(told, fault(failure));
      input.select();
    }
  };
  fill(
    document.body,
    h(
      "main",
      { class: "sign-in" },
      h(
        "form",
        { onsubmit: submit },
        logo(),
        h("h1", {}, "Atoll"),
        h("p", {}, "Sign in with a key of this service."),
        field("Key", input),
        told,
        h("button", { class: "primary wide" }, "Sign in"),
        h(
          "p",
          { class: "hint" },
          "No key? On the machine that serves, type ",
          h("code", {}, "atoll keys add me"),
          ".",
        ),
      ),
    ),
  );
  input.focus();
}

// Requests of a page that was left end so; everything else is told.
addEventListener("unhandledrejection", (event) => {
  event.preventDefault();
  if (event.reason?.name !== "AbortError")
    toast(event.reason?.message ?? "Something failed", "bad");
});
start();
