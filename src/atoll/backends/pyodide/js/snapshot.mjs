// Writes a memory image of Pyodide, with the guest package and usual modules imported, to stdout.
// No guest code runs here; but Pyodide may be anybody's, so it gets no permission.

import { readAll } from "./assets.mjs";
import { loadPython } from "./python.mjs";
import { sendBytes } from "./wire.mjs";

const { args, exit, permissions } = Deno;
console.log = console.info = console.debug = console.error;
const settings = JSON.parse(args[0]);
const assets = await readAll(settings);
permissions.revokeSync({ name: "read" });
const python = await loadPython({ ...assets, env: {}, options: { _makeSnapshot: true } });
python.runPython(settings.warmUp);
const image = python.makeMemorySnapshot();
sendBytes(new TextEncoder().encode(`${image.length}\n`));
sendBytes(image);
exit(0);
