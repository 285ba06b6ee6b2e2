// A kernel in Rust on a case of `ropeaudit vectors`: reads the folder, rotates q and k, writes them back.
//
//   rustc -O --edition 2021 -o rotate_vectors examples/rotate_vectors.rs
//   mkdir out && ./rotate_vectors case out && ropeaudit check case --returned out
//
// Cases in bfloat16 and float32, scaling default, linear and llama3.
use std::collections::HashMap;
use std::error::Error;
use std::fs;
use std::path::Path;

// ------------------------------------------------------------------ the kernel under audit: replace it

fn frequency(pair: usize, rotary_dim: usize, base: f64, scaling: &str, number: impl Fn(&str) -> f64) -> f64 {
    let theta = base.powf(-2.0 * pair as f64 / rotary_dim as f64);
    if scaling == "linear" {
        return theta / number("scaling.factor");
    }
    if scaling == "llama3" {
        let (factor, low, high) = (number("scaling.factor"), number("scaling.low"), number("scaling.high"));
        let turns = number("scaling.original") * theta / (2.0 * std::f64::consts::PI);
        let smooth = ((turns - low) / (high - low)).clamp(0.0, 1.0);
        return (1.0 - smooth) * theta / factor + smooth * theta;
    }
    theta
}

/// Rotate the first dims of one vector, two for each frequency.
fn rotate(x: &mut [f32], position: i64, theta: &[f64], interleaved: bool) {
    for (i, frequency) in theta.iter().enumerate() {
        let (a, b) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + theta.len()) };
        let (sin, cos) = (position as f64 * frequency).sin_cos();
        let (re, im) = (x[a] as f64, x[b] as f64);
        x[a] = (re * cos - im * sin) as f32;
        x[b] = (im * cos + re * sin) as f32;
    }
}

// ------------------------------------------------------------------ files

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, data: &[u8]) -> Result<(), String> {
    fs::write(path, data).map_err(|error| format!("{}: {error}; is the folder there?", path.display()))
}

fn from_bf16(bytes: &[u8]) -> f32 {
    f32::from_le_bytes([0, 0, bytes[0], bytes[1]])
}

/// Round to nearest, ties to even.
fn to_bf16(x: f32) -> [u8; 2] {
    let bits = x.to_bits();
    ((bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16) as u16).to_le_bytes()
}

/// The sizes of a call. Those at offsets share one run of positions; those that servers make have a row for
/// each batch element.
#[derive(Clone, Default)]
struct Call {
    name: String,
    batch: usize,
    heads: [usize; 2], // of q and of k
    length: usize,
    rows: usize, // of positions
}

impl Call {
    fn set(&mut self, size: &str, value: &str) -> Result<(), Box<dyn Error>> {
        match size {
            "batch" => self.batch = value.parse()?,
            "heads" => self.heads[0] = value.parse()?,
            "kv_heads" => self.heads[1] = value.parse()?,
            "seq_len" => self.length = value.parse()?,
            _ => {}
        }
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, folder, out] = &arguments[..] else {
        return Err("give the folder of a case and one to write into".into());
    };
    let (folder, out) = (Path::new(folder), Path::new(out));
    let text = String::from_utf8(read(&folder.join("manifest.txt"))?)?;
    let lines: Vec<(&str, &str)> = text.lines().filter_map(|line| line.split_once(' ')).collect();
    let manifest: HashMap<&str, &str> = lines.iter().copied().collect();
    let word = |key: &str| manifest.get(key).copied().unwrap_or_default();
    let number = |key: &str| word(key).parse::<f64>().unwrap_or(f64::NAN);
    let mut every = Call { rows: 1, ..Default::default() };
    let mut calls: Vec<Call> = Vec::new();
    for &(key, value) in &lines {
        every.set(key, value)?;
        if key == "offset" || key == "call" {
            calls.push(Call { name: value.to_string(), ..every.clone() });
        } else if let (Some(size), Some(call)) = (key.strip_prefix("call."), calls.last_mut()) {
            call.set(size, value)?;
            call.rows = call.batch;
        }
    }
    let (dtype, integers, scaling) = (word("dtype"), word("positions_dtype"), word("scaling"));
    let plain = ["default", "linear", "llama3"].contains(&scaling) && integers == "int64";
    if !["bfloat16", "float32"].contains(&dtype) || !plain || word("want") != "rotated" {
        let want = word("want");
        return Err(format!("{dtype}, {integers}, scaling {scaling}, {want}: not known here").into());
    }

    let (dim, rotary_dim): (usize, usize) = (word("head_dim").parse()?, word("rotary_dim").parse()?);
    let of_pair = |pair| frequency(pair, rotary_dim, number("base"), scaling, number);
    let theta: Vec<f64> = (0..rotary_dim / 2).map(of_pair).collect();
    let bytes = if dtype == "float32" { 4 } else { 2 }; // of a number
    for call in &calls {
        let raw = read(&folder.join(format!("positions.{}.bin", call.name)))?;
        let positions: Vec<i64> =
            raw.chunks_exact(8).map(|chunk| i64::from_le_bytes(chunk.try_into().unwrap())).collect();
        for (side, heads) in ["q", "k"].into_iter().zip(call.heads) {
            // the first numbers of the file, of shape (batch, heads, length, dim)
            let vectors = call.batch * heads * call.length;
            let mut data = read(&folder.join(format!("{side}.bin")))?;
            data.truncate(vectors * dim * bytes);
            for (vector, chunk) in data.chunks_exact_mut(dim * bytes).enumerate() {
                let (token, element) = (vector % call.length, vector / call.length / heads);
                let mut x: Vec<f32> = match bytes {
                    4 => chunk.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
                    _ => chunk.chunks_exact(2).map(from_bf16).collect(),
                };
                let position = positions[element % call.rows * call.length + token];
                rotate(&mut x, position, &theta, word("layout") == "interleaved");
                for (bytes, value) in chunk.chunks_exact_mut(bytes).zip(x) {
                    match bytes.len() {
                        4 => bytes.copy_from_slice(&value.to_le_bytes()),
                        _ => bytes.copy_from_slice(&to_bf16(value)),
                    }
                }
            }
            write(&out.join(format!("{side}.{}.bin", call.name)), &data)?;
        }
    }
    write(&out.join("case.txt"), format!("{}\n", word("digest")).as_bytes())?; // which case this is of
    Ok(())
}
