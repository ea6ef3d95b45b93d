"""Defects to put into the core one at a time: for each of them some test must fail.

``python tests/mutations.py`` (``make mutations``) works on a copy of the sources, and builds and runs only what does
not need PyTorch. A mutation names the tests that should see it, the quickest first.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import cpp_build


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    """Below ``csrc``."""
    old: str
    """Text that occurs there exactly once."""
    new: str
    tests: tuple[str, ...]
    """``mode/program``, or ``mode/program:part of a test's name``."""


SLEEP = ("explore/test_interleavings:bell",)
RING = ("explore/test_interleavings:ring", "tsan/test_ring")
ENDS = ("explore/test_interleavings:two ends",)
WHOLE = (
    "explore/test_interleavings:collectives",
    "explore/test_interleavings:threads",
    "plain/test_group",
    "tsan/test_group",
)
MESSAGES = ("explore/test_interleavings:message", "plain/test_messenger", "tsan/test_messenger")
BROKEN = ("plain/test_broken_peer",)
HOSTILE = ("plain/test_hostile",)
ENDPOINT = ("plain/test_endpoint",)

SEQ = "std::memory_order_seq_cst"
ACQUIRE = "std::memory_order_acquire"
RELEASE = "std::memory_order_release"
RELAXED = "std::memory_order_relaxed"

