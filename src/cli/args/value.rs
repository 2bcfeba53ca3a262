//! Shapes of values: durations, `k=v`, inputs, keys.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use crate::error::Failure;

use super::{Input, KeyArg};

/// `500ms 30s 10m 8h 2d`; a number and one unit.
pub fn duration(text: &str) -> Result<Duration, Failure> {
    let wrong = || Failure::usage(format!("{text:?} is no duration; write 500ms, 30s, 10m, 8h or 2d"));
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err(wrong()),
    };
    // A century is more than anybody means, and less than any clock here overflows at.
    let millis = number.checked_mul(unit).filter(|millis| *millis > 0 && *millis <= 36_500 * 86_400_000);
    millis.map(Duration::from_millis).ok_or_else(wrong)
}

/// `key=value`; the value may hold further `=`.
pub fn pair(option: &str, text: &str) -> Result<(String, String), Failure> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(Failure::usage(format!("{option} takes KEY=VALUE, not {text:?}"))),
    }
}

/// `-`, `@FILE` or JSON.
pub fn input(word: OsString) -> Result<Input, Failure> {
    if word == "-" {
        return Ok(Input::Stdin);
    }
    if let Some(file) = file(&word) {
        return Ok(Input::File(file?));
    }
    text(word).map(Input::Json)
}

/// `@FILE` or the key itself.
pub fn key(word: OsString) -> Result<KeyArg, Failure> {
    match file(&word) {
        Some(file) => Ok(KeyArg::File(file?)),
        None => text(word).map(KeyArg::Text),
    }
}

/// The path behind `@`, byte for byte.
fn file(word: &OsString) -> Option<Result<PathBuf, Failure>> {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let path = word.as_bytes().strip_prefix(b"@")?;
    if path.is_empty() {
        return Some(Err(Failure::usage("@ takes the name of a file behind it")));
    }
    Some(Ok(PathBuf::from(OsString::from_vec(path.to_vec()))))
}

/// Text that is UTF-8.
pub fn text(word: OsString) -> Result<String, Failure> {
    word.into_string().map_err(|word| Failure::usage(format!("{word:?} is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_a_number_and_one_unit() {
        for (text, millis) in
            [("500ms", 500), ("30s", 30_000), ("10m", 600_000), ("8h", 28_800_000), ("2d", 172_800_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "30", "s", "-1s", "+1s", "1.5s", "1s ", " 1s", "1h30m", "1S", "0s", "99999999999999999999s"] {
            assert!(duration(text).is_err(), "{text:?}");
        }
        assert!(duration("36501d").is_err() && duration("१s").is_err());
    }

    #[test]
    fn a_pair_is_split_at_its_first_equals_sign() {
        assert_eq!(pair("--label", "a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(pair("--label", "a="), Ok(("a".into(), String::new())));
        assert!(pair("--label", "a").is_err() && pair("--label", "=b").is_err());
    }

    #[test]
    fn an_input_is_standard_input_a_file_or_json() {
        assert_eq!(input("-".into()), Ok(Input::Stdin));
        assert_eq!(input("@x y".into()), Ok(Input::File("x y".into())));
        assert_eq!(input("{\"a\":1}".into()), Ok(Input::Json("{\"a\":1}".into())));
        assert!(input("@".into()).is_err());
    }
}
