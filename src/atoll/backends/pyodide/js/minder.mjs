// Minds the worker: hands it requests, and passes on of what it says only what is due.
// SECURITY: the worker is hostile. It may post anything, at any time; each message is checked for
// kind, type, size and moment, and the first that is not as it must be ends the process.

import { Bell, makeCells } from "./cells.mjs";
import { sendLine, sendOutput } from "./wire.mjs";

const MAX_LINE = 33 << 20, MAX_TEXT = 8 << 20, MAX_TAKE = 1 << 20;
const encoder = new TextEncoder();
const CALLS = new Set(["host.call", "host.batch"]);
const ASCII = /^[\x20-\x7e]*$/, BYTES = /^[\x00-\xff]*$/;

export class Violation extends Error {}

export class Minder {
  #worker;
  #bell;
  #cells = makeCells();
  #end;
  #ready;
  #request = null;
  #call = null;
  #take = 0;
  #inbox = [];

  constructor(url, end) {
    this.#end = end;
    this.#bell = new Bell(this.#cells);
    this.#worker = new Worker(url, { type: "module", deno: { permissions: "none" } });
    this.#worker.onmessage = ({ data }) => this.#guard(() => this.#hear(data));
    this.#worker.onmessageerror = () => this.#guard(() => violation("a message that is none"));
    this.#worker.onerror = (event) => {
      event.preventDefault();
      end(-1, event.message);
    };
  }

  start(message) {
    this.#worker.postMessage({ ...message, type: "start", cells: this.#cells });
    return new Promise((resolve) => this.#ready = resolve);
  }

  // Bytes on their way to the guest; none at their end.
  give(bytes) {
    this.#inbox.push(bytes);
    this.#serveTake();
  }

  // A line of the host's: a request, or the answer to the guest's call.
  tell(line) {
    const message = JSON.parse(line);
    if ("method" in message) this.#ask(message, line);
    else if (message.id === this.#call) this.#answer(line);
  }

  interrupt() {
    if (this.#request === null) return;
    this.#call = null;
    this.#take = 0;
    this.#bell.interrupt();
  }

  #ask(message, line) {
    this.#request = message.id;
    this.#inbox = []; // what is left belonged to another
    this.#bell.clear();
    this.#worker.postMessage({ type: "request", line });
  }

  #answer(line) {
    this.#call = null;
    this.#bell.answer(encoder.encode(line));
  }

  #serveTake() {
    if (!this.#take || !this.#inbox.length) return;
    const bytes = this.#inbox[0].subarray(0, this.#take);
    if (bytes.length === this.#inbox[0].length) this.#inbox.shift();
    else this.#inbox[0] = this.#inbox[0].subarray(bytes.length);
    this.#take = 0;
    this.#bell.answer(bytes);
  }

  #guard(work) {
    try {
      work();
    } catch (error) {
      if (!(error instanceof Violation)) throw error;
      this.#end(-1, error.message);
    }
  }

  #hear(message) {
    if (message === null || typeof message !== "object") violation("a message that is no object");
    switch (message.type) {
      case "ready":
        return this.#onReady();
      case "output":
        return this.#onOutput(message.stream, message.text);
      case "call":
        return this.#onCall(message.line);
      case "take":
        return this.#onTake(message.size);
      case "answer":
        return this.#onAnswer(message.line);
      case "end":
        return this.#onEnd(message.code, message.why);
      default:
        violation("a message of no known kind");
    }
  }

  #onEnd(code, why) {
    if (!Number.isInteger(code) || typeof why !== "string") violation("an end of no known shape");
    this.#end(code, why.slice(0, 2000));
  }

  #onReady() {
    if (!this.#ready) violation("ready twice");
    this.#ready();
    this.#ready = null;
  }

  #onOutput(stream, text) {
    if (![1, 2, 3].includes(stream)) violation("output of no stream");
    if (typeof text !== "string" || text.length > MAX_TEXT || !BYTES.test(text)) {
      violation("output that is no text");
    }
    if (this.#request === null) return this.#bell.read(text.length); // nobody asked for any
    sendOutput(stream, text);
    this.#bell.read(text.length);
  }

  #onCall(line) {
    const { id, method } = parse(line);
    if (this.#request === null || this.#call !== null || this.#take) violation("a call that is not its turn");
    if (typeof id !== "string" || !CALLS.has(method)) violation("a call of no known method");
    this.#call = id;
    sendLine(line);
  }

  #onTake(size) {
    if (this.#request === null || this.#call !== null || this.#take) {
      violation("bytes asked for out of turn");
    }
    if (!Number.isInteger(size) || size < 1) violation("bytes asked for by no number");
    this.#take = Math.min(size, MAX_TAKE);
    this.#serveTake();
  }

  #onAnswer(line) {
    const { id, method } = parse(line);
    if (this.#request === null || id !== this.#request || method !== undefined) {
      violation("an answer that nobody waits for");
    }
    this.#request = this.#call = null;
    this.#take = 0;
    sendLine(line);
  }
}

function parse(line) {
  if (typeof line !== "string" || line.length > MAX_LINE || !ASCII.test(line)) {
    violation("a line that is none");
  }
  try {
    const message = JSON.parse(line);
    if (message !== null && typeof message === "object") return message;
  } catch {
    // falls through: what is no JSON is no message
  }
  return violation("a line that is no message");
}

function violation(why) {
  throw new Violation(why);
}
