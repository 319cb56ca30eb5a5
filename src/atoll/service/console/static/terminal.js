// A terminal on the page: xterm.js, if the build had it, with the page's colours.
//
// SECURITY: what is written to it comes from a sandbox. It becomes cells of text, never markup. Titles
// and the clipboard (OSC 52) are not its to set, a link is shown and not opened, and a count in an
// escape sequence that no screen has room for is ignored: xterm would count to two billion.

import { h } from "./dom.js";
import { visible } from "./highlight.js";
import { copyButton, dialog } from "./widgets.js";

const COUNTED = [
  ...["b", "I", "L", "M", "S", "T", "Z"].map((final) => ({ final })),
  ...["}", "~"].map((final) => ({ intermediates: "'", final })),
  ...["@", "A"].map((final) => ({ intermediates: " ", final })),
];
const NAMES = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];
const SLICE = 1 << 14;

/** Stands in for the <style> elements of xterm.js, which the content security policy refuses. */
class StyleSheet extends HTMLElement {
  #sheet = new CSSStyleSheet();

  set textContent(text) {
    this.#sheet.replaceSync(text);
  }

  connectedCallback() {
    document.adoptedStyleSheets.push(this.#sheet);
  }

  disconnectedCallback() {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((one) => one !== this.#sheet);
  }
}

/** Open a terminal in an element that is on the page; `oninput` gets bytes, `onsize` rows and columns. */
export async function terminal(place, { oninput, onsize, onleave, signal }) {
  const [{ Terminal }, { FitAddon }] = await Promise.all([
    import("./vendor/xterm-xterm.js"),
    import("./vendor/xterm-addon-fit.js"),
    stylesheet(new URL("./vendor/xterm-xterm.css", import.meta.url)),
  ]);
  if (!customElements.get("atoll-style")) customElements.define("atoll-style", StyleSheet);
  const fit = new FitAddon();
  const screen = new Terminal({
    theme: theme(),
    fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"),
    fontSize: 13,
    scrollback: 5000,
    minimumContrastRatio: 4.5,
    screenReaderMode: true,
    linkHandler: { activate: (_event, address) => showLink(address), allowNonHttpProtocols: true },
  });
  screen.loadAddon(fit);
  screen.open(place);
  keepHarmless(screen);
  screen.attachCustomKeyEventHandler((event) => {
    const leaves = event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "l";
    if (leaves && event.type === "keydown") onleave();
    return !leaves;
  });
  const bytes = new TextEncoder();
  screen.onData((text) => oninput(bytes.encode(text)));
  screen.onBinary((text) => oninput(Uint8Array.from(text, (one) => one.charCodeAt(0))));
  screen.onResize(() => onsize(screen.rows, screen.cols));
  const fitted = new ResizeObserver(() => place.offsetParent && fit.fit());
  fitted.observe(place);
  fit.fit();
  const repaint = () => {
    screen.options.theme = theme();
  };
  const themes = new MutationObserver(repaint);
  themes.observe(document.documentElement, { attributeFilter: ["data-theme"] });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", repaint);
  signal.addEventListener("abort", () => {
    for (const observer of [fitted, themes]) observer.disconnect();
    dark.removeEventListener("change", repaint);
    screen.dispose();
  });
  return {
    size: () => ({ rows: screen.rows, cols: screen.cols }),
    focus: () => screen.focus(),
    /** Show bytes or text; resolves when they are on the screen, so that a flood waits. */
    write: async (data) => {
      for (let at = 0; at < data.length && !signal.aborted; at += SLICE)
        await new Promise((resolve) => screen.write(data.slice(at, at + SLICE), resolve));
    },
  };
}

function keepHarmless(screen) {
  for (const sequence of COUNTED)
    screen.parser.registerCsiHandler(
      sequence,
      ([count]) => count > Math.max(screen.rows, screen.cols),
    );
  for (const number of [0, 1, 2, 52]) screen.parser.registerOscHandler(number, () => true);
}

function showLink(address) {
  dialog("A link of the sandbox", () =>
    h(
      "div",
      { class: "body" },
      h("p", {}, "It is not opened. Copy its address, if you trust the program that printed it:"),
      h(
        "div",
        { class: "commands" },
        h("div", {}, h("code", {}, visible(address)), copyButton(address)),
      ),
    ),
  );
}

/** The page's colours, as xterm.js reads them: computed ones. */
function theme() {
  const probe = document.body.appendChild(h("i", { hidden: true }));
  const colour = (name) => {
    probe.style.color = `var(--${name})`;
    return getComputedStyle(probe).color;
  };
  const found = {
    background: colour("panel"),
    foreground: colour("ink"),
    cursor: colour("accent"),
    cursorAccent: colour("panel"),
    selectionBackground: colour("select"),
  };
  for (const name of NAMES) {
    found[name] = colour(`term-${name}`);
    found[`bright${name[0].toUpperCase()}${name.slice(1)}`] = colour(`term-bright-${name}`);
  }
  probe.remove();
  return found;
}

function stylesheet(address) {
  if (document.querySelector(`link[href="${address.pathname}"]`)) return null;
  const link = h("link", { rel: "stylesheet", href: address.pathname });
  const loaded = new Promise((resolve, reject) => {
    link.onload = resolve;
    link.onerror = () => reject(new Error("the terminal's styles cannot be loaded"));
  });
  document.head.append(link);
  return loaded;
}
