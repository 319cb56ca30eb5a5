// The files of a session: folders, a look inside, upload, download, delete.

import { at, call, get, may, post, remove } from "../api.js";
import { fill, h, icon } from "../dom.js";
import { ago, bytes } from "../format.js";
import { visible } from "../highlight.js";
import {
  ask,
  attempt,
  button,
  confirm,
  empty,
  fault,
  loading,
  reachable,
  toast,
} from "../widgets.js";
import { download } from "./cells.js";

const LOOK_BYTES = 64 << 10;
const PICTURES = [
  ["image/png", [0x89, 0x50, 0x4e, 0x47]],
  ["image/jpeg", [0xff, 0xd8, 0xff]],
  ["image/gif", [0x47, 0x49, 0x46, 0x38]],
];
const MOST_PICTURE = 16 << 20;
const MOST_ROWS = 50;

export function files({ path, id, signal }) {
  let folder = ".";
  const place = h("div", {}, loading());
  const preview = h("div", { class: "preview" });
  const crumbs = h("div", { class: "path" });
  const picked = h("input", {
    type: "file",
    multiple: true,
    hidden: true,
    onchange: () => send([...picked.files]),
  });
  const content = (name) => `${path}/files/content?path=${encodeURIComponent(name)}`;

  const send = (chosen) =>
    attempt(async () => {
      for (const file of chosen) {
        await call("PUT", content(folder === "." ? file.name : `${folder}/${file.name}`), {
          body: file,
        });
        toast(`${file.name} is there now.`);
      }
      picked.value = "";
      await refresh();
    });
  const open = (to) => {
    folder = to;
    fill(preview);
    refresh();
  };
  const make = async () => {
    const name = await ask("New folder", "Name", "Make it");
    if (name)
      await attempt(async () => {
        await post(`${path}/files/mkdir`, { path: folder === "." ? name : `${folder}/${name}` });
        await refresh();
      });
  };
  const drop = async (one) => {
    if (
      !(await confirm(
        "Delete it?",
        `${one.path} is gone then${one.type === "dir" ? ", with all in it" : ""}.`,
        "Delete",
        { danger: true },
      ))
    )
      return;
    await attempt(async () => {
      await remove(`${content(one.path)}${one.type === "dir" ? "&recursive=1" : ""}`);
      fill(preview);
      await refresh();
    });
  };
  const row = (one) =>
    h(
      "div",
      {
        class: "file",
        "data-row": true,
        tabindex: "0",
        onkeydown: (event) => {
          if (event.key === "Enter" && event.target === event.currentTarget)
            event.currentTarget.querySelector("button").click();
        },
      },
      h(
        "button",
        {
          type: "button",
          class: "plain",
          onclick: () => (one.type === "dir" ? open(one.path) : look(one)),
        },
        icon(one.type === "dir" ? "folder" : "file"),
        h("span", {}, visible(baseName(one.path))),
      ),
      h(
        "small",
        {},
        one.type === "dir" ? "" : bytes(one.size),
        one.modified_at ? ` · ${ago(one.modified_at)}` : "",
      ),
      one.type === "dir"
        ? null
        : button("", () => attempt(() => download(id, one.path)), {
            kind: "ghost icon-only",
            sign: "download",
            title: "Download",
          }),
      button("", () => drop(one), { kind: "ghost icon-only", sign: "trash", title: "Delete" }),
    );

  const look = (one) =>
    attempt(async () => {
      fill(preview, h("h3", {}, visible(baseName(one.path))), loading());
      if (one.size === 0) {
        fill(
          preview,
          h("h3", {}, visible(baseName(one.path))),
          h("p", { class: "quiet" }, "The file is empty."),
        );
        return;
      }
      const read = async (range) =>
        new Uint8Array(
          await (await call("GET", content(one.path), { raw: true, range, signal })).arrayBuffer(),
        );
      let data = await read(LOOK_BYTES);
      if (pictureType(data) && data.length < one.size && one.size <= MOST_PICTURE)
        data = await read();
      fill(preview, h("h3", {}, visible(baseName(one.path))), sniffed(data, one));
      preview.scrollIntoView({ block: "nearest" });
    });
  const refresh = async () => {
    fill(crumbs, crumbsOf(folder, open));
    try {
      const found = await get(`${path}/files?path=${encodeURIComponent(folder)}`, { signal });
      const entries = found.entries.sort((a, b) =>
        a.type === b.type ? a.path.localeCompare(b.path) : a.type === "dir" ? -1 : 1,
      );
      fill(
        place,
        entries.map(row),
        found.truncated && h("p", { class: "note" }, "There are more than are shown."),
        !entries.length &&
          empty("No files here", "Drop some, or write one: open('a.txt', 'w').write('hello')"),
      );
    } catch (error) {
      fill(place, fault(error, refresh));
    }
  };
  const element = h(
    "div",
    {
      class: "files",
      ondragover: (event) => {
        event.preventDefault();
        element.classList.add("over");
      },
      ondragleave: () => element.classList.remove("over"),
      ondrop: (event) => {
        event.preventDefault();
        element.classList.remove("over");
        send([...event.dataTransfer.files]);
      },
    },
    may("files") &&
      h(
        "div",
        { class: "bar" },
        button("Upload", () => picked.click(), { sign: "upload" }),
        button("Folder", make, { sign: "plus" }),
        picked,
      ),
    crumbs,
    place,
    preview,
  );
  return { element, refresh };
}

