#!/usr/bin/env python3
"""Judges the evidence of an upgrade exercise: scripts/check-upgrade.py MANIFEST EVIDENCE

The manifest says which builds there are, the evidence what was seen of them, step by step. Accepted is what has every step of
every run, each once and in its order, nothing besides, and nothing that cannot have been. Exits 1 and names the first
entry that is wrong; knows nothing of the programs but what these two files say.
"""

import hashlib
import json
import re
import sys

HEX = re.compile(r"[0-9a-f]{64}")
ID = re.compile(r"[A-Za-z0-9_-]{22}")
# What passes for whole commands on a machine that does nothing else; the short form runs among other tests.
REFUSED_MAX_MS = {"full": 1_000, "short": 30_000}
HELD_MIN_MS = {"full": 8_000, "short": 2_000}
# From the start of a successor to the last of a hundred windows.
BACK_MAX_MS = 10_000
WINDOWS = 8
ROUNDS = {"full": 200, "short": 1}
COUNTS = ("sent", "done", "not_delivered", "unknown", "killed")
NEVER = ("ran_twice", "done_without_effect", "effect_without_delivery", "wrong_results")

# The members of each step beside at_ms, run and step.
MEMBERS = {
    "installed": {"build": str, "usher": str, "usherd": str},
    "daemon": {"build": str, "pid": int, "start": int, "exe": str, "arguments": list},
    "daemon-ended": {"pid": int, "start": int, "code": (int, type(None)), "why": str},
    "window": {"title": str, "build": str, "pid": int, "start": int, "exe": str, "session": str},
    "listed": {"build": str, "pid": int, "start": int, "sessions": dict, "ms": int},
    "health": {"pid": int, "start": int, "body": str},
    "waiting": {"refusals": int},
    "refused": {"arguments": list, "code": int, "stdout": str, "stderr": str, "ms": int},
    "held": {"pid": int, "start": int, "calls": int, "ms": int},
    "signalled": {"title": str, "signal": str},
    "closed": {"title": str, "signal": str},
    "followers-ended": {"codes": list},
    "round": {"number": int, "before": dict, "after": dict, "windows": dict, "sessions": dict}
    | {name: int for name in COUNTS},
    "load": {"rounds": int} | {name: int for name in COUNTS + NEVER},
}
LIFE = {"build": str, "pid": int, "start": int, "exe": str}


class Refused(Exception):
    """Why something is not accepted."""


def need(condition, why):
    if not condition:
        raise Refused(why)


def has_members(value, members, what):
    need(isinstance(value, dict), f"{what} is no object")
    need(set(value) == set(members), f"{what} has the members {sorted(value)}, not {sorted(members)}")
    for name, kind in members.items():
        is_kind = isinstance(value[name], kind) and not (isinstance(value[name], bool) and kind is not bool)
        need(is_kind, f"{name} of {what} is {value[name]!r}")
        need(not isinstance(value[name], int) or value[name] >= 0, f"{name} of {what} is below zero")


# --- the manifest


def check_manifest(manifest):
    has_members(
        manifest, {"manifest": int, "form": str, "source": str, "inputs": dict, "builds": dict}, "the manifest"
    )
    need(manifest["manifest"] == 1, "the manifest is of another kind")
    form = manifest["form"]
    need(form in ("full", "short"), f"there is no form {form}")
    source = r"tree:[0-9a-f]{40,64}" if form == "full" else r"files:[0-9a-f]{64}"
    need(re.fullmatch(source, manifest["source"]), "the source is not named by its digest")
    inputs = manifest["inputs"]
    has_members(inputs, {"digest": str, "lock": str, "compiler": str, "flags": str}, "inputs")
    need(HEX.fullmatch(inputs["lock"]), "the lock file is not named by its digest")
    text = "\n".join(inputs[name] for name in ("lock", "compiler", "flags"))
    need(hashlib.sha256(text.encode()).hexdigest() == inputs["digest"], "the digest of the inputs is not theirs")
    builds = manifest["builds"]
    need(list(builds) == (["A", "B", "C"] if form == "full" else ["A", "B"]), f"the builds are {list(builds)}")
    programs, versions = [], []
    for number, (name, build) in enumerate(builds.items(), 1):
        has_members(build, {"protocol": int, "version": str, "usher": str, "usherd": str}, f"build {name}")
        need(build["protocol"] == number, f"build {name} speaks protocol {build['protocol']}")
        need(HEX.fullmatch(build["usher"]) and HEX.fullmatch(build["usherd"]), f"a digest of build {name} is none")
        programs += [build["usher"], build["usherd"]]
        versions.append(build["version"])
    need(len(set(programs)) == len(programs), "two programs are the same")
    need(len(set(versions)) == len(versions), "two builds have the same version")
    need(len({version.split("+")[0] for version in versions}) == 1, "the builds are of several releases")


