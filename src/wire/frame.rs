//! Sealed frames: 4-byte big-endian N, then N bytes of AES-256-GCM ciphertext and tag.
//!
//! Owns keys and counters of one direction each. A frame opens once, in order, or not at all; a counter never wraps.

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};

use crate::limits::{FRAME_LENGTH_BYTES, FRAME_MAX_BYTES, FRAME_TAG_BYTES};

/// Why a frame ends its connection. All of them are the peer's fault or an attack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameError {
    /// N is below a tag and one byte, or above the limit.
    Length,
    /// The tag does not fit: altered, replayed, out of order, of another connection.
    Seal,
    /// 2^64 frames were sent.
    Exhausted,
}

/// N of a frame from its first four bytes, compared before a buffer exists.
pub fn length(prefix: [u8; FRAME_LENGTH_BYTES]) -> Result<usize, FrameError> {
    match usize::try_from(u32::from_be_bytes(prefix)) {
        Ok(length) if length > FRAME_TAG_BYTES && length <= FRAME_MAX_BYTES => Ok(length),
        _ => Err(FrameError::Length),
    }
}

struct Direction {
    key: LessSafeKey,
    counter: u64,
}

impl Direction {
    fn new(key: &[u8; 32]) -> Option<Self> {
        Some(Self { key: LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).ok()?), counter: 0 })
    }

    fn nonce(&mut self) -> Result<Nonce, FrameError> {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&self.counter.to_be_bytes());
        self.counter = self.counter.checked_add(1).ok_or(FrameError::Exhausted)?;
        Ok(Nonce::assume_unique_for_key(nonce))
    }
}

/// Seals frames of one direction.
pub struct Sealer(Direction);

impl Sealer {
    /// With the direction's key.
    pub fn new(key: &[u8; 32]) -> Option<Self> {
        Direction::new(key).map(Self)
    }

    /// Turns a plaintext that was begun with [`begin`] into a whole frame, in place.
    pub fn seal(&mut self, mut frame: Vec<u8>) -> Result<Vec<u8>, FrameError> {
        let plaintext = frame.len().saturating_sub(FRAME_LENGTH_BYTES);
        let length = plaintext + FRAME_TAG_BYTES;
        if plaintext == 0 || length > FRAME_MAX_BYTES {
            return Err(FrameError::Length);
        }
        let prefix = u32::try_from(length).map_err(|_| FrameError::Length)?.to_be_bytes();
        let nonce = self.0.nonce()?;
        frame[..FRAME_LENGTH_BYTES].copy_from_slice(&prefix);
        let tag = self
            .0
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(prefix), &mut frame[FRAME_LENGTH_BYTES..])
            .map_err(|_| FrameError::Length)?;
        frame.extend_from_slice(tag.as_ref());
        Ok(frame)
    }

    /// Takes back the last frame, of which no byte has left: what it held, as [`Sealer::seal`] took it. Its nonce is used
    /// for the next one, and nobody has seen it used.
    pub fn take_back(&mut self, mut frame: Vec<u8>) -> Result<Vec<u8>, FrameError> {
        self.0.counter = self.0.counter.checked_sub(1).ok_or(FrameError::Exhausted)?;
        let counter = self.0.counter;
        let (prefix, sealed) = frame.split_first_chunk_mut::<FRAME_LENGTH_BYTES>().ok_or(FrameError::Length)?;
        let nonce = self.0.nonce()?;
        self.0.counter = counter;
        self.0.key.open_in_place(nonce, Aad::from(*prefix), sealed).map_err(|_| FrameError::Seal)?;
        frame.truncate(frame.len() - FRAME_TAG_BYTES);
        Ok(frame)
    }
}

/// An empty frame with room for its length, a plaintext of this size, and the tag.
pub fn begin(plaintext: usize) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_LENGTH_BYTES + plaintext + FRAME_TAG_BYTES);
    frame.extend_from_slice(&[0; FRAME_LENGTH_BYTES]);
    frame
}

/// Opens frames of one direction.
pub struct Opener(Direction);

impl Opener {
    /// With the direction's key.
    pub fn new(key: &[u8; 32]) -> Option<Self> {
        Direction::new(key).map(Self)
    }