MUTATIONS = [
    # Orderings of the bell: each is one half of a Dekker pair, and only the explorer sees a missed wake-up.
    Mutation("ring looks for sleepers with acquire", "shm/bell.h", f"sleepers_->load({SEQ})", f"sleepers_->load({ACQUIRE})", SLEEP),
    Mutation("a sleeper is counted with relaxed", "shm/bell.h", f"sleepers_->fetch_add(1, {SEQ})", f"sleepers_->fetch_add(1, {RELAXED})", SLEEP),
    Mutation("ring does not change the word", "shm/bell.h", f"word_->fetch_add(1, {SEQ});", "", SLEEP),
    Mutation("ring does not wake", "shm/bell.h", "futex_wake_all(*word_);", "", SLEEP),
    Mutation("ring never rings", "shm/bell.h", f"if (sleepers_->load({SEQ}) == 0) return;", "return;", SLEEP),
    Mutation("a sleeper is not counted", "shm/bell.h", f"bell_.sleepers_->fetch_add(1, {SEQ});", "bell_.sleepers_->fetch_add(0);", SLEEP),
    # The byte ring.
    Mutation("published with relaxed", "shm/ring.h", f"head_->store(position_, {SEQ})", f"head_->store(position_, {RELAXED})", RING),
    Mutation("published with release", "shm/ring.h", f"head_->store(position_, {SEQ})", f"head_->store(position_, {RELEASE})", RING),
    Mutation("head read with relaxed", "shm/ring.h", f"head_->load({SEQ})", f"head_->load({RELAXED})", RING),
    Mutation("head read with acquire", "shm/ring.h", f"head_->load({SEQ})", f"head_->load({ACQUIRE})", RING),
    Mutation("released with relaxed", "shm/ring.h", f"tail_->store(position_, {SEQ})", f"tail_->store(position_, {RELAXED})", RING),
    Mutation("released with release", "shm/ring.h", f"tail_->store(position_, {SEQ})", f"tail_->store(position_, {RELEASE})", RING),
    Mutation("tail read with relaxed", "shm/ring.h", f"tail_->load({SEQ})", f"tail_->load({RELAXED})", RING),
    Mutation("tail read with acquire", "shm/ring.h", f"tail_->load({SEQ})", f"tail_->load({ACQUIRE})", RING),
    Mutation("published before it is put", "shm/ring.h", "    const std::size_t at = position_ & (capacity_ - 1);\n    const std::size_t first = std::min(bytes.size(), capacity_ - at);\n    if (first) std::memcpy(data_ + at", "    head_->store(position_ + bytes.size());\n    const std::size_t at = position_ & (capacity_ - 1);\n    const std::size_t first = std::min(bytes.size(), capacity_ - at);\n    if (first) std::memcpy(data_ + at", RING),
    # Both ends of a message.
    Mutation("a piece is claimed with release", "shm/two_ends.h", f"own_->store(job_ + taken_ + 1, {SEQ})", f"own_->store(job_ + taken_ + 1, {RELEASE})", ENDS),
    Mutation("claims are looked at with acquire", "shm/two_ends.h", f"other_->load({SEQ})", f"other_->load({ACQUIRE})", ENDS),
    Mutation("the back does not see that the front has gone on", "shm/two_ends.h", ": end_ == End::back;", ": false;", ENDS),
    Mutation("another job's claims count", "shm/two_ends.h", "same_job ? taken_ + 1", "true ? taken_ + 1", ENDS),
    Mutation("the sender's count is not waited for", "coll/messenger_moves.cpp", "if (!it->rest) return moved > 0;", "if (!it->rest) it->rest = 0;", ("tsan/test_messenger:both ends",)),
    Mutation("the sender's count has no limit", "coll/messenger_moves.cpp", "if (*it->rest > pieces.n - copied)", "if (false)", BROKEN),
    Mutation("the message of who has given up is taken", "coll/messenger_moves.cpp", "if (mesh_.member(rank).aborted() || mesh_.member(rank).left()) return moved > 0;", "", BROKEN),
    Mutation("a receive that was given up may be written to", "coll/messenger.cpp", "if (receiving.front) receiving.front.revoke();", ";", BROKEN),
    # Posts and ticks.
    Mutation("a post is stamped with release", "coll/executor.cpp", f"post.stamp.store(q_, {SEQ})", f"post.stamp.store(q_, {RELEASE})", WHOLE),
    Mutation("a post is stamped with relaxed", "coll/executor.cpp", f"post.stamp.store(q_, {SEQ})", f"post.stamp.store(q_, {RELAXED})", ("tsan/test_group",)),
    Mutation("stamps are read with relaxed", "coll/executor.cpp", f"post.stamp.load({SEQ})", f"post.stamp.load({RELAXED})", ("tsan/test_group",)),
    Mutation("stamps are read with acquire", "coll/executor.cpp", f"post.stamp.load({SEQ})", f"post.stamp.load({ACQUIRE})", WHOLE),
    Mutation("ticks are published with release", "coll/executor.cpp", f"tick().store(tick_, {SEQ})", f"tick().store(tick_, {RELEASE})", WHOLE),
    Mutation("ticks are published with relaxed", "coll/executor.cpp", f"tick().store(tick_, {SEQ})", f"tick().store(tick_, {RELAXED})", ("tsan/test_group",)),
    Mutation("ticks are read with relaxed", "coll/executor.cpp", f"tick().load({SEQ})", f"tick().load({RELAXED})", ("tsan/test_group",)),
    Mutation("one post instead of two", "coll/layout.h", "reinterpret_cast<Post*>(base_ + kPost)[q & 1]", "reinterpret_cast<Post*>(base_ + kPost)[0]", WHOLE),
    Mutation("one payload instead of two", "coll/layout.h", "(q & 1) * kMaxOneShotBytes", "0 * (q & 1) * kMaxOneShotBytes", WHOLE),
    Mutation("slots do not alternate between operations", "coll/executor.cpp", "if (in_staging_) windows_ += plan_.windows;", "", WHOLE),
    Mutation("no synchronisation after direct", "coll/executor.cpp", "if (step_ == plan_.steps && plan_.path != Path::direct)", "if (step_ == plan_.steps)", WHOLE),
    Mutation("a post rings nobody", "coll/mesh.h", "if (i != rank_) members_[i].peer->bell().ring();", ";", WHOLE),
    Mutation("signatures are not compared", "coll/executor.cpp", "if (is_strange(signature) && stranger_ < 0)", "if (false)", ("plain/test_group:different operations",)),
    Mutation("pairs are not compared", "coll/executor.cpp", "if (pairs_) compare_pairs();", "", ("plain/test_group:pairs",)),
    Mutation("equal parts that differ are nobody's mistake", "coll/executor.cpp", "return *even_ != signature;", "return false;", ("plain/test_group:do not list",)),
    Mutation("the first step beside lists is kept", "coll/executor.cpp", "agreed_ && !pairs_;", "agreed_;", ("plain/test_group:equal parts",)),
    Mutation("slots of mixed ranks are located too early", "coll/executor.cpp", "agreed_ = direct || (first_step_made && !any_mapped);", "agreed_ = true;", WHOLE),
    Mutation("who took one step does not look who hopes for none", "coll/executor.cpp", "!is_one_shot(shape_, mesh_.tuning(), true)) {", "!is_one_shot(shape_, mesh_.tuning(), false)) {", ("plain/test_group:2 ranks",)),
    Mutation("only one rank's cores count", "coll/mesh.cpp", "bits |= it.cores[word]", "bits = it.cores[word]", ("plain/test_group:bound",)),
    # Messages.
    Mutation("a ring is announced with release", "coll/messenger_moves.cpp", f"line.ring.store(ring.offset, {SEQ})", f"line.ring.store(ring.offset, {RELEASE})", ("explore/test_interleavings:single",)),
    Mutation("a ring is looked for with acquire", "coll/messenger.cpp", f"block.send(mesh_.rank()).ring.load({SEQ})", f"block.send(mesh_.rank()).ring.load({ACQUIRE})", ("explore/test_interleavings:single",)),
    Mutation("a sent record rings nobody", "coll/messenger_moves.cpp", "  mesh_.member(rank).peer->bell().ring();\n  return true;", "  return true;", ("explore/test_interleavings:message",)),
    Mutation("a reader that made room rings nobody", "coll/messenger_moves.cpp", "if (moved) member.peer->bell().ring();", "", ("explore/test_interleavings:message",)),
    Mutation("the sender of a small message hears of no misfit", "coll/messenger.cpp", "    note(rank, nack);", "    if (e.record != Record::eager) note(rank, nack);", ("plain/test_messenger:does not fit",)),
    Mutation("arrived messages are not preferred", "coll/messenger.cpp", "if (it == waiting.end()) continue;", "continue;", MESSAGES),
    # Who drives.
    Mutation("who stops waiting hands nothing over", "coll/engine.cpp", "engine_.waiters_.fetch_sub(1, std::memory_order_seq_cst);\n    engine_.hand_over();", "engine_.waiters_.fetch_sub(1, std::memory_order_seq_cst);", ("explore/test_interleavings:flight", "plain/test_group")),
    Mutation("nobody starts the background", "coll/engine.cpp", "    background_.push_back(\n        start_thread<Thread>(\"that drives operations nobody waits for\", [this] { run_background(); }));", "    ;", ("plain/test_group:left alone",)),
    Mutation("parked threads are not told", "coll/engine.cpp", "  background_work_.notify_one();", "", ("explore/test_interleavings:flight", "plain/test_group")),
    Mutation("callbacks count as driving", "coll/engine.cpp", "if (role_ == static_cast<int>(Role::other)) return;", "return;", ("plain/test_group:callbacks",)),
    Mutation("an end is stored with release", "coll/group.cpp", f"op.finished_.store(true, {SEQ});", f"op.finished_.store(true, {RELEASE});", ("explore/test_interleavings:threads",)),
    Mutation("an end wakes nobody of this process", "coll/group.cpp", "  engine_.ring();  // another thread", "  // another thread", ("explore/test_interleavings:threads",)),
    Mutation("who has joined waits for nobody", "coll/group.cpp", "!m.joined() && ", "!m.joined() && false && ", ("plain/test_group:open when",)),
    Mutation("an abort is announced with release", "coll/mesh.cpp", f"presence.store(kAborted, {SEQ})", f"presence.store(kAborted, {RELEASE})", ("explore/test_interleavings:leaves",)),
    Mutation("an abort is looked for with acquire", "coll/mesh.h", f"presence.load({SEQ}) & kAborted", f"presence.load({ACQUIRE}) & kAborted", ("explore/test_interleavings:leaves",)),
    Mutation("who leaves rings nobody", "coll/mesh.cpp", "OCCL_FAULT_POINT(\"mesh.left\");\n  if (!members_.empty()) ring_all();", "", ("explore/test_interleavings:leaves",)),
    Mutation("a death ends only what needs the dead", "coll/group.cpp", "const bool needed = died || ", "const bool needed = ", ("plain/test_survivors:a death ends",)),
    Mutation("every end is a death", "shm/peer.h", " && header().ending.load(std::memory_order_acquire) == 0", "", ("plain/test_survivors:a death ends",)),
    Mutation("a header's next group is taken for the last one", "coll/mesh.h", " ||\n           header.incarnation.load(std::memory_order_seq_cst) != incarnation", "", ("plain/test_group:past groups",)),
    Mutation("failed buffers are released at once", "coll/group.cpp", "const bool keep = op.error_ && op.exposed_;", "const bool keep = false;", ("plain/test_group:buffers",)),
    # Checks of what peers write.
    Mutation("ticks have no limit", "coll/executor.cpp", "if (reached > tick + 1)", "if (false)", BROKEN),
    Mutation("stamps of the future are accepted", "coll/executor.cpp", "if (stamp > q_)", "if (false)", BROKEN),
    Mutation("block sizes have no limit", "coll/executor.cpp", "if (largest > kMaxBlockBytes / shape_.element_size)", "if (false)", BROKEN),
    Mutation("offsets in control regions are not checked", "shm/peer.cpp", "if (offset > control_size_ || bytes > control_size_ - offset)", "if (false)", BROKEN),
    Mutation("offsets in regions are not checked", "shm/peer.cpp", "if (ref.offset > size || bytes > size - ref.offset)", "if (false)", BROKEN),
    Mutation("records may be longer than what was written", "coll/messenger_moves.cpp", "record_bytes(e.bytes) > readable)", "false)", BROKEN),
    Mutation("beginnings may be longer than the message", "coll/messenger.cpp", ": e.bytes < t.bytes();", ": true;", BROKEN),
    Mutation("text of peers is printed as it is", "base/error.h", "if (!fine) out[i] = '?';", "", HOSTILE),
    Mutation("slots may be smaller than a line for each rank", "coll/mesh.cpp", "size_ * kLine)", "kLine)", ("plain/test_group:place in a slot",)),
    # Who gets in.
    Mutation("users are not compared", "shm/socket.cpp", "&& credentials.uid == geteuid()", "", HOSTILE),
    Mutation("clients of other users are heard", "shm/endpoint.cpp", "if (!same_user(client.get()))", "if (false)", HOSTILE),
    Mutation("servers of other users are trusted", "shm/peer.cpp", "if (!same_user(socket.get()))", "if (false)", HOSTILE),
    Mutation("the secret is not asked for", "shm/endpoint.cpp", "request.magic != kMagic || request.secret != address_.secret", "request.magic != kMagic", HOSTILE),
    Mutation("refusals are logged each time", "shm/endpoint.cpp", "if (!std::exchange(refusal_logged_, true))", "", HOSTILE),
    Mutation("seals are not checked", "shm/region.cpp", "if (seals < 0 || (seals & kSizeSeals) != kSizeSeals)", "if (false)", HOSTILE),
    Mutation("control regions are not sealed against writing", "shm/region.cpp", "(peers == Access::read ? F_SEAL_FUTURE_WRITE : 0)", "0", HOSTILE),
    Mutation("any descriptor is taken for a pidfd", "shm/peer.cpp", "nullptr, 0) != 0 && errno == EBADF)", "nullptr, 0) != 0 && false)", HOSTILE),
    Mutation("the nonce is not compared", "shm/peer.cpp", "if (header.nonce != address.nonce)", "if (false)", HOSTILE),
    Mutation("answers may bring more descriptors", "shm/peer.cpp", "descriptors.size() != expected", "descriptors.size() < expected", HOSTILE),
    Mutation("a member that never came is rung", "coll/mesh.cpp", "members.push_back({std::move(peers[i]), block, ", "members_.push_back({peers[i], block}), members.push_back({std::move(peers[i]), block, ", ("asan/invitation",)),
    Mutation("blocks are used again while they are read", "shm/arena.cpp", "if (!retired.unread()) return false;", "", ENDPOINT),
]  # fmt: skip