# --- what has to happen


def waiters(count):
    titles = [f"b{number}" for number in range(count)]
    return [
        *begin("A", "a"),
        ("installed", {"build": "B"}),
        *[("window", {"title": title, "build": "B"}) for title in titles],
        ("waiting", {"refusals": count}),
        ("held", {}),
        ("waiting", {"refusals": count}),
        ("closed", {"title": "a"}),
        *succeeded("successor", "B", titles),
        ("followers-ended", {"codes": [3, 3]}),
        *[("closed", {"title": title}) for title in titles],
    ]


def begin(build, title):
    """A daemon of a build that was installed, with its window."""
    return [
        ("installed", {"build": build}),
        ("daemon", {"build": build}),
        ("window", {"title": title, "build": build}),
        ("listed", {"build": build, "sessions": [title]}),
    ]


def succeeded(why, build, titles, code=0):
    """The daemon went by itself, and another took its place."""
    return [
        ("daemon-ended", {"why": why, "code": code}),
        ("daemon", {"build": build}),
        ("health", {}),
        ("listed", {"build": build, "sessions": titles}),
    ]


REFUSED = [
    ("refused", {"arguments": arguments})
    for arguments in (["list"], ["send", "--title", "a", "echo", "1"], ["get"], ["ask", "x?"], ["restart"])
]
STORIES = {
    "upgrade": [
        *begin("A", "a"),
        ("health", {}),
        ("installed", {"build": "B"}),
        ("window", {"title": "b1", "build": "B"}),
        ("window", {"title": "b2", "build": "B"}),
        ("waiting", {"refusals": 2}),
        *REFUSED,
        ("held", {}),
        ("signalled", {"title": "b2", "signal": "SIGSTOP"}),
        ("closed", {"title": "a"}),
        *succeeded("successor", "B", ["b1"]),
        ("signalled", {"title": "b2", "signal": "SIGCONT"}),
        ("listed", {"build": "B", "sessions": ["b1", "b2"]}),
        ("closed", {"title": "b1"}),
        ("closed", {"title": "b2"}),
    ],
    "without-idle-exit": [
        *begin("A", "a"),
        ("installed", {"build": "B"}),
        ("window", {"title": "b", "build": "B"}),
        ("waiting", {"refusals": 1}),
        ("closed", {"title": "a"}),
        *succeeded("successor", "B", ["b"]),
        ("closed", {"title": "b"}),
    ],
    "old-clients": [
        *begin("B", "b"),
        ("installed", {"build": "A"}),
        ("window", {"title": "a", "build": "A"}),
        ("refused", {"arguments": ["list"]}),
        ("held", {}),
        ("closed", {"title": "b"}),
        *succeeded("stop", "A", ["a"]),
        ("closed", {"title": "a"}),
    ],
    "two-generations": [
        *begin("A", "a"),
        ("installed", {"build": "B"}),
        ("window", {"title": "b", "build": "B"}),
        ("waiting", {"refusals": 1}),
        ("window", {"title": "c", "build": "C"}),
        ("waiting", {"refusals": 2}),
        ("closed", {"title": "a"}),
        *succeeded("successor", "B", ["b"]),
        ("waiting", {"refusals": 3}),
        ("held", {}),
        ("closed", {"title": "b"}),
        *succeeded("successor", "C", ["c"], code=None),
        ("closed", {"title": "c"}),
    ],
    "no-successor": [
        *begin("A", "a"),
        ("installed", {"build": "B"}),
        ("window", {"title": "b", "build": "B"}),
        ("waiting", {"refusals": 1}),
        ("held", {}),
        ("closed", {"title": "a"}),
        ("daemon-ended", {"why": "successor", "code": 0}),
        ("installed", {"build": "B"}),
        ("daemon", {"build": "B"}),
        ("health", {}),
        ("listed", {"build": "B", "sessions": ["b"]}),
        ("closed", {"title": "b"}),
    ],
    "in-turn": [
        *begin("A", "a"),
        ("installed", {"build": "B"}),
        *[("refused", {"arguments": ["list"]})] * 20,
        ("held", {}),
        ("closed", {"title": "a"}),
    ],
    "waiters-100": waiters(100),
    "waiters-200": waiters(200),
}
LOADS = {"upgrades": ("A", "B"), "restarts": ("A", "A")}
RUNS = {"full": [*STORIES, *LOADS], "short": ["upgrade", *LOADS]}