const baseName = (path) => path.split("/").filter(Boolean).pop() ?? path;

function crumbsOf(folder, open) {
  const parts = folder === "." ? [] : folder.split("/").filter(Boolean);
  const rooted = folder.startsWith("/") ? "/" : "";
  return [
    h("button", { type: "button", class: "plain", onclick: () => open(".") }, "files"),
    parts.map((part, n) => [
      " / ",
      h(
        "button",
        {
          type: "button",
          class: "plain",
          onclick: () => open(rooted + parts.slice(0, n + 1).join("/")),
        },
        visible(part),
      ),
    ]),
  ];
}

const pictureType = (data) =>
  PICTURES.find(([, magic]) => magic.every((byte, n) => data[n] === byte))?.[0];

/** Show a file by what its bytes are, not by what its name says. SVG and HTML are shown as text. */
function sniffed(data, one) {
  const type = pictureType(data);
  if (type && data.length === one.size) {
    const address = URL.createObjectURL(new Blob([data], { type }));
    return h("img", { src: address, alt: one.path, onload: () => URL.revokeObjectURL(address) });
  }
  if (type || data.includes(0))
    return h("p", { class: "quiet" }, `Binary, ${bytes(one.size)}: download it.`);
  const text = new TextDecoder().decode(data);
  const more =
    data.length < one.size &&
    h("p", { class: "note" }, `The first ${bytes(LOOK_BYTES)} of ${bytes(one.size)}.`);
  return [
    /\.(csv|tsv)$/i.test(one.path)
      ? csv(text, one.path)
      : reachable(h("pre", {}, visible(text)), "The file"),
    more,
  ];
}

function csv(text, path) {
  const sign = /tsv$/i.test(path) ? "\t" : ",";
  const rows = text
    .split("\n")
    .filter(Boolean)
    .slice(0, MOST_ROWS)
    .map((line) =>
      [...line.matchAll(new RegExp(`(?:^|${sign})(?:"((?:[^"]|"")*)"|([^${sign}]*))`, "g"))].map(
        (match) => (match[1] ?? match[2] ?? "").replaceAll('""', '"'),
      ),
    );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" },
    h(
      "table",
      { class: "csv" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          (rows[0] ?? []).map((one) => h("th", {}, visible(one))),
        ),
      ),
      h(
        "tbody",
        {},
        rows.slice(1).map((row) =>
          h(
            "tr",
            {},
            row.map((one) => h("td", {}, visible(one))),
          ),
        ),
      ),
    ),
  );
}
