// Reads test vectors of attention, checks answers and writes them: all that docs/vectors.md asks, without a package.
import fs from "node:fs";
import path from "node:path";

const half = (b) => {
  const sign = b >> 15 ? -1 : 1, exponent = (b >> 10) & 31, rest = b & 1023;
  if (exponent === 31) return rest ? NaN : sign * Infinity;
  return sign * (exponent ? 2 ** (exponent - 25) * (1024 + rest) : 2 ** -24 * rest);
};
const brain = (b) => new Float32Array(new Uint32Array([b << 16]).buffer)[0];

const KINDS = {
  F64: Float64Array, F32: Float32Array, I32: Int32Array, BOOL: Uint8Array, F16: Uint16Array, BF16: Uint16Array,
};

export function read(file) {
  const bytes = fs.readFileSync(file);
  const length = Number(bytes.readBigUInt64LE(0));
  const header = JSON.parse(bytes.subarray(8, 8 + length).toString());
  delete header.__metadata__;
  const arrays = {};
  for (const [name, { dtype, shape, data_offsets: [start, end] }] of Object.entries(header)) {
    // A copy: a typed array must begin at a multiple of its element's size.
    const own = new Uint8Array(bytes.subarray(8 + length + start, 8 + length + end));
    let data = new KINDS[dtype](own.buffer);
    if (dtype === "F16") data = Float32Array.from(data, half);
    if (dtype === "BF16") data = Float32Array.from(data, brain);
    arrays[name] = { dtype, shape, data };
  }
  return arrays;
}

// Writes float32 arrays; an answer in float16 or bfloat16 is such an array of numbers that the dtype has.
export function write(file, arrays) {
  const header = {};
  let end = 0;
  for (const [name, { shape, data }] of Object.entries(arrays)) {
    header[name] = { dtype: "F32", shape, data_offsets: [end, (end += 4 * data.length)] };
  }
  const text = Buffer.from(JSON.stringify(header));
  const size = Buffer.alloc(8);
  size.writeBigUInt64LE(BigInt(text.length));
  const parts = Object.values(arrays).map(({ data }) => Buffer.from(Float32Array.from(data).buffer));
  fs.writeFileSync(file, Buffer.concat([size, text, ...parts]));
}

// A float32 number rounded to the nearest bfloat16, ties to even.
export function toBrain(data) {
  const bits = new Uint32Array(Float32Array.from(data).buffer);
  const near = bits.map((b) => ((b & 0x7fffffff) > 0x7f800000 ? b : (b + 0x7fff + ((b >>> 16) & 1)) & 0xffff0000));
  return new Float32Array(near.buffer);
}

// The worst error / allowed error of an array; at most 1 is right.
export function ratio(answer, expected, allowed) {
  let worst = 0;
  for (let i = 0; i < expected.length; i++) {
    if (!Number.isFinite(allowed[i]) || Object.is(answer[i], expected[i]) || answer[i] === expected[i]) continue;
    const error = Math.abs(answer[i] - expected[i]);
    worst = Math.max(worst, Number.isFinite(error) && allowed[i] > 0 ? error / allowed[i] : Infinity);
  }
  return worst;
}

// Runs `attention(vector, arrays)` on every vector of a folder that `takes(vector)` has, and writes its answers.
export async function judge(folder, answers, takes, attention) {
  const { vectors, bugs } = JSON.parse(fs.readFileSync(path.join(folder, "manifest.json"), "utf8"));
  if (answers) fs.mkdirSync(answers);
  let equal = 0, asked = 0;
  for (const vector of vectors.filter(takes)) {
    const arrays = read(path.join(folder, `${vector.id}.safetensors`));
    const answer = await attention(vector, arrays);
    if (!answer) continue; // it can't be asked this
    for (const one of Object.values(answer)) if (vector.dtype === "bfloat16") one.data = toBrain(one.data);
    if (answers) write(path.join(answers, `${vector.id}.safetensors`), answer);
    const ratios = Object.entries(answer).map(([name, { shape, data }]) => {
      const same = shape.join() === arrays[`expected/${name}`].shape.join();
      return same ? ratio(data, arrays[`expected/${name}`].data, arrays[`allowed/${name}`].data) : Infinity;
    });
    const worst = Math.max(...ratios);
    asked++;
    if (worst <= 1) equal++;
    else console.log(`differs ${vector.id} (${worst.toPrecision(2)} of what is allowed): ${vector.purpose}`);
  }
  console.log(`${equal} of ${asked} equal; ${vectors.length - asked} of ${vectors.length} not asked`);
  return equal === asked;
}
