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
  return [...Deno.readDirSync(source)]
    .filter(({ name, isFile }) => isFile && name.endsWith(".py"))
    .map(({ name }) => ({
      path: `${target}/${name}`,
      data: Deno.readFileSync(`${source}/${name}`),
    }));
}
