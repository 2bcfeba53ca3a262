//! Which build this is. A build for tests of upgrades is made with `--cfg usher_fixture` and `USHER_FIXTURE=N`: it calls itself
//! another version and speaks protocol N alone, and is the same program in everything else.

/// The version, as a literal.
#[cfg(not(usher_fixture))]
macro_rules! version {
    () => {
        env!("CARGO_PKG_VERSION")
    };
}

/// The version, as a literal.
#[cfg(usher_fixture)]
macro_rules! version {
    () => {
        concat!(env!("CARGO_PKG_VERSION"), "+protocol.", env!("USHER_FIXTURE"))
    };
}

pub(crate) use version;

#[cfg(not(usher_fixture))]
const _: () = assert!(option_env!("USHER_FIXTURE").is_none(), "USHER_FIXTURE is for builds with --cfg usher_fixture");

/// The lowest and the highest protocol of this build.
#[cfg(not(usher_fixture))]
pub const PROTOCOLS: (u16, u16) = (1, 1);

/// The lowest and the highest protocol of this build.
#[cfg(usher_fixture)]
pub const PROTOCOLS: (u16, u16) = (fixture(), fixture());

#[cfg(usher_fixture)]
const fn fixture() -> u16 {
    let digits = env!("USHER_FIXTURE").as_bytes();
    let (mut number, mut at) = (0_u16, 0);
    while at < digits.len() {
        assert!(digits[at].is_ascii_digit(), "USHER_FIXTURE takes the number of a protocol");
        number = number * 10 + (digits[at] - b'0') as u16;
        at += 1;
    }
    assert!(number > 0, "protocol 0 is frozen");
    number
}
