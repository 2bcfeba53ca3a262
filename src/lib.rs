//! Usher
#![allow(dead_code, missing_docs, reason = "wip")]
mod account;
mod auth;
mod client;
mod error;
mod ids;
mod limits;
mod registry;
mod route;
mod store;
mod sys;
mod threads;
mod wire;
/// x
pub fn usher_main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
/// x
pub fn usherd_main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
