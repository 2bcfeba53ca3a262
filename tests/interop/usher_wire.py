"""A client of the usherd protocol, written from docs/protocol.md alone.

It shares no code with the daemon, and needs Python 3.11 and the package `cryptography`. Every call that waits takes a
`timeout` in seconds and raises `DeadlinePassed` when it is over.
"""

import base64
import collections
import contextlib
import dataclasses
import hashlib
import json
import os
import re
import select
import socket
import struct
import threading
import time
from pathlib import Path

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

LINE_MAX = 4096
HEADER_MAX = 65_536
FRAME_MIN = 17
FRAME_MAX = 9_437_184
ROLES = ("producer", "caller", "operator")
METHODS = {
    "producer": {
        "session.register", "session.update", "session.heartbeat", "session.unregister", "session.stage_key",
        "session.confirm_key",
    },
    "caller": {
        "session.list", "session.get", "session.send", "session.wait", "approval.request", "approval.list",
        "approval.withdraw", "events.subscribe", "events.unsubscribe", "daemon.status",
    },
    "operator": {
        "session.list", "session.get", "session.wait", "approval.list", "approval.decide", "events.subscribe",
        "events.unsubscribe", "daemon.status", "credential.list", "credential.enroll",
        "credential.revoke", "credential.renew", "audit.head", "daemon.drain", "daemon.stop",
    },
}
PAYLOAD_OUT = {
    "session.list", "session.get", "session.send", "credential.list", "approval.request", "approval.list", "approval.decide",
}
NOTIFICATIONS = {"$/cancel", "daemon.closing", "approval.pending", "events"}
TIMEOUT = 10.0


# ---------------------------------------------------------------- what can go wrong


class WireError(Exception):
    """The base of everything that this module raises."""


class DeadlinePassed(WireError):
    """What was waited for has not come in time."""


class Violation(WireError):
    """The other side has broken the protocol."""


class Impostor(WireError):
    """The daemon is not the one whose key is pinned, or has not proved that it is."""


class Lost(WireError):
    """The stream ended without `closing`."""


class Busy(WireError):
    """The unsigned line of a daemon without a free place: a hint, not a fact."""


class Refused(WireError):
    """The sealed `refused` of a hello."""

    def __init__(self, code, resource=None):
        super().__init__(code if resource is None else f"{code} ({resource})")
        self.code = code
        self.resource = resource


class Incompatible(WireError):
    """No protocol in common; the daemon has proved that it said so."""

    def __init__(self, body):
        super().__init__(f"{body['build']} speaks {body['protocol']['min']} to {body['protocol']['max']}")
        self.protocol = (body["protocol"]["min"], body["protocol"]["max"])
        self.build = body["build"]
        self.generation = body["generation"]


class Failed(WireError):
    """An answer with an error, or the end of the connection while a request was open."""

    def __init__(self, error):
        data = error.get("data", {})
        super().__init__(f"{data.get('code')}: {error.get('message')}")
        self.error = error
        self.number = error.get("code")
        self.message = error.get("message")
        self.data = data
        self.code = data.get("code")
        self.delivery = data.get("delivery")
        self.resource = data.get("resource")


class BadReceipt(WireError):
    """A receipt that does not verify."""


# ---------------------------------------------------------------- bytes and texts


