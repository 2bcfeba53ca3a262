"""Drives a real usherd with a client that was written from docs/protocol.md alone.

    USHERD=target/debug/usherd USHER=target/debug/usher python3 tests/interop/test_interop.py

Every daemon gets a temporary USHER_DIR of its own. Nothing sleeps: what is waited for has an event and a deadline.
"""

import contextlib
import datetime
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

REQUIRED = os.environ.get("USHER_REQUIRE_INTEROP") == "1"

if importlib.util.find_spec("cryptography") is None:
    print("skipped: the Python package cryptography is missing, so no client written from the page was tried")
    sys.exit(1 if REQUIRED else 0)

sys.path.insert(0, str(Path(__file__).resolve().parent))

sys.dont_write_bytecode = True

import usher_wire as wire
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MIB = 1 << 20
# In the order of the page's table.
METHODS = """
session.register session.update session.heartbeat session.unregister session.stage_key session.confirm_key session.list
session.get session.send session.wait approval.request approval.list approval.withdraw approval.decide
events.subscribe events.unsubscribe daemon.status credential.list credential.enroll credential.revoke credential.renew audit.head daemon.drain daemon.stop
""".split()
SOON = 10.0
INSTANT = r"\A\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z\Z"
DAEMON = None  # the daemon that most tests share


class Usherd:
    """A daemon in the foreground, with a USHER_DIR of its own."""

    def __init__(self):
        self.base = Path(tempfile.mkdtemp(prefix="usher-interop-"))
        self.folder = self.base / "u"
        self.folder.mkdir(mode=0o700)
        self.environ = {**os.environ, "USHER_DIR": str(self.folder)}
        self.process = None

    @property
    def socket(self):
        return wire.socket_of(self.folder)

    def start(self):
        with open(self.base / "log", "ab") as log:
            self.process = subprocess.Popen(
                [os.environ["USHERD"]], env=self.environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + SOON
        while True:
            with contextlib.suppress(OSError, wire.Lost, wire.DeadlinePassed):
                self.generation = wire.health(self.socket, timeout=2.0)
                return self
            # Waits for the one thing that can end the waiting early: the daemon's death.
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self.process.wait(timeout=0.02)
                raise AssertionError(f"usherd ended with {code} at its start:\n{self.log()}")
            if time.monotonic() > deadline:
                self.destroy()
                raise AssertionError(f"usherd is not healthy after {SOON} s:\n{self.log()}")

    def log(self):
        return (self.base / "log").read_text(encoding="utf-8", errors="replace")[-4000:] if self.base.exists() else ""

    def wait(self, timeout=SOON):
        return self.process.wait(timeout)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.wait(2 * SOON)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"usherd does not end on SIGTERM:\n{self.log()}") from None

    def destroy(self):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.base, ignore_errors=True)


def setUpModule():
    global DAEMON
    if "USHERD" not in os.environ:
        raise AssertionError("USHERD names no daemon binary")
    DAEMON = Usherd()
    unittest.addModuleCleanup(DAEMON.destroy)
    DAEMON.start()


def tearDownModule():
    code = DAEMON.stop()
    if code != 0:
        raise AssertionError(f"usherd ended with {code}:\n{DAEMON.log()}")


def token():
    return wire.b64(os.urandom(16))


def started_ms():
    """When this process started, in ms since 1970."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
    boot = int(re.search(r"^btime (\d+)$", Path("/proc/stat").read_text(encoding="utf-8"), re.M).group(1))
    return boot * 1000 + ticks * 1000 // os.sysconf("SC_CLK_TCK")


STARTED = started_ms() if Path("/proc/self/stat").exists() else int(time.time() * 1000)


def signer():
    return Ed25519PrivateKey.generate()


def public(key):
    """The raw public half in base64url."""
    return wire.b64(key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw))


def lease_signature(connection, session_id, key):
    return wire.b64(key.sign(b"usher/1 lease\n" + connection.t3 + wire.unb64(session_id, 16)))


def text_of(size):
    """One JSON text of exactly that many bytes."""
    return b"7" if size == 1 else b'"' + b"x" * (size - 2) + b'"'


def instant(seconds):
    when = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


class Case(unittest.TestCase):
    """One test with connections that end when it ends."""

    maxDiff = None

    def setUp(self):
        self.daemon = DAEMON

    def fresh_daemon(self):
        """Another daemon, for tests that change or end it."""
        self.daemon = Usherd()
        self.addCleanup(self.daemon.destroy)
        return self.daemon.start()

    def identity(self, role):
        return wire.Identity.from_dir(self.daemon.folder, role)

    def connect(self, who, **options):
        identity = self.identity(who) if isinstance(who, str) else who
        connection = wire.connect(identity, **options)
        self.addCleanup(connection.close)
        return connection

    def register(self, names=("run",), snapshot=None, connection=None, **more):
        """(connection, session id) of a new session."""
        connection = connection or self.connect("producer")
        params = {
            "session_id": token(), "title": "interop", "cwd": "/work/interop", "pid": os.getpid(), "started": STARTED,
            "commands": [{"name": name} for name in names], "reconnect_key": public(signer()), **more,
        }
        answer = connection.call("session.register", params, snapshot)
        self.assertEqual(set(answer.result), {"session_id", "lease", "limits"})
        self.assertEqual(answer.result["lease"], {"ttl_ms": 86_400_000, "durable": True})
        self.assertEqual(answer.result["session_id"], params["session_id"])
        self.assertEqual(set(answer.result["limits"]), {"max_in_flight", "queued_max"})
        return connection, params["session_id"]

    def refuses(self, code, work, *arguments, **options):
        with self.assertRaises(wire.Failed) as caught:
            work(*arguments, **options)
        self.assertEqual(caught.exception.code, code, str(caught.exception))
        return caught.exception

    def send_refused(self, code, delivery, connection, params, payload=None):
        failed = self.refuses(code, connection.call, "session.send", params, payload)
        self.assertEqual(failed.delivery, delivery)
        return failed

    def says_refused(self, code, identity, **options):
        with self.assertRaises(wire.Refused) as caught:
            wire.connect(identity, **options)
        self.assertEqual(caught.exception.code, code)

    def ends(self, connection, with_closing=True):
        """The connection ends by the daemon's doing, with `closing` or without, as the page says."""
        end = connection.wait_end(SOON)
        self.assertIsInstance(end, str if with_closing else wire.Lost, f"how it ended: {end}")
        return end

    def ids(self, selector, connection=None):
        """The session ids that a selector gives, over all pages."""
        return [row["session_id"] for row in self.rows(selector, connection)]

    def rows(self, selector, connection=None):
        connection = connection or self.connect("caller")
        found, params = [], {"selector": selector}
        while True:
            answer = connection.call("session.list", params)
            wire.keys_of(answer.result, (), ("next",), what="the result of session.list")
            self.assertLessEqual(len(answer.payload), MIB)
            found += json.loads(answer.payload)
            if "next" not in answer.result:
                return found
            params = {"selector": selector, "page": answer.result["next"]}

    def eventually(self, work):
        """Repeats round trips until one gives something true."""
        deadline = time.monotonic() + SOON
        while not (found := work()):
            self.assertLess(time.monotonic(), deadline, "it did not come true in time")
        return found

    def enroll(self, role="caller", scopes="row", operator=None, **more):
        """(identity, credential id) of a new key."""
        key = Ed25519PrivateKey.generate()
        public = wire.b64(wire.raw_public(key))
        params = {"public_key": public, "label": "interop", "role": role, "scopes": scopes, **more}
        answer = (operator or self.connect("operator")).call("credential.enroll", params)
        self.assertEqual(set(answer.result), {"credential", "fingerprint"})
        self.assertEqual(answer.result["fingerprint"], wire.b64(wire.fingerprint(wire.raw_public(key))))
        wire.unb64(answer.result["credential"], 16)
        return self.identity(role).with_key(key), answer.result["credential"]

    def records(self, operator):
        found, params = [], {}
        while True:
            answer = operator.call("credential.list", params)
            found += json.loads(answer.payload)
            if "next" not in answer.result:
                return found
            params = {"page": answer.result["next"]}


class TestRendezvous(Case):
    def test_health_answers_with_a_generation_and_nothing_else(self):
        self.assertEqual(wire.health(self.daemon.socket), self.daemon.generation)
        channel = wire.Channel.open(self.daemon.socket)
        self.addCleanup(channel.close)
        channel.send(b'{"health":1}\n')
        body = json.loads(channel.read_to_end())
        self.assertEqual(body, {"ok": True, "generation": self.daemon.generation})

    def test_a_started_daemon_has_written_the_keys_of_every_role(self):
        for role in wire.ROLES:
            wire.load_private_key(self.daemon.folder / "keys" / f"{role}.pem")
        wire.load_daemon_key(self.daemon.folder / "keys" / "daemon.pub")

    def test_each_start_draws_another_generation_and_keeps_the_keys(self):
        daemon = self.fresh_daemon()
        first, pinned = daemon.generation, wire.load_daemon_key(daemon.folder / "keys" / "daemon.pub")
        self.assertEqual(daemon.stop(), 0)
        daemon.start()
        self.assertNotEqual(daemon.generation, first)
        self.assertEqual(wire.load_daemon_key(daemon.folder / "keys" / "daemon.pub"), pinned)
        self.assertEqual(self.connect("caller").generation, daemon.generation)

    def test_a_bundle_is_all_that_a_client_needs(self):
        identity, credential = self.enroll()
        folder = self.daemon.base / f"bundle-{credential}"
        folder.mkdir(mode=0o700)
        pem = identity.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / "key.pem").write_bytes(pem)
        shutil.copy(self.daemon.folder / "keys" / "daemon.pub", folder / "daemon.pub")
        about = {"version": 1, "credential": credential, "role": "caller", "label": "interop"}
        about["socket_folder"] = str(self.daemon.socket.parent)
        (folder / "bundle.json").write_text(json.dumps(about), encoding="utf-8")
        self.assertEqual(self.connect(wire.Identity.from_bundle(folder)).welcome["role"], "caller")


