// Elements out of data. Text becomes text nodes and nothing else: there is no way to hand in markup.

const SVG = "http://www.w3.org/2000/svg";
const SAFE_LINK = /^(#|\/(?!\/)|blob:)/;

/** Make an element. `on*` properties are functions; other properties are attributes. */
export function h(tag, props, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) set(made, name, value);
  append(made, children);
  return made;
}

/** Make an SVG element. */
export function svg(tag, props, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props ?? {})) set(made, name, value);
  append(made, children);
  return made;
}

function set(made, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name.startsWith("on")) {
    if (typeof value !== "function") throw new TypeError(`${name} must be a function`);
    made.addEventListener(name.slice(2), value);
  } else if (name === "style") {
    for (const [rule, text] of Object.entries(value)) made.style.setProperty(rule, String(text));
  } else if (name === "value") {
    made.value = value;
  } else if ((name === "href" || name === "src") && !SAFE_LINK.test(value)) {
    throw new TypeError(`${name} must stay on this site`);
  } else {
    made.setAttribute(name, value === true ? "" : String(value));
  }
}

function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

/** Replace what an element holds. */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
  return parent;
}

/** Show items in order, keeping the element of an item that was there: focus and scroll survive.
 *  `make(item)` returns an element; its `update(item)`, if it has one, is called for news. */
export function keyed(parent, items, keyOf, make) {
  const old = new Map([...parent.children].map((one) => [one.dataset.key, one]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    let element = old.get(key);
    if (element === undefined) {
      element = make(item);
      element.dataset.key = key;
    } else {
      old.delete(key);
      element.update?.(item);
    }
    if (element === place) place = place.nextElementSibling;
    else parent.insertBefore(element, place);
  }
  for (const gone of old.values()) gone.remove();
  return parent;
}

const ICONS = {
  overview: "M2.5 9.5h3l2-6 3 10 2-4h1.5",
  sessions: "M2.5 3.5h11v9h-11zM5 6.5l2 1.75L5 10M8.5 10.5H11",
  contexts: "M3 2.5h7l3 3v8H3zM5.5 7.5h5M5.5 10h5",
  runs: "M4 3v10M4 5h5M4 8.5h5M4 12h5M11 3.5v3M11 7.5h2v2h-2zM11 11h2v2h-2zM11 3.5h2v3h-2",
  health: "M8 13.5S2.5 10 2.5 6.2A2.9 2.9 0 0 1 8 4.9a2.9 2.9 0 0 1 5.5 1.3C13.5 10 8 13.5 8 13.5z",
  keys: "M6 10a3 3 0 1 1 2.1-.9L13.5 14M11 11.5l1.5-1.5",
  operators: "M8 2.5l5 2v3.5c0 3-2.2 5-5 6-2.8-1-5-3-5-6V4.5zM6 8l1.5 1.5 3-3",
  play: "M5 3.5v9l7-4.5z",
  stop: "M4.5 4.5h7v7h-7z",
  plus: "M8 3.5v9M3.5 8h9",
  close: "M4 4l8 8M12 4l-8 8",
  fork: "M5 3.5v9M5 8c4 0 6-1 6-4.5M3.5 3.5h3M9.5 3.5h3",
  flag: "M4 13.5v-11h7.5L10 5.5l1.5 3H4",
  back: "M6.5 4L3 7.5 6.5 11M3 7.5h6a3.5 3.5 0 0 1 0 6H7",
  file: "M4 2.5h5l3 3v8H4zM9 2.5v3h3",
  folder: "M2.5 4.5h4l1.5 1.5h5.5v6.5h-11z",
  link: "M6.5 9.5l3-3M7 5l2-2a2.1 2.1 0 0 1 3 3l-2 2M9 11l-2 2a2.1 2.1 0 0 1-3-3l2-2",
  download: "M8 2.5v7M5 7l3 3 3-3M3 13h10",
  upload: "M8 10.5v-7M5 6l3-3 3 3M3 13h10",
  trash: "M3 4.5h10M6 4.5v-2h4v2M4.5 4.5l.5 9h6l.5-9",
  search: "M7 11.5a4.5 4.5 0 1 1 0-9 4.5 4.5 0 0 1 0 9zM10.5 10.5l3 3",
  copy: "M5.5 5.5h7v8h-7zM3.5 10.5v-8h7",
  sun: "M8 10.5a2.5 2.5 0 1 1 0-5 2.5 2.5 0 0 1 0 5zM8 1.5v1.5M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M12.6 3.4l-1 1M4.4 11.6l-1 1",
  out: "M6.5 2.5h-4v11h4M6 8h7.5M11 5.5L13.5 8 11 10.5",
  right: "M6 4l4 4-4 4",
  down: "M4 6l4 4 4-4",
  check: "M3.5 8.5l3 3 6-7",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
};

/** Return one of our own line icons. */
export function icon(name) {
  return svg(
    "svg",
    { class: "icon", viewBox: "0 0 16 16", "aria-hidden": "true" },
    svg("path", { d: ICONS[name] ?? ICONS.more }),
  );
}

export function logo() {
  return svg(
    "svg",
    { class: "logo", viewBox: "0 0 32 32", "aria-hidden": "true" },
    svg("path", { d: "M25.4 21.4A10.8 10.8 0 1 1 26.5 12.4" }),
    svg("circle", { cx: 27.2, cy: 17, r: 2 }),
    svg("circle", { class: "lagoon", cx: 16, cy: 16, r: 3.2 }),
  );
}
