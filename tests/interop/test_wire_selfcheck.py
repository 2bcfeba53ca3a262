"""Checks the Python client itself, against the daemon's side of the hello in a few lines of Python.

This proves nothing about usherd; it tells a fault of the client from one of the daemon. The client is held against the
bytes of tests/vectors too, which a third program has made. Run it as `python3 tests/interop/test_wire_selfcheck.py`.
"""

import importlib.util
import json
import os
import socket
import sys
import tempfile
import threading
import unittest
from pathlib import Path

if importlib.util.find_spec("cryptography") is None:
    print("skipped: the Python package cryptography is missing")
    sys.exit(1 if os.environ.get("USHER_REQUIRE_INTEROP") == "1" else 0)

sys.path.insert(0, str(Path(__file__).resolve().parent))

sys.dont_write_bytecode = True

import usher_wire as wire
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
BUILD = "usherd/0.0.0-selfcheck"
LIMITS = {
    "frame_max_bytes": wire.FRAME_MAX,
    "input_max_bytes": 1 << 20,
    "result_max_bytes": 8 << 20,
    "snapshot_max_bytes": 1 << 20,
    "deadline_default_ms": 15_000,
    "deadline_max_ms": 300_000,
    "heartbeat_ms": 10_000,
}


class Sealed:
    """The daemon's end of a connection after the hello."""

    def __init__(self, channel, lines, body, secret):
        self.channel = channel
        self.lines = lines
        self.body = body
        salt = wire.transcript(*lines)
        self.opener = wire.Opener(wire.derive(secret, salt, b"usher/1 client to daemon"))
        self.sealer = wire.Sealer(wire.derive(secret, salt, b"usher/1 daemon to client"))

    def send(self, header, payload=None):
        self.channel.send(self.sealer.seal(wire.join({"jsonrpc": "2.0", **header}, payload)))

    def tell(self, method, params):
        self.send({"method": method, "params": params})

    def read(self):
        return self.opener.read(self.channel)