class TestHello(Case):
    def test_each_role_is_welcomed_with_every_field_of_the_page(self):
        for role in wire.ROLES:
            with self.subTest(role):
                connection = self.connect(role)
                welcome = connection.welcome
                wire.unb64(welcome["connection"], 16)
                self.assertEqual((welcome["protocol"], welcome["role"]), (1, role))
                self.assertEqual(welcome["scopes"], [name for name in METHODS if name in wire.METHODS[role]])
                self.assertNotIn("expires", welcome)
                self.assertRegex(welcome["build"], r"\Ausherd/[!-~]+\Z")
                names = "frame_max_bytes input_max_bytes result_max_bytes snapshot_max_bytes deadline_default_ms"
                limits = welcome["limits"]
                self.assertEqual(set(limits), {*names.split(), "deadline_max_ms", "heartbeat_ms"})
                self.assertEqual(limits["frame_max_bytes"], wire.FRAME_MAX)
                self.assertEqual((limits["input_max_bytes"], limits["result_max_bytes"]), (MIB, 8 * MIB))
                self.assertEqual((limits["deadline_default_ms"], limits["deadline_max_ms"]), (15_000, 300_000))
                self.assertEqual(limits["heartbeat_ms"], 10_000)
                self.assertEqual(connection.generation, self.daemon.generation)

    def test_connections_have_different_names(self):
        names = {self.connect("caller").welcome["connection"] for _ in range(4)}
        self.assertEqual(len(names), 4)

    def test_the_first_frame_may_ride_with_the_client_proof(self):
        channel, hello = wire.say_hello(self.identity("caller"))
        proof = hello.client_proof()
        sealer = wire.Sealer(hello.keys()[0])
        request = wire.join({"jsonrpc": "2.0", "id": 1, "method": "session.list", "params": {}})
        channel.send(proof + sealer.seal(request))
        opener = wire.Opener(hello.keys()[1])
        welcome, answer = (wire.parse_object(wire.split(opener.read(channel, SOON))[0]) for _ in range(2))
        channel.close()
        self.assertEqual(welcome["method"], "welcome")
        self.assertEqual((answer["id"], "result" in answer), (1, True))

    def test_a_stranger_is_unauthenticated(self):
        self.says_refused("unauthenticated", self.identity("caller").with_key(Ed25519PrivateKey.generate()))

    def test_a_known_credential_without_its_key_is_unauthenticated(self):
        stranger = self.identity("caller").with_key(Ed25519PrivateKey.generate())
        hello = wire.Hello(stranger)
        hello.body["credential"] = wire.b64(wire.fingerprint(self.identity("caller").public))
        hello.line = wire.compact({"hello": hello.body}).encode() + b"\n"
        self.says_refused("unauthenticated", stranger, hello=hello)

    def test_a_credential_is_refused_in_another_role(self):
        for role in wire.ROLES:
            for other in set(wire.ROLES) - {role}:
                with self.subTest(f"{role} as {other}"):
                    self.says_refused("role", self.identity(role), role=other)

    def test_a_refused_peer_is_sent_nothing_more_than_an_end(self):
        channel, hello = wire.say_hello(self.identity("caller"), role="operator")
        self.addCleanup(channel.close)
        channel.send(hello.client_proof())
        opener = wire.Opener(hello.keys()[1])
        methods = []
        with contextlib.suppress(wire.Lost):
            while True:
                methods.append(wire.parse_object(wire.split(opener.read(channel, SOON))[0])["method"])
        self.assertEqual(methods, ["refused"])

    def test_scopes_of_a_hello_narrow_the_connection(self):
        connection = self.connect("caller", scopes=["no.such.method", "daemon.stop", "session.list"])
        self.assertEqual(connection.welcome["scopes"], ["session.list"])
        connection.call("session.list", {})
        self.refuses("denied", connection.call, "session.get", {"selector": {}})
        failed = self.refuses("denied", connection.call, "session.send", {"selector": {}, "command": "run"})
        self.assertEqual(failed.delivery, "not-delivered")

    def test_scopes_of_a_hello_never_widen_a_grant(self):
        identity, _ = self.enroll(scopes=["session.list"])
        connection = self.connect(identity, scopes=["session.list", "session.get"])
        self.assertEqual(connection.welcome["scopes"], ["session.list"])
        self.refuses("denied", connection.call, "session.get", {"selector": {}})

    def test_a_line_that_is_not_as_documented_gets_no_answer(self):
        identity = self.identity("caller")

        def changed(**more):
            body = {**wire.Hello(identity).body, **more}
            return wire.compact({"hello": {key: value for key, value in body.items() if value != "absent"}}).encode()

        good = wire.Hello(identity).line[:-1]
        nonce = wire.b64(bytes(32))
        cases = {
            "an unknown key": changed(more=1),
            "an unknown key beside hello": good[:-1] + b',"more":1}',
            "a key twice": good[:-2] + b',"client":"twice"}}',
            "hello twice": good[:-1] + b"," + good[1:],
            "null for absent": changed(scopes=None),
            "no client": changed(client="absent"),
            "an empty client": changed(client=""),
            "a client of 65 characters": changed(client="x" * 65),
            "a client that is not ASCII": changed(client="\u00e9"),
            "a client with a control character": changed(client="a\tb"),
            "an unknown role": changed(role="admin"),
            "a minimum over the maximum": changed(protocol={"min": 2, "max": 1}),
            "a negative minimum": changed(protocol={"min": -1, "max": 1}),
            "a maximum of 65536": changed(protocol={"min": 1, "max": 65536}),
            "a range with a fraction": changed(protocol={"min": 1.0, "max": 1}),
            "a range as text": changed(protocol={"min": "1", "max": "1"}),
            "a range as an array": changed(protocol=[1, 1]),
            "an unknown key in the range": changed(protocol={"min": 1, "max": 1, "more": 1}),
            "a nonce with padding": changed(nonce=nonce + "="),
            "a nonce that is not canonical": changed(nonce=nonce[:-1] + "B"),
            "a nonce that is short": changed(nonce=nonce[:-1]),
            "a nonce of 33 bytes": changed(nonce=wire.b64(bytes(33))),
            "a nonce of the other alphabet": changed(nonce="+" + nonce[1:]),
            "a credential that is short": changed(credential=wire.b64(bytes(16))),
            "scopes as text": changed(scopes="session.list"),
            "hello as an array": b'{"hello":[]}',
            "a space in front": b" " + good,
            "a space behind": good + b" ",
            "CRLF": good + b"\r",
            "two objects": good + good,
            "an array": b"[" + good + b"]",
            "bytes that are not UTF-8": good[:-3] + b'\xff"}}',
            "a byte order mark": b"\xef\xbb\xbf" + good,
            "no JSON": b"{hello}",
            "an empty line": b"",
            "an empty object": b"{}",
            "a line that is too long": good[:-2] + b" " * 4096 + b"}}",
            "another health": b'{"health":2}',
            "health as truth": b'{"health":true}',
            "health with more": b'{"health":1,"more":1}',
        }
        for name, line in cases.items():
            with self.subTest(name):
                channel = wire.Channel.open(self.daemon.socket)
                try:
                    with contextlib.suppress(wire.Lost):  # it may be gone before it has read all
                        channel.send(line + b"\n")
                    answer = channel.read_to_end(5.0)
                finally:
                    channel.close()
                self.assertEqual(answer, b"")
        self.assertEqual(wire.health(self.daemon.socket), self.daemon.generation)

    def test_a_line_of_exactly_4096_bytes_is_read(self):
        hello = wire.Hello(self.identity("caller"))
        hello.line = hello.line[:-3] + b" " * (4096 - len(hello.line)) + b"}}\n"
        self.assertEqual(len(hello.line), 4096)
        self.assertEqual(self.connect("caller", hello=hello).welcome["role"], "caller")

    def test_a_proof_line_that_is_none_gets_no_answer(self):
        for name, line in {
            "no JSON": b"proof\n",
            "an unknown key": wire.compact({"proof": wire.b64(bytes(64)), "more": 1}).encode() + b"\n",
            "a short proof": b'{"proof":"AA"}\n',
            "a proof that is not canonical": wire.compact({"proof": "A" * 85 + "B"}).encode() + b"\n",
        }.items():
            with self.subTest(name):
                channel, _ = wire.say_hello(self.identity("caller"))
                self.addCleanup(channel.close)
                channel.send(line)
                self.assertEqual(channel.read_to_end(), b"")

    def test_a_well_formed_proof_that_is_not_the_keys_is_unauthenticated(self):
        channel, hello = wire.say_hello(self.identity("caller"))
        self.addCleanup(channel.close)
        line = wire.compact({"proof": wire.b64(bytes(64))}).encode() + b"\n"
        hello.lines.append(line)
        channel.send(line)
        with self.assertRaises(wire.Refused) as caught:
            wire.Connection(channel, hello)
        self.assertEqual(caught.exception.code, "unauthenticated")

    def test_a_proof_over_another_hello_is_unauthenticated(self):
        channel, hello = wire.say_hello(self.identity("caller"))
        self.addCleanup(channel.close)
        other = wire.say_hello(self.identity("caller"))
        self.addCleanup(other[0].close)
        line = other[1].client_proof()
        hello.lines.append(line)
        channel.send(line)
        with self.assertRaises(wire.Refused) as caught:
            wire.Connection(channel, hello)
        self.assertEqual(caught.exception.code, "unauthenticated")

    def test_a_peer_that_does_not_go_on_is_cut(self):
        silent = wire.Channel.open(self.daemon.socket)
        self.addCleanup(silent.close)
        halfway, _ = wire.say_hello(self.identity("caller"))
        self.addCleanup(halfway.close)
        stuck = self.connect("caller")
        stuck.send_raw(b"\0\0")
        begun = time.monotonic()
        self.assertNotIn(b"challenge", silent.read_to_end(1 + SOON))
        self.assertLess(time.monotonic() - begun, 4.9)
        self.assertEqual(halfway.read_to_end(5 + SOON), b"")
        self.assertIsInstance(stuck.wait_end(10 + SOON), str, "a late frame is told")


