// Compiles by Pyodide what it imports before a verdict: `node compiled.mjs PYODIDE FOLDER`, where FOLDER has judge.zip.
//
// FOLDER gets python_stdlib.zip with compiled modules, and judge.zip their code of its own and of NumPy's beside the source.
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

process.on("uncaughtException", ({ message }) => { // not the line of Pyodide, which is a megabyte
  console.error(message);
  process.exit(1);
});

const [pyodide, folder] = process.argv.slice(2);
const { loadPyodide } = await import(pathToFileURL(`${pyodide}/pyodide.mjs`).href);
const python = await loadPyodide({ indexURL: pyodide, env: { HOME: "/home/pyodide", MHA_COMPILE_CACHE: "off" } });
await python.loadPackage("numpy", { messageCallback() {} });
python.FS.writeFile("/judge.zip", readFileSync(`${folder}/judge.zip`));
python.runPython(readFileSync(new URL("compiled.py", import.meta.url), "utf-8"));
for (const name of ["judge.zip", "python_stdlib.zip"]) writeFileSync(`${folder}/${name}`, python.FS.readFile(`/${name}`));
