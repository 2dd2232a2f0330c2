// Python of a page, in a thread of its own: it judges, and says when somebody's code begins and ends to run.
import { loadPyodide } from "../_judge/pyodide.mjs";

const base = new URL("../_judge/", import.meta.url).href;
const PLACE = "/lib/python3.12/site-packages"; // where NumPy is
const unpacking = new Map();
let isAsked = false;

const loading = loadPyodide({ indexURL: base, packages: ["numpy"], env: { HOME: "/home/pyodide", MHA_COMPILE_CACHE: "off" } });

function unpacked(name) {
  if (!unpacking.has(name)) unpacking.set(name, unpack(name));
  return unpacking.get(name);
}

async function unpack(name) {
  const answer = await fetch(base + name);
  if (!answer.ok) throw new Error(`${name}: ${answer.status}`);
  const data = await answer.arrayBuffer();
  (await loading).unpackArchive(data, "zip", { extractDir: PLACE });
}

async function start() {
  const [python] = await Promise.all([loading, unpacked("judge.zip")]);
  python.pyimport("conformance.subjects.in_time").tell = (seconds) => isAsked && postMessage({ kind: "limit", seconds });
  const judge = python.pyimport("mha.learn.running.in_browser");
  postMessage({ kind: "ready" });
  return judge;
}

const starting = start();
starting.catch((error) => postMessage({ kind: "failed", words: `Python did not start: ${error.message}` }));
let rehearsing = starting;

async function ready(archives) {
  const [judge] = await Promise.all([starting, ...archives.map(unpacked)]);
  return judge;
}

// While somebody writes; between two pieces a file is judged that was sent meanwhile.
async function rehearse({ name, archives }) {
  const judge = await ready(archives);
  const pieces = judge.rehearsed(name);
  do await new Promise((go) => setTimeout(go));
  while (!pieces.next().done);
}

async function say({ name, text, level, archives }) {
  try {
    const judge = await ready(archives);
    isAsked = true;
    const [status, words, deeper] = judge.said(name, text, level).toJs();
    postMessage({ kind: "said", status, words, deeper });
  } catch (error) {
    postMessage({ kind: "failed", words: `the judge stopped: ${error.message.trim().split("\n").pop()}` });
  } finally {
    isAsked = false;
  }
}

onmessage = ({ data }) => {
  if (data.text === undefined) rehearsing = rehearsing.then(() => rehearse(data)).catch(() => {}); // a verdict will say why
  else say(data);
};