class TestVersions(Case):
    def test_no_protocol_in_common_is_answered_with_a_proof(self):
        for bounds in ((2, 2), (2, 65535)):
            with self.assertRaises(wire.Incompatible) as caught:
                self.connect("caller", protocol=bounds)
            self.assertEqual(caught.exception.protocol, (1, 1))
            self.assertRegex(caught.exception.build, r"\Ausherd/")
            self.assertEqual(caught.exception.generation, self.daemon.generation)

    def test_the_highest_protocol_of_both_is_taken(self):
        for bounds in ((1, 1), (0, 1), (1, 65535), (0, 65535)):
            self.assertEqual(self.connect("caller", protocol=bounds).welcome["protocol"], 1)

    def test_protocol_0_shows_the_status_to_an_operator(self):
        connection = self.connect("operator", protocol=(0, 0))
        self.assertEqual(connection.welcome["protocol"], 0)
        status = connection.call("daemon.status", {}).result
        self.assertEqual(set(status), {"generation", "build", "protocol", "sessions", "draining"})
        self.assertEqual(status["generation"], self.daemon.generation)
        self.assertEqual(status["protocol"], {"min": 1, "max": 1})
        self.assertIs(status["draining"], False)
        self.refuses("unknown-method", connection.call, "session.list", {})
        self.refuses("invalid-params", connection.call, "daemon.stop", {})
        receipt = connection.call("daemon.status", {}, receipt=True).receipt
        receipt.verify(self.identity("operator").daemon, self.identity("operator").public)

    def test_protocol_0_is_for_operators_alone(self):
        for role in ("producer", "caller"):
            self.assertRaises(wire.Incompatible, self.connect, role, protocol=(0, 0))

    def test_protocol_0_stops_a_daemon(self):
        daemon = self.fresh_daemon()
        self.assertEqual(self.connect("operator", protocol=(0, 0)).call("daemon.stop", {"force": False}).result, {})
        self.assertEqual(daemon.wait(), 0)

    def test_protocol_0_drains_a_daemon(self):
        daemon = self.fresh_daemon()
        self.assertEqual(self.connect("operator", protocol=(0, 0)).call("daemon.drain", {}).result, {})
        self.assertEqual(daemon.wait(), 0)


class TestFrames(Case):
    def registration(self, session_id, number=1):
        return wire.join({"jsonrpc": "2.0", "id": number, "method": "session.register", "params": {
            "session_id": session_id, "title": "frame", "cwd": "/", "pid": os.getpid(), "started": STARTED,
            "commands": [], "reconnect_key": public(signer()),
        }})

    def test_a_frame_with_any_bit_flipped_ends_the_connection_and_does_nothing(self):
        for place in (4, 20, -17, -16, -1):
            with self.subTest(place):
                connection, session_id = self.connect("producer"), token()
                frame = bytearray(connection.sealer.seal(self.registration(session_id)))
                frame[place] ^= 1
                connection.send_raw(bytes(frame))
                self.ends(connection)
                self.assertEqual(self.ids({"session": session_id}), [])

    def test_a_frame_whose_length_was_changed_ends_the_connection(self):
        connection, session_id = self.connect("producer"), token()
        frame = bytearray(connection.sealer.seal(self.registration(session_id)))
        frame[3] ^= 1
        connection.send_raw(bytes(frame) + bytes(2))
        self.ends(connection)
        self.assertEqual(self.ids({"session": session_id}), [])

    def test_a_replayed_frame_ends_the_connection_and_its_session(self):
        connection, session_id = self.register()
        frames = []

        def keep(number):
            return wire.join({"jsonrpc": "2.0", "id": number, "method": "session.heartbeat", "params": {}})

        seal = connection.sealer.seal
        connection.sealer.seal = lambda plaintext: frames.append(seal(plaintext)) or frames[-1]
        connection.finish(connection.start_plaintext("session.heartbeat", keep))
        connection.send_raw(frames[0])
        self.ends(connection)
        self.eventually(lambda: self.ids({"session": session_id}) == [])

    def test_frames_in_the_wrong_order_end_the_connection(self):
        connection, session_id = self.connect("producer"), token()
        first = connection.sealer.seal(self.registration(session_id))
        second = connection.sealer.seal(self.registration(session_id, 2))
        connection.send_raw(second + first)
        self.ends(connection)
        self.assertEqual(self.ids({"session": session_id}), [])

    def test_a_frame_under_the_key_of_the_other_direction_ends_the_connection(self):
        channel, hello = wire.say_hello(self.identity("producer"))
        channel.send(hello.client_proof())
        connection = wire.Connection(channel, hello)
        self.addCleanup(connection.close)
        connection.send_raw(wire.Sealer(hello.keys()[1]).seal(self.registration(token())))
        self.ends(connection)

    def test_a_truncated_frame_does_nothing(self):
        for keep in (1, 4, 5, -1):
            with self.subTest(keep):
                connection, session_id = self.connect("producer"), token()
                connection.send_raw(connection.sealer.seal(self.registration(session_id))[:keep])
                connection.channel.end_writing()
                self.ends(connection)
                self.assertEqual(self.ids({"session": session_id}), [])

    def test_a_length_out_of_bounds_ends_the_connection_at_once(self):
        for size in (0, 1, 16, wire.FRAME_MAX + 1, 0x7FFFFFFF, 0xFFFFFFFF):
            with self.subTest(size):
                connection = self.connect("caller")
                connection.send_raw(size.to_bytes(4, "big"))
                self.assertNotIsInstance(connection.wait_end(5.0), wire.Violation)

    def test_a_frame_may_come_byte_by_byte(self):
        connection = self.connect("caller")
        sealer = connection.sealer.seal
        connection.sealer.seal = lambda plaintext: b""
        number = connection.start("session.list", {})
        frame = sealer(wire.join({"jsonrpc": "2.0", "id": number, "method": "session.list", "params": {}}))
        for place in range(len(frame)):
            connection.send_raw(frame[place:place + 1])
        connection.finish(number)

    def test_closing_is_answered_with_closing(self):
        connection = self.connect("caller")
        connection.notify("closing", {"reason": "done"})
        self.ends(connection)


class TestMessages(Case):
    def breaks(self, plaintext, role="caller", connection=None):
        connection = connection or self.connect(role)
        connection.send_plaintext(plaintext)
        return self.ends(connection)

    def request(self, number=1, method="session.list", **more):
        return {"jsonrpc": "2.0", "id": number, "method": method, "params": {}, **more}

    def test_an_lf_with_an_empty_payload_is_cut(self):
        selector = {"selector": {}, "command": "run"}
        self.breaks(wire.join(self.request(method="session.send", params=selector), b""))
        self.breaks(wire.join(self.request(), b""))

    def test_a_payload_on_a_message_that_has_none_is_cut(self):
        self.breaks(wire.join(self.request(), b"{}"))
        self.breaks(wire.join({"jsonrpc": "2.0", "method": "$/cancel", "params": {"id": 1}}, b"{}"))
        self.breaks(wire.join(self.request(method="session.heartbeat"), b"{}"), "producer")

    def test_an_id_out_of_order_is_cut(self):
        for number in (0, 2, -1):
            with self.subTest(number):
                self.breaks(wire.join(self.request(number)))
        connection = self.connect("caller")
        connection.call("session.list", {})
        self.breaks(wire.join(self.request(1)), connection=connection)
        connection = self.connect("caller")
        connection.call("session.list", {})
        self.breaks(wire.join(self.request(3)), connection=connection)

    def test_an_id_that_is_no_integer_is_cut(self):
        for number in ("1", None, 1.5, [1], True):
            with self.subTest(number):
                self.breaks(wire.join(self.request(number)))

    def test_a_header_that_is_no_message_is_cut(self):
        good = wire.join(self.request())
        for name, plaintext in {
            "no JSON": b"{nothing}",
            "a batch": b"[" + good + b"]",
            "a space in front": b" " + good,
            "not UTF-8": b'{"\xff":1}',
            "an empty object": b"{}",
            "two objects": good + good,
            "another version": wire.join(self.request(jsonrpc="1.0")),
            "an unknown key": wire.join(self.request(more=1)),
            "a key twice": good[:-1] + b',"id":1}',
            "a method that is no text": wire.join(self.request(method=1)),
            "a header that is too long": good[:-1] + b" " * wire.HEADER_MAX + b"}",
        }.items():
            with self.subTest(name):
                self.breaks(plaintext)

    def test_a_header_of_exactly_65536_bytes_is_read(self):
        connection = self.connect("caller")

        def padded(number):
            text = wire.join(self.request(number))
            return text[:-1] + b" " * (wire.HEADER_MAX - len(text)) + b"}"

        connection.finish(connection.start_plaintext("session.list", padded))

    def test_an_answer_to_an_id_never_issued_is_cut(self):
        for role in ("producer", "caller"):
            with self.subTest(role):
                self.breaks(wire.join({"jsonrpc": "2.0", "id": 1, "result": {}}), role)

    def test_an_unknown_method_is_an_error_and_nothing_more(self):
        connection = self.connect("caller")
        for method in ("no.such.method", "session.register", "daemon.stop", "credential.list"):
            with self.subTest(method):
                failed = self.refuses("unknown-method", connection.call, method, {})
                self.assertEqual(failed.number, -32601)
        connection.call("session.list", {})

    def test_params_that_are_not_as_documented_are_an_error_and_nothing_more(self):
        connection = self.connect("caller")
        for method, params in (
            ("session.list", {"more": 1}),
            ("session.list", {"page": "no page"}),
            ("session.list", {"selector": None}),
            ("session.list", {"selector": []}),
            ("session.list", {"selector": {"more": 1}}),
            ("session.list", {"receipt": 1}),
            ("session.get", {}),
            ("session.get", {"selector": {"title": 7}}),
            ("session.send", {"selector": {}}),
            ("session.send", {"selector": {}, "command": "run", "deadline_ms": 300_001}),
            ("session.send", {"selector": {}, "command": "run", "deadline_ms": -1}),
            ("session.send", {"selector": {}, "command": "run", "deadline_ms": "1"}),
            ("daemon.status", {"more": 1}),
        ):
            with self.subTest(f"{method} {params}"):
                failed = self.refuses("invalid-params", connection.call, method, params)
                self.assertEqual(failed.number, -32602)
                self.assertEqual(failed.delivery, "not-delivered" if method == "session.send" else None)

    def test_params_that_are_no_object_are_an_error_and_nothing_more(self):
        connection = self.connect("caller")
        for params in ([], [1], "text", 7, True):
            with self.subTest(params):
                number = connection.start_plaintext(
                    "session.list", lambda number, params=params: wire.join(self.request(number, params=params))
                )
                self.refuses("invalid-params", connection.finish, number)

    def test_a_request_without_params_reads_as_an_empty_object(self):
        connection = self.connect("caller")
        bare = {"jsonrpc": "2.0", "method": "daemon.status"}
        number = connection.start_plaintext("daemon.status", lambda number: wire.join({**bare, "id": number}))
        self.assertEqual(connection.finish(number).result["generation"], self.daemon.generation)

    def test_notifications_that_mean_nothing_are_ignored(self):
        connection = self.connect("caller")
        connection.notify("no.such.notification", {"a": 1})
        connection.call("session.list", {})
        for number in (1, 2, 77):
            connection.cancel(number)
        connection.call("session.list", {})

    def test_a_cancel_without_exactly_an_id_is_cut(self):
        for params in ({}, {"id": "1"}, {"id": -1}, {"id": 1, "more": 1}, []):
            with self.subTest(str(params)):
                self.breaks(wire.join({"jsonrpc": "2.0", "method": "$/cancel", "params": params}))

    def test_a_half_closed_stream_ends_the_connection(self):
        connection = self.connect("caller")
        number = connection.start("session.wait", {"selector": {"session": token()}, "deadline_ms": 60_000})
        connection.call("session.list", {})
        connection.channel.end_writing()
        self.ends(connection, with_closing=False)
        self.refuses("connection-lost", connection.finish, number)

    def test_a_stream_that_ends_within_a_frame_is_told(self):
        connection = self.connect("caller")
        connection.send_raw(b"\0\0\1")
        connection.channel.end_writing()
        self.ends(connection)

    def test_a_caller_may_have_128_requests_open(self):
        connection, label = self.connect("caller"), token()
        selector = {"labels": {"interop": label}}
        wait = ("session.wait", {"selector": selector, "deadline_ms": 60_000})
        numbers = [connection.start(*wait) for _ in range(128)]
        failed = self.refuses("busy", connection.call, *wait)
        self.assertEqual((failed.resource, failed.data["retryable"]), ("open-requests", True))
        _, session_id = self.register(labels={"interop": label})
        for number in numbers:
            self.assertEqual(connection.finish(number).result["session"]["session_id"], session_id)