def b64(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


def unb64(text, size):
    """The bytes of a canonical unpadded base64url text of exactly `size` bytes."""
    if not isinstance(text, str) or not re.fullmatch(r"[A-Za-z0-9_-]*", text, re.ASCII):
        raise Violation("not base64url")
    if len(text) != (size * 8 + 5) // 6:
        raise Violation(f"not the base64url of {size} bytes")
    data = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    if len(data) != size or b64(data) != text:
        raise Violation("base64url that is not canonical")
    return data


def sha256(data):
    return hashlib.sha256(data).digest()


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _no_duplicates(pairs):
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Violation("a key stands twice")
    return found


def _no_constant(name):
    raise Violation(f"{name} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
# For what the daemon says in sealed frames: `info` and `runtimes` of a session are not looked into before they come here.
_LOOSE_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def parse_object(text, decoder=_DECODER):
    """One JSON object that starts at the first byte and ends at the last one."""
    if isinstance(text, (bytes, bytearray)):
        try:
            text = bytes(text).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Violation("not UTF-8") from error
    if not text.startswith("{"):
        raise Violation("does not begin with {")
    try:
        value, end = decoder.raw_decode(text)
    except (ValueError, RecursionError) as error:
        raise Violation(f"not JSON: {error}") from error
    if end != len(text):
        raise Violation("there is something behind the object")
    return value


_SPACE = re.compile(r"[ \t\r\n]*")


def raw_member(text, wanted):
    """The text of one member's value in a (valid) JSON object, as it stands there."""
    at = _SPACE.match(text, 1).end()
    while text[at] != "}":
        key, at = _LOOSE_DECODER.raw_decode(text, at)
        at = _SPACE.match(text, at).end() + 1
        at = _SPACE.match(text, at).end()
        _, end = _LOOSE_DECODER.raw_decode(text, at)
        if key == wanted:
            return text[at:end]
        at = _SPACE.match(text, end).end()
        if text[at] == ",":
            at = _SPACE.match(text, at + 1).end()
    return None


def keys_of(value, required, optional=(), what="object"):
    """Checks that an object has exactly the keys it may have, none of them null."""
    has_keys(value, required, optional, what)
    unknown = set(value) - set(required) - set(optional)
    if unknown:
        raise Violation(f"{what}: unknown {sorted(unknown)}")
    return value


def has_keys(value, required, optional=(), what="object"):
    """The same for what may grow: keys that are not known here are ignored."""
    if not isinstance(value, dict):
        raise Violation(f"{what} is no object")
    missing = set(required) - set(value)
    if missing:
        raise Violation(f"{what}: missing {sorted(missing)}")
    if any(value.get(key, "") is None for key in (*required, *optional)):
        raise Violation(f"{what}: an absent value is written as null")
    return value


def integer(value, low, high, what):
    if type(value) is not int or not low <= value <= high:
        raise Violation(f"{what} is no integer from {low} to {high}")
    return value


# ---------------------------------------------------------------- keys and places


def usher_dir(environ=os.environ):
    if environ.get("USHER_DIR"):
        return Path(environ["USHER_DIR"])
    try:
        seed = Path("/etc/machine-id").read_text(encoding="utf-8").strip()
    except OSError:
        seed = socket.gethostname()
    host = sha256(seed.encode("utf-8")).hex()[:8]
    return Path.home() / ".local" / "state" / "usher" / host


def socket_of(folder):
    return Path(folder) / "s" / "usherd.sock"


def load_private_key(path):
    key = serialization.load_pem_private_key(Path(path).read_bytes(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise Violation(f"{path} is no Ed25519 key")
    return key


def load_daemon_key(path):
    text = Path(path).read_bytes()
    if len(text) != 44 or text[-1:] != b"\n":
        raise Violation(f"{path} is not 43 characters and LF")
    return unb64(text[:-1].decode("ascii"), 32)


def raw_public(key):
    return key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def fingerprint(public):
    return sha256(public)


@dataclasses.dataclass(frozen=True)
class Identity:
    """What a client holds: its own key, the pinned key of the daemon, the place to go, and its role."""

    key: Ed25519PrivateKey
    daemon: bytes
    socket: Path
    role: str

    @classmethod
    def from_dir(cls, folder, role):
        folder = Path(folder)
        return cls(
            load_private_key(folder / "keys" / f"{role}.pem"),
            load_daemon_key(folder / "keys" / "daemon.pub"),
            socket_of(folder),
            role,
        )

    @classmethod
    def from_bundle(cls, folder):
        folder = Path(folder)
        about = parse_object((folder / "bundle.json").read_text(encoding="utf-8").rstrip("\n"))
        keys_of(about, ("version", "credential", "role", "label", "socket_folder"), what="bundle.json")
        integer(about["version"], 1, 1, "the bundle's version")
        unb64(about["credential"], 16)
        return cls(
            load_private_key(folder / "key.pem"),
            load_daemon_key(folder / "daemon.pub"),
            Path(about["socket_folder"]) / "usherd.sock",
            about["role"],
        )

    @property
    def public(self):
        return raw_public(self.key)

    def with_key(self, key, role=None):
        return dataclasses.replace(self, key=key, role=role or self.role)


def verify(public, signature, message):
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature:
        return False
    return True


# ---------------------------------------------------------------- the stream


class Channel:
    """A stream socket whose every read and write has a deadline."""

    def __init__(self, sock):
        self.sock = sock
        self.sock.setblocking(False)
        self._buffer = bytearray()
        self._ended = False

    @classmethod
    def open(cls, path, timeout=TIMEOUT):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(timeout)
            sock.connect(os.fspath(path))
        except BaseException:
            sock.close()
            raise
        return cls(sock)

    def _wait(self, event, deadline, what):
        left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        poll = select.poll()
        try:
            poll.register(self.sock, event)
        except (OSError, ValueError) as error:
            raise Lost("the socket is closed") from error
        if not poll.poll(left):
            raise DeadlinePassed(what)

    def send(self, data, timeout=TIMEOUT):
        deadline = time.monotonic() + timeout
        view = memoryview(data)
        while view:
            try:
                view = view[self.sock.send(view):]
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline, "the other side does not read")
            except OSError as error:
                raise Lost(f"could not write: {error}") from error

    def _fill(self, deadline, what):
        """More bytes into the buffer; False at the end of the stream."""
        while not self._ended:
            try:
                data = self.sock.recv(262_144)
            except BlockingIOError:
                self._wait(select.POLLIN, deadline, what)
                continue
            except OSError:
                data = b""
            if data:
                self._buffer += data
                return True
            self._ended = True
        return False

    def read_line(self, timeout=TIMEOUT):
        """One line with its LF."""
        deadline = time.monotonic() + timeout
        while True:
            end = self._buffer.find(b"\n")
            if end >= LINE_MAX or (end < 0 and len(self._buffer) >= LINE_MAX):
                raise Violation("a line is too long")
            if end >= 0:
                line = bytes(self._buffer[: end + 1])
                del self._buffer[: end + 1]
                return line
            if not self._fill(deadline, "no line came"):
                raise Lost("the stream ended before a line" if not self._buffer else "the stream ended in a line")

    def read_exactly(self, size, timeout=None):
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(self._buffer) < size:
            if not self._fill(deadline, f"no {size} bytes came"):
                raise Lost("the stream ended" if not self._buffer else "the stream ended in a frame")
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def read_to_end(self, timeout=TIMEOUT, limit=1 << 20):
        deadline = time.monotonic() + timeout
        while self._fill(deadline, "the stream does not end"):
            if len(self._buffer) > limit:
                raise Violation("far more bytes than expected")
        data, self._buffer = bytes(self._buffer), bytearray()
        return data

    def end_writing(self):
        try:
            self.sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def abort(self):
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def close(self):
        self.abort()
        self.sock.close()


def health(path, timeout=TIMEOUT):
    """The generation of the daemon behind the socket."""
    channel = Channel.open(path, timeout)
    try:
        with contextlib.suppress(Lost):  # see say_hello
            channel.send(b'{"health":1}\n', timeout)
        line = channel.read_line(timeout)
        body = parse_object(line[:-1])
        raise_if_busy(body)
        keys_of(body, ("ok", "generation"), what="health")
        if body["ok"] is not True:
            raise Violation("health is not ok")
        unb64(body["generation"], 16)
        if channel.read_to_end(timeout):
            raise Violation("there is something behind the health line")
        return body["generation"]
    finally:
        channel.close()


def raise_if_busy(body):
    if set(body) == {"refused"}:
        refused = keys_of(body["refused"], ("code", "resource"), what="refused line")
        raise Busy(f"{refused['code']} ({refused['resource']})")


# ---------------------------------------------------------------- sealed frames


class Sealer:
    def __init__(self, key):
        self._aead = AESGCM(key)
        self.counter = 0

    def seal(self, plaintext):
        size = struct.pack(">I", len(plaintext) + 16)
        nonce = bytes(4) + struct.pack(">Q", self.counter)
        self.counter += 1
        return size + self._aead.encrypt(nonce, plaintext, size)


class Opener:
    def __init__(self, key):
        self._aead = AESGCM(key)
        self.counter = 0

    def open(self, size, body):
        nonce = bytes(4) + struct.pack(">Q", self.counter)
        self.counter += 1
        try:
            return self._aead.decrypt(nonce, body, size)
        except InvalidTag as error:
            raise Violation("a frame does not open") from error

    def read(self, channel, timeout=None):
        size = channel.read_exactly(4, timeout)
        (count,) = struct.unpack(">I", size)
        if not FRAME_MIN <= count <= FRAME_MAX:
            raise Violation(f"a frame of {count} bytes")
        return self.open(size, channel.read_exactly(count, timeout))


# ---------------------------------------------------------------- hello


def transcript(*lines):
    return sha256(b"usher/1 transcript\n" + b"".join(lines))


class Hello:
    """The lines of one hello, step by step. `line` may be replaced before it is sent."""

    def __init__(self, identity, role=None, protocol=(1, 1), scopes=None, client="usher-interop/1"):
        self.identity = identity
        self.ephemeral = X25519PrivateKey.generate()
        public = self.ephemeral.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        self.body = {
            "protocol": {"min": protocol[0], "max": protocol[1]},
            "role": role or identity.role,
            "credential": b64(fingerprint(identity.public)),
            "nonce": b64(os.urandom(32)),
            "ephemeral": b64(public),
            **({} if scopes is None else {"scopes": scopes}),
            "client": client,
        }
        self.range = protocol
        self.line = compact({"hello": self.body}).encode("utf-8") + b"\n"
        self.lines = []
        self.challenge = None

    def take_challenge(self, line):
        """Reads the answer to line 1: True for a challenge, False for `incompatible`."""
        body = parse_object(line[:-1])
        raise_if_busy(body)
        self.lines = [self.line, line]
        if set(body) == {"incompatible"}:
            self.challenge = keys_of(
                body["incompatible"], ("protocol", "build", "generation", "daemon", "nonce"), what="incompatible"
            )
            bounds = keys_of(self.challenge["protocol"], ("min", "max"), what="protocol")
            low = integer(bounds["min"], 0, 65535, "min")
            integer(bounds["max"], low, 65535, "max")
            compatible = False
        else:
            keys_of(body, ("challenge",), what="the answer to line 1")
            self.challenge = keys_of(
                body["challenge"], ("protocol", "generation", "daemon", "nonce", "ephemeral"), what="challenge"
            )
            integer(self.challenge["protocol"], *self.range, "the protocol of the challenge")
            unb64(self.challenge["ephemeral"], 32)
            compatible = True
        unb64(self.challenge["generation"], 16)
        unb64(self.challenge["nonce"], 32)
        if unb64(self.challenge["daemon"], 32) != self.identity.daemon:
            raise Impostor("the daemon shows another key than the pinned one")
        return compatible

    def take_daemon_proof(self, line, compatible=True):
        signature = proof_of(line)
        label = b"usher/1 daemon proof\n" if compatible else b"usher/1 incompatible\n"
        if not verify(self.identity.daemon, signature, label + transcript(*self.lines)):
            raise Impostor("the daemon's proof is not its key's")
        self.lines.append(line)

    def client_proof(self):
        """The client proof line, which ends the transcript."""
        signature = self.identity.key.sign(b"usher/1 client proof\n" + transcript(*self.lines))
        line = compact({"proof": b64(signature)}).encode("ascii") + b"\n"
        self.lines.append(line)
        return line

    def keys(self):
        """The keys of both directions (client to daemon, daemon to client)."""
        peer = X25519PublicKey.from_public_bytes(unb64(self.challenge["ephemeral"], 32))
        try:
            secret = self.ephemeral.exchange(peer)
        except ValueError as error:
            raise Violation("the shared secret is all zeros") from error
        if secret == bytes(32):
            raise Violation("the shared secret is all zeros")
        salt = transcript(*self.lines)
        return (derive(secret, salt, b"usher/1 client to daemon"), derive(secret, salt, b"usher/1 daemon to client"))


def derive(secret, salt, info):
    return HKDF(algorithm=hashes.SHA256(), length=32, salt=salt, info=info).derive(secret)


def proof_of(line):
    return unb64(keys_of(parse_object(line[:-1]), ("proof",), what="proof line")["proof"], 64)


def say_hello(identity, timeout=TIMEOUT, hello=None, **options):
    """The hello up to the client proof, which is not sent yet: (channel, hello). Raises `Incompatible`."""
    deadline = time.monotonic() + timeout
    hello = hello or Hello(identity, **options)
    channel = Channel.open(identity.socket, timeout)
    try:
        # A daemon without a place may have answered and closed before this: its line is there to be read all the same.
        with contextlib.suppress(Lost):
            channel.send(hello.line, timeout)
        compatible = hello.take_challenge(channel.read_line(left(deadline)))
        hello.take_daemon_proof(channel.read_line(left(deadline)), compatible)
        if not compatible:
            channel.send(hello.client_proof(), left(deadline))
            if channel.read_to_end(left(deadline)):
                raise Violation("there is something behind the proof of incompatible")
            raise Incompatible(hello.challenge)
        return channel, hello
    except BaseException:
        channel.close()
        raise


def left(deadline):
    return max(0.0, deadline - time.monotonic())


def connect(identity, timeout=TIMEOUT, hello=None, **options):
    """A connection that has been welcomed. Raises `Refused`, `Incompatible`, `Impostor`, `Busy`, `Lost`."""
    deadline = time.monotonic() + timeout
    channel, hello = say_hello(identity, timeout, hello, **options)
    try:
        channel.send(hello.client_proof(), left(deadline))
        return Connection(channel, hello, left(deadline))
    except BaseException:
        channel.close()
        raise


# ---------------------------------------------------------------- messages


def join(header, payload=None):
    """The plaintext of a message."""
    text = compact(header).encode("utf-8")
    return text if payload is None else text + b"\n" + payload


def split(plaintext):
    """(header text, payload or None) of a plaintext."""
    end = plaintext.find(b"\n")
    head = plaintext if end < 0 else plaintext[:end]
    if end == len(plaintext) - 1:
        raise Violation("LF with nothing behind it")
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Violation("a header is not UTF-8") from error
    return text, None if end < 0 else plaintext[end + 1:]


@dataclasses.dataclass(frozen=True)
class Message:
    """A request or notification of the daemon."""

    method: str
    params: dict
    id: int | None = None
    payload: bytes | None = None


@dataclasses.dataclass(frozen=True)
class Answer:
    result: dict
    payload: bytes | None = None
    receipt: "Receipt | None" = None


@dataclasses.dataclass
class _Open:
    method: str
    plaintext: bytes
    wants_receipt: bool
    answer: "Answer | Failed | None" = None


class Connection:
    """A welcomed connection. A thread reads all the time, so that no side ever waits for us to read."""

    def __init__(self, channel, hello, timeout=TIMEOUT):
        self.channel = channel
        self.lines = tuple(hello.lines)
        self.t3 = transcript(*self.lines)
        self.generation = hello.challenge["generation"]
        seal_with, open_with = hello.keys()
        self.sealer = Sealer(seal_with)
        self._opener = Opener(open_with)
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._open = {}
        self._next_id = 1
        self._next_remote_id = 1
        self._requests = collections.deque()
        self._notifications = collections.deque()
        self.ended = None  # `closing` with its reason, or the exception that ended the stream
        first = self._take(self._opener.read(channel, timeout))
        if first.method == "refused":
            has_keys(first.params, ("code",), ("resource",), what="refused")
            raise Refused(first.params["code"], first.params.get("resource"))
        if first.method != "welcome":
            raise Violation(f"the first frame is {first.method}")
        self.welcome = has_keys(
            first.params, ("connection", "protocol", "role", "scopes", "limits", "build"), ("expires",), what="welcome"
        )
        if self.welcome["protocol"] != hello.challenge["protocol"] or self.welcome["role"] != hello.body["role"]:
            raise Violation("welcome and challenge differ")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # -- reading

    def _take(self, plaintext):
        """Checks a message and puts it where it belongs; gives back notifications and unknown requests."""
        text, payload = split(plaintext)
        header = parse_object(text, _LOOSE_DECODER)
        if header.get("jsonrpc") != "2.0":
            raise Violation("no JSON-RPC 2.0")
        if "method" in header:
            keys_of(header, ("jsonrpc", "method", "params"), ("id",), what="message")
            if not isinstance(header["method"], str) or not isinstance(header["params"], dict):
                raise Violation("a message without a method or params")
            message = Message(header["method"], header["params"], header.get("id"), payload)
            if message.id is None:
                if payload is not None and message.method != "events":
                    raise Violation("a notification with a payload")
                return message
            if type(message.id) is not int or message.id < self._next_remote_id:
                raise Violation("an id out of order")
            self._next_remote_id = message.id + 1
            if message.method != "command":
                return message
            has_keys(message.params, ("command", "deadline_ms", "caller"), what="command")
            self._requests.append(message)
            return None
        keys_of(header, ("jsonrpc", "id"), ("result", "error", "receipt"), what="answer")
        pending = self._open.get(header["id"]) if type(header["id"]) is int else None
        if pending is None or pending.answer is not None:
            raise Violation("an answer to an id that is not open")
        if ("result" in header) == ("error" in header):
            raise Violation("an answer has a result or an error")
        if "error" in header:
            if payload is not None or "receipt" in header:
                raise Violation("an error with a payload or a receipt")
            pending.answer = Failed(check_error(header["error"]))
            return None
        if not isinstance(header["result"], dict):
            raise Violation("a result is an object")
        if payload is not None and pending.method not in PAYLOAD_OUT:
            raise Violation(f"{pending.method} is answered with a payload")
        if ("receipt" in header) != pending.wants_receipt:
            raise Violation("a receipt is there when it was asked for, and else not")
        receipt = None
        if pending.wants_receipt:
            signed = raw_member(text, "result").encode("utf-8") + (b"" if payload is None else b"\n" + payload)
            receipt = Receipt(self.lines, pending.plaintext, signed, unb64(header["receipt"], 64))
        pending.answer = Answer(header["result"], payload, receipt)
        return None

    def _read(self):
        end = None
        while end is None:
            try:
                plaintext = self._opener.read(self.channel)
                with self._changed:
                    message = self._take(plaintext)
                    if message is None or message.id is not None:
                        pass
                    elif message.method == "closing":
                        end = has_keys(message.params, ("reason",), what="closing")["reason"]
                    elif message.method in NOTIFICATIONS:
                        self._notifications.append(message)
                    self._changed.notify_all()
                if message is not None and message.id is not None:
                    self.fail(message.id, f"{message.method} is not known here")
            except Lost as error:
                end = error
            except Violation as error:
                end = error
            except Exception as error:  # a bug of this client must not leave its waiters waiting
                end = Violation(f"the client failed: {error!r}")
        with self._changed:
            self.ended = end
            self._changed.notify_all()

    def _until(self, ready, timeout, what):
        """Waits for `ready` to give something; raises when the connection ends first."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                found = ready()
                if found is not None:
                    return found
                if self.ended is not None:
                    if isinstance(self.ended, Violation):
                        raise self.ended
                    raise Lost(f"the connection ended ({self.ended}) while waiting for {what}")
                if not self._changed.wait(left(deadline)) and left(deadline) == 0.0:
                    raise DeadlinePassed(what)

    # -- writing

    def send_plaintext(self, plaintext, timeout=TIMEOUT):
        with self._sending:
            self.channel.send(self.sealer.seal(plaintext), timeout)

    def send_raw(self, data, timeout=TIMEOUT):
        with self._sending:
            self.channel.send(data, timeout)

    def start(self, method, params=None, payload=None, receipt=False, timeout=TIMEOUT):
        """Sends a request and gives back its id."""
        params = {**(params or {}), **({"receipt": True} if receipt else {})}

        def plaintext(number):
            return join({"jsonrpc": "2.0", "id": number, "method": method, "params": params}, payload)

        return self.start_plaintext(method, plaintext, receipt, timeout)

    def start_plaintext(self, method, make, receipt=False, timeout=TIMEOUT):
        """Sends what `make` gives for the next id, be it well-formed or not."""
        with self._sending:
            number = self._next_id
            self._next_id += 1
            plaintext = make(number)
            with self._changed:
                self._open[number] = _Open(method, plaintext, receipt)
            try:
                self.channel.send(self.sealer.seal(plaintext), timeout)
            except Lost as error:
                raise self._lost(method, error, "not-delivered") from error
        return number

    def _lost(self, method, error, delivery):
        """What a client makes of a request when the connection is gone."""
        data = {"code": "connection-lost", "retryable": True, **({"delivery": delivery} if method == "session.send" else {})}
        return Failed({"code": -32000, "message": str(error), "data": data})

    def finish(self, number, timeout=TIMEOUT):
        """The answer to a request that was started; raises `Failed` when it is an error."""
        try:
            answer = self._until(lambda: self._open[number].answer, timeout, f"the answer to {number}")
        except Lost as error:
            raise self._lost(self._open[number].method, error, "unknown") from error
        if isinstance(answer, Failed):
            raise answer
        return answer

    def call(self, method, params=None, payload=None, receipt=False, timeout=TIMEOUT):
        return self.finish(self.start(method, params, payload, receipt, timeout), timeout)

    def answered(self, number):
        with self._changed:
            return self._open[number].answer is not None

    def notify(self, method, params, timeout=TIMEOUT):
        self.send_plaintext(join({"jsonrpc": "2.0", "method": method, "params": params}), timeout)

    def cancel(self, number, timeout=TIMEOUT):
        self.notify("$/cancel", {"id": number}, timeout)

    def next_request(self, timeout=TIMEOUT):
        return self._until(lambda: self._requests.popleft() if self._requests else None, timeout, "a request")

    def next_notification(self, method, timeout=TIMEOUT):
        def first():
            for message in self._notifications:
                if message.method == method:
                    self._notifications.remove(message)
                    return message
            return None

        return self._until(first, timeout, method)

    def waiting_requests(self):
        with self._changed:
            return len(self._requests)

    def waiting_notifications(self):
        with self._changed:
            return [message.method for message in self._notifications]

    def answer(self, number, payload=None, result=None, timeout=TIMEOUT):
        self.send_plaintext(join({"jsonrpc": "2.0", "id": number, "result": result or {}}, payload), timeout)

    def fail(self, number, message, timeout=TIMEOUT):
        error = {"code": -32000, "message": message}
        self.send_plaintext(join({"jsonrpc": "2.0", "id": number, "error": error}), timeout)

    def wait_end(self, timeout=TIMEOUT):
        """How the connection ended: the reason of `closing`, or the exception that says how it was lost."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self.ended is None:
                if not self._changed.wait(left(deadline)) and left(deadline) == 0.0:
                    raise DeadlinePassed("the connection does not end")
            return self.ended

    def close(self, reason="done", timeout=TIMEOUT):
        """Says `closing`, waits for the other side's end, and closes."""
        try:
            if self.ended is None:
                self.notify("closing", {"reason": reason}, timeout)
                self.channel.end_writing()
                self.wait_end(timeout)
        except (Lost, DeadlinePassed):
            pass
        finally:
            self.drop()

    def drop(self):
        """Ends the stream without a word."""
        self.channel.abort()
        self._reader.join(TIMEOUT)
        self.channel.close()


def check_error(error):
    has_keys(error, ("code", "message", "data"), what="error")
    data = has_keys(
        error["data"],
        ("code", "retryable"),
        ("hint", "delivery", "resource", "candidates", "sessions"),
        what="error data",
    )
    if not isinstance(error["message"], str) or type(data["retryable"]) is not bool:
        raise Violation("an error of the wrong shape")
    expected = {"unknown-method": -32601, "invalid-params": -32602}.get(data["code"], -32000)
    if error["code"] != expected:
        raise Violation(f"{data['code']} has the number {error['code']}")
    if data.get("delivery", "unknown") not in ("not-delivered", "delivered", "unknown"):
        raise Violation("no such delivery")
    return error


# ---------------------------------------------------------------- receipts


def decision(key, connection, approval_id, text, approved):
    """A decider's signature over what it was shown."""
    digest = hashlib.sha256(text).digest()
    generation = unb64(connection.generation, 16)
    byte = b"\x01" if approved else b"\x00"
    return b64(key.sign(b"usher/1 decision\n" + generation + unb64(approval_id, 16) + digest + byte))


@dataclasses.dataclass(frozen=True)
class Receipt:
    """What an answer's receipt signs. `lines` have their LF here, in a file they have not."""

    lines: tuple
    request: bytes
    result: bytes
    signature: bytes

    def to_file(self):
        return compact(
            {
                "version": 1,
                "lines": [line[:-1].decode("utf-8") for line in self.lines],
                "request": self.request.decode("utf-8"),
                "result": self.result.decode("utf-8"),
                "receipt": b64(self.signature),
            }
        )

    @classmethod
    def from_file(cls, text):
        try:
            body = parse_object(text)
            keys_of(body, ("version", "lines", "request", "result", "receipt"), what="receipt")
            integer(body["version"], 1, 1, "the receipt's version")
            lines = body["lines"]
            if not isinstance(lines, list) or len(lines) != 4 or not all(isinstance(line, str) for line in lines):
                raise Violation("a receipt has four lines")
            texts = isinstance(body["request"], str) and isinstance(body["result"], str)
            if not texts or any("\n" in line for line in lines):
                raise Violation("a receipt of the wrong shape")
            return cls(
                tuple(line.encode("utf-8") + b"\n" for line in lines),
                body["request"].encode("utf-8"),
                body["result"].encode("utf-8"),
                unb64(body["receipt"], 64),
            )
        except (Violation, UnicodeEncodeError) as error:
            raise BadReceipt(str(error)) from error

    def verify(self, daemon, client=None):
        """Checks everything that can be checked offline with the pinned key; gives back the client's fingerprint.

        `client`, the client's raw public key, is not in the file: who has it can have the client's proof checked too.
        """
        try:
            first, second, third, fourth = self.lines
            hello = keys_of(parse_object(first[:-1]), ("hello",), what="line 1")["hello"]
            keys_of(
                hello, ("protocol", "role", "credential", "nonce", "ephemeral", "client"), ("scopes",), what="hello"
            )
            challenge = keys_of(parse_object(second[:-1]), ("challenge",), what="challenge line")["challenge"]
            keys_of(challenge, ("protocol", "generation", "daemon", "nonce", "ephemeral"), what="challenge")
            shown = unb64(challenge["daemon"], 32)
            daemon_proof = proof_of(third)
            client_proof = proof_of(fourth)
            credential = unb64(hello["credential"], 32)
        except Violation as error:
            raise BadReceipt(str(error)) from error
        if shown != daemon:
            raise BadReceipt("another daemon's receipt")
        if not verify(daemon, daemon_proof, b"usher/1 daemon proof\n" + transcript(first, second)):
            raise BadReceipt("the daemon proof does not verify")
        if client is not None:
            if fingerprint(client) != credential:
                raise BadReceipt("another client's receipt")
            if not verify(client, client_proof, b"usher/1 client proof\n" + transcript(first, second, third)):
                raise BadReceipt("the client proof does not verify")
        signed = b"usher/1 receipt\n" + transcript(*self.lines) + sha256(self.request) + sha256(self.result)
        if not verify(daemon, self.signature, signed):
            raise BadReceipt("the receipt does not verify")
        return credential