class Daemon:
    """Listens, says hello, and answers with what `serve` does; `faults` names what it does wrong."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.key = Ed25519PrivateKey.generate()
        self.public = wire.raw_public(self.key)
        self.generation = wire.b64(os.urandom(16))
        self.records = {}
        self.faults = set()
        self.answers = []
        (self.folder / "s").mkdir()
        (self.folder / "keys").mkdir()
        (self.folder / "keys" / "daemon.pub").write_text(wire.b64(self.public) + "\n", encoding="ascii")
        for role in wire.ROLES:
            key = Ed25519PrivateKey.generate()
            pem = key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            (self.folder / "keys" / f"{role}.pem").write_bytes(pem)
            self.records[wire.b64(wire.fingerprint(wire.raw_public(key)))] = (wire.raw_public(key), role)
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(os.fspath(wire.socket_of(self.folder)))
        self.listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._one, args=(wire.Channel(sock),), daemon=True).start()

    def _one(self, channel):
        try:
            self._talk(channel)
        except wire.WireError:
            pass
        finally:
            channel.close()

    def _line(self, body):
        return wire.compact(body).encode("utf-8") + b"\n"

    def _signed(self, label, *lines):
        return self._line({"proof": wire.b64(self.key.sign(label + wire.transcript(*lines)))})

    def _talk(self, channel):
        if "busy" in self.faults:
            channel.send(self._line({"refused": {"code": "busy", "resource": "connections"}}))
            return
        line = channel.read_line()
        body = wire.parse_object(line[:-1])
        if body == {"health": 1}:
            channel.send(self._line({"ok": True, "generation": self.generation}))
            return
        hello = body["hello"]
        low, high = hello["protocol"]["min"], hello["protocol"]["max"]
        shown = {"generation": self.generation, "daemon": wire.b64(self.public), "nonce": wire.b64(os.urandom(32))}
        if "other key" in self.faults:
            shown["daemon"] = wire.b64(wire.raw_public(Ed25519PrivateKey.generate()))
        if not low <= 1 <= high and (low, high) != (0, 0):
            answer = self._line({"incompatible": {"protocol": {"min": 1, "max": 1}, "build": BUILD, **shown}})
            proof = self._signed(b"usher/1 incompatible\n", line, answer)
            channel.send(answer + proof)
            channel.read_line()
            return
        ephemeral = X25519PrivateKey.generate()
        raw = ephemeral.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        if "low order" in self.faults:
            raw = bytes(32)
        if "grown line" in self.faults:
            shown["later"] = 1
        challenge = self._line({"challenge": {"protocol": min(high, 1), **shown, "ephemeral": wire.b64(raw)}})
        proof = self._signed(
            b"usher/1 client proof\n" if "proof" in self.faults else b"usher/1 daemon proof\n", line, challenge
        )
        channel.send(challenge + proof)
        client_proof = channel.read_line()
        secret = ephemeral.exchange(X25519PublicKey.from_public_bytes(wire.unb64(hello["ephemeral"], 32)))
        sealed = Sealed(channel, (line, challenge, proof, client_proof), hello, secret)
        public, role = self.records.get(hello["credential"], (None, None))
        message = b"usher/1 client proof\n" + wire.transcript(line, challenge, proof)
        if public is None or not wire.verify(public, wire.proof_of(client_proof), message):
            sealed.tell("refused", {"code": "unauthenticated"})
        elif role != hello["role"]:
            sealed.tell("refused", {"code": "role"})
        else:
            scopes = sorted(wire.METHODS[role] & set(hello.get("scopes", wire.METHODS[role])))
            grown = {"later": None} if "grown" in self.faults else {}
            sealed.tell("welcome", {"connection": wire.b64(os.urandom(16)), "protocol": min(high, 1), "role": role,
                                    "scopes": scopes, "limits": LIMITS, "build": BUILD, **grown})
            if "grown" in self.faults:
                sealed.tell("later.notification", {})
                sealed.send({"id": 1, "method": "later.request", "params": {}})
            self.serve(sealed)

    def serve(self, sealed):
        """Echoes: the result is the params, the payload comes back."""
        while True:
            plaintext = sealed.read()
            text, payload = wire.split(plaintext)
            header = wire.parse_object(text)
            if "method" not in header:
                self.answers.append(header)
                continue
            if header["method"] == "closing":
                sealed.tell("closing", {"reason": "done"})
                return
            if "replay" in self.faults:
                sealed.sealer.counter -= 1
            if "error" in header["params"]:
                sealed.send({"id": header["id"], "error": header["params"]["error"]})
                continue
            extra, result = {}, wire.compact(header["params"])
            if header["params"].get("receipt"):
                signed = result.encode("utf-8") + (b"" if payload is None else b"\n" + payload)
                message = b"usher/1 receipt\n" + wire.transcript(*sealed.lines)
                message += wire.sha256(plaintext) + wire.sha256(signed)
                extra["receipt"] = wire.b64(self.key.sign(message))
            sealed.send({"id": header["id"], "result": header["params"], **extra}, payload)


class SelfCheck(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="usher-selfcheck-")
        self.addCleanup(folder.cleanup)
        self.daemon = Daemon(folder.name)
        self.addCleanup(self.daemon.stop)
        self.folder = Path(folder.name)

    def identity(self, role="caller"):
        return wire.Identity.from_dir(self.folder, role)

    def connect(self, role="caller", **options):
        connection = wire.connect(self.identity(role), **options)
        self.addCleanup(connection.drop)
        return connection

    def test_health_gives_the_generation(self):
        self.assertEqual(wire.health(wire.socket_of(self.folder)), self.daemon.generation)

    def test_each_role_is_welcomed(self):
        for role in wire.ROLES:
            with self.subTest(role):
                self.assertEqual(self.connect(role).welcome["role"], role)

    def test_a_daemon_with_another_key_is_not_believed(self):
        self.daemon.faults.add("other key")
        self.assertRaises(wire.Impostor, self.connect)

    def test_a_proof_with_another_label_is_not_believed(self):
        self.daemon.faults.add("proof")
        self.assertRaises(wire.Impostor, self.connect)

    def test_a_shared_secret_of_zeros_ends_the_connection(self):
        self.daemon.faults.add("low order")
        with self.assertRaisesRegex(wire.Violation, "zeros"):
            self.connect()

    def test_a_frame_under_an_old_counter_does_not_open(self):
        connection = self.connect()
        self.daemon.faults.add("replay")
        with self.assertRaisesRegex(wire.Violation, "does not open"):
            connection.call("session.list")

    def test_refused_and_busy_are_told_apart(self):
        with self.assertRaises(wire.Refused) as caught:
            wire.connect(self.identity(), role="producer")
        self.assertEqual(caught.exception.code, "role")
        with self.assertRaises(wire.Refused) as caught:
            wire.connect(self.identity().with_key(Ed25519PrivateKey.generate()))
        self.assertEqual(caught.exception.code, "unauthenticated")
        self.daemon.faults.add("busy")
        self.assertRaises(wire.Busy, self.connect)

    def test_incompatible_is_proved(self):
        with self.assertRaises(wire.Incompatible) as caught:
            self.connect(protocol=(2, 9))
        self.assertEqual(caught.exception.protocol, (1, 1))

    def test_payloads_come_back_byte_for_byte(self):
        connection = self.connect()
        for size in (1, 2, 1024, 65_536, 1 << 20):
            payload = b"7" * size
            self.assertEqual(connection.call("session.send", payload=payload).payload, payload)

    def test_an_error_of_the_wrong_shape_is_a_violation(self):
        data = {"code": "invalid-params", "retryable": False}
        with self.assertRaises(wire.Failed) as caught:
            self.connect().call("x", {"error": {"code": -32602, "message": "m", "data": data}})
        self.assertEqual(caught.exception.code, "invalid-params")
        with self.assertRaises(wire.Violation):
            self.connect().call("x", {"error": {"code": -32000, "message": "m", "data": data}})

    def test_what_the_daemon_may_come_to_say_is_ignored_in_frames_and_refused_in_lines(self):
        self.daemon.faults.add("grown")
        connection = self.connect()
        data = {"code": "busy", "retryable": True, "later": 1}
        with self.assertRaises(wire.Failed) as caught:
            connection.call("x", {"error": {"code": -32000, "message": "m", "data": data, "later": 1}})
        self.assertEqual(caught.exception.code, "busy")
        # The daemon's request came before the first answer, so its own answer came before this request.
        self.assertEqual(connection.call("x", {"a": 1}).result, {"a": 1})
        (answer,) = self.daemon.answers
        self.assertEqual((answer["id"], "error" in answer), (1, True))
        self.daemon.faults.add("grown line")
        with self.assertRaisesRegex(wire.Violation, "later"):
            self.connect()

    def test_closing_is_answered_and_a_torn_stream_is_lost(self):
        connection = self.connect()
        connection.close()
        self.assertEqual(connection.ended, "done")
        connection = self.connect()
        connection.channel.end_writing()
        self.assertIsInstance(connection.wait_end(), wire.Lost)

    def test_a_receipt_verifies_and_no_byte_of_it_can_change(self):
        connection = self.connect()
        receipt = connection.call("session.send", {"a": "\u00e9\"\\"}, b'{"n":1.0e0}', receipt=True).receipt
        caller = self.identity()
        self.assertEqual(receipt.verify(self.daemon.public, caller.public), wire.fingerprint(caller.public))
        text = receipt.to_file()
        self.assertEqual(wire.Receipt.from_file(text), receipt)
        self.assertEqual(verified_changes(text, self.daemon.public), [])

    def test_raw_members_keep_their_bytes(self):
        text = '{ "a" : [1, {"result":2}] , "result":{ "n" : 1.0e0,"s":"\\u00e9}" } ,"z":""}'
        self.assertEqual(wire.raw_member(text, "result"), '{ "n" : 1.0e0,"s":"\\u00e9}" }')
        self.assertIsNone(wire.raw_member(text, "absent"))

    def test_texts_that_are_not_canonical_are_refused(self):
        self.assertEqual(wire.unb64("AAAAAAAAAAAAAAAAAAAAAA", 16), bytes(16))
        for text in ("AAAAAAAAAAAAAAAAAAAAAB", "AAAAAAAAAAAAAAAAAAAAA=", "AAAAAAAAAAAAAAAAAAAAA+", "", None, "A" * 43):
            self.assertRaises(wire.Violation, wire.unb64, text, 16)
        for text in (" {}", "{} ", "{}\r", '{"a":1,"a":1}', "[]", '{"a":NaN}', "{", "", '{"a":1}{}', b"{\xff}"):
            self.assertRaises(wire.Violation, wire.parse_object, text)

    def test_frames_are_the_bytes_of_the_page(self):
        frame = wire.Sealer(bytes(32)).seal(b"{}")
        self.assertEqual(frame[:4], b"\x00\x00\x00\x12")
        self.assertEqual(len(frame), 4 + 2 + 16)
        opener = wire.Opener(bytes(32))
        self.assertEqual(opener.open(frame[:4], frame[4:]), b"{}")
        self.assertRaises(wire.Violation, opener.open, frame[:4], frame[4:])


def load_maker():
    """tests/vectors/make.py as a module."""
    spec = importlib.util.spec_from_file_location("make", VECTORS / "make.py")
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    return maker


class TestVectors(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.vectors = json.loads((VECTORS / "handshake.json").read_text(encoding="utf-8"))

    def key(self, whose):
        shown = self.vectors["keys"][whose]
        key = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(shown["seed"]))
        self.assertEqual(wire.b64(wire.raw_public(key)), shown["public"])
        self.assertEqual(wire.b64(wire.fingerprint(wire.raw_public(key))), shown["fingerprint"])
        return key

    def client(self, whose, role, line, ephemeral):
        """A hello of this client whose random parts are those of the vectors."""
        daemon = wire.raw_public(self.key("daemon"))
        hello = wire.Hello(wire.Identity(self.key(whose), daemon, Path("nowhere"), role))
        hello.ephemeral = X25519PrivateKey.from_private_bytes(bytes.fromhex(ephemeral))
        hello.line = line.encode("utf-8")
        bounds = wire.parse_object(hello.line[:-1])["hello"]["protocol"]
        hello.range = (bounds["min"], bounds["max"])
        return hello

    def check_hello(self, name, whose, role):
        lines = self.vectors[name]
        hello = self.client(whose, role, lines["line_1"], lines["client_ephemeral_secret"])
        body = wire.parse_object(hello.line[:-1])["hello"]
        rebuilt = {**hello.body, "protocol": body["protocol"], "nonce": body["nonce"], "client": "usher/0.1.0"}
        public = hello.ephemeral.public_key().public_bytes_raw()
        rebuilt["ephemeral"] = wire.b64(public)
        if "scopes" in body:
            del rebuilt["client"]
            rebuilt.update(scopes=body["scopes"], client="usher/0.1.0")
        self.assertEqual(wire.compact({"hello": rebuilt}) + "\n", lines["line_1"])

        self.assertIs(hello.take_challenge(lines["challenge"].encode()), True)
        self.assertEqual(wire.transcript(*hello.lines).hex(), lines["t1"])
        hello.take_daemon_proof(lines["daemon_proof"].encode())
        self.assertEqual(wire.transcript(*hello.lines).hex(), lines["t2"])
        self.assertEqual(hello.client_proof().decode(), lines["client_proof"])
        self.assertEqual(wire.transcript(*hello.lines).hex(), lines["t3"])
        self.assertEqual([key.hex() for key in hello.keys()], [lines["client_to_daemon"], lines["daemon_to_client"]])
        secret = X25519PrivateKey.from_private_bytes(bytes.fromhex(lines["daemon_ephemeral_secret"]))
        shared = secret.exchange(X25519PublicKey.from_public_bytes(public))
        self.assertEqual(shared.hex(), lines["shared_secret"])

    def test_a_hello_comes_to_the_bytes_of_the_vectors(self):
        self.check_hello("hello", "caller", "caller")

    def test_protocol_0_comes_to_the_bytes_of_the_vectors(self):
        self.check_hello("protocol_0", "operator", "operator")

    def test_frames_seal_and_open_as_in_the_vectors(self):
        frames = {"daemon_to_client": ("welcome", "answer"), "client_to_daemon": ("request", "closing")}
        for direction, names in frames.items():
            key = bytes.fromhex(self.vectors["hello"][direction])
            sealer, opener = wire.Sealer(key), wire.Opener(key)
            for counter, name in enumerate(names):
                shown = self.vectors["frames"][name]
                frame = bytes.fromhex(shown["frame"])
                self.assertEqual((shown["direction"], shown["counter"]), (direction, counter))
                self.assertEqual(sealer.seal(shown["plaintext"].encode()), frame, name)
                self.assertEqual(opener.open(frame[:4], frame[4:]).decode(), shown["plaintext"], name)

    def test_the_receipt_of_the_vectors_verifies(self):
        receipt = wire.Receipt.from_file(json.dumps(self.vectors["receipt"], ensure_ascii=False))
        daemon, caller = wire.raw_public(self.key("daemon")), wire.raw_public(self.key("caller"))
        self.assertEqual(receipt.verify(daemon, caller), wire.fingerprint(caller))
        self.assertEqual(receipt.request.decode(), self.vectors["frames"]["request"]["plaintext"])
        text, payload = wire.split(self.vectors["frames"]["answer"]["plaintext"].encode())
        self.assertEqual(wire.raw_member(text, "result").encode() + b"\n" + payload, receipt.result)
        self.assertEqual(wire.parse_object(text)["receipt"], wire.b64(receipt.signature))

    def test_an_incompatible_answer_is_proved_as_in_the_vectors(self):
        shown = self.vectors["incompatible"]
        hello = self.client("caller", "caller", shown["line_1"], self.vectors["hello"]["client_ephemeral_secret"])
        self.assertIs(hello.take_challenge(shown["incompatible"].encode()), False)
        self.assertEqual(wire.transcript(*hello.lines).hex(), shown["transcript"])
        hello.take_daemon_proof(shown["proof"].encode(), compatible=False)
        self.assertEqual(wire.transcript(*hello.lines).hex(), shown["client_transcript"])
        self.assertEqual(hello.client_proof().decode(), shown["client_proof"])
        hello = self.client("caller", "caller", shown["line_1"], self.vectors["hello"]["client_ephemeral_secret"])
        hello.take_challenge(shown["incompatible"].encode())
        with self.assertRaises(wire.Impostor):
            hello.take_daemon_proof(shown["proof"].encode(), compatible=True)

    def test_health_and_busy_lines_are_read(self):
        answer = wire.parse_object(self.vectors["health"]["answer"][:-1])
        self.assertEqual(answer, {"ok": True, "generation": wire.b64(bytes(range(0xC0, 0xD0)))})
        self.assertEqual(self.vectors["health"]["question"], '{"health":1}\n')
        self.assertRaises(wire.Busy, wire.raise_if_busy, wire.parse_object(self.vectors["busy"][:-1]))

    def test_making_the_vectors_again_changes_neither_file_nor_page(self):
        maker = load_maker()
        made = maker.build()
        self.assertEqual(made, self.vectors)
        page = maker.PAGE.read_text(encoding="utf-8")
        self.assertEqual(page[page.index(maker.HEADING):], maker.section(made))


def verified_changes(text, daemon):
    """The places where a changed byte of a receipt file goes unnoticed: none, that is."""
    found = []
    data = text.encode("utf-8")
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        try:
            wire.Receipt.from_file(bytes(changed)).verify(daemon)
        except wire.BadReceipt:
            continue
        found.append(place)
    return found


if __name__ == "__main__":
    unittest.main()
