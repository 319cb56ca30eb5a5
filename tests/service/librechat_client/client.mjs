// Drives the published `@librechat/agents` package, unmodified, and prints what each call gave.
// Arguments: the package's folder, the base URL; the headers are JSON in ATOLL_HEADERS.
import { createRequire } from 'node:module';

const [folder, baseUrl] = process.argv.slice(2);
const require = createRequire(folder + '/');
const agents = require('@librechat/agents');
const { tool } = require('@langchain/core/tools');
const authHeaders = JSON.parse(process.env.ATOLL_HEADERS ?? '{}');
const said = {};

async function say(name, work) {
  try {
    said[name] = await work();
  } catch (error) {
    said[name] = { error: error.message };
  }
}

const run = agents.createCodeExecutionTool({ baseUrl, authHeaders });
const invoke = (made, args, more = {}) =>
  made.invoke({ id: 'c1', name: made.name, type: 'tool_call', args, ...more })
    .then((message) => ({ content: message.content, artifact: message.artifact }));

const calls = [];
const add = tool(async ({ a, b }) => { calls.push([a, b]); return a + b; }, {
  name: 'add-numbers', description: 'Adds.',
  schema: { type: 'object', properties: { a: { type: 'number' }, b: { type: 'number' } }, required: ['a', 'b'] },
});
const fail = tool(async () => { throw new Error('not today'); }, {
  name: 'fail', description: 'Fails.', schema: { type: 'object', properties: {} },
});
const toolMap = new Map([['add-numbers', add], ['fail', fail]]);
const toolDefs = [...toolMap.values()].map((one) => ({
  name: one.name, description: one.description, parameters: one.schema, allowed_callers: ['code_execution'],
}));
const programmatic = agents.createProgrammaticToolCallingTool({ baseUrl, authHeaders });
const bashTool = agents.createBashProgrammaticToolCallingTool?.({ baseUrl, authHeaders });
const with_tools = { toolMap, toolDefs, tools: toolDefs };

await say('run', () => invoke(run, { lang: 'py', code: "print(6 * 7)\nopen('/mnt/data/out.txt', 'w').write('kept')" }));
const files = said.run?.artifact?.files ?? [];
await say('again', () => invoke(run, { lang: 'bash', code: 'cat /mnt/data/out.txt' },
  { session_id: said.run?.artifact?.session_id, _injected_files: files }));
await say('fails', () => invoke(run, { lang: 'py', code: '1 / 0' }));
await say('language', () => invoke(run, { lang: 'rs', code: 'fn main() {}' }));
await say('files', () => agents.fetchSessionFiles(baseUrl, said.run.artifact.session_id, { kind: 'user', id: 'u' }, authHeaders));
await say('tools', () => invoke(programmatic, { code:
  "import asyncio\nopen('n.txt', 'a').write('x')\n" +
  "print(await asyncio.gather(add_numbers(a=1, b=2), add_numbers(a=3, b=4)))\n" +
  "try:\n    await fail()\nexcept Exception as e:\n    print('caught', e)\nprint(open('n.txt').read())" }, with_tools));
await say('no_tools', () => invoke(programmatic, { code: 'import asyncio\nawait asyncio.sleep(0)\nprint("plain")', tool_manifest: [] }, with_tools));
await say('late', () => invoke(programmatic, { code: 'print(await add_numbers(a=1, b=1))\nwhile True: pass', timeout: 1000 }, with_tools));
if (bashTool) {
  await say('bash', () => invoke(bashTool, { code: "add_numbers '{\"a\": 20, \"b\": 22}'" }, with_tools));
}
said.calls = calls;
console.log(JSON.stringify(said));
process.exit(0);