class TestSessions(Case):
    def row(self, selector):
        answer = self.connect("caller").call("session.get", {"selector": selector})
        self.assertEqual(set(answer.result), {"session"})
        return answer.result["session"], answer.payload

    def test_what_a_producer_registers_is_what_callers_see(self):
        given = {
            "title": "vim \u00e9", "cwd": "/home/a/x", "repo_root": "/home/a", "labels": {"a.b/c-d_e": "v"},
            "terminal": {"tty": "/dev/pts/3", "tmux_pane": "%1", "program": "xterm"},
            "runtimes": [{"id": "one", "anything": {"n": [1, None]}}], "max_in_flight": 3,
        }
        connection, session_id = self.register(
            ("reload", "open"), b'{"n":1.0e0}', **given, info={"k": "v"}
        )
        row, snapshot = self.row({"session": session_id})
        required = "session_id title cwd pid started labels commands runtimes max_in_flight registered state"
        wire.keys_of(row, [*required.split(), "last_seen_ms", "pending"], ("repo_root", "terminal", "info"), what="row")
        for key, value in given.items():
            self.assertEqual(row[key], value, key)
        self.assertEqual((row["session_id"], row["pid"], row["started"]), (session_id, os.getpid(), STARTED))
        self.assertEqual(row["commands"], [{"name": "reload"}, {"name": "open"}])
        self.assertEqual((row["state"], row["pending"]), ("live", 0))
        self.assertRegex(row["registered"], r"\A[^.]*\Z")
        self.assertRegex(row["registered"], INSTANT)
        self.assertLess(row["last_seen_ms"], 60_000)
        self.assertEqual(snapshot, b'{"n":1.0e0}')
        listed = self.rows({"session": session_id})
        self.assertEqual([{**item, "last_seen_ms": 0} for item in listed], [{**row, "last_seen_ms": 0}])
        connection.close()
        self.eventually(lambda: self.ids({"session": session_id}) == [])

    def test_the_daemon_draws_a_session_id_when_there_is_none(self):
        connection = self.connect("producer")
        answer = connection.call("session.register", {
            "title": "t", "cwd": "/", "pid": os.getpid(), "started": STARTED, "commands": [],
            "reconnect_key": public(signer()),
        })
        wire.unb64(answer.result["session_id"], 16)
        self.assertEqual(answer.result["limits"]["max_in_flight"], 1)
        row, snapshot = self.row({"session": answer.result["session_id"]})
        self.assertEqual((row["labels"], row["commands"], row["runtimes"]), ({}, [], []))
        self.assertIsNone(snapshot)
        self.assertFalse({"repo_root", "terminal", "info"} & set(row))

    def test_a_session_ends_with_its_connection(self):
        key = signer()
        connection, session_id = self.register(reconnect_key=public(key))
        connection.drop()
        self.eventually(lambda: self.ids({"session": session_id}) == [])
        self.refuses("session-owned", self.register, session_id=session_id, reconnect_key=public(key))
        connection = self.connect("producer")
        signature = lease_signature(connection, session_id, key)
        self.register(
            session_id=session_id, connection=connection, reconnect_key=public(key), lease_signature=signature,
        )

    def test_a_session_has_one_owner_and_a_connection_one_session(self):
        connection, session_id = self.register()
        with self.assertRaises(wire.Failed) as caught:
            self.register(session_id=session_id)
        self.assertEqual(caught.exception.code, "session-owned")
        with self.assertRaises(wire.Failed) as caught:
            self.register(connection=connection)
        self.assertEqual(caught.exception.code, "already-registered")
        self.assertEqual(self.ids({"session": session_id}), [session_id])

    def test_a_producer_without_a_session_is_told_so(self):
        connection = self.connect("producer")
        self.refuses("not-registered", connection.call, "session.heartbeat", {})
        self.refuses("not-registered", connection.call, "session.update", {"title": "t"})
        self.refuses("not-registered", connection.call, "session.unregister", {})

    def test_a_registration_that_is_not_as_documented_is_refused(self):
        connection = self.connect("producer")
        for more in (
            {"title": ""}, {"title": "x" * 257}, {"title": "a\nb"}, {"title": "a\u0085b"}, {"cwd": "relative"},
            {"cwd": "/" + "x" * 4096}, {"repo_root": "relative"}, {"pid": 0}, {"pid": -1}, {"pid": "1"}, {"pid": 1.5},
            {"labels": {"a b": "v"}}, {"labels": {"": "v"}}, {"labels": {"k": 1}}, {"labels": {"k": "x" * 4097}},
            {"labels": None}, {"commands": [{"name": "a"}, {"name": "a"}]}, {"commands": [{"name": "a b"}]},
            {"commands": [{"name": "x" * 65}]}, {"commands": ["a"]},
            {"commands": [{"name": f"c{n}"} for n in range(65)]},
            {"commands": [{"name": "a", "description": "x" * 257}]}, {"runtimes": [{}]}, {"runtimes": ["a"]},
            {"runtimes": [{"id": str(n)} for n in range(17)]}, {"terminal": []},
            {"terminal": {"tty": "x" * 257}},
            {"max_in_flight": 0}, {"max_in_flight": 65}, {"info": []}, {"session_id": "short"}, {"more": 1},
        ):
            with self.subTest(str(more)[:60]):
                with self.assertRaises(wire.Failed) as caught:
                    self.register(connection=connection, **more)
                self.assertIn(caught.exception.code, ("invalid-params", "too-large"))
        deep = {"info": {"deep": json.loads("[" * 200 + "]" * 200)}}
        self.refuses("invalid-params", lambda: self.register(connection=connection, **deep))
        quotes = "\"" * 4000
        much = {"cwd": "/" + quotes, "commands": [{"name": f"c{n}", "description": "\"" * 256} for n in range(64)], "labels": {"k": quotes}}
        self.refuses("too-large", lambda: self.register(connection=connection, **much))
        _, session_id = self.register(connection=connection, terminal={"tty": "/dev/pts/1", "more": "x"})
        self.assertEqual(self.row({"session": session_id})[0]["terminal"], {"tty": "/dev/pts/1"})

    def test_an_update_changes_what_it_names_and_leaves_the_rest(self):
        connection, session_id = self.register(snapshot=b'"old"', labels={"k": "v"}, info={"n": 1})
        self.assertEqual(connection.call("session.update", {"title": "new"}).result, {})
        row, snapshot = self.row({"session": session_id})
        self.assertEqual((row["title"], row["labels"], snapshot), ("new", {"k": "v"}, b'"old"'))
        connection.call("session.update", {"labels": {"x": "y"}, "commands": [{"name": "c", "description": "d"}],
                                           "runtimes": [{"id": "r"}], "snapshot": True}, b' "new" ')
        row, snapshot = self.row({"session": session_id})
        self.assertEqual((row["title"], row["labels"], snapshot), ("new", {"x": "y"}, b' "new" '))
        self.assertEqual((row["commands"], row["runtimes"]), ([{"name": "c", "description": "d"}], [{"id": "r"}]))

    def test_a_snapshot_and_its_announcement_go_together(self):
        connection, session_id = self.register(snapshot=b'"old"')
        self.refuses("invalid-params", connection.call, "session.update", {"title": "x"}, b'"new"')
        self.assertEqual(self.row({"session": session_id})[1], b'"old"')
        connection.call("session.update", {"snapshot": True})
        self.assertEqual(self.row({"session": session_id})[1], b"null")

    def test_a_session_that_was_taken_back_can_be_registered_again(self):
        key, session_id = signer(), token()
        connection, _ = self.register(("one",), session_id=session_id, reconnect_key=public(key))
        connection.call("session.unregister", {})
        signature = lease_signature(connection, session_id, key)
        self.register(
            ("two",), session_id=session_id, connection=connection, reconnect_key=public(key), lease_signature=signature,
        )
        self.assertEqual(self.row({"session": session_id})[0]["commands"], [{"name": "two"}])
        self.connect("caller").start("session.send", {"selector": {"session": session_id}, "command": "two"})
        self.assertEqual(connection.next_request().params["command"], "two")

    def test_a_session_is_taken_back_with_its_key_alone_and_its_old_connection_is_cut(self):
        key, session_id, label = signer(), token(), {"interop": token()}
        first, _ = self.register(session_id=session_id, reconnect_key=public(key), labels=label)
        caller = self.connect("caller")
        number = caller.start("session.send", {"selector": {"session": session_id}, "command": "run"})
        first.next_request()
        second, other = self.connect("producer"), signer()
        for more in (
            {"reconnect_key": public(key)},
            {"reconnect_key": public(key), "lease_signature": lease_signature(first, session_id, key)},
            {"reconnect_key": public(other), "lease_signature": lease_signature(second, session_id, other)},
        ):
            self.refuses("session-owned", self.register, session_id=session_id, connection=second, **more)
        signature = lease_signature(second, session_id, key)
        self.register(
            session_id=session_id, connection=second, reconnect_key=public(key), lease_signature=signature, labels=label,
        )
        self.ends(first, with_closing=False)
        failed = self.refuses("superseded", caller.finish, number)
        self.assertEqual(failed.delivery, "unknown")
        self.assertEqual(self.ids({"labels": label}), [session_id])
        number = caller.start("session.send", {"selector": {"session": session_id}, "command": "run"}, b"1")
        command = second.next_request()
        second.answer(command.id, b"2")
        self.assertEqual(caller.finish(number).payload, b"2")

    def test_a_key_is_rotated_in_two_steps(self):
        old, new, session_id, rotation = signer(), signer(), token(), token()
        connection, _ = self.register(session_id=session_id, reconnect_key=public(old))
        said = b"".join((
            b"usher/1 stage\n", connection.t3, wire.unb64(session_id, 16), wire.unb64(rotation, 16),
            wire.unb64(public(new), 32),
        ))
        params = {"rotation_id": rotation, "new_key": public(new)}
        signatures = {"old": wire.b64(old.sign(said)), "new": wire.b64(new.sign(said))}
        swapped = {"old": signatures["new"], "new": signatures["old"]}
        self.refuses("denied", connection.call, "session.stage_key", {**params, "signatures": swapped})
        for _ in range(2):
            answer = connection.call("session.stage_key", {**params, "signatures": signatures})
            self.assertEqual(answer.result, {})
        self.refuses("rotation-not-found", connection.call, "session.confirm_key", {"rotation_id": token()})
        for _ in range(2):
            self.assertEqual(connection.call("session.confirm_key", {"rotation_id": rotation}).result, {})
        connection.call("session.unregister", {})
        self.refuses(
            "session-owned", self.register, session_id=session_id, connection=connection, reconnect_key=public(old),
            lease_signature=lease_signature(connection, session_id, old),
        )
        self.register(
            session_id=session_id, connection=connection, reconnect_key=public(new),
            lease_signature=lease_signature(connection, session_id, new),
        )

    def test_a_rejected_update_changes_nothing(self):
        connection, session_id = self.register(snapshot=b'"good"')
        most = connection.welcome["limits"]["snapshot_max_bytes"]
        before = self.row({"session": session_id})
        self.refuses("invalid-params", connection.call, "session.update", {"title": "", "snapshot": True}, b'"bad"')
        self.refuses("invalid-params", connection.call, "session.update", {"title": "x", "cwd": "/"})
        failed = self.refuses(
            "too-large", connection.call, "session.update", {"title": "x", "snapshot": True}, text_of(most + 1)
        )
        self.assertEqual(failed.resource, "snapshot")
        after = self.row({"session": session_id})
        self.assertEqual({**after[0], "last_seen_ms": 0}, {**before[0], "last_seen_ms": 0})
        self.assertEqual(after[1], before[1])
        connection.call("session.update", {"snapshot": True}, text_of(most))
        self.assertEqual(self.row({"session": session_id})[1], text_of(most))

    def test_heartbeat_and_unregister_are_answered(self):
        connection, session_id = self.register()
        self.assertEqual(connection.call("session.heartbeat", {}).result, {})
        self.assertEqual(connection.call("session.unregister", {}).result, {})
        self.assertEqual(self.ids({"session": session_id}), [])
        self.refuses("not-registered", connection.call, "session.heartbeat", {})

    def test_wait_is_answered_as_soon_as_one_session_matches(self):
        caller, label = self.connect("caller"), token()
        selector = {"labels": {"interop": label}}
        number = caller.start("session.wait", {"selector": selector, "deadline_ms": 60_000})
        caller.call("session.list", {})
        self.assertFalse(caller.answered(number))
        _, session_id = self.register(labels={"interop": label})
        self.assertEqual(caller.finish(number).result["session"]["session_id"], session_id)
        answer = caller.call("session.wait", {"selector": selector})
        self.assertEqual(answer.result["session"]["session_id"], session_id)
        self.register(labels={"interop": label})
        failed = self.refuses("ambiguous", caller.call, "session.wait", {"selector": selector})
        self.assertEqual(len(failed.data["candidates"]), 2)

    def test_wait_ends_at_its_deadline_and_on_cancel(self):
        caller, selector = self.connect("caller"), {"session": token()}
        self.refuses("timeout", caller.call, "session.wait", {"selector": selector, "deadline_ms": 50})
        number = caller.start("session.wait", {"selector": selector, "deadline_ms": 60_000})
        caller.cancel(number)
        self.refuses("cancelled", caller.finish, number)

    def test_an_operator_sees_sessions_too(self):
        _, session_id = self.register(snapshot=b"[1]")
        operator = self.connect("operator")
        self.assertEqual(self.ids({"session": session_id}, operator), [session_id])
        self.assertEqual(operator.call("session.get", {"selector": {"session": session_id}}).payload, b"[1]")
        self.refuses("unknown-method", operator.call, "session.send", {"selector": {}, "command": "run"})

    def test_selectors_select_what_the_page_says(self):
        label = {"interop": token()}
        _, outer = self.register(title="outer", cwd="/r/a/sub", repo_root="/r/a", labels=label)
        _, inner = self.register(title="inner", cwd="/r/a/b", labels={**label, "more": "1"})
        _, twin = self.register(title="twin", cwd="/r/a/b/deep", repo_root="/r/a/b", labels=label)
        caller = self.connect("caller")

        def found(**selector):
            return self.ids({"labels": label, **selector}, caller)

        self.assertEqual(found(), [outer, inner, twin])
        self.assertEqual(found(session=inner), [inner])
        self.assertEqual(found(session=inner[:8]), [inner])
        self.assertEqual(found(session=token()), [])
        self.assertEqual(found(cwd="/r/a/b"), [inner])
        self.assertEqual(found(cwd="/r/a"), [])
        self.assertEqual(found(title="twin"), [twin])
        self.assertEqual(found(title="twi"), [])
        self.assertEqual(found(labels={**label, "more": "1"}), [inner])
        self.assertEqual(found(labels={**label, "more": "2"}), [])
        self.assertEqual(found(repo="/r/a"), [outer])
        self.assertEqual(found(repo="/r/a/x"), [outer])
        self.assertEqual(found(repo="/r/a/bc"), [outer])
        self.assertEqual(found(repo="/r/a/b"), [inner, twin])
        self.assertEqual(found(repo="/r/a/b/deep/er"), [inner, twin])
        self.assertEqual(found(repo="/r"), [])
        self.assertEqual(found(repo="/r/a/x", boundary="/r/a"), [outer])
        self.assertEqual(found(repo="/r/a/x", boundary="/r/a/x"), [])
        self.assertEqual(found(repo="/r/a/b", title="twin"), [twin])
        self.refuses("invalid-params", caller.call, "session.list", {"selector": {"session": inner[:3]}})

    def test_one_session_is_needed_and_several_are_named(self):
        label = {"interop": token()}
        caller = self.connect("caller")
        self.refuses("session-not-found", caller.call, "session.get", {"selector": {"labels": label}})
        ids = [self.register(title=f"t{n}", cwd=f"/c/{n}", labels=label)[1] for n in range(2)]
        failed = self.refuses("ambiguous", caller.call, "session.get", {"selector": {"labels": label}})
        self.assertCountEqual(
            failed.data["candidates"],
            [{"session_id": ids[n], "title": f"t{n}", "cwd": f"/c/{n}"} for n in range(2)],
        )

    def test_long_lists_come_in_pages_in_order_of_registration(self):
        label = {"interop": token()}
        commands = [{"name": f"c{n:02}" + "x" * 61, "description": "y" * 256} for n in range(64)]
        runtimes = [{"id": str(n), "about": "z" * 900} for n in range(16)]
        ids = [self.wide(label, commands, runtimes) for _ in range(32)]
        caller = self.connect("caller")
        self.assertIn("next", caller.call("session.list", {"selector": {"labels": label}}).result)
        rows = self.rows({"labels": label}, caller)
        self.assertEqual([row["session_id"] for row in rows], ids)
        self.assertTrue(all(row["commands"] == commands and row["runtimes"] == runtimes for row in rows))

    def wide(self, labels, commands, runtimes):
        session_id = token()
        self.connect("producer").call("session.register", {
            "session_id": session_id, "title": "x" * 256, "cwd": "/", "pid": os.getpid(), "started": STARTED,
            "commands": commands, "runtimes": runtimes, "labels": labels, "reconnect_key": public(signer()),
        })
        return session_id


