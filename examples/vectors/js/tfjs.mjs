// An attention on TensorFlow.js, judged: node tfjs.mjs VECTORS [ANSWERS [BUG]]
import * as tf from "@tensorflow/tfjs";
import { judge } from "./vectors.mjs";

const [folder, answers, bug] = process.argv.slice(2);
const HAS_NOT = ["rotary", "query_key_norm", "additive", "dropout_keep"];
const takes = (v) => ["float32", "bfloat16"].includes(v.dtype) && !v.features.some((name) => HAS_NOT.includes(name));

const tensor = ({ data, shape }, dtype = "float32") => tf.tensor(data, shape, dtype);
const got = (x) => ({ shape: x.shape, data: x.dataSync() });

// The mask of all sources, which `inputs/mask` has already, with another position for the first query.
function combined({ causal, window }, arrays, offset) {
  const shape = arrays["inputs/mask"].shape, found = [];
  const at = (name, place) => {
    const { data, shape: own } = arrays[name];
    return data[own.reduce((sum, size, axis) => sum * size + (size === 1 ? 0 : place[4 - own.length + axis]), 0)];
  };
  const lens = arrays["inputs/valid_lens"];
  for (let b = 0; b < shape[0]; b++) for (let h = 0; h < shape[1]; h++) for (let i = 0; i < shape[2]; i++) {
    for (let j = 0; j < shape[3]; j++) {
      const p = offset + i, place = [b, h, i, j], [left, right] = window ?? [null, null];
      found.push(
        (!lens || j < lens.data[lens.shape.length === 1 ? b : b * shape[2] + i]) &&
        (!arrays["inputs/allowed"] || at("inputs/allowed", place)) &&
        (!arrays["inputs/bias"] || at("inputs/bias", place) !== -Infinity) &&
        (!causal || j <= p) && (left === null || p - left <= j) && (right === null || j <= p + right) ? 1 : 0);
    }
  }
  return Uint8Array.from(found);
}

function attention({ form, config, call }, arrays) {
  const of = (name, dtype) => arrays[name] && tensor(arrays[name], dtype);
  const { num_heads: H, num_kv_heads: G } = config;
  const padding = of("inputs/padding", "bool"), mask = of("inputs/mask", "bool");
  const past = arrays["inputs/past_keys"] ? arrays["inputs/past_keys"].shape[2] : 0;
  const empty = (x) => x.shape.includes(0);

  // Rows that no query may see are 0, whatever stands in them. (B, Lk) -> the new keys', then a shape that broadcasts.
  const cleared = (x, from, axes) => {
    if (empty(x)) return x;
    const length = x.shape[x.rank - 2];
    const hidden = padding.slice([0, from], [-1, length]).reshape([-1, ...axes, length, 1]);
    return tf.where(tf.broadcastTo(hidden, x.shape), tf.zerosLike(x), x);
  };
  const heads = (name, projection, count) => {
    let x = of(`inputs/${name}`);
    if (name !== "queries") x = cleared(x, past, form === "heads" ? [1] : []);
    if (form === "heads") return x;
    const weight = of(`weights/${projection}.weight`), bias = of(`weights/${projection}.bias`);
    const [B, L] = x.shape, width = weight.shape[0];
    if (B * L === 0) return tf.zeros([B, count, L, width / count]);
    x = tf.matMul(x.reshape([B * L, -1]), weight, false, true);
    return (bias ? x.add(bias) : x).reshape([B, L, count, width / count]).transpose([0, 2, 1, 3]);
  };
  const joined = (name, x) => (past ? tf.concat([cleared(of(name), 0, [1]), x], 2) : x);
  // Query head h reads key head floor(h / (H / G)).
  const repeated = (x) => tf.gather(x, Array.from({ length: H }, (_, h) => Math.floor(h / (H / G))), 1);

  const q = heads("queries", "q_proj", H);
  const k = repeated(joined("inputs/past_keys", heads("keys", "k_proj", G)));
  const v = repeated(joined("inputs/past_values", heads("values", "v_proj", G)));
  const [B, , Lq] = q.shape, dv = v.shape[3];
  let out = tf.zeros([B, H, Lq, dv]), weights = tf.zeros(mask.shape);
  if (!empty(mask)) {
    let scores = tf.matMul(q, k, false, true).mul(call.scale);
    if (config.softcap) scores = scores.div(config.softcap).tanh().mul(config.softcap);
    if (arrays["inputs/bias"]) {
      const bias = of("inputs/bias");
      scores = scores.add(tf.where(bias.equal(-Infinity), tf.zerosLike(bias), bias));
    }
    let open = mask;
    if (bug === "top-left") open = tensor({ data: combined(call, arrays, 0), shape: mask.shape }, "bool");
    const low = tf.fill(scores.shape, -Infinity);
    const hidden = bug === "mask-after-softmax" ? scores : tf.where(open, scores, low);
    const top = hidden.max(-1, true), safe = tf.where(top.equal(-Infinity), tf.zerosLike(top), top);
    const exp = hidden.sub(safe).exp(), sum = exp.sum(-1, true);
    weights = exp.div(tf.where(sum.equal(0), tf.onesLike(sum), sum));
    weights = tf.where(open, weights, tf.zerosLike(weights)); // 0 beside a NaN too
    out = tf.matMul(weights, v);
  }
  const shown = arrays["expected/weights"] ? { weights: got(weights) } : {};
  if (form === "heads") return { output: got(out), ...shown };
  const weight = of("weights/out_proj.weight"), bias = of("weights/out_proj.bias");
  if (B * Lq === 0) return { output: got(tf.zeros([B, Lq, weight.shape[0]])), ...shown };
  out = tf.matMul(out.transpose([0, 2, 1, 3]).reshape([B * Lq, H * dv]), weight, false, true);
  return { output: got((bias ? out.add(bias) : out).reshape([B, Lq, -1])), ...shown };
}

tf.env().set("IS_TEST", true); // no greeting
process.exitCode = (await judge(folder, answers, takes, (v, a) => tf.tidy(() => attention(v, a)))) ? 0 : 1;
