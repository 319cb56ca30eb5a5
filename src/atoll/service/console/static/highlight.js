// Colours for code that is only read, and for what programs print: classes on spans, never markup.

import { h } from "./dom.js";

const PYTHON =
  /(?<comment>#[^\n]*)|(?<string>(?:\b[rbfuRBFU]{1,2})?(?:"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?))|(?<number>\b\d[\w.]*)|(?<keyword>\b(?:and|as|assert|async|await|break|class|continue|def|del|elif|else|except|finally|for|from|global|if|import|in|is|lambda|nonlocal|not|or|pass|raise|return|try|while|with|yield|match|case)\b)|(?<constant>\b(?:True|False|None)\b)|(?<called>\b[A-Za-z_]\w*(?=\())/g;
const LONGEST = 100_000;

/** Return Python with colours. */
export function python(code) {
  const shown = h("code", { class: "python" });
  if (code.length > LONGEST) {
    shown.append(code);
    return shown;
  }
  let done = 0;
  for (const match of code.matchAll(PYTHON)) {
    if (match.index > done) shown.append(code.slice(done, match.index));
    const kind = Object.keys(match.groups).find((name) => match.groups[name] !== undefined);
    shown.append(h("span", { class: `py-${kind}` }, match[0]));
    done = match.index + match[0].length;
  }
  shown.append(code.slice(done));
  return shown;
}

const ESCAPE = /\x1b\[([\d;]*)m/g;
const OTHER_ESCAPES = /\x1b(?:\[[\d;?]*[A-Za-ln-z]|\][^\x07\x1b]*(?:\x07|\x1b\\))/g;
// Control characters, and those that turn the direction of text or hide it.
const HIDDEN =
  /[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g;

/** Write out characters that cannot be seen: \x07, \u202e. */
export function visible(text) {
  return text.replace(HIDDEN, (sign) => {
    const code = sign.charCodeAt(0);
    return code < 256
      ? `\\x${code.toString(16).padStart(2, "0")}`
      : `\\u${code.toString(16).padStart(4, "0")}`;
  });
}

/** Append what a program printed: colours of ANSI become classes, a carriage return starts its line anew. */
export function output(parent, text, styles = new Set()) {
  let done = 0;
  const plain = text.replace(OTHER_ESCAPES, "");
  const put = (part) => {
    if (!part) return;
    const shown = visible(overwritten(part));
    parent.append(styles.size ? h("span", { class: [...styles].join(" ") }, shown) : shown);
  };
  for (const match of plain.matchAll(ESCAPE)) {
    put(plain.slice(done, match.index));
    restyle(styles, match[1]);
    done = match.index + match[0].length;
  }
  put(plain.slice(done));
  return styles;
}

function overwritten(text) {
  if (!text.includes("\r")) return text;
  return text
    .split("\n")
    .map((line) => {
      const ended = line.endsWith("\r") ? line.slice(0, -1) : line;
      return ended.slice(ended.lastIndexOf("\r") + 1);
    })
    .join("\n");
}

function restyle(styles, codes) {
  for (const code of (codes || "0").split(";").map(Number)) {
    if (code === 0) styles.clear();
    else if (code === 1) styles.add("ansi-bold");
    else if (code === 22) styles.delete("ansi-bold");
    else if ((code >= 30 && code <= 37) || (code >= 90 && code <= 97) || code === 39) {
      for (const one of styles) if (one.startsWith("ansi-c")) styles.delete(one);
      if (code !== 39) styles.add(`ansi-c${code % 10}`);
    }
  }
}
