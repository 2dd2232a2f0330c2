// Python of a page, in a thread of its own: it judges, and says when somebody's code begins and ends to run.
import { loadPyodide } from "../_judge/pyodide.mjs";

const base = new URL("../_judge/", import.meta.url).href;
const unpacked = new Set();
let python;

async function unpack(name) {
  if (unpacked.has(name)) return;
  const answer = await fetch(base + name);
  if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
  python.unpackArchive(await answer.arrayBuffer(), "zip");
  unpacked.add(name);
}

async function start() {
  python = await loadPyodide({ indexURL: base, packages: ["numpy"], env: { HOME: "/home/pyodide", MHA_COMPILE_CACHE: "off" } });
  await unpack("judge.zip");
  python.pyimport("conformance.subjects.in_time").tell = (seconds) => postMessage({ kind: "limit", seconds });
  const { said } = python.pyimport("mha.learn.running.in_browser");
  postMessage({ kind: "ready" });
  return said;
}

const starting = start();
starting.catch((error) => postMessage({ kind: "failed", words: `Python did not start: ${error.message}` }));

onmessage = async ({ data: { name, text, level, archives } }) => {
  const said = await starting;
  try {
    for (const archive of archives) await unpack(archive);
    const [status, words, deeper] = said(name, text, level).toJs();
    postMessage({ kind: "said", status, words, deeper });
  } catch (error) {
    postMessage({ kind: "failed", words: `the judge stopped: ${error.message.trim().split("\n").pop()}` });
  }
};
