//! Scales of an fp8 cache, one per layer and KV head, from the magnitudes that a first pass sees.

use oracle::Format;

use super::decoder::Projected;
use super::gguf::Config;

/// Room above the largest magnitude seen, so that later tokens do not saturate. A power of two costs no precision in a
/// floating-point format.
const HEADROOM: f32 = 2.0;

/// Scales of K and V, `[layers][num_kv_heads]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Scales {
    /// Of the keys.
    pub k: Vec<Vec<f32>>,
    /// Of the values.
    pub v: Vec<Vec<f32>>,
}

/// Largest magnitudes seen, `[layers][num_kv_heads]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Magnitudes {
    k: Vec<Vec<f32>>,
    v: Vec<Vec<f32>>,
    head_dim: usize,
}

impl Magnitudes {
    /// Nothing seen yet.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let zeros = vec![vec![0.0; config.num_kv_heads]; config.layers];
        Self { k: zeros.clone(), v: zeros, head_dim: config.head_dim }
    }

    /// Takes the keys and values of one layer into account.
    pub fn observe(&mut self, layer: usize, rows: &Projected) {
        for (largest, values) in [(&mut self.k[layer], &rows.k), (&mut self.v[layer], &rows.v)] {
            let heads = largest.len();
            for (index, head) in values.chunks_exact(self.head_dim).enumerate() {
                let largest = &mut largest[index % heads];
                *largest = head.iter().fold(*largest, |m, x| m.max(x.abs()));
            }
        }
    }

    /// Largest key and largest value of all layers.
    #[must_use]
    pub fn largest(&self) -> (f32, f32) {
        let largest = |all: &[Vec<f32>]| all.iter().flatten().copied().fold(0.0, f32::max);
        (largest(&self.k), largest(&self.v))
    }

    /// The scales that use the range of a format. A head that only ever saw zeros keeps a scale of 1.
    #[must_use]
    pub fn scales(&self, format: Format) -> Scales {
        let limit = format.max_finite() as f32;
        let scale = |largest: &f32| if *largest > 0.0 { largest * HEADROOM / limit } else { 1.0 };
        let all =
            |largest: &[Vec<f32>]| largest.iter().map(|layer| layer.iter().map(scale).collect()).collect();
        Scales { k: all(&self.k), v: all(&self.v) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_magnitude_of_each_head_lands_at_half_the_range() {
        let mut seen = Magnitudes { k: vec![vec![0.0; 2]], v: vec![vec![0.0; 2]], head_dim: 2 };
        let rows = |k: &[f32], v: &[f32]| Projected { q: vec![], k: k.to_vec(), v: v.to_vec() };
        seen.observe(0, &rows(&[1.0, -8.0, 0.5, 0.25], &[0.0, 0.0, 3.0, 2.0]));
        seen.observe(0, &rows(&[2.0, 2.0, -7.0, 0.0], &[0.0, 0.0, 1.0, 1.0]));
        let scales = seen.scales(Format::E4m3);
        assert_eq!(scales.k, [[8.0 * 2.0 / 448.0, 7.0 * 2.0 / 448.0]]);
        assert_eq!(scales.v, [[1.0, 3.0 * 2.0 / 448.0]]);
        assert_eq!(seen.largest(), (8.0, 3.0));
    }
}