NOT_CAUGHT = {
    "coll/engine.cpp: who hands over rings nobody": "the explorer has not met it in a few hundred runs; the model "
    "shows it: tests/models/hand_over.pml, NO_RING_ON_HAND_OVER",
    "shm/bell.h: the word is read, or changed, with less than seq_cst": "it is only changed by atomic additions, "
    "whose newest value the kernel compares: no order with other atomics hangs on it that sleepers does not give",
    "coll/executor.cpp: ticks are read with acquire": "a sleeper's look at ticks comes after its atomic addition; the "
    "explorer finds the missed wake-up only in long runs (EXPLORE_FACTOR=50)",
    "coll/group.h: pending and restless with relaxed": "hints: the locks order what they stand for",
    "coll/engine.h: Spin": "hints about how long to look",
}
"""Weaker orderings that no test is known to see, and why that is so."""


def apply(mutation: Mutation, root: Path) -> str:
    """Writes the mutation into the sources below ``root``; returns the text as it was."""
    path = root / "csrc" / mutation.file
    text = path.read_text()
    if (count := text.count(mutation.old)) != 1:
        raise ValueError(f"{mutation.name}: its text occurs {count} times in {mutation.file}")
    path.write_text(text.replace(mutation.old, mutation.new))
    return text


LIMIT = 240
"""Seconds for one test."""


