"""Makes tests/vectors/handshake.json and the section "Worked bytes" of docs/protocol.md.

    python3 tests/vectors/make.py

Everything follows from the fixed bytes below, so a second run changes nothing. It shares no code with the daemon nor
with tests/interop/usher_wire.py: three programs that were written apart have to come to the same bytes. Needs Python
3.11 and the package `cryptography`.
"""

import base64
import hashlib
import hmac
import json
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "vectors" / "handshake.json"
PAGE = ROOT / "docs" / "protocol.md"
HEADING = "## Worked bytes\n"


def row(start, count=32):
    """Bytes that count up: easy to type into any language."""
    return bytes(range(start, start + count))


DAEMON_SEED = row(0x00)
CALLER_SEED = row(0x20)
CALLER_EPHEMERAL = row(0x40)
DAEMON_EPHEMERAL = row(0x60)
CALLER_NONCE = row(0x80)
DAEMON_NONCE = row(0xA0)
GENERATION = row(0xC0, 16)
CONNECTION = row(0xD0, 16)
SESSION = row(0xE0, 16)
OPERATOR_SEED = bytes([0x11]) * 32
OPERATOR_EPHEMERAL = bytes([0x22]) * 32
OPERATOR_NONCE = bytes([0x33]) * 32
BUILD = "usherd/0.1.0"


def b64(data):
    return base64.urlsafe_b64encode(data).decode("ascii").rstrip("=")


def sha256(*parts):
    return hashlib.sha256(b"".join(parts)).digest()


