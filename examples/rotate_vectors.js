// A kernel in JavaScript on a case of `ropeaudit vectors`: reads the folder, rotates q and k, writes them back.
//
//   mkdir out && node examples/rotate_vectors.js case out && ropeaudit check case --returned out
//
// Cases in bfloat16 and float32, scaling default, linear and llama3. Little-endian machines.
"use strict";
const fs = require("fs");
const path = require("path");

// ------------------------------------------------------------------ the kernel under audit: replace it

function frequency(pair, { rotary_dim, base, scaling }) {
  const theta = Math.pow(base, (-2 * pair) / rotary_dim);
  if (scaling.kind === "linear") return theta / scaling.factor;
  if (scaling.kind === "llama3") {
    const turns = (scaling.original * theta) / (2 * Math.PI);
    const smooth = (turns - scaling.low) / (scaling.high - scaling.low);
    if (turns < scaling.low) return theta / scaling.factor;
    if (turns < scaling.high) return ((1 - smooth) * theta) / scaling.factor + smooth * theta;
  }
  return theta;
}

// Rotate the first rotary_dim of the dims of the vector that begins at `start`.
function rotate(x, start, position, theta, { rotary_dim, layout }) {
  for (let i = 0; i < rotary_dim / 2; i++) {
    const a = start + (layout === "interleaved" ? 2 * i : i);
    const b = layout === "interleaved" ? a + 1 : a + rotary_dim / 2;
    const c = Math.cos(position * theta[i]);
    const s = Math.sin(position * theta[i]);
    [x[a], x[b]] = [x[a] * c - x[b] * s, x[b] * c + x[a] * s];
  }
}

// ------------------------------------------------------------------ files

const words = new Uint32Array(1);
const float = new Float32Array(words.buffer);

function numbers(bytes, dtype) {
  const raw = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  if (dtype === "float32") return Float64Array.from(new Float32Array(raw));
  return Float64Array.from(new Uint16Array(raw), (bits) => ((words[0] = bits << 16), float[0]));
}

function rounded(x, dtype) {
  if (dtype === "float32") return Buffer.from(Float32Array.from(x).buffer);
  const toBf16 = (value) => { // to nearest, ties to even
    float[0] = value;
    return (words[0] + 0x7fff + ((words[0] >>> 16) & 1)) >>> 16;
  };
  return Buffer.from(Uint16Array.from(x, toBf16).buffer);
}

const [folder, out] = process.argv.slice(2);
const manifest = JSON.parse(fs.readFileSync(path.join(folder, "manifest.json"), "utf8"));
const { dtype, head_dim, rotary_dim, scaling, want } = manifest;
const known = ["bfloat16", "float32"].includes(dtype) && ["default", "linear", "llama3"].includes(scaling.kind);
if (!known || want !== "rotated") throw new Error(`${dtype}, scaling ${scaling.kind}, ${want}: not known here`);

const theta = Array.from({ length: rotary_dim / 2 }, (_, i) => frequency(i, manifest));
for (const call of manifest.calls) {
  const { batch, heads, kv_heads, seq_len } = { ...manifest, ...call }; // of calls that servers make, their own
  const bytes = fs.readFileSync(path.join(folder, call.inputs.positions.file));
  const wide = manifest.positions_dtype === "int64";
  const positions = Array.from({ length: bytes.length / (wide ? 8 : 4) }, (_, i) =>
    wide ? Number(bytes.readBigInt64LE(8 * i)) : bytes.readInt32LE(4 * i));
  const rows = positions.length / seq_len; // one for all batch elements, or one for each
  for (const [name, count] of [["q", heads], ["k", kv_heads]]) { // each is (batch, count, seq_len, head_dim)
    const vectors = batch * count * seq_len; // the first ones of the file
    const given = numbers(fs.readFileSync(path.join(folder, manifest.inputs[name].file)), dtype);
    const x = given.subarray(0, vectors * head_dim);
    for (let vector = 0; vector < vectors; vector++) {
      const token = vector % seq_len;
      const element = Math.floor(vector / seq_len / count);
      const position = positions[(element % rows) * seq_len + token];
      rotate(x, vector * head_dim, position, theta, manifest);
    }
    fs.writeFileSync(path.join(out, call.outputs[name].file), rounded(x, dtype));
  }
}
fs.writeFileSync(path.join(out, "case.txt"), manifest.digest + "\n"); // which case this is of
