//! What was seen while one build took another's place, step by step. `scripts/check-upgrade.py` judges it.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::super::support::daemon::{Ran, ran};
use super::super::support::system::put;
use super::builds::{Builds, digest};

/// All that was seen, in the order in which it was.
pub struct Evidence {
    builds: Builds,
    began: Instant,
    timeline: Mutex<Vec<Value>>,
}

/// One of the courses of events.
#[derive(Clone)]
pub struct Run {
    name: &'static str,
    all: Arc<Evidence>,
}

impl Evidence {
    pub fn new(builds: Builds) -> Arc<Self> {
        Arc::new(Self { builds, began: Instant::now(), timeline: Mutex::default() })
    }

    pub fn run(self: &Arc<Self>, name: &'static str) -> Run {
        Run { name, all: Arc::clone(self) }
    }

    /// The document, and the text of the manifest to which it belongs.
    pub fn document(&self) -> (Value, String) {
        let manifest = self.builds.manifest();
        let document = json!({
            "evidence": 1,
            "manifest": digest(manifest.as_bytes()),
            "timeline": *self.timeline.lock(),
        });
        (document, manifest)
    }
}

impl Run {
    /// Adds a step; `facts` are its other members.
    pub fn record(&self, step: &str, facts: Value) {
        let mut timeline = self.all.timeline.lock();
        let mut entry = json!({
            "at_ms": u64::try_from(self.all.began.elapsed().as_millis()).unwrap(),
            "run": self.name,
            "step": step,
        });
        let Value::Object(facts) = facts else { panic!("facts have names: {facts}") };
        entry.as_object_mut().unwrap().extend(facts);
        timeline.push(entry);
    }

    pub fn builds(&self) -> Builds {
        self.all.builds
    }
}

/// What the checker says of a document.
pub fn checked(folder: &Path, manifest: &str, evidence: &Value) -> Ran {
    let (manifest_at, evidence_at) = (folder.join("manifest.json"), folder.join("evidence.json"));
    put(&manifest_at, manifest);
    put(&evidence_at, serde_json::to_string_pretty(evidence).unwrap());
    let checker = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/check-upgrade.py");
    ran(Command::new("python3").arg(checker).args([manifest_at, evidence_at]))
}