# --- what was seen


class Story:
    """One course of events, entry by entry."""

    def __init__(self, name, manifest):
        self.name, self.form, self.builds = name, manifest["form"], manifest["builds"]
        self.daemon = self.serving = self.generation = self.refused = self.began_at = None
        self.lives, self.windows, self.sessions, self.generations = set(), {}, set(), set()
        self.last_start = 0

    def has_begun(self, entry):
        """A process that was not there before."""
        life = (entry["pid"], entry["start"])
        need(life not in self.lives, "this process has been seen before")
        need(entry["start"] >= self.last_start, "this process is older than one that was there before")
        self.lives.add(life)
        self.last_start = entry["start"]

    def is_build(self, entry, program, exe):
        need(entry["build"] in self.builds, f"there is no build {entry['build']}")
        need(exe == self.builds[entry["build"]][program], f"this is not {program} of build {entry['build']}")

    def is_the_daemon(self, entry):
        need(self.daemon == (entry["pid"], entry["start"]), "another daemon is there, or none")

    def see(self, entry):
        getattr(self, "see_" + entry["step"].replace("-", "_"))(entry)

    def see_installed(self, entry):
        self.is_build(entry, "usher", entry["usher"])
        self.is_build(entry, "usherd", entry["usherd"])

    def see_daemon(self, entry):
        need(self.daemon is None, "a daemon started while another was there")
        self.has_begun(entry)
        self.is_build(entry, "usherd", entry["exe"])
        if self.name == "upgrade" and self.form == "full":
            need(entry["arguments"] == [], "the daemon was not as it is when nobody says anything")
        self.daemon, self.serving, self.began_at = (entry["pid"], entry["start"]), entry["build"], entry["at_ms"]
        self.generation = None

    def see_daemon_ended(self, entry):
        self.is_the_daemon(entry)
        serving = [title for title, (build, _) in self.windows.items() if build == self.serving]
        need(not serving, f"the daemon went while {serving} had it")
        self.daemon = self.serving = None

    def see_window(self, entry):
        self.has_begun(entry)
        self.is_build(entry, "usher", entry["exe"])
        need(ID.fullmatch(entry["session"]), "this is no id of a session")
        need(entry["session"] not in self.sessions, "two windows have the same session")
        need(entry["title"] not in self.windows, "this window is open already")
        self.sessions.add(entry["session"])
        self.windows[entry["title"]] = (entry["build"], entry["session"])

    def see_listed(self, entry):
        self.is_the_daemon(entry)
        need(entry["build"] == self.serving, "this build cannot speak with that daemon")
        for title, session in entry["sessions"].items():
            need(title in self.windows, f"{title} is not open")
            need(self.windows[title] == (self.serving, session), f"{title} has another session than it said")
        if self.name == "waiters-100" and self.serving == "B":
            took = entry["at_ms"] - self.began_at
            need(took < BACK_MAX_MS, f"the last window was back after {took} ms")

    def see_health(self, entry):
        self.is_the_daemon(entry)
        try:
            body = json.loads(entry["body"], object_pairs_hook=lambda pairs: pairs)
        except ValueError:
            raise Refused("health is not JSON") from None
        need(isinstance(body, list) and len(body) == 2, "health tells more than that the daemon is alive")
        body = dict(body)
        need(body.get("ok") is True, "health tells something else than that the daemon is alive")
        generation = body.get("generation")
        need(isinstance(generation, str) and ID.fullmatch(generation), "health names no generation")
        need(generation not in self.generations, "two daemons have one generation")
        self.generations.add(generation)

    def see_waiting(self, entry):
        need(self.daemon is not None, "nobody is there to wait for")

    def see_refused(self, entry):
        need(entry["code"] == 8 and entry["stdout"] == "", "a command of another protocol was not refused")
        need("the running daemon is usherd/" in entry["stderr"], "the refusal does not say what runs")
        need(entry["ms"] < REFUSED_MAX_MS[self.form], f"the refusal took {entry['ms']} ms")

    def see_held(self, entry):
        self.is_the_daemon(entry)
        need(entry["calls"] > 0, "nobody was served")
        if self.name == "upgrade":
            need(entry["ms"] >= HELD_MIN_MS[self.form], f"it was held for {entry['ms']} ms only")

    def see_signalled(self, entry):
        need(entry["title"] in self.windows, "this window is not open")

    def see_closed(self, entry):
        need(entry["title"] in self.windows, "this window is not open")
        need(entry["signal"] == "SIGTERM", "this window was not closed in order")
        del self.windows[entry["title"]]

    def see_followers_ended(self, _):
        need(self.daemon is not None, "they ended with nobody")