    /// Opens the N bytes behind a length in place; the plaintext is a prefix of what was given.
    pub fn open<'a>(&mut self, sealed: &'a mut [u8]) -> Result<&'a mut [u8], FrameError> {
        let prefix = u32::try_from(sealed.len()).map_err(|_| FrameError::Length)?.to_be_bytes();
        length(prefix)?;
        let nonce = self.0.nonce()?;
        self.0.key.open_in_place(nonce, Aad::from(prefix), sealed).map_err(|_| FrameError::Seal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealed(sealer: &mut Sealer, text: &[u8]) -> Vec<u8> {
        let mut frame = begin(text.len());
        frame.extend_from_slice(text);
        sealer.seal(frame).unwrap()
    }

    #[test]
    fn a_frame_opens_once_and_in_order() {
        let (mut sealer, mut opener) = (Sealer::new(&[7; 32]).unwrap(), Opener::new(&[7; 32]).unwrap());
        let first = sealed(&mut sealer, b"{\"a\":1}");
        let second = sealed(&mut sealer, b"{\"a\":2}");
        assert_eq!(opener.open(&mut first[4..].to_vec()).unwrap(), b"{\"a\":1}");
        assert_eq!(opener.open(&mut first[4..].to_vec()).unwrap_err(), FrameError::Seal);
        let mut other = Opener::new(&[7; 32]).unwrap();
        assert_eq!(other.open(&mut second[4..].to_vec()).unwrap_err(), FrameError::Seal);
    }

    #[test]
    fn a_frame_that_is_taken_back_was_never_sealed() {
        let (mut sealer, mut opener) = (Sealer::new(&[7; 32]).unwrap(), Opener::new(&[7; 32]).unwrap());
        let frame = sealed(&mut sealer, b"{\"a\":1}");
        let back = sealer.take_back(frame).unwrap();
        assert_eq!(&back[FRAME_LENGTH_BYTES..], b"{\"a\":1}");
        let other = sealed(&mut sealer, b"{\"b\":2}");
        assert_eq!(opener.open(&mut other[4..].to_vec()).unwrap(), b"{\"b\":2}");
        let again = sealer.seal(back).unwrap();
        assert_eq!(opener.open(&mut again[4..].to_vec()).unwrap(), b"{\"a\":1}");
    }

    #[test]
    fn every_changed_bit_and_every_truncation_of_a_frame_is_refused() {
        let frame = sealed(&mut Sealer::new(&[7; 32]).unwrap(), b"{\"a\":1}");
        for bit in 0..frame.len() * 8 {
            let mut changed = frame.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            let prefix = [changed[0], changed[1], changed[2], changed[3]];
            if length(prefix) == Ok(changed.len() - 4) {
                let mut opener = Opener::new(&[7; 32]).unwrap();
                assert_eq!(opener.open(&mut changed[4..]).unwrap_err(), FrameError::Seal, "bit {bit}");
            } else {
                assert!(bit < 32, "only the length bits change the length");
            }
        }
        for end in 4..frame.len() {
            let mut opener = Opener::new(&[7; 32]).unwrap();
            assert!(opener.open(&mut frame[4..end].to_vec()).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn a_length_is_bounded_on_both_sides() {
        assert_eq!(length([0, 0, 0, 16]), Err(FrameError::Length));
        assert_eq!(length([0, 0, 0, 17]), Ok(17));
        assert_eq!(length(u32::try_from(FRAME_MAX_BYTES).unwrap().to_be_bytes()), Ok(FRAME_MAX_BYTES));
        assert_eq!(length(u32::try_from(FRAME_MAX_BYTES + 1).unwrap().to_be_bytes()), Err(FrameError::Length));
        assert_eq!(length([255; 4]), Err(FrameError::Length));
    }

    #[test]
    fn a_counter_that_would_wrap_ends_the_direction() {
        let mut sealer = Sealer::new(&[7; 32]).unwrap();
        sealer.0.counter = u64::MAX;
        let mut frame = begin(1);
        frame.push(b'{');
        assert_eq!(sealer.seal(frame).unwrap_err(), FrameError::Exhausted);
    }
}
