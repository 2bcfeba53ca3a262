//! Medians and what lies around them.

use serde::Serialize;

/// The middle and the quartiles of some figures.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Spread {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl Spread {
    /// Of at least one figure.
    pub fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |quarters: usize| sorted[(sorted.len() - 1) * quarters / 4];
        Self { median: at(2), low: at(1), high: at(3) }
    }
}

/// Samples that were taken in turn.
#[derive(Debug, Default)]
pub struct Pairs {
    pub ours: Vec<f64>,
    pub baseline: Vec<f64>,
}

impl Pairs {
    /// Takes `count` pairs, ours and the baseline in turn and each first every other time, behind one that does not count.
    pub fn take(count: usize, mut ours: impl FnMut() -> f64, mut baseline: impl FnMut() -> f64) -> Self {
        ours();
        baseline();
        let mut pairs = Self::default();
        for turn in 0..count {
            if turn % 2 == 0 {
                pairs.ours.push(ours());
                pairs.baseline.push(baseline());
            } else {
                pairs.baseline.push(baseline());
                pairs.ours.push(ours());
            }
        }
        pairs
    }

    /// Each sample of ours against its neighbour.
    pub fn ratio(&self) -> Spread {
        Spread::of(&self.ours.iter().zip(&self.baseline).map(|(ours, baseline)| ours / baseline).collect::<Vec<_>>())
    }
}
