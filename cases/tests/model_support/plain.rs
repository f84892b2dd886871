//! The same tiny model in f64, all rows at once, without a cache: written from the definition alone.

use super::support::{EMBEDDING, EPSILON, HEAD_DIM, KV_HEADS, LAYERS, Q_HEADS, ROPE_BASE, tensors, values};

struct Weights(Vec<(String, Vec<usize>, Vec<f32>)>);

impl Weights {
    fn new() -> Self {
        let value = |(index, (name, shape, spread)): (usize, (String, Vec<usize>, f32))| {
            let values = values(index, shape.iter().product(), spread);
            (name, shape, values)
        };
        Self(tensors().into_iter().enumerate().map(value).collect())
    }

    fn row(&self, name: &str, row: usize) -> Vec<f64> {
        let (_, shape, values) = self.0.iter().find(|(found, ..)| found == name).unwrap();
        values[row * shape[1]..(row + 1) * shape[1]].iter().copied().map(f64::from).collect()
    }

    fn apply(&self, name: &str, input: &[f64]) -> Vec<f64> {
        let (_, shape, _) = self.0.iter().find(|(found, ..)| found == name).unwrap();
        let dot = |row: usize| self.row(name, row).iter().zip(input).map(|(w, x)| w * x).sum();
        (0..shape[0]).map(dot).collect()
    }
}

/// All norm weights of the tiny model are 1.
fn norm(row: &[f64]) -> Vec<f64> {
    let mean = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
    row.iter().map(|x| x / (mean + f64::from(EPSILON)).sqrt()).collect()
}

fn rotate(row: &mut [f64], position: usize) {
    for head in row.chunks_mut(HEAD_DIM) {
        for pair in 0..HEAD_DIM / 2 {
            let angle = position as f64 / f64::from(ROPE_BASE).powf(2.0 * pair as f64 / HEAD_DIM as f64);
            let (x, y) = (head[2 * pair], head[2 * pair + 1]);
            head[2 * pair] = x * angle.cos() - y * angle.sin();
            head[2 * pair + 1] = y * angle.cos() + x * angle.sin();
        }
    }
}

fn attend(q: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
    let mut out = Vec::new();
    for head in 0..Q_HEADS {
        let kv = head / (Q_HEADS / KV_HEADS) * HEAD_DIM;
        let q = &q[head * HEAD_DIM..][..HEAD_DIM];
        let dot = |k: &Vec<f64>| q.iter().zip(&k[kv..]).map(|(a, b)| a * b).sum::<f64>();
        let weights: Vec<f64> = keys.iter().map(|k| (dot(k) / (HEAD_DIM as f64).sqrt()).exp()).collect();
        let sum: f64 = weights.iter().sum();
        let element = |d: usize| weights.iter().zip(values).map(|(w, v)| w * v[kv + d]).sum::<f64>() / sum;
        out.extend((0..HEAD_DIM).map(element));
    }
    out
}

/// Logits of every row, `[rows, vocabulary]`.
pub fn logits(tokens: &[u32]) -> Vec<f64> {
    let weights = Weights::new();
    let mut stream: Vec<Vec<f64>> =
        tokens.iter().map(|token| weights.row("token_embd.weight", *token as usize)).collect();
    for layer in 0..LAYERS {
        let name = |part: &str| format!("blk.{layer}.{part}.weight");
        let normed: Vec<Vec<f64>> = stream.iter().map(|row| norm(row)).collect();
        let project =
            |part: &str| normed.iter().map(|row| weights.apply(&name(part), row)).collect::<Vec<_>>();
        let (mut q, mut k, v) = (project("attn_q"), project("attn_k"), project("attn_v"));
        for row in 0..tokens.len() {
            rotate(&mut q[row], row);
            rotate(&mut k[row], row);
        }
        for (row, stream) in stream.iter_mut().enumerate() {
            let attended = attend(&q[row], &k[..=row], &v[..=row]);
            let out = weights.apply(&name("attn_output"), &attended);
            stream.iter_mut().zip(out).for_each(|(x, y)| *x += y);
            let normed = norm(stream);
            let (gate, up) =
                (weights.apply(&name("ffn_gate"), &normed), weights.apply(&name("ffn_up"), &normed));
            let gated: Vec<f64> = gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            let out = weights.apply(&name("ffn_down"), &gated);
            stream.iter_mut().zip(out).for_each(|(x, y)| *x += y);
        }
    }
    assert!(stream.iter().all(|row| row.len() == EMBEDDING));
    stream.iter().flat_map(|row| weights.apply("output.weight", &norm(row))).collect()
}

/// Sum of the negative log-likelihoods of all tokens but the first.
pub fn surprise(text: &[u32]) -> f64 {
    let logits = logits(&text[..text.len() - 1]);
    let rows = logits.chunks(logits.len() / (text.len() - 1));
    rows.zip(&text[1..])
        .map(|(row, token)| row.iter().map(|x| x.exp()).sum::<f64>().ln() - row[*token as usize])
        .sum()
}
