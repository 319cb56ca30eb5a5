// What Deno runs: reads Pyodide and the guest's files, then stands between host and guest.
// SECURITY: in worker mode no guest code ever runs in this thread.

import { readAll } from "./assets.mjs";
import { serveDirectly } from "./direct.mjs";
import { Minder } from "./minder.mjs";
import { Inlet, sendLine } from "./wire.mjs";

const ABORTED = 134;
const { exit } = Deno;
const complain = console.error;
const settings = JSON.parse(Deno.args[0]);

const message = { ...await readAll(settings), limits: settings.limits };
if (settings.useWorker) await serveWorker();
else await serveDirectly(message, end);

async function serveWorker() {
  const minder = new Minder(new URL("./worker.mjs", import.meta.url), end);
  await minder.start(message);
  sendLine('{"jsonrpc":"2.0","method":"ready","params":{}}');
  const inlet = new Inlet(), reader = Deno.stdin.readable.getReader();
  const more = async () => {
    const { value, done } = await reader.read();
    if (done) exit(0);
    inlet.push(value);
  };
  for (;;) {
    const line = inlet.line();
    if (line === null) await more();
    else if (line === "interrupt") minder.interrupt();
    else if (!line.startsWith("bytes ")) minder.tell(line);
    else minder.give(await bytes(inlet, Number(line.slice("bytes ".length)), more));
  }
}

async function bytes(inlet, size, more) {
  const view = new Uint8Array(size);
  for (let at = 0; (at = inlet.fill(view, at)) < size;) await more();
  return view;
}

// The guest has ended itself, or cannot go on, or broke the rules.
function end(code, why) {
  if (code < 0) complain(why);
  exit(code < 0 ? ABORTED : code & 255);
}