def check_story(name, entries, manifest):
    story, steps = Story(name, manifest), STORIES[name]
    for number, (at, entry) in enumerate(entries):
        with_context(at, entry, lambda: step_of(story, entry, steps[number] if number < len(steps) else None))
    need(len(entries) == len(steps), f"run {name} ends after {len(entries)} of {len(steps)} steps")


def step_of(story, entry, expected):
    need(expected is not None, "nothing is to happen any more")
    step, facts = expected
    need(entry["step"] == step, f"here {step} is to happen")
    for name, value in facts.items():
        if name == "sessions":
            seen, value = sorted(entry[name]), sorted(value)
        else:
            seen = entry[name]
        need(seen == value, f"{name} is {seen!r}, not {value!r}")
    story.see(entry)


def check_load(name, entries, manifest):
    need(entries, f"run {name} is missing")
    at, last = entries[-1]
    with_context(at, last, lambda: need(last["step"] == "load", "the sum of the run is missing"))
    lives, totals, before = set(), dict.fromkeys(COUNTS, 0), None
    for number, (at, entry) in enumerate(entries[:-1], 1):
        with_context(at, entry, lambda: round_of(name, number, entry, manifest, lives, before))
        before = life(entry["after"])
        for count in COUNTS:
            totals[count] += entry[count]
    at, last = entries[-1]
    with_context(at, last, lambda: sum_of(last, len(entries) - 1, totals, manifest))


def life(of):
    return (of["pid"], of["start"])


def round_of(name, number, entry, manifest, lives, before):
    need(entry["step"] == "round", "here a round is to happen")
    need(entry["number"] == number, f"this is round {number}, not {entry['number']}")
    for part, build in zip(("before", "after"), LOADS[name]):
        has_members(entry[part], LIFE, part)
        need(entry[part]["build"] == build, f"the daemon {part} was of build {entry[part]['build']}")
        need(entry[part]["exe"] == manifest["builds"][build]["usherd"], f"the daemon {part} ran another program")
    need(life(entry["before"]) != life(entry["after"]), "the daemon is the same as before")
    if name == "restarts" and before is not None:
        need(life(entry["before"]) == before, "the daemon is not the one that the last round left")
        lives.discard(before)
    for part in ("before", "after"):
        need(life(entry[part]) not in lives, "this daemon was there and gone before")
        lives.add(life(entry[part]))
    need(len(entry["windows"]) == WINDOWS, f"{len(entry['windows'])} windows were open")
    need(len(set(entry["windows"].values())) == WINDOWS, "two windows have the same session")
    need(entry["windows"] == entry["sessions"], "a session was lost")
    ends = sum(entry[count] for count in COUNTS[1:])
    need(entry["sent"] == ends, f"{entry['sent']} commands were sent, and {ends} ended")
    need(entry["done"] > 0, "no command was done")


