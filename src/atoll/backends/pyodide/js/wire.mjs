// Lines of JSON on stdin and stdout, and raw bytes in between: the driver's way to the host.

const encoder = new TextEncoder();
const NEWLINE = 10;

// What the host sends: one line at a time, or `size` bytes where a line announced them.
export class Inlet {
  #chunks = [];
  #size = 0;

  push(chunk) {
    this.#chunks.push(chunk);
    this.#size += chunk.length;
  }

  // The next line without its end, or null while it is not whole.
  line() {
    let before = 0;
    for (const chunk of this.#chunks) {
      const at = chunk.indexOf(NEWLINE);
      if (at >= 0) {
        const bytes = new Uint8Array(before + at);
        this.#take(bytes);
        this.#take(new Uint8Array(1));
        return new TextDecoder().decode(bytes);
      }
      before += chunk.length;
    }
    return null;
  }

  // Fill `bytes` from `start`; how far it is filled now.
  fill(bytes, start) {
    const length = Math.min(bytes.length - start, this.#size);
    this.#take(bytes.subarray(start, start + length));
    return start + length;
  }

  #take(target) {
    let done = 0;
    while (done < target.length) {
      const chunk = this.#chunks[0];
      const part = chunk.subarray(0, target.length - done);
      target.set(part, done);
      done += part.length;
      if (part.length === chunk.length) this.#chunks.shift();
      else this.#chunks[0] = chunk.subarray(part.length);
    }
    this.#size -= target.length;
  }
}

const stdout = Deno.stdout;

// Write one line whole; it blocks while the host does not read.
export function sendLine(text) {
  sendBytes(encoder.encode(text + "\n"));
}

export function sendBytes(bytes) {
  for (let at = 0; at < bytes.length;) at += stdout.writeSync(bytes.subarray(at));
}

// What the guest prints, as a notification; every character of `text` is a byte.
export function sendOutput(stream, text) {
  sendLine(ascii(JSON.stringify({ jsonrpc: "2.0", method: "output", params: { stream, text } })));
}

function ascii(json) {
  return json.replace(
    /[\u007f-\uffff]/g,
    (one) => "\\u" + one.charCodeAt(0).toString(16).padStart(4, "0"),
  );
}