class TestCommands(Case):
    def send(self, caller, session_id, payload=None, command="run", **more):
        return caller.start("session.send", {"selector": {"session": session_id}, "command": command, **more}, payload)

    def round_trip(self, producer, caller, session_id, there, back):
        number = self.send(caller, session_id, there)
        command = producer.next_request()
        producer.answer(command.id, back)
        answer = caller.finish(number)
        self.assertEqual(set(answer.result), {"session_id", "took_ms"})
        self.assertEqual(answer.result["session_id"], session_id)
        return command.payload, answer.payload

    def test_a_repeat_under_a_key_gets_the_first_answer_and_the_command_runs_once(self):
        producer, session_id = self.register()
        caller, other, key = self.connect("caller"), self.connect("caller"), token()
        first = self.send(caller, session_id, b"1", key=key)
        command = producer.next_request()
        self.assertEqual(command.params["key"], key)
        joined = self.send(other, session_id, b"1", key=key)
        conflict = {"selector": {"session": session_id}, "command": "run", "key": key}
        self.send_refused("key-conflict", "not-delivered", caller, conflict, b"2")
        producer.answer(command.id, b" [1] ")
        answer = caller.finish(first)
        self.assertEqual(answer.payload, b" [1] ")
        again = caller.finish(self.send(caller, session_id, b"1", key=key))
        for same in (other.finish(joined), again):
            self.assertEqual((same.result, same.payload), (answer.result, answer.payload))
        self.send(caller, session_id, b"last")
        self.assertEqual(producer.next_request().payload, b"last")
        for bad in ("", "x" * 129, "a\nb", 7):
            self.refuses("invalid-params", caller.call, "session.send", {**conflict, "key": bad}, b"1")

    def test_a_command_says_who_asks_and_how_long_it_may_take(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        number = self.send(caller, session_id, b"1", deadline_ms=20_000)
        command = producer.next_request()
        wire.keys_of(command.params, ("command", "deadline_ms", "caller"), what="command")
        self.assertEqual(command.params["command"], "run")
        self.assertTrue(0 < command.params["deadline_ms"] <= 20_000)
        self.assertEqual(set(command.params["caller"]), {"credential", "label"})
        wire.unb64(command.params["caller"]["credential"], 16)
        producer.answer(command.id, b"2")
        self.assertEqual(caller.finish(number).payload, b"2")

    def test_payloads_of_every_size_come_through_byte_for_byte_in_both_directions(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        sizes = [1 << power for power in range(11)] + [3, 1023, 65_535, 65_536, 65_537, MIB - 1, MIB]
        for size in sizes:
            with self.subTest(size):
                there, back = text_of(size), text_of(size).replace(b"x", b"y")
                got = self.round_trip(producer, caller, session_id, there, back)
                self.assertTrue(got == (there, back), "the bytes differ")

    def test_a_result_of_8_mib_comes_through(self):
        producer, session_id = self.register()
        back = text_of(8 * MIB)
        self.assertTrue(self.round_trip(producer, self.connect("caller"), session_id, b"1", back) == (b"1", back))

    def test_payloads_that_a_re_encoder_would_change_come_through_byte_for_byte(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        for text in (
            "1.0e0", "1E+2", "-0", "-0.0", "1e400", "123456789012345678901234567890", "0.1000", '"\\u00e9"', '"\u00e9"',
            '"\\/"', '"\\ud83d\\ude00"', '"\\ud800"', '"\u2028"', '{"b":1,"a":2}', '{"a":1,"a":2}',
            ' { "a" : [ 1 , 2 ] } ',
            '{\n\t"a":1\r\n}\n', "null", " null", '{"":{"":[]}}', "[" * 100 + "]" * 100, '{"jsonrpc":"2.0","id":9}',
        ):
            with self.subTest(text[:40]):
                payload = text.encode("utf-8")
                self.assertEqual(self.round_trip(producer, caller, session_id, payload, payload), (payload, payload))
                self.assertEqual(self.snapshot(producer, caller, session_id, payload), payload)

    def snapshot(self, producer, caller, session_id, payload):
        producer.call("session.update", {"snapshot": True}, payload)
        return caller.call("session.get", {"selector": {"session": session_id}}).payload

    def test_no_payload_arrives_as_none_and_null_as_null(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        for there, back in ((None, None), (b"null", b"null"), (None, b"null"), (b"null", None)):
            with self.subTest(f"{there} {back}"):
                self.assertEqual(self.round_trip(producer, caller, session_id, there, back), (there, back))

    def test_an_input_over_1_mib_is_too_large_and_the_connection_lives(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        for size in (MIB + 1, 8 * MIB):
            number = self.send(caller, session_id, text_of(size))
            failed = self.refuses("too-large", caller.finish, number)
            self.assertEqual((failed.delivery, failed.resource), ("not-delivered", "input"))
        self.assertEqual(self.round_trip(producer, caller, session_id, b"1", b"2"), (b"1", b"2"))

    def test_a_result_over_8_mib_is_not_passed_on(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        number = self.send(caller, session_id)
        producer.answer(producer.next_request().id, text_of(8 * MIB + 1))
        failed = self.refuses("invalid-result", caller.finish, number)
        self.assertEqual((failed.delivery, failed.resource), ("delivered", "result"))

    def test_a_failing_command_fails_with_the_producers_text(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        for text in ("it \u00e9 failed", "x" * 4096):
            number = self.send(caller, session_id)
            producer.fail(producer.next_request().id, text)
            failed = self.refuses("command-failed", caller.finish, number)
            self.assertEqual((failed.message, failed.delivery, failed.number), (text, "delivered", -32000))

    def test_an_error_of_a_producer_is_taken_in_every_documented_shape_and_bounded(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        for error, text in (
            ({"code": -7, "message": "a\tb\nc", "data": {"code": "mine", "more": 1}}, "a\tb\nc"),
            ({"code": 0, "message": "a\u001b[31m"}, "a\\u{1b}[31m"),
            ({"code": 1, "message": "\u00e9" * 2049}, "\u00e9" * 2048),
            ({"code": 1, "message": "x" * 5000}, "x" * 4096),
        ):
            with self.subTest(text[:20]):
                number = self.send(caller, session_id)
                answer = {"jsonrpc": "2.0", "id": producer.next_request().id, "error": error}
                producer.send_plaintext(wire.join(answer))
                failed = self.refuses("command-failed", caller.finish, number)
                self.assertEqual((failed.message, failed.number), (text, -32000))

    def test_of_a_producers_result_only_the_payload_counts(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        for result in ({}, {"a": 1}, {"session_id": "x", "took_ms": 1}):
            with self.subTest(str(result)):
                number = self.send(caller, session_id)
                command = producer.next_request()
                header = {"jsonrpc": "2.0", "id": command.id, "result": result}
                producer.send_plaintext(wire.join(header, b"1"))
                answer = caller.finish(number)
                self.assertEqual(set(answer.result), {"session_id", "took_ms"})
                self.assertEqual(answer.result["session_id"], session_id)
                self.assertEqual(answer.payload, b"1")

    def test_an_unknown_command_and_an_unknown_session_are_told(self):
        _, session_id = self.register(("one",))
        caller = self.connect("caller")
        one = {"selector": {"session": session_id}, "command": "two"}
        self.send_refused("command-not-found", "not-delivered", caller, one)
        none = {"selector": {"session": token()}, "command": "one"}
        self.send_refused("session-not-found", "not-delivered", caller, none)
        label = {"interop": token()}
        for _ in range(2):
            self.register(labels=label)
        self.send_refused("ambiguous", "not-delivered", caller, {"selector": {"labels": label}, "command": "run"})

    def test_a_timeout_cancels_at_the_producer_and_a_late_answer_frees_the_place(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        number = self.send(caller, session_id, deadline_ms=100)
        command = producer.next_request()
        failed = self.refuses("timeout", caller.finish, number)
        self.assertEqual(failed.delivery, "unknown")
        self.assertEqual(producer.next_notification("$/cancel").params, {"id": command.id})
        following = self.send(caller, session_id, b"2")
        producer.answer(command.id, b'"late"')
        command = producer.next_request(4.5)  # before the 5 s after which the place is free anyway
        self.assertEqual(command.payload, b"2")
        producer.answer(command.id, b"3")
        self.assertEqual(caller.finish(following).payload, b"3")

    def test_a_place_is_free_5_s_after_a_cancel_without_an_answer(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        number = self.send(caller, session_id, deadline_ms=100)
        stuck = producer.next_request()
        self.refuses("timeout", caller.finish, number)
        following = self.send(caller, session_id, b"2", deadline_ms=30_000)
        command = producer.next_request(5 + SOON)
        producer.answer(stuck.id, b'"far too late"')
        producer.answer(command.id, b"3")
        self.assertEqual(caller.finish(following).payload, b"3")

    def test_a_command_that_timed_out_in_the_queue_was_not_delivered(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        first = self.send(caller, session_id, b"1", deadline_ms=60_000)
        command = producer.next_request()
        second = self.send(caller, session_id, b"2", deadline_ms=100)
        failed = self.refuses("timeout", caller.finish, second)
        self.assertEqual(failed.delivery, "not-delivered")
        producer.answer(command.id, b"3")
        self.assertEqual(caller.finish(first).payload, b"3")
        self.assertEqual(self.round_trip(producer, caller, session_id, b"4", b"5"), (b"4", b"5"))
        self.assertEqual(producer.waiting_notifications(), [])

    def test_a_callers_cancel_reaches_the_producer(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        number = self.send(caller, session_id, deadline_ms=60_000)
        command = producer.next_request()
        caller.cancel(number)
        failed = self.refuses("cancelled", caller.finish, number)
        self.assertEqual(failed.delivery, "unknown")
        self.assertEqual(producer.next_notification("$/cancel").params, {"id": command.id})

    def test_a_caller_that_goes_is_a_cancel_too(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        self.send(caller, session_id, deadline_ms=60_000)
        command = producer.next_request()
        caller.drop()
        self.assertEqual(producer.next_notification("$/cancel").params, {"id": command.id})

    def test_commands_of_a_session_run_one_after_the_other_in_order(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        numbers = [self.send(caller, session_id, str(place).encode()) for place in range(8)]
        for place, number in enumerate(numbers):
            command = producer.next_request()
            self.assertEqual(command.payload, str(place).encode())
            caller.call("session.list", {"selector": {"session": session_id}})
            self.assertEqual(producer.waiting_requests(), 0)
            producer.answer(command.id, command.payload)
            self.assertEqual(caller.finish(number).payload, command.payload)

    def test_commands_in_flight_may_be_answered_in_any_order(self):
        producer, session_id = self.register(max_in_flight=2)
        caller = self.connect("caller")
        first, second = self.send(caller, session_id, b"1"), self.send(caller, session_id, b"2")
        commands = [producer.next_request(), producer.next_request()]
        self.assertEqual([command.payload for command in commands], [b"1", b"2"])
        producer.answer(commands[1].id, b"22")
        self.assertEqual(caller.finish(second).payload, b"22")
        self.assertFalse(caller.answered(first))
        producer.answer(commands[0].id, b"11")
        self.assertEqual(caller.finish(first).payload, b"11")

    def test_pending_commands_are_lost_with_their_session(self):
        for how in ("drop", "close", "unregister"):
            with self.subTest(how):
                producer, session_id = self.register()
                caller = self.connect("caller")
                first, second = self.send(caller, session_id), self.send(caller, session_id)
                caller.call("session.list", {})  # answered, so the two before it have been taken
                producer.next_request()
                if how == "unregister":
                    producer.call("session.unregister", {})
                else:
                    getattr(producer, how)()
                self.assertEqual(self.refuses("session-lost", caller.finish, first).delivery, "unknown")
                self.assertEqual(self.refuses("session-lost", caller.finish, second).delivery, "not-delivered")

    def test_a_second_answer_to_a_command_is_dropped(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        number = self.send(caller, session_id)
        command = producer.next_request()
        producer.answer(command.id, b"1")
        producer.answer(command.id, b"2")
        self.assertEqual(caller.finish(number).payload, b"1")
        self.assertEqual(self.round_trip(producer, caller, session_id, b"3", b"4"), (b"3", b"4"))

    def test_the_pending_count_is_shown(self):
        producer, session_id = self.register()
        caller = self.connect("caller")
        for _ in range(2):
            self.send(caller, session_id)
        producer.next_request()
        self.eventually(lambda: self.rows({"session": session_id}, caller)[0]["pending"] == 2)


class TestStatus(Case):
    def test_status_has_every_field_of_the_page(self):
        for role in ("caller", "operator"):
            status = self.connect(role).call("daemon.status", {}).result
            required = "generation build protocol pid started draining sessions pending approvals connections"
            required += " accounts credentials"
            required += " more_credentials budgets more_budgets audit"
            wire.keys_of(status, required.split(), what="status")
            self.assertEqual(set(status["connections"]), {"open", "unfinished_hellos"})
            self.assertEqual(set(status["audit"]), {"state", "seq", "lost"})
            self.assertRegex(status["started"], INSTANT)
            self.assertEqual(status["generation"], self.daemon.generation)
            self.assertEqual(status["protocol"], {"min": 1, "max": 1})
            self.assertEqual(status["pid"], self.daemon.process.pid)
            self.assertIs(status["draining"], False)
            for account in status["accounts"]:
                self.assertEqual(set(account), {"name", "used", "peak", "limit", "refused"})
            names = """connections operators sessions leases queued queued-bytes inbound-bytes outbound-bytes
                snapshots-total-bytes streams approvals approvals-bytes keys kept-results-bytes"""
            self.assertEqual([account["name"] for account in status["accounts"]], names.split())
            names = "credential label role connections sessions in_flight queued queued_bytes outbound_bytes rejected"
            for credential in status["credentials"]:
                self.assertEqual(set(credential), set(names.split()))
            if role == "caller":
                self.assertEqual([credential["role"] for credential in status["credentials"]], ["caller"])


class TestApprovals(Case):
    def ask(self, caller, **params):
        number = caller.start("approval.request", {"summary": token(), **params}, b'"what it is about"')
        pending = caller.next_notification("approval.pending").params
        self.assertEqual(set(pending), {"request", "approval_id", "expires"})
        self.assertEqual(pending["request"], number)
        self.assertRegex(pending["expires"], INSTANT)
        return number, pending["approval_id"]

    def rows(self, peer, approval_id):
        return json.loads(peer.call("approval.list", {"approval_id": approval_id}).payload)

    def test_a_question_is_shown_signed_and_told(self):
        caller, operator = self.connect("caller"), self.connect("operator")
        number, approval_id = self.ask(caller, cwd="/srv", ttl_ms=60_000)
        row, = self.rows(operator, approval_id)
        self.assertEqual(set(row), {"approval_id", "state", "asked", "expires", "text"})
        shown = json.loads(row["text"])
        self.assertEqual(set(shown), {"summary", "detail", "asker", "asked", "expires"})
        self.assertEqual(set(shown["asker"]), {"credential", "label", "cwd"})
        self.assertEqual((shown["detail"], row["state"]), ("what it is about", "open"))
        text, key = row["text"].encode(), self.identity("operator").key
        params = {"approval_id": approval_id, "decision": "approved", "reason": "fine"}
        wrong = wire.decision(key, operator, approval_id, text, False)
        self.refuses("invalid-params", operator.call, "approval.decide", {**params, "signature": wrong})
        params["signature"] = wire.decision(key, operator, approval_id, text, True)
        decided = operator.call("approval.decide", params)
        answer = caller.finish(number)
        self.assertEqual(answer.payload, text)
        self.assertEqual((decided.result, decided.payload), (answer.result, answer.payload))
        self.assertEqual(set(answer.result), {"approval_id", "decision", "decided", "by", "reason", "signature"})
        self.assertEqual(set(answer.result["by"]), {"credential", "label", "public_key"})
        late = self.refuses("already-decided", operator.call, "approval.decide", params)
        self.assertEqual(late.data["outcome"], answer.result)

    def test_a_question_ends_by_its_time_its_asker_and_its_connection(self):
        caller, operator = self.connect("caller"), self.connect("operator")
        number, _ = self.ask(caller, ttl_ms=30)
        self.assertEqual(caller.finish(number).result["decision"], "expired")
        number, approval_id = self.ask(caller)
        caller.call("approval.withdraw", {"approval_id": approval_id})
        self.assertEqual(caller.finish(number).result["reason"], "withdrawn")
        number, _ = self.ask(caller)
        caller.cancel(number)
        self.refuses("cancelled", caller.finish, number)
        number, approval_id = self.ask(caller)
        caller.drop()
        self.eventually(lambda: self.rows(operator, approval_id)[0]["state"] == "cancelled")
        self.assertEqual(self.rows(operator, approval_id)[0]["outcome"]["reason"], "asker-gone")
        self.refuses("approval-not-found", operator.call, "approval.decide", {
            "approval_id": wire.b64(bytes(16)), "decision": "rejected", "signature": wire.b64(bytes(64)),
        })


class TestEvents(Case):
    def events(self, connection, subscription, until):
        """Events of a subscription up to one of this kind; each once and in order."""
        seen = []
        while not seen or seen[-1]["kind"] != until:
            message = connection.next_notification("events")
            self.assertEqual(message.params["subscription"], subscription)
            seen += json.loads(message.payload)
        numbers = [int(event["cursor"].split(":")[1]) for event in seen]
        self.assertEqual(numbers, sorted(set(numbers)))
        for event in seen:
            self.assertRegex(event["ts"], INSTANT)
        return seen

    def test_a_sessions_life_is_told_and_can_be_told_again(self):
        caller = self.connect("caller")
        label = token()
        params = {"selector": {"labels": {"interop": label}}}
        subscribed = caller.call("events.subscribe", params).result
        self.assertEqual(set(subscribed), {"subscription", "cursor"})
        connection, session_id = self.register(labels={"interop": label})
        connection.call("session.update", {"title": "other"})
        connection.call("session.unregister", {})
        seen = self.events(caller, subscribed["subscription"], "session-gone")
        self.assertEqual([event["kind"] for event in seen], ["session-registered", "session-updated", "session-gone"])
        self.assertEqual({event["session_id"] for event in seen}, {session_id})
        self.assertEqual((seen[1]["changed"], seen[2]["reason"]), (["title"], "unregistered"))
        caller.call("events.unsubscribe", {"subscription": subscribed["subscription"]})
        again = caller.call("events.subscribe", {**params, "since": seen[0]["cursor"], "follow": False}).result
        message = caller.next_notification("events")
        self.assertEqual(message.params, {"subscription": again["subscription"], "ended": True})
        self.assertEqual(json.loads(message.payload), seen[1:])

    def test_a_cursor_of_another_start_is_told_as_a_gap(self):
        caller = self.connect("caller")
        since = wire.b64(bytes(16)) + ":7"
        caller.call("events.subscribe", {"since": since, "follow": False})
        first = json.loads(caller.next_notification("events").payload)[0]
        self.assertEqual((first["kind"], first["reason"], "missed" in first), ("lagged", "restart", False))
        for params in ({"since": "soon"}, {"kinds": ["other"]}, {"selector": {"repo": "relative"}}):
            self.refuses("invalid-params", caller.call, "events.subscribe", params)


class TestCredentials(Case):
    def test_the_list_of_records_has_every_field_of_the_page(self):
        operator = self.connect("operator")
        records = self.records(operator)
        required = "credential label role default fingerprint scopes issued state connections"
        for record in records:
            optional = ("sessions", "commands", "expires", "revoked", "expired")
            wire.keys_of(record, required.split(), optional, what="record")
            for key in {"issued", "expires", "revoked", "expired"} & set(record):
                self.assertRegex(record[key], INSTANT)
        for role in wire.ROLES:
            (record,) = [item for item in records if item["role"] == role and item["default"]]
            self.assertEqual(record["fingerprint"], wire.b64(wire.fingerprint(self.identity(role).public)))
            self.assertEqual((record["scopes"], record["state"]), ("row", "active"))

    def test_a_scoped_key_may_do_what_its_scopes_say_and_no_more(self):
        identity, _ = self.enroll(scopes=["session.list", "session.get"])
        connection = self.connect(identity)
        self.assertCountEqual(connection.welcome["scopes"], ["session.list", "session.get"])
        connection.call("session.list", {})
        self.refuses("denied", connection.call, "daemon.status", {})
        self.send_refused("denied", "not-delivered", connection, {"selector": {}, "command": "run"})
        self.says_refused("role", identity, role="operator")

    def test_what_a_grant_does_not_select_does_not_exist(self):
        label = {"interop": token()}
        producer, shown = self.register(("yes", "no"), labels=label)
        _, hidden = self.register(("yes",), labels={"interop": token()})
        identity, _ = self.enroll(scopes="row", sessions=[{"labels": label}], commands=["yes"])
        caller = self.connect(identity)
        self.assertEqual(self.ids({}, caller), [shown])
        self.refuses("session-not-found", caller.call, "session.get", {"selector": {"session": hidden}})
        send = {"selector": {"session": hidden}, "command": "yes"}
        self.send_refused("session-not-found", "not-delivered", caller, send)
        for command in ("no", "neither"):
            self.send_refused("denied", "not-delivered", caller, {"selector": {"session": shown}, "command": command})
        (row,) = self.rows({}, caller)
        self.assertEqual(row["commands"], [{"name": "yes"}])
        status = caller.call("daemon.status", {}).result
        self.assertEqual((status["sessions"], status["accounts"], len(status["credentials"])), (1, [], 1))
        number = caller.start("session.send", {"selector": {}, "command": "yes"}, b"1")
        producer.answer(producer.next_request().id, b"2")
        self.assertEqual(caller.finish(number).payload, b"2")

    def test_a_producer_registers_nothing_outside_its_grant(self):
        label = {"interop": token()}
        identity, _ = self.enroll("producer", sessions=[{"labels": label}])
        connection = self.connect(identity)
        with self.assertRaises(wire.Failed) as caught:
            self.register(connection=connection)
        self.assertEqual(caught.exception.code, "denied")
        _, session_id = self.register(connection=connection, labels=label)
        self.refuses("denied", connection.call, "session.update", {"labels": {}})
        self.assertEqual(self.ids({"labels": label}), [session_id])

    def test_who_revokes_itself_is_cut_without_an_answer(self):
        self.fresh_daemon()
        identity, credential = self.enroll("operator")
        operator = self.connect(identity)
        self.refuses("connection-lost", operator.call, "credential.revoke", {"credential": credential})
        self.ends(operator, with_closing=False)
        self.says_refused("revoked", identity)

    def test_an_end_in_the_past_is_refused(self):
        operator = self.connect("operator")
        _, credential = self.enroll(operator=operator)
        past = {"expires": instant(-1)}
        self.refuses("invalid-params", operator.call, "credential.renew", {"credential": credential, **past})
        params = {"public_key": wire.b64(os.urandom(32)), "label": "l", "role": "caller", "scopes": "row", **past}
        self.refuses("invalid-params", operator.call, "credential.enroll", params)

    def test_a_connection_ends_with_its_credential(self):
        operator = self.connect("operator")
        identity, credential = self.enroll(expires=instant(2), operator=operator)
        connection = self.connect(identity)
        self.ends(connection, with_closing=False)
        self.says_refused("expired", identity)
        self.refuses("expired", operator.call, "credential.renew", {"credential": credential})
        operator.call("credential.revoke", {"credential": credential})
        self.refuses("revoked", operator.call, "credential.renew", {"credential": credential})

    def test_a_revoked_key_is_cut_and_refused_and_its_receipt_proves_it(self):
        operator = self.connect("operator")
        identity, credential = self.enroll(scopes=["session.list"], operator=operator)
        connection = self.connect(identity)
        connection.call("session.list", {})
        answer = operator.call("credential.revoke", {"credential": credential}, receipt=True)
        self.assertEqual(answer.result, {"credential": credential, "label": "interop", "cut": 1})
        self.ends(connection, with_closing=False)
        self.says_refused("revoked", identity)
        again = operator.call("credential.revoke", {"credential": credential}).result
        self.assertEqual(again, {**answer.result, "cut": 0})
        (record,) = [item for item in self.records(operator) if item["credential"] == credential]
        self.assertEqual(record["state"], "revoked")
        self.assertIn("revoked", record)

        pinned = wire.load_daemon_key(self.daemon.folder / "keys" / "daemon.pub")
        public = self.identity("operator").public
        text = answer.receipt.to_file()
        receipt = wire.Receipt.from_file(text)
        self.assertEqual(receipt.verify(pinned, public), wire.fingerprint(public))
        self.assertEqual(wire.parse_object(receipt.request)["params"], {"credential": credential, "receipt": True})
        self.assertEqual(wire.parse_object(receipt.result), answer.result)
        data, unnoticed = text.encode("utf-8"), []
        for place in range(len(data)):
            changed = bytearray(data)
            changed[place] ^= 1
            with contextlib.suppress(wire.BadReceipt):
                wire.Receipt.from_file(bytes(changed)).verify(pinned)
                unnoticed.append(place)
        self.assertEqual(unnoticed, [])
        with self.assertRaises(wire.BadReceipt):
            receipt.verify(wire.raw_public(Ed25519PrivateKey.generate()))

    def test_a_key_is_enrolled_once(self):
        operator = self.connect("operator")
        identity, credential = self.enroll(operator=operator)
        params = {"public_key": wire.b64(identity.public), "label": "again", "role": "caller", "scopes": "row"}
        self.refuses("already-enrolled", operator.call, "credential.enroll", params)
        operator.call("credential.revoke", {"credential": credential})
        self.refuses("credential-not-found", operator.call, "credential.revoke", {"credential": token()})
        self.refuses("credential-not-found", operator.call, "credential.renew", {"credential": token()})

    def test_an_enrolment_that_is_not_as_documented_is_refused(self):
        operator = self.connect("operator")
        good = {"public_key": wire.b64(os.urandom(32)), "label": "l", "role": "caller", "scopes": "row"}
        for more in (
            {"label": ""}, {"label": "x" * 65}, {"role": "admin"}, {"scopes": "all"}, {"scopes": ["no.such"]},
            {"scopes": ["daemon.stop"]}, {"public_key": "AA"}, {"expires": "tomorrow"}, {"expires": 1}, {"more": 1},
            {"sessions": {}}, {"commands": "run"},
        ):
            with self.subTest(str(more)):
                self.refuses("invalid-params", operator.call, "credential.enroll", {**good, **more})

    def test_the_last_operator_cannot_be_revoked(self):
        self.fresh_daemon()
        operator = self.connect("operator")
        (record,) = [item for item in self.records(operator) if item["role"] == "operator"]
        self.refuses("last-operator", operator.call, "credential.revoke", {"credential": record["credential"]})
        operator.call("daemon.status", {})

    def test_an_expired_key_is_refused_and_an_end_can_be_renewed(self):
        operator = self.connect("operator")
        identity, credential = self.enroll(expires=instant(3600), operator=operator)
        self.assertIn("expires", self.connect(identity).welcome)
        self.assertEqual(set(operator.call("credential.renew", {"credential": credential}).result), {"credential"})
        self.assertNotIn("expires", self.connect(identity).welcome)
        renewed = operator.call("credential.renew", {"credential": credential, "expires": instant(2)}).result
        self.assertEqual(set(renewed), {"credential", "expires"})

        def expired():
            try:
                wire.connect(identity).close()
            except wire.Refused as refused:
                self.assertEqual(refused.code, "expired")
                return True
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.daemon.process.wait(0.1)
            return False

        self.eventually(expired)

    def test_a_default_credential_is_replaced_in_one_step(self):
        self.fresh_daemon()
        operator = self.connect("operator")
        (old,) = [item for item in self.records(operator) if item["role"] == "caller" and item["default"]]
        before = self.connect("caller")
        identity, credential = self.enroll(replaces=old["credential"], operator=operator)
        self.ends(before, with_closing=False)
        self.says_refused("revoked", self.identity("caller"))
        self.connect(identity).call("session.list", {})
        active = [item for item in self.records(operator) if item["role"] == "caller" and item["state"] == "active"]
        self.assertEqual([item["credential"] for item in active if item["default"]], [credential])


class TestReceipts(Case):
    def check(self, answer, identity):
        pinned = wire.load_daemon_key(self.daemon.folder / "keys" / "daemon.pub")
        receipt = wire.Receipt.from_file(answer.receipt.to_file())
        self.assertEqual(receipt, answer.receipt)
        self.assertEqual(receipt.verify(pinned, identity.public), wire.fingerprint(identity.public))
        return receipt

    def test_a_receipt_covers_the_payloads_of_both_directions(self):
        producer, session_id = self.register(snapshot=b'{"n":1.0e0}')
        caller = self.connect("caller")
        send = {"selector": {"session": session_id}, "command": "run"}
        number = caller.start("session.send", send, b'["\\u00e9",1.0e0]', receipt=True)
        producer.answer(producer.next_request().id, b'{"a":1,"a":2}')
        receipt = self.check(caller.finish(number), self.identity("caller"))
        self.assertTrue(receipt.request.endswith(b'\n["\\u00e9",1.0e0]'))
        self.assertTrue(receipt.result.endswith(b'\n{"a":1,"a":2}'))
        answer = caller.call("session.get", {"selector": {"session": session_id}}, receipt=True)
        self.assertTrue(self.check(answer, self.identity("caller")).result.endswith(b'\n{"n":1.0e0}'))

    def test_every_role_gets_receipts(self):
        producer, _ = self.register()
        self.check(producer.call("session.heartbeat", {}, receipt=True), self.identity("producer"))
        operator = self.connect("operator")
        self.check(operator.call("credential.list", {}, receipt=True), self.identity("operator"))
        self.check(operator.call("daemon.status", {}, receipt=True), self.identity("operator"))

    def test_an_error_has_no_receipt(self):
        caller = self.connect("caller")
        self.refuses("session-not-found", caller.call, "session.get", {"selector": {"session": token()}}, receipt=True)

    def test_receipts_of_one_connection_are_not_those_of_another(self):
        one, other = (self.connect("caller").call("session.list", {}, receipt=True).receipt for _ in range(2))
        mixed = wire.Receipt(other.lines, one.request, one.result, one.signature)
        with self.assertRaises(wire.BadReceipt):
            mixed.verify(wire.load_daemon_key(self.daemon.folder / "keys" / "daemon.pub"))


class TestEnds(Case):
    def test_sigterm_says_goodbye_to_everybody(self):
        daemon = self.fresh_daemon()
        producer, _ = self.register()
        caller, operator = self.connect("caller"), self.connect("operator")
        self.assertEqual(daemon.stop(), 0)
        self.assertEqual(set(producer.next_notification("daemon.closing").params), {"reason"})
        for connection in (producer, caller, operator):
            self.ends(connection)

    def test_stop_spares_live_sessions_unless_it_is_forced(self):
        daemon = self.fresh_daemon()
        producer, session_id = self.register(title="t", cwd="/c")
        operator = self.connect("operator")
        failed = self.refuses("sessions-live", operator.call, "daemon.stop", {})
        self.assertEqual(failed.data["sessions"], [{"session_id": session_id, "title": "t", "cwd": "/c"}])
        self.refuses("sessions-live", operator.call, "daemon.stop", {"force": False})
        operator.call("daemon.status", {})
        self.assertEqual(set(operator.call("daemon.stop", {"force": True}).result), {"sessions"})
        self.assertEqual(daemon.wait(), 0)
        producer.next_notification("daemon.closing")
        self.ends(producer)

    def test_a_draining_daemon_takes_no_session_and_ends_with_the_last_one(self):
        daemon = self.fresh_daemon()
        producer, _ = self.register()
        operator, late = self.connect("operator"), self.connect("producer")
        self.assertEqual(set(operator.call("daemon.drain", {}).result), {"sessions"})
        self.assertIs(operator.call("daemon.status", {}).result["draining"], True)
        with self.assertRaises(wire.Failed) as caught:
            self.register(connection=late)
        self.assertEqual(caught.exception.code, "draining")
        producer.call("session.unregister", {})
        self.assertEqual(daemon.wait(), 0)


class TestCommandLine(Case):
    def setUp(self):
        super().setUp()
        if "USHER" not in os.environ:
            (self.fail if REQUIRED else self.skipTest)("USHER names no command line client")

    def usher(self, *arguments):
        return subprocess.run(
            [os.environ["USHER"], *arguments], env=self.daemon.environ, stdin=subprocess.DEVNULL, capture_output=True,
            timeout=2 * SOON, check=False, text=True,
        )

    def test_usher_paths_prints_the_socket(self):
        done = self.usher("paths")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(str(self.daemon.socket), done.stdout)

    def test_usher_verifies_the_receipts_of_this_client(self):
        receipt = self.connect("operator").call("daemon.status", {}, receipt=True).receipt
        file = self.daemon.base / "receipt.json"
        file.write_text(receipt.to_file(), encoding="utf-8")
        done = self.usher("verify", str(file))
        self.assertEqual(done.returncode, 0, done.stderr)
        changed = wire.Receipt(receipt.lines, receipt.request + b" ", receipt.result, receipt.signature)
        file.write_text(changed.to_file(), encoding="utf-8")
        self.assertNotEqual(self.usher("verify", str(file)).returncode, 0)


if __name__ == "__main__":
    unittest.main()