def sum_of(entry, rounds, totals, manifest):
    need(entry["rounds"] == rounds, f"there are {rounds} rounds, not {entry['rounds']}")
    least = ROUNDS[manifest["form"]]
    need(rounds >= least, f"{rounds} rounds are fewer than {least}")
    for count in COUNTS:
        need(entry[count] == totals[count], f"{count} is {entry[count]}, and of the rounds {totals[count]}")
    for count in NEVER:
        need(entry[count] == 0, f"{count} is {entry[count]}")


def with_context(at, entry, check):
    try:
        check()
    except Refused as refused:
        raise Refused(f"entry {at} ({entry['run']}, {entry['step']}): {refused}") from None


def check_evidence(evidence, manifest, manifest_digest):
    has_members(evidence, {"evidence": int, "manifest": str, "timeline": list}, "the evidence")
    need(evidence["evidence"] == 1, "the evidence is of another kind")
    need(evidence["manifest"] == manifest_digest, "the evidence belongs to another manifest")
    runs, last_at = {name: [] for name in RUNS[manifest["form"]]}, 0
    for at, entry in enumerate(evidence["timeline"]):
        need(isinstance(entry, dict), f"entry {at} is no object")
        need(entry.get("step") in MEMBERS, f"entry {at}: there is no step {entry.get('step')!r}")
        need(entry.get("run") in runs, f"entry {at}: there is no run {entry.get('run')!r}")
        members = {"at_ms": int, "run": str, "step": str} | MEMBERS[entry["step"]]
        with_context(at, entry, lambda: has_members(entry, members, "the entry"))
        with_context(at, entry, lambda: need(entry["at_ms"] >= last_at, "it is earlier than the one before"))
        last_at = entry["at_ms"]
        runs[entry["run"]].append((at, entry))
    for name, entries in runs.items():
        (check_load if name in LOADS else check_story)(name, entries, manifest)
    return runs


def report(runs):
    for name, entries in runs.items():
        last = entries[-1][1]
        if name in LOADS:
            facts = ", ".join(f"{count} {last[count]}" for count in ("rounds", *COUNTS))
            print(f"{name}: {facts}; 0 twice, 0 wrong, 0 lost")
            continue
        took = ""
        if name.startswith("waiters"):
            daemon = [entry["at_ms"] for _, entry in entries if entry["step"] == "daemon"][-1]
            listed = [entry["at_ms"] for _, entry in entries if entry["step"] == "listed"][-1]
            took = f", all windows back {listed - daemon} ms after the successor was seen"
        print(f"{name}: {len(entries)} steps{took}")


def unique(pairs):
    """Of a document in which a name stands twice nobody knows what it says."""
    names = [name for name, _ in pairs]
    need(len(set(names)) == len(names), "a name stands twice in one object")
    return dict(pairs)


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        sys.exit(2)
    try:
        with open(sys.argv[1], "rb") as file:
            text = file.read()
        manifest = json.loads(text, object_pairs_hook=unique)
        with open(sys.argv[2], "rb") as file:
            evidence = json.loads(file.read(), object_pairs_hook=unique)
        check_manifest(manifest)
        runs = check_evidence(evidence, manifest, hashlib.sha256(text).hexdigest())
    except (Refused, ValueError, OSError) as refused:
        sys.exit(f"check-upgrade: {refused}")
    report(runs)


if __name__ == "__main__":
    main()
