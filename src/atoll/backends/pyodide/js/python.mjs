// Starts Pyodide out of what the trusted thread has read, and the guest package in it.

import { hideRuntime, stripGlobals } from "./lockdown.mjs";
import { limitFiles } from "./quota.mjs";

const ROOT = "/opt/atoll";
const FOLDER = "/app";
const C_STACK = 320 << 10;
const NOWHERE = "https://assets.invalid/";

// Pyodide, with the guest's files in place and nothing of the guest's running.
export async function loadPython({ assets, files, wheels, env, options = {} }) {
  hideRuntime();
  const { loadPyodide } = await importText(assets.mjs);
  const { default: createPyodideModule } = await importText(assets.asm);
  serveAssets(assets);
  const python = await loadPyodide({
    indexURL: NOWHERE,
    packageBaseUrl: NOWHERE,
    lockFileContents: assets.lock,
    createPyodideModule,
    jsglobals: Object.create(null),
    stdout: () => {},
    stderr: () => {},
    env: { HOME: "/home/guest", LANG: "C.UTF-8", PYTHONHASHSEED: "0", ...env },
    ...(assets.snapshot ? { _loadSnapshot: assets.snapshot } : {}),
    ...options,
  });
  delete globalThis.fetch;
  makeFolders(python.FS);
  for (const { path, data } of files) writeFile(python.FS, path, data);
  for (const wheel of wheels) python.unpackArchive(wheel, "wheel", { extractDir: packages(python) });
  return python;
}

// The guest: a function that takes a request's line and returns the answer's.
export function startGuest(python, port, limits) {
  python.setStdin({ error: true });
  limitFiles(python.FS, limits);
  guardStack(python._module);
  const handle = boot(python, port);
  stripGlobals();
  return handle;
}

function boot(python, port) {
  const path = python.pyimport("sys").path;
  path.append(ROOT);
  const guest = python.pyimport("guest.entry.pyodide");
  path.remove(ROOT);
  return guest.boot(port, FOLDER);
}

// V8's own stack ends long before the one that Python counts on: tell Python of a shorter one, so
// that deep recursion in C is a RecursionError and not the end.
function guardStack(module) {
  const base = module._emscripten_stack_get_base();
  const thread = module._PyThreadState_Get();
  module._PyUnstable_ThreadState_SetStackProtection?.(thread, base - C_STACK, C_STACK);
}

async function importText(source) {
  const url = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  try {
    return await import(url);
  } finally {
    URL.revokeObjectURL(url);
  }
}

// Pyodide fetches what it is made of: it gets that, and nothing else.
function serveAssets({ stdlib, module }) {
  const { instantiate } = WebAssembly;
  globalThis.fetch = async (url) => {
    if (String(url).endsWith("python_stdlib.zip")) return new Response(stdlib);
    if (String(url).endsWith("pyodide.asm.wasm")) return new Response();
    throw new TypeError("there is no network here");
  };
  WebAssembly.instantiateStreaming = async (response, imports) => {
    await response;
    return { module, instance: await instantiate(module, imports) };
  };
}

function packages(python) {
  return python.pyimport("site").getsitepackages().get(0);
}

function makeFolders(FS) {
  for (const folder of [FOLDER, "/mnt", "/home/guest", "/dev/shm"]) {
    if (!FS.analyzePath(folder).exists) FS.mkdirTree(folder);
  }
  if (!FS.analyzePath("/mnt/data").exists) FS.symlink(FOLDER, "/mnt/data");
  FS.chdir(FOLDER);
}

function writeFile(FS, path, data) {
  FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
  FS.writeFile(path, data);
}
