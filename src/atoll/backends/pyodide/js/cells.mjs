// The memory that driver and worker share: an answer on its way, an interrupt, output not yet read.

export const WAITING = 0, ANSWERED = 1, INTERRUPTED = 2;
export const SIGINT = 2;
export const STATE = 0, LENGTH = 1, UNREAD = 2;
const MAX_ANSWER = 64 << 20;

export function makeCells() {
  return {
    interrupt: new SharedArrayBuffer(4),
    control: new SharedArrayBuffer(12),
    answer: new SharedArrayBuffer(1 << 16, { maxByteLength: MAX_ANSWER }),
  };
}

// The driver's side.
export class Bell {
  #interrupt;
  #control;
  #answer;

  constructor({ interrupt, control, answer }) {
    this.#interrupt = new Int32Array(interrupt);
    this.#control = new Int32Array(control);
    this.#answer = answer;
  }

  clear() {
    Atomics.store(this.#interrupt, 0, 0);
  }

  // SIGINT in the buffer that Pyodide looks at; whoever waits is woken to look.
  interrupt() {
    Atomics.store(this.#interrupt, 0, SIGINT);
    Atomics.notify(this.#interrupt, 0);
    this.#wake(INTERRUPTED);
  }

  answer(bytes) {
    if (bytes.length > this.#answer.byteLength) this.#answer.grow(bytes.length);
    new Uint8Array(this.#answer).set(bytes);
    Atomics.store(this.#control, LENGTH, bytes.length);
    this.#wake(ANSWERED);
  }

  // So many characters of output have gone to the host.
  read(count) {
    Atomics.sub(this.#control, UNREAD, count);
    Atomics.notify(this.#control, UNREAD);
  }

  #wake(state) {
    Atomics.store(this.#control, STATE, state);
    Atomics.notify(this.#control, STATE);
  }
}
