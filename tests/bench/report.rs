//! The table for people and the file for programs.

use serde::Serialize;

use super::stats::{Pairs, Spread};

/// One line.
#[derive(Serialize)]
pub struct Row {
    pub name: String,
    pub unit: &'static str,
    pub ours: Spread,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub baseline: Option<Spread>,
    /// Ours against the baseline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<Spread>,
    /// What it should be at most; for a throughput, ratios are of times, so that less is better everywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<f64>,
}

impl Row {
    /// Times that were taken in pairs, in µs.
    pub fn pairs(name: impl Into<String>, pairs: &Pairs, target: Option<f64>) -> Self {
        Self {
            name: name.into(),
            unit: "us",
            ours: Spread::of(&pairs.ours),
            baseline: Some(Spread::of(&pairs.baseline)),
            ratio: Some(pairs.ratio()),
            target,
        }
    }

    /// A figure by itself.
    pub fn figure(name: impl Into<String>, unit: &'static str, figures: &[f64], target: Option<f64>) -> Self {
        Self { name: name.into(), unit, ours: Spread::of(figures), baseline: None, ratio: None, target }
    }

    /// The line, told as soon as it is known.
    pub fn tell(&self) {
        let spread = |of: &Spread| format!("{:.2} ({:.2}–{:.2})", of.median, of.low, of.high);
        let judged = match (self.target, &self.ratio) {
            (Some(target), Some(ratio)) if ratio.median > target => format!("over {target}"),
            (Some(target), None) if self.ours.median > target => format!("over {target}"),
            (Some(target), _) => format!("≤ {target}"),
            (None, _) => String::new(),
        };
        println!(
            "{:<44} {:>22} {:>10.1} {:>10} {:<4} {judged}",
            self.name,
            self.ratio.as_ref().map(spread).unwrap_or_default(),
            self.ours.median,
            self.baseline.as_ref().map(|of| format!("{:.1}", of.median)).unwrap_or_default(),
            self.unit,
        );
    }
}

/// Above the lines.
pub fn head() {
    println!("{:<44} {:>22} {:>10} {:>10} {:<4} target", "", "ratio (quartiles)", "ours", "baseline", "");
}

/// Everything, as one document.
#[derive(Serialize)]
pub struct Document<'a> {
    pub version: &'static str,
    pub processors: usize,
    pub samples: usize,
    pub rows: &'a [Row],
}
