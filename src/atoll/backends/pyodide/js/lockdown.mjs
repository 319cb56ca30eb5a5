// Takes from the global object what guest code has no use for.
// SECURITY: a second wall. The first is Deno's permission check: this thread has no permission.

const KEPT = new Set([
  "AbortController", "AbortSignal", "AggregateError", "Array", "ArrayBuffer", "Atomics", "BigInt",
  "BigInt64Array", "BigUint64Array", "Boolean", "DOMException", "DataView", "Date", "Error",
  "ErrorEvent", "EvalError", "Event", "FinalizationRegistry", "Float16Array", "Float32Array",
  "Float64Array", "Function", "Infinity", "Int16Array", "Int32Array", "Int8Array", "Intl", "Iterator",
  "JSON", "Map", "Math", "NaN", "Number", "Object", "Promise", "PromiseRejectionEvent", "Proxy",
  "RangeError", "ReferenceError", "Reflect", "RegExp", "Set", "SharedArrayBuffer", "String",
  "SuppressedError", "Symbol", "SyntaxError", "TextDecoder", "TextEncoder", "TypeError", "URIError",
  "URL", "Uint16Array", "Uint32Array", "Uint8Array", "Uint8ClampedArray", "WeakMap", "WeakRef",
  "WeakSet", "WebAssembly", "clearTimeout", "console", "constructor", "crypto", "decodeURI",
  "decodeURIComponent", "dispatchEvent", "encodeURI", "encodeURIComponent", "escape", "globalThis",
  "isFinite", "isNaN", "onmessage", "parseFloat", "parseInt", "performance", "queueMicrotask",
  "reportError", "setTimeout", "undefined", "unescape",
]);

// Before Pyodide is loaded: it is to find neither Deno nor Node, but a bare worker of a browser.
export function hideRuntime() {
  for (const name of ["process", "Deno", "Buffer", "global", "importScripts"]) {
    delete globalThis[name];
  }
  globalThis.WorkerGlobalScope ??= { [Symbol.hasInstance]: () => true };
  globalThis.location ??= { toString: () => "https://assets.invalid/" };
}

// After it: nothing is left that guest code could ask for.
export function stripGlobals() {
  for (const name of Object.getOwnPropertyNames(console)) console[name] = () => {};
  for (let at = globalThis; at && at !== Object.prototype; at = Object.getPrototypeOf(at)) {
    for (const name of Reflect.ownKeys(at)) {
      if (typeof name === "symbol" || KEPT.has(name)) continue;
      if (!Reflect.deleteProperty(at, name)) Reflect.set(at, name, undefined);
    }
  }
}
