//! `usher`: the command line.

fn main() -> std::process::ExitCode {
    usher::usher_main()
}