def failure(test: str, root: Path) -> str | None:
    """How a test fails (or crashes, or hangs) with the sources below ``root``, or None."""
    where, _, part = test.partition(":")
    mode, program = where.split("/")
    fuzz = root / "tests" / "fuzz" / f"{program}.cpp"
    source = Path("tests", "fuzz" if fuzz.exists() else "cpp", f"{program}.cpp")
    built = cpp_build.build(mode, source, root)
    corpus = root / "tests" / "fuzz" / "corpus" / f"{program}.txt"
    arguments = [str(corpus)] if fuzz.exists() else [part] if part else []
    quiet = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1", "EXPLORE_FACTOR": "30"}
    prefix = ["setarch", "--addr-no-randomize"] if mode == "tsan" else []
    try:
        done = subprocess.run(
            [*prefix, str(built), *arguments],
            env=quiet | os.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {LIMIT} seconds"
    return (
        done.stdout.decode(errors="replace") + f"exit status {done.returncode}" if done.returncode else None
    )


def copy_tree(root: Path, built: bool = True) -> None:
    """Copies what the torch-free tests are built from, and what has been built of them."""
    shutil.copytree(cpp_build.ROOT / "csrc", root / "csrc")
    for folder in ("cpp", "fuzz"):
        shutil.copytree(cpp_build.ROOT / "tests" / folder, root / "tests" / folder)
    objects = cpp_build.ROOT / "build" / "cpp"
    if built and objects.exists():  # with their times: then little is to be built anew
        shutil.copytree(objects, root / "build" / "cpp", ignore=shutil.ignore_patterns("fuzz"))


def caught_by(mutation: Mutation, root: Path) -> str | None:
    """The first test that fails with the mutation, or None. The sources are as before afterwards."""
    before = apply(mutation, root)
    try:
        return next((test for test in mutation.tests if failure(test, root)), None)
    finally:
        (root / "csrc" / mutation.file).write_text(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="*", default=list(cpp_build.MODES), help="only tests in these modes")
    parser.add_argument("parts", nargs="*", help="only mutations with one of these in their name or file")
    args = parser.parse_args()
    chosen = [
        replace(m, tests=tests)
        for m in MUTATIONS
        if not args.parts or any(part in m.name or part in m.file for part in args.parts)
        if (tests := tuple(test for test in m.tests if test.split("/")[0] in args.modes))
    ]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="occl-mutations-") as folder:
        root = Path(folder)
        copy_tree(root)
        for test in sorted({test for mutation in chosen for test in mutation.tests}):
            if how := failure(test, root):
                sys.exit(f"{test} fails without any mutation: {how}")
        for mutation in chosen:
            test = caught_by(mutation, root)
            print(
                f"{'caught' if test else 'SURVIVED'}: {mutation.name} [{mutation.file}] {test or ''}",
                flush=True,
            )
            survivors += [] if test else [mutation.name]
    print(f"{len(chosen) - len(survivors)} of {len(chosen)} mutations caught")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
