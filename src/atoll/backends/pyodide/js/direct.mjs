// Pyodide in the main thread: nothing can interrupt it, so whoever stops it ends the process.
// SECURITY: the last permission is given back before any guest code runs.

import { closed, text } from "./port.mjs";
import { loadPython, startGuest } from "./python.mjs";
import { Inlet, sendLine, sendOutput } from "./wire.mjs";

const PIECE = 1 << 16, MAX_TAKE = 1 << 20;
const { stdin, exit, permissions } = Deno;

export async function serveDirectly(message, end) {
  permissions.revokeSync({ name: "read" });
  const host = new Host();
  const python = await loadPython(message);
  const handle = startGuest(python, makePort(host), message.limits);
  sendLine('{"jsonrpc":"2.0","method":"ready","params":{}}');
  for (;;) answer(handle, host.message(), end);
}

function answer(handle, line, end) {
  try {
    const reply = handle(line);
    if (typeof reply !== "string") throw new Error("the interpreter is dead");
    sendLine(reply);
  } catch (error) {
    end(Number(error?.status ?? -1), String(error?.message ?? error));
  }
}

// The host's lines and bytes, waited for.
class Host {
  #inlet = new Inlet();

  line() {
    for (;;) {
      const line = this.#inlet.line();
      if (line !== null) return line;
      this.#more();
    }
  }

  // The next line that is a message; bytes that nobody took are passed over.
  message() {
    for (;;) {
      const line = this.line();
      if (!line.startsWith("bytes ")) return line;
      this.bytes(Number(line.slice("bytes ".length)));
    }
  }

  bytes(size) {
    const bytes = new Uint8Array(size);
    for (let at = 0; (at = this.#inlet.fill(bytes, at)) < size;) this.#more();
    return bytes;
  }

  #more() {
    const chunk = new Uint8Array(PIECE);
    const size = stdin.readSync(chunk);
    if (size === null) exit(0);
    this.#inlet.push(chunk.subarray(0, size));
  }
}

function makePort(host) {
  const still = new Int32Array(new SharedArrayBuffer(4));
  let given = new Uint8Array();

  function take(size) {
    if (!given.length) {
      const line = host.line();
      given = host.bytes(Number(line.slice("bytes ".length)));
    }
    const part = given.subarray(0, Math.min(size, MAX_TAKE));
    given = given.subarray(part.length);
    return part;
  }

  return closed({
    call(line) {
      sendLine(line);
      return host.message();
    },
    emit(stream, data) {
      for (let at = 0; at < data.length; at += PIECE) sendOutput(stream, data.slice(at, at + PIECE));
    },
    take: (size) => text(take(size)),
    text: () => undefined, // a large text comes in pieces, as all does
    put: (data) => sendOutput(3, data),
    sleep(seconds) {
      Atomics.wait(still, 0, 0, Math.max(0, seconds * 1000));
      return false;
    },
  });
}
