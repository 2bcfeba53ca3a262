//! `usherd`: the daemon.

fn main() -> std::process::ExitCode {
    usher::usherd_main()
}
