// Reads what Pyodide and the guest are made of, for a thread that may read nothing itself.

export async function readAll({ pyodide, snapshot, folders, wheels }) {
  const module = WebAssembly.compile(Deno.readFileSync(`${pyodide}/pyodide.asm.wasm`));
  return {
    assets: {
      mjs: Deno.readTextFileSync(`${pyodide}/pyodide.mjs`),
      asm: Deno.readTextFileSync(`${pyodide}/pyodide.asm.mjs`),
      lock: Deno.readTextFileSync(`${pyodide}/pyodide-lock.json`),
      stdlib: Deno.readFileSync(`${pyodide}/python_stdlib.zip`),
      snapshot: snapshot ? Deno.readFileSync(snapshot) : null,
      module: await module,
    },
    files: folders.flatMap(({ source, target }) => readFolder(source, target)),
    wheels: wheels.map((path) => Deno.readFileSync(path)),
  };
}

function readFolder(source, target) {
  return [...Deno.readDirSync(source)].flatMap(({ name, isFile, isDirectory }) => {
    const [from, to] = [`${source}/${name}`, `${target}/${name}`];
    if (isDirectory) return name === "__pycache__" ? [] : readFolder(from, to);
    return isFile && name.endsWith(".py") ? [{ path: to, data: Deno.readFileSync(from) }] : [];
  });
}
