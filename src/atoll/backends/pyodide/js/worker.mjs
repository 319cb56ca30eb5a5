// The thread that guest code runs in. It has no permissions, and nobody believes what it says.
// Everything in here is within reach of guest code in the worst case.

import { ANSWERED, LENGTH, STATE, UNREAD, WAITING } from "./cells.mjs";
import { closed, text } from "./port.mjs";
import { loadPython, startGuest } from "./python.mjs";

const MOST_UNREAD = 1 << 20, PIECE = 1 << 18;
const post = self.postMessage.bind(self);
const { add, exchange, load, store, wait } = Atomics;
let handle;

// What the guest package is given to speak to the world by.
function makePort(python, cells) {
  const interrupt = new Int32Array(cells.interrupt), control = new Int32Array(cells.control);

  // Say something and wait for the answer; null if an interrupt came instead.
  function ask(message) {
    store(control, STATE, WAITING);
    if (load(interrupt, 0)) return interrupted();
    post(message);
    wait(control, STATE, WAITING);
    if (load(control, STATE) !== ANSWERED) return interrupted();
    return new Uint8Array(cells.answer, 0, load(control, LENGTH)).slice();
  }

  function interrupted() {
    store(interrupt, 0, 0); // it has been heard
    return null;
  }

  function emit(stream, data) {
    for (let at = 0; at < data.length; at += PIECE) emitPiece(stream, data.slice(at, at + PIECE));
  }

  function emitPiece(stream, piece) {
    const unread = add(control, UNREAD, piece.length) + piece.length;
    post({ type: "output", stream, text: piece });
    if (unread > MOST_UNREAD) wait(control, UNREAD, unread);
  }

  return closed({
    call: (line) => text(ask({ type: "call", line })),
    emit: (stream, data) => emit(stream, data),
    take: (size) => text(ask({ type: "take", size })),
    text: () => undefined, // a large text comes in pieces, as all does
    put: (data) => emit(3, data),
    sleep(seconds) {
      const cell = wait(interrupt, 0, 0, Math.max(0, seconds * 1000));
      if (cell === "timed-out") return false;
      interrupted();
      return true;
    },
  });
}

// The shared buffer as Pyodide looks at it: it reads and then clears, and an interrupt that is
// written in between would be lost. Here reading is clearing.
function atomicView(buffer) {
  const cell = new Int32Array(buffer);
  return Object.freeze(
    Object.defineProperty({}, 0, { get: () => exchange(cell, 0, 0), set: () => {} }),
  );
}

async function start(message) {
  const python = await loadPython(message);
  python.setInterruptBuffer(atomicView(message.cells.interrupt));
  handle = startGuest(python, makePort(python, message.cells), message.limits);
  post({ type: "ready" });
}

function serve(line) {
  try {
    const answer = handle(line);
    if (typeof answer !== "string") throw new Error("the interpreter is dead");
    post({ type: "answer", line: answer });
  } catch (error) {
    post({ type: "end", code: Number(error?.status ?? -1), why: String(error?.message ?? error) });
  }
}

self.addEventListener("message", ({ data }) => {
  if (data.type === "request") serve(data.line);
  else if (data.type === "start") {
    start(data).catch((error) => post({ type: "end", code: -1, why: String(error?.stack) }));
  }
});
