// Writes a memory image of Pyodide with the guest package and usual modules imported.
// No guest code runs here.

import { readAll } from "./assets.mjs";
import { loadPython } from "./python.mjs";

const settings = JSON.parse(Deno.args[0]);
const { writeFileSync, exit } = Deno;
const python = await loadPython({
  ...await readAll(settings),
  env: {},
  options: { _makeSnapshot: true },
});
python.runPython(settings.warmUp);
writeFileSync(settings.target, python.makeMemorySnapshot());
exit(0);
