// Where code is typed: CodeMirror if the build had it, else a text area that knows Tab and indents.

import { h } from "./dom.js";
import { me } from "./api.js";

const INDENT = "    ";
const LABEL = "Code; Escape leaves the editor";

/** Return {element, get, set, focus}; `onrun` is called for Ctrl-Enter, Cmd-Enter and Shift-Enter. */
export async function editor({ onrun, onup, text = "" }) {
  if (me.editor) {
    try {
      return await rich({ onrun, onup, text });
    } catch (error) {
      console.warn("the editor cannot be loaded", error);
    }
  }
  return plain({ onrun, onup, text });
}

export function plain({ onrun, onup, text }) {
  const area = h("textarea", {
    class: "code-area",
    rows: 3,
    spellcheck: "false",
    autocapitalize: "off",
    autocomplete: "off",
    "aria-label": LABEL,
    placeholder: "print('hello')",
    value: text,
  });
  const size = () => {
    area.rows = Math.min(24, Math.max(3, area.value.split("\n").length));
  };
  area.addEventListener("input", size);
  area.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey || event.shiftKey)) {
      event.preventDefault();
      onrun();
    } else if (event.key === "Escape") area.blur();
    else if (event.key === "ArrowUp" && area.selectionEnd === 0 && !area.value) {
      event.preventDefault();
      onup?.();
    } else if (event.key === "Tab" && area.value) {
      event.preventDefault();
      indent(area, event.shiftKey);
    } else if (event.key === "Enter") {
      event.preventDefault();
      insert(area, `\n${nextIndent(area)}`);
    } else if (event.key === "Backspace") unindent(event, area);
    size();
  });
  size();
  return {
    element: area,
    get: () => area.value,
    set: (value) => {
      area.value = value;
      size();
    },
    focus: () => area.focus(),
  };
}

function insert(area, text) {
  area.setRangeText(text, area.selectionStart, area.selectionEnd, "end");
}

function lineBefore(area) {
  const before = area.value.slice(0, area.selectionStart);
  return before.slice(before.lastIndexOf("\n") + 1);
}

function nextIndent(area) {
  const line = lineBefore(area);
  return /^[ \t]*/.exec(line)[0] + (/:\s*(#.*)?$/.test(line) ? INDENT : "");
}

function indent(area, backwards) {
  const { selectionStart: start, selectionEnd: end, value } = area;
  if (start === end && !backwards) {
    insert(area, INDENT);
    return;
  }
  const first = value.lastIndexOf("\n", start - 1) + 1;
  const lines = value
    .slice(first, end)
    .split("\n")
    .map((line) => (backwards ? line.replace(/^ {1,4}/, "") : INDENT + line));
  area.setRangeText(lines.join("\n"), first, end, start === end ? "end" : "select");
}

function unindent(event, area) {
  const line = lineBefore(area);
  if (area.selectionStart !== area.selectionEnd || !line.endsWith(INDENT) || line.trim()) return;
  event.preventDefault();
  area.setRangeText("", area.selectionStart - INDENT.length, area.selectionStart, "end");
}

async function rich({ onrun, onup, text }) {
  const [view, state, commands, language, python, highlight, complete] = await Promise.all([
    import("./vendor/codemirror-view.js"),
    import("./vendor/codemirror-state.js"),
    import("./vendor/codemirror-commands.js"),
    import("./vendor/codemirror-language.js"),
    import("./vendor/codemirror-lang-python.js"),
    import("./vendor/lezer-highlight.js"),
    import("./vendor/codemirror-autocomplete.js"),
  ]);
  const { EditorView, keymap } = view;
  const { tags } = highlight;
  const colour = (name) => `var(--${name})`;
  const style = language.HighlightStyle.define([
    {
      tag: [
        tags.keyword,
        tags.controlKeyword,
        tags.operatorKeyword,
        tags.definitionKeyword,
        tags.moduleKeyword,
      ],
      color: colour("py-keyword"),
    },
    { tag: [tags.string, tags.special(tags.string)], color: colour("py-string") },
    { tag: tags.comment, color: colour("py-comment"), fontStyle: "italic" },
    { tag: tags.number, color: colour("py-number") },
    { tag: [tags.bool, tags.null], color: colour("py-constant") },
    {
      tag: [tags.function(tags.variableName), tags.function(tags.definition(tags.variableName))],
      color: colour("py-called"),
    },
  ]);
  const theme = EditorView.theme({
    "&": { color: colour("ink"), fontSize: "13px", backgroundColor: "transparent" },
    "&.cm-focused": { outline: "none" },
    ".cm-content": { fontFamily: colour("mono"), padding: "10px 0", caretColor: colour("accent") },
    ".cm-scroller": { lineHeight: "1.55", maxHeight: "50vh", fontFamily: colour("mono") },
    ".cm-line": { padding: "0 14px" },
    ".cm-cursor": { borderLeftColor: colour("accent"), borderLeftWidth: "2px" },
    "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": {
      background: `${colour("select")} !important`,
    },
    ".cm-placeholder": { color: colour("ink-3") },
    ".cm-matchingBracket": {
      outline: `1px solid ${colour("line-strong")}`,
      background: "none !important",
    },
    ".cm-tooltip": {
      background: colour("panel"),
      color: colour("ink"),
      border: `1px solid ${colour("line-strong")}`,
      borderRadius: "6px",
    },
    ".cm-tooltip-autocomplete > ul > li[aria-selected]": {
      background: `${colour("accent")} !important`,
      color: `${colour("accent-ink")} !important`,
    },
  });
  const run = {
    run: () => {
      onrun();
      return true;
    },
  };
  const keys = [
    { key: "Mod-Enter", ...run },
    { key: "Shift-Enter", ...run },
    {
      key: "Escape",
      run: (one) => {
        one.contentDOM.blur();
        return true;
      },
    },
    // Where there is nothing to indent, Tab goes on to the next control.
    {
      key: "Tab",
      run: (one) => one.state.doc.length > 0 && commands.indentMore(one),
      shift: (one) => one.state.doc.length > 0 && commands.indentLess(one),
    },
    {
      key: "ArrowUp",
      run: (one) => {
        if (one.state.doc.length) return false;
        onup?.();
        return true;
      },
    },
  ];
  // In a shadow root CodeMirror adopts style sheets; elsewhere it would need inline styles, which the page's policy forbids.
  const host = h("div", { class: "code-editor" });
  const root = host.attachShadow({ mode: "open" });
  const made = new EditorView({
    root,
    parent: root,
    doc: text,
    extensions: [
      state.Prec.highest(keymap.of(keys)),
      commands.history(),
      language.indentUnit.of(INDENT),
      language.indentOnInput(),
      language.bracketMatching(),
      complete.closeBrackets(),
      complete.autocompletion({ activateOnTyping: false }),
      python.python(),
      language.syntaxHighlighting(style),
      view.drawSelection(),
      view.placeholder("print('hello')"),
      theme,
      EditorView.contentAttributes.of({ "aria-label": LABEL }),
      keymap.of([
        ...complete.closeBracketsKeymap,
        ...complete.completionKeymap,
        ...commands.defaultKeymap,
        ...commands.historyKeymap,
      ]),
    ],
  });
  const set = (value) =>
    made.dispatch({
      changes: { from: 0, to: made.state.doc.length, insert: value },
      selection: { anchor: value.length },
    });
  return { element: host, get: () => made.state.doc.toString(), set, focus: () => made.focus() };
}