def text(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def line(value):
    return text(value) + b"\n"


def transcript(*lines):
    return sha256(b"usher/1 transcript\n", *lines)


class Signer:
    def __init__(self, seed):
        self.seed = seed
        self.key = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = self.key.public_key().public_bytes_raw()
        self.fingerprint = sha256(self.public)

    def proof(self, label, digest):
        return line({"proof": b64(self.key.sign(label + digest))})

    def shown(self):
        return {"seed": self.seed.hex(), "public": b64(self.public), "fingerprint": b64(self.fingerprint)}


def x25519_public(secret):
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def hkdf(secret, salt, info):
    """RFC 5869 for one block of 32 bytes, by its own two steps."""
    extracted = hmac.digest(salt, secret, "sha256")
    return hmac.digest(extracted, info + b"\x01", "sha256")


def seal(key, counter, plaintext):
    length = (len(plaintext) + 16).to_bytes(4, "big")
    return length + AESGCM(key).encrypt(bytes(4) + counter.to_bytes(8, "big"), plaintext, length)


def first_line(signer, role, low, high, nonce, ephemeral, scopes=None):
    hello = {
        "protocol": {"min": low, "max": high},
        "role": role,
        "credential": b64(signer.fingerprint),
        "nonce": b64(nonce),
        "ephemeral": b64(x25519_public(ephemeral)),
    }
    if scopes is not None:
        hello["scopes"] = scopes
    return line({"hello": {**hello, "client": "usher/0.1.0"}})


def hello(daemon, client, line_1, ephemeral, protocol):
    """All lines of a hello that is answered with a challenge, and what follows from them."""
    challenge = line({"challenge": {
        "protocol": protocol,
        "generation": b64(GENERATION),
        "daemon": b64(daemon.public),
        "nonce": b64(DAEMON_NONCE),
        "ephemeral": b64(x25519_public(DAEMON_EPHEMERAL)),
    }})
    t1 = transcript(line_1, challenge)
    daemon_proof = daemon.proof(b"usher/1 daemon proof\n", t1)
    t2 = transcript(line_1, challenge, daemon_proof)
    client_proof = client.proof(b"usher/1 client proof\n", t2)
    t3 = transcript(line_1, challenge, daemon_proof, client_proof)
    ours, theirs = X25519PrivateKey.from_private_bytes(ephemeral), x25519_public(DAEMON_EPHEMERAL)
    secret = ours.exchange(X25519PublicKey.from_public_bytes(theirs))
    return {
        "client_ephemeral_secret": ephemeral.hex(),
        "daemon_ephemeral_secret": DAEMON_EPHEMERAL.hex(),
        "shared_secret": secret.hex(),
        "line_1": line_1.decode(),
        "challenge": challenge.decode(),
        "t1": t1.hex(),
        "daemon_proof": daemon_proof.decode(),
        "t2": t2.hex(),
        "client_proof": client_proof.decode(),
        "t3": t3.hex(),
        "client_to_daemon": hkdf(secret, t3, b"usher/1 client to daemon").hex(),
        "daemon_to_client": hkdf(secret, t3, b"usher/1 daemon to client").hex(),
    }


def frame(lines, direction, counter, plaintext):
    return {
        "direction": direction,
        "counter": counter,
        "plaintext": plaintext.decode(),
        "frame": seal(bytes.fromhex(lines[direction]), counter, plaintext).hex(),
    }


def frames(daemon, lines):
    """The first frames each way: welcome, a request with payload, its answer with a receipt; and the receipt's file."""
    limits = {
        "frame_max_bytes": 9_437_184, "input_max_bytes": 1_048_576, "result_max_bytes": 8_388_608,
        "snapshot_max_bytes": 4_194_304, "deadline_default_ms": 15_000, "deadline_max_ms": 300_000,
        "heartbeat_ms": 10_000,
    }
    welcome = text({"jsonrpc": "2.0", "method": "welcome", "params": {
        "connection": b64(CONNECTION), "protocol": 1, "role": "caller", "scopes": ["session.list", "session.send"],
        "limits": limits, "build": BUILD,
    }})
    request = text({"jsonrpc": "2.0", "id": 1, "method": "session.send", "params": {
        "selector": {"session": b64(SESSION)}, "command": "reload", "receipt": True,
    }}) + b'\n{ "rev":"HEAD",\n  "n":1.0e0, "n":"\\u00e9\xc3\xa9" }'
    result = text({"session_id": b64(SESSION), "took_ms": 7}) + b'\n"done"'
    signature = daemon.key.sign(
        b"usher/1 receipt\n" + bytes.fromhex(lines["t3"]) + sha256(request) + sha256(result)
    )
    head, payload = result.split(b"\n", 1)
    answer = b'{"jsonrpc":"2.0","id":1,"result":' + head + b',"receipt":"' + b64(signature).encode() + b'"}\n' + payload
    closing = text({"jsonrpc": "2.0", "method": "closing", "params": {"reason": "done"}})
    names = ("line_1", "challenge", "daemon_proof", "client_proof")
    receipt = {
        "version": 1,
        "lines": [lines[name].removesuffix("\n") for name in names],
        "request": request.decode(),
        "result": result.decode(),
        "receipt": b64(signature),
    }
    return {
        "welcome": frame(lines, "daemon_to_client", 0, welcome),
        "request": frame(lines, "client_to_daemon", 0, request),
        "answer": frame(lines, "daemon_to_client", 1, answer),
        "closing": frame(lines, "client_to_daemon", 1, closing),
    }, receipt


def incompatible(daemon, client):
    line_1 = first_line(client, "caller", 2, 3, CALLER_NONCE, CALLER_EPHEMERAL)
    answer = line({"incompatible": {
        "protocol": {"min": 1, "max": 1},
        "build": BUILD,
        "generation": b64(GENERATION),
        "daemon": b64(daemon.public),
        "nonce": b64(DAEMON_NONCE),
    }})
    signed = transcript(line_1, answer)
    proof = daemon.proof(b"usher/1 incompatible\n", signed)
    signed_by_client = transcript(line_1, answer, proof)
    return {
        "line_1": line_1.decode(),
        "incompatible": answer.decode(),
        "transcript": signed.hex(),
        "proof": proof.decode(),
        "client_transcript": signed_by_client.hex(),
        "client_proof": client.proof(b"usher/1 client proof\n", signed_by_client).decode(),
    }


def build():
    daemon, caller, operator = Signer(DAEMON_SEED), Signer(CALLER_SEED), Signer(OPERATOR_SEED)
    scopes = ["session.list", "session.send", "later.method"]
    line_1 = first_line(caller, "caller", 1, 1, CALLER_NONCE, CALLER_EPHEMERAL, scopes)
    lines = hello(daemon, caller, line_1, CALLER_EPHEMERAL, 1)
    sealed, receipt = frames(daemon, lines)
    zero = first_line(operator, "operator", 0, 0, OPERATOR_NONCE, OPERATOR_EPHEMERAL)
    return {
        "keys": {"daemon": daemon.shown(), "caller": caller.shown(), "operator": operator.shown()},
        "hello": lines,
        "frames": sealed,
        "receipt": receipt,
        "incompatible": incompatible(daemon, caller),
        "protocol_0": hello(daemon, operator, zero, OPERATOR_EPHEMERAL, 0),
        "health": {
            "question": line({"health": 1}).decode(),
            "answer": line({"ok": True, "generation": b64(GENERATION)}).decode(),
        },
        "busy": line({"refused": {"code": "busy", "resource": "connections"}}).decode(),
    }


# What the page shows, in its order: a sentence, then the names of values in the file.
SHOWN = (
    ("The keys: seeds (the 32 bytes in a PKCS#8 file) in hex, public keys and fingerprints in base64url.",
     ("keys.daemon.seed", "keys.daemon.public", "keys.caller.seed", "keys.caller.public", "keys.caller.fingerprint")),
    ("A caller's hello, each line with its LF, and the SHA-256 of each transcript.",
     ("hello.line_1", "hello.challenge", "hello.t1", "hello.daemon_proof", "hello.t2", "hello.client_proof",
      "hello.t3")),
    ("X25519 of the two ephemeral keys, and the keys of both directions.",
     ("hello.client_ephemeral_secret", "hello.daemon_ephemeral_secret", "hello.shared_secret",
      "hello.client_to_daemon", "hello.daemon_to_client")),
    ("The daemon's first frame, whole (its plaintext is a `welcome` of one line).",
     ("frames.welcome.plaintext", "frames.welcome.frame")),
    ("The caller's first frame: a request with a payload that must not be changed, and with a receipt asked for.",
     ("frames.request.plaintext", "frames.request.frame")),
    ("The daemon's second frame: the answer, its payload, and the receipt over both texts.",
     ("frames.answer.plaintext", "frames.answer.frame", "receipt.receipt")),
    ("No protocol in common: line 1, the answer, its proof, and the proof that the client may send.",
     ("incompatible.line_1", "incompatible.incompatible", "incompatible.proof", "incompatible.client_proof")),
    ("Protocol 0, line 1.", ("protocol_0.line_1",)),
    ("Health and a daemon without a place.", ("health.question", "health.answer", "busy")),
)


def value(vectors, name):
    for key in name.split("."):
        vectors = vectors[key]
    return vectors


def is_hex(shown):
    return len(shown) >= 64 and set(shown) <= set("0123456789abcdef")


def wrapped(shown):
    """Hex in rows of 32 bytes; everything else as it is, without a last LF."""
    if not is_hex(shown):
        return shown.removesuffix("\n")
    return "\n".join(shown[place:place + 64] for place in range(0, len(shown), 64))


def section(vectors):
    parts = [
        HEADING,
        "From fixed keys and nonces, so that a client can be tried byte for byte without a daemon. Made by\n"
        "`tests/vectors/make.py`; `tests/vectors/handshake.json` has all of it and more (a whole receipt file, the lines\n"
        "of protocol 0). Hex is broken into rows of 32 bytes; lines and plaintexts stand as they are, a line's LF left\n"
        "out.\n",
    ]
    for sentence, names in SHOWN:
        parts.append(sentence + "\n")
        parts += [f"`{name}`\n\n```text\n{wrapped(value(vectors, name))}\n```\n" for name in names]
    return "\n".join(parts)


def main():
    vectors = build()
    FILE.write_text(json.dumps(vectors, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    before = page[:page.index(HEADING)] if HEADING in page else page + "\n"
    PAGE.write_text(before + section(vectors), encoding="utf-8")


if __name__ == "__main__":
    main()
