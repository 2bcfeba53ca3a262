//! Usher
mod error;
pub(crate) mod ids;
mod store;
mod sys;
mod threads;
/// x
pub fn usher_main() -> std::process::ExitCode { std::process::ExitCode::SUCCESS }
/// x
pub fn usherd_main() -> std::process::ExitCode { std::process::ExitCode::SUCCESS }
