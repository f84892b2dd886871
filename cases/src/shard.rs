//! `--shard K/N`: a run in parts, on several machines.

use std::str::FromStr;

/// The K-th of N parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// K, from 1.
    pub index: usize,
    /// N.
    pub count: usize,
}

impl Shard {
    /// Every N-th item from the K-th on: neighbours, which cost about the same, go to different parts.
    #[must_use]
    pub fn of<T>(self, items: Vec<T>) -> Vec<T> {
        items.into_iter().skip(self.index - 1).step_by(self.count).collect()
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        match parsed {
            Some((index, count)) if (1..=count).contains(&index) => Ok(Self { index, count }),
            _ => Err("accepted: K/N with 1 ≤ K ≤ N".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_written_k_of_n() {
        assert_eq!("2/3".parse(), Ok(Shard { index: 2, count: 3 }));
        for wrong in ["0/3", "4/3", "1", "a/b", "1/0"] {
            assert!(wrong.parse::<Shard>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn every_item_is_in_one_part() {
        let mut all: Vec<u32> =
            (1..=3).flat_map(|index| Shard { index, count: 3 }.of((0..10).collect())).collect();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<u32>>());
    }
}
