// Parts of the port that both kinds of threads give to the guest package.

const decoder = new TextDecoder();
const PIECE = 8192;

// Bytes as text, a character each; nothing for none.
export function text(bytes) {
  if (bytes === null) return "";
  if (isAscii(bytes)) return decoder.decode(bytes);
  let whole = "";
  for (let at = 0; at < bytes.length; at += PIECE) {
    whole += String.fromCharCode.apply(null, bytes.subarray(at, at + PIECE));
  }
  return whole;
}

function isAscii(bytes) {
  const words = new Uint32Array(bytes.buffer, bytes.byteOffset & ~3, bytes.length >> 2);
  return !words.some((word) => word & 0x80808080) &&
    !bytes.subarray(words.length * 4).some((byte) => byte & 0x80);
}

// Functions that lead nowhere: without prototypes there is no way to a constructor.
export function closed(functions) {
  for (const one of Object.values(functions)) Object.setPrototypeOf(one, null);
  return Object.freeze(Object.assign(Object.create(null), functions));
}
