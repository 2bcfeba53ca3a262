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
        let judged = self.ratio.as_ref().unwrap_or(&self.ours).median;
        let judgement = self.target.map(|target| {
            // Written as short as it was set.
            let shown = (target * 1_000.0).round() / 1_000.0;
            if judged > target { format!("over {shown}") } else { format!("≤ {shown}") }
        });
        let figure = |value: f64| if value < 10.0 { format!("{value:.2}") } else { format!("{value:.1}") };
        println!(
            "{:<50} {:>18} {:>10} {:>10} {:<4} {}",
            self.name,
            self.ratio.as_ref().map(spread).unwrap_or_default(),
            figure(self.ours.median),
            self.baseline.as_ref().map(|of| figure(of.median)).unwrap_or_default(),
            self.unit,
            judgement.unwrap_or_default(),
        );
    }
}

/// Above the lines.
pub fn head() {
    println!("{:<50} {:>18} {:>10} {:>10} {:<4} target", "", "ratio (quartiles)", "ours", "baseline", "");
}

/// Everything, as one document.
#[derive(Serialize)]
pub struct Document<'a> {
    pub version: &'static str,
    pub processors: usize,
    pub samples: usize,
    pub rows: &'a [Row],
}
