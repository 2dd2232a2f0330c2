// ONNX's operator Attention in onnxruntime, judged: node ort.mjs VECTORS [ANSWERS [OPSET]]
import * as ort from "onnxruntime-web";
import { judge } from "./vectors.mjs";

const [folder, answers, opset = "23"] = process.argv.slice(2);
const HAS_NOT = ["rotary", "query_key_norm", "additive", "dropout_keep"];
const takes = (v) => v.form === "heads" && v.dtype === "float32" && !v.features.some((name) => HAS_NOT.includes(name));

// The few fields of ONNX's protobuf that a model of one node needs.
const varint = (n) => (n < 128 ? [n] : [(n % 128) | 128, ...varint(Math.floor(n / 128))]);
const bytes = (field, data) => [...varint(field * 8 + 2), ...varint(data.length), ...data];
const text = (field, words) => bytes(field, [...Buffer.from(words)]);
const int = (field, n) => [...varint(field * 8), ...varint(n)];
const float = (field, x) => [...varint(field * 8 + 5), ...Buffer.from(new Float32Array([x]).buffer)];

const INT = (name, n) => bytes(5, [...text(1, name), ...int(3, n), ...int(20, 2)]);
const FLOAT = (name, x) => bytes(5, [...text(1, name), ...float(2, x), ...int(20, 1)]);
const TYPES = { float32: 1, bool: 9 };

function value(field, name, type, rank) {
  const dims = Array.from({ length: rank }, (_, i) => bytes(1, text(2, `${name}_${i}`))).flat();
  return bytes(field, [...text(1, name), ...bytes(2, bytes(1, [...int(1, TYPES[type]), ...bytes(2, dims)]))]);
}

function model(inputs, outputs, attributes) {
  const names = ["Q", "K", "V", "attn_mask", "past_key", "past_value"];
  const last = Math.max(...Object.keys(inputs).map((name) => names.indexOf(name)));
  const node = [
    ...names.slice(0, last + 1).flatMap((name) => text(1, name in inputs ? name : "")),
    ...outputs.flatMap((name) => text(2, name)), ...text(4, "Attention"), ...attributes,
  ];
  const graph = [
    ...bytes(1, node), ...text(2, "one"),
    ...Object.entries(inputs).flatMap(([name, { type, dims }]) => value(11, name, type, dims.length)),
    ...outputs.flatMap((name) => value(12, name, "float32", 4)),
  ];
  return new Uint8Array([...int(1, 10), ...bytes(7, graph), ...bytes(8, [...text(1, ""), ...int(2, Number(opset))])]);
}

async function attention({ config, call, features, sizes }, arrays) {
  const tensor = (name, type = "float32") => new ort.Tensor(type, arrays[name].data, arrays[name].shape);
  const inputs = { Q: tensor("inputs/queries"), K: tensor("inputs/keys"), V: tensor("inputs/values") };
  const attributes = [...FLOAT("scale", call.scale), ...(config.softcap ? FLOAT("softcap", config.softcap) : [])];
  const masks = features.filter((name) => ["valid_lens", "allowed", "bias", "window"].includes(name));
  // The operator's own flag counts queries from the end of the cache; anything else is a mask.
  if (call.causal && !masks.length && call.query_offset === sizes.Lp) attributes.push(...INT("is_causal", 1));
  else if (arrays["inputs/bias"]) {
    const mask = arrays["inputs/mask"], shape = mask.shape, bias = arrays["inputs/bias"];
    const own = [...Array(4 - bias.shape.length).fill(1), ...bias.shape];
    const data = Float32Array.from(mask.data, (open, i) => {
      let at = 0;
      for (let axis = 0, rest = i, size = mask.data.length; axis < 4; axis++) {
        size /= shape[axis];
        at = at * own[axis] + (own[axis] === 1 ? 0 : Math.floor(rest / size));
        rest %= size;
      }
      return open ? bias.data[at] : -Infinity;
    });
    inputs.attn_mask = new ort.Tensor("float32", data, shape);
  } else if (call.causal || masks.length) inputs.attn_mask = tensor("inputs/mask", "bool");
  if (sizes.Lp) [inputs.past_key, inputs.past_value] = [tensor("inputs/past_keys"), tensor("inputs/past_values")];
  const outputs = sizes.Lp ? ["Y", "present_key", "present_value"] : ["Y"];
  const session = await ort.InferenceSession.create(model(inputs, outputs, attributes), { logSeverityLevel: 4 });
  const { Y } = await session.run(inputs);
  await session.release();
  return { output: { shape: [...Y.dims], data: Y.data } };
}

async function tried(vector, arrays) {
  try {
    return await attention(vector, arrays);
  } catch (error) {
    console.log(`raised  ${vector.id}: ${String(error.message ?? error).split("\n")[0]}`);
    return null;
  }
}

ort.env.wasm.numThreads = 1;
process.exitCode = (await judge(folder, answers, takes, tried)) ? 0 : 1;
