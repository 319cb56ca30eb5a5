// Requests of the console. The cookie is the browser's; the token, kept for this origin, goes along in a header.

const TOKEN = "atoll.token";
const RETRY_MS = [250, 500, 1000, 2000, 4000];
export const bus = new EventTarget();
export const me = { tenant: "", key: "", scopes: [], editor: false, terminal: false, version: "" };

/** What the service answered instead of doing it: status, code, and a detail in words. */
export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `the service answered ${status}`);
    Object.assign(this, { status, code: body.code ?? "", request: body.request_id ?? "" });
  }
}

/** Send a request; return JSON, or a Response with `raw`. Paths are below /api/v1. */
export async function call(method, path, { body, raw, accept, range, signal, type } = {}) {
  const headers = { "x-atoll-csrf": localStorage.getItem(TOKEN) ?? "" };
  if (accept) headers.accept = accept;
  if (range) headers.range = `bytes=0-${range - 1}`;
  const binary = body instanceof Blob || body instanceof ArrayBuffer || typeof body === "string";
  if (body !== undefined)
    headers["content-type"] = type ?? (binary ? "application/octet-stream" : "application/json");
  const full = path.startsWith("/console") || path.startsWith("/health") ? path : `/api/v1${path}`;
  let response;
  try {
    response = await fetch(full, {
      method,
      headers,
      signal,
      credentials: "same-origin",
      body: body === undefined || binary ? body : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, {
      detail: "The service cannot be reached. Is `atoll serve` still running?",
      code: "unreachable",
    });
  }
  if (!response.ok && !(response.status === 503 && path.startsWith("/health")))
    throw await problem(response);
  if (raw) return response;
  return response.status === 204 ? null : response.json();
}

async function problem(response) {
  let body = {};
  try {
    body = await response.json();
  } catch {
    /* an answer that is no JSON is told by its status */
  }
  if (response.status === 401) bus.dispatchEvent(new Event("signedout"));
  return new Problem(response.status, body);
}

export const get = (path, options) => call("GET", path, options);
export const post = (path, body, options) => call("POST", path, { body: body ?? {}, ...options });
export const remove = (path, options) => call("DELETE", path, options);
export const may = (scope) => me.scopes.includes(scope);
export const at = (...parts) => parts.map((one) => `/${encodeURIComponent(one)}`).join("");

/** Yield events, one JSON object a line. A broken connection goes on after the last number, or at
 *  what `path` returns then, if it is a function. */
export async function* events(path, { after = 0, last = ["result", "fault", "end"], signal } = {}) {
  for (let failures = 0; ;) {
    try {
      const joined =
        typeof path === "function"
          ? path()
          : `${path}${path.includes("?") ? "&" : "?"}after=${after}`;
      const response = await call("GET", joined, {
        raw: true,
        accept: "application/x-ndjson",
        signal,
      });
      for await (const event of lines(response.body)) {
        failures = 0;
        if (event.seq) after = event.seq;
        if (event.type === "keepalive") continue;
        yield event;
        if (last.includes(event.type)) return;
      }
      return;
    } catch (error) {
      if (signal?.aborted || (error instanceof Problem && error.status !== 0 && error.status < 500))
        throw error;
      if (failures >= RETRY_MS.length) throw error;
      await pause(RETRY_MS[failures++], signal);
    }
  }
}

async function* lines(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const line of parts) if (line.trim()) yield JSON.parse(line);
  }
  if (rest.trim()) yield JSON.parse(rest);
}

export function pause(time, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, time);
    signal?.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        reject(new DOMException("left", "AbortError"));
      },
      { once: true },
    );
  });
}

/** Do something now and again until the page is left; a fault is told to `onfault` and it goes on. */
export async function every(time, work, signal, onfault = () => {}) {
  while (!signal.aborted) {
    try {
      await work();
    } catch (error) {
      if (signal.aborted) return;
      onfault(error);
    }
    try {
      await pause(document.hidden ? time * 5 : time, signal);
    } catch {
      return;
    }
  }
}

export async function signIn(given) {
  const answer = await post("/console/login", given);
  localStorage.setItem(TOKEN, answer.token);
  Object.assign(me, answer, { token: undefined });
}

export async function whoAmI() {
  if (!localStorage.getItem(TOKEN)) return false;
  try {
    Object.assign(me, await get("/console/me"));
    return true;
  } catch (error) {
    if (error.status === 401) return false;
    throw error;
  }
}

export async function signOut() {
  try {
    await post("/console/logout");
  } finally {
    localStorage.removeItem(TOKEN);
    bus.dispatchEvent(new Event("signedout"));
  }
}
