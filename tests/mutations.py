"""Defects to put in one at a time: for each of them some test must fail.

``python -m tests.mutations`` (``make mutations``) works on a copy of the sources. A mutation names the tests that should
see it, the quickest first: programs that do not need PyTorch, or tests of pytest, for which what depends on the
mutated source is compiled and linked with the objects of the extension that is built. ``--times 10`` runs the test
that sees it ten times: one that sees it by chance sees it less often than that.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support import cpp_build, extension


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    """Below ``csrc``, or ``occl/...`` or ``torch_occl/...``."""
    old: str
    """Text that occurs there exactly once."""
    new: str
    tests: tuple[str, ...]
    """``mode/program``, or ``mode/program:part of a test's name``; or a test as pytest takes it, from ``tests/`` on."""

    @property
    def path(self) -> Path:
        return Path(self.file) if self.file.startswith(("occl/", "torch_occl/")) else Path("csrc", self.file)


SLEEP = ("explore/test_interleavings:bell",)
RING = ("explore/test_interleavings:ring", "tsan/test_ring")
ENDS = ("explore/test_interleavings:two ends",)
WHOLE = (
    "plain/test_group",
    "explore/test_interleavings:collectives",
    "tsan/test_group",
    "explore/test_interleavings:threads",
)
MESSAGES = ("explore/test_interleavings:message", "plain/test_messenger", "tsan/test_messenger")
PLANS = ("plain/test_plan",)
DOMAINS = ("plain/test_domains", "tsan/test_domains")
LINE_LATENCY = ("plain/test_line_latency",)
LETTING_BY = ("plain/test_letting_by",)
BROKEN = ("plain/test_broken_peer",)
KEPT_RANKS = ("tests/test_testing_kept_ranks.py::test_ranks_that_are_not_as_they_were_are_not_used_again",)
HOSTILE = ("plain/test_hostile",)
ENDPOINT = ("plain/test_endpoint",)
ACTIVITY = ("plain/test_activity",)
WINDOW_ERRORS = "tests/distributed/test_windows_errors.py::"
TOP = "tests/distributed/test_top.py::"

STREAMS = "tests/distributed/test_side_streams.py::"
BEGINS = (STREAMS + "test_a_collective_begins_when_its_stream_comes_to_it",)
RECORDER = "tests/distributed/test_instruments_flight_recorder.py::"
NAMED = (
    "tests/hosts/test_faults.py::test_an_error_names_the_call_of_the_program_and_ranks_of_the_whole_group",
)
CORES = ("tests/hosts/test_groups.py::test_ranks_of_other_nodes_on_this_machine_share_its_cores",)
FOREIGN_STREAM = ("tests/foreign/test_group.py::test_an_operation_begins_when_the_callers_stream_reaches_it",)
TWO_DEVICES = (STREAMS + "test_a_call_with_tensors_of_two_devices_uses_the_streams_of_both",)
GOES_ON = (STREAMS + "test_a_wait_under_a_side_stream_makes_that_stream_wait",)
POLLS = (STREAMS + "test_a_thread_that_drives_does_not_copy_on_its_own_stream",)
WORKS = "tests/distributed/test_futures.py::test_works_and_futures"
FUTURES = "tests/distributed/test_futures.py::test_futures_of_the_device_are_those_of_an_accelerator"
CALLBACKS = ("tests/distributed/test_futures.py::test_a_callback_may_launch_collectives_and_wait_for_them",)
CAPABLE = "tests/distributed/test_capabilities.py::"
ON_DEV = "tests/device/test_streams.py::"
HOST = (ON_DEV + "test_what_the_host_does_on_a_side_stream_waits_for_what_is_queued",)
HOST_WAITS = (ON_DEV + "test_a_wait_of_the_host_ends_when_the_stream_has_come_there",)
BUSY = (ON_DEV + "test_a_stream_that_waits_for_another_is_busy_until_that_one_has_come_there",)
NESTED = (
    ON_DEV + "test_contexts_nest_and_survive_exceptions",
    ON_DEV + "test_a_context_can_be_entered_again",
)
QUEUE = ("plain/test_queue",)
HOLD = ("plain/test_group:on hold",)
SLOW = ("plain/test_group:listener", "plain/test_group:needs no peer", "plain/test_group:overdue")
FOREIGN_HANGS = (
    "tests/foreign/test_bad_input.py::test_a_device_that_hangs_in_a_copy_is_named_by_the_timeout",
)

SEQ = "std::memory_order_seq_cst"
ACQUIRE = "std::memory_order_acquire"
RELEASE = "std::memory_order_release"
RELAXED = "std::memory_order_relaxed"

MUTATIONS = [
    # Orderings of the bell: each is one half of a Dekker pair, and only the explorer sees a missed wake-up.
    Mutation("a child waits for a lock of its parent", "base/fork.h", "generation_.fetch_add(1, ", "generation_.fetch_add(0, ", ("plain/test_fork:a child can use a mutex",)),
    Mutation("a ring has no fence", "shm/bell.h", "    fence();  //", "    //", SLEEP),
    Mutation("several bells are rung without a fence", "coll/mesh/bells.h", "    fence();  //", "    //", WHOLE),
    Mutation("a bell that is owed is never rung", "coll/mesh/bells.h", "    if (pending_ == kNone) return;\n", "    return;\n", WHOLE),
    Mutation("a bell is owed after the driving lock has been released", "coll/progress/communicator.cpp", "  const bool moved = drive_locked(checks, done);\n  wake_peers();\n", "  const bool moved = drive_locked(checks, done);\n", ("explore/test_interleavings:collectives",)),
    Mutation("ring looks for sleepers with acquire", "shm/bell.h", f"sleepers_->load({SEQ})", f"sleepers_->load({ACQUIRE})", SLEEP),
    Mutation("a sleeper is counted with relaxed", "shm/bell.h", f"sleepers_->fetch_add(entry_, {SEQ})", f"sleepers_->fetch_add(entry_, {RELAXED})", SLEEP),
    Mutation("ring does not change the word", "shm/bell.h", f"word_->fetch_add(1, {SEQ});", "", SLEEP),
    Mutation("ring does not wake", "shm/bell.h", "futex_wake_all(*word_);", "", SLEEP),
    Mutation("spins in vain stay long", "coll/progress/spin.h", "turns_.load(std::memory_order_relaxed) / 2)", "turns_.load(std::memory_order_relaxed))", ("plain/test_engine:in vain",)),
    Mutation("a short spin stays short", "coll/progress/spin.h", "wait % kTries == 0 ? kLongSpin", "wait == 0 ? kLongSpin", ("plain/test_engine:in vain",)),
    Mutation("ring never rings", "shm/bell.h", f"if (!wakes(sleepers_->load({SEQ}), from)) return;", "return;", SLEEP),
    Mutation("of two sleepers, a ring reaches those that sleep for its process", "shm/bell.h", "count > 1 || (count == 1 && (", "count > 0 && ((", SLEEP),
    Mutation("a thread sleeps for a rank that has arrived since", "coll/progress/engine.cpp", " && (awaited == shm::Bell::kAny || group.awaited_process() == awaited)", "", ("explore/test_interleavings:collectives",)),
    Mutation("a thread sleeps for one rank while another group is in flight", "coll/progress/engine.cpp", "alone ? group.awaited_process() : shm::Bell::kAny", "group.awaited_process()", ("explore/test_interleavings:threads",)),
    Mutation("a long yield changes nothing", "coll/progress/spin.h", "if (took < kLong) {", "if (true) {", ("plain/test_engine:long yield",)),
    Mutation("quick yields do not count", "coll/progress/spin.h", "if (waits > kFewest) waits_.store(waits - 1, std::memory_order_relaxed);", "", ("plain/test_engine:long yield",)),
    Mutation("a sleeper is not counted", "shm/bell.h", f"bell_.sleepers_->fetch_add(entry_, {SEQ});", "bell_.sleepers_->fetch_add(0);", SLEEP),
    # The byte ring.
    Mutation("published with relaxed", "shm/ring.h", f"store(position_ + 1, {RELEASE})", f"store(position_ + 1, {RELAXED})", RING),
    Mutation("a stamp read with relaxed", "shm/ring.h", f"{SEQ}) ==", f"{RELAXED}) ==", RING),
    Mutation("a stamp read with acquire", "shm/ring.h", f"{SEQ}) ==", f"{ACQUIRE}) ==", RING),
    Mutation("the place behind a record is not cleared", "shm/ring.h", "    clear_behind(bytes);\n", "", ("plain/test_ring",)),
    Mutation("unread records are cleared", "shm/ring.h", "std::min(behind + at_once, seen_tail_ + capacity_)", "behind + at_once", ("plain/test_ring:spares",)),
    Mutation("a line that was not read counts as free", "shm/ring.h", ">= bytes) return true;", ">= bytes - kLine) return true;", ("plain/test_ring",)),
    Mutation("released with relaxed", "shm/ring.h", f"tail_->store(position_, {RELEASE})", f"tail_->store(position_, {RELAXED})", RING),
    Mutation("tail read with relaxed", "shm/ring.h", f"tail_->load({SEQ})", f"tail_->load({RELAXED})", RING),
    Mutation("tail read with acquire", "shm/ring.h", f"tail_->load({SEQ})", f"tail_->load({ACQUIRE})", RING),
    Mutation("published before it is put", "coll/messages/pipe.cpp", "    put({payload, e.bytes});\n", "    writer_.publish<Envelope>(0, [&](Envelope& first) { first = e; }), put({payload, e.bytes});\n", MESSAGES),
    # Places of payloads and windows.
    Mutation("a cell that this rank has may be named", "coll/messages/cells.cpp", " && !is_own_[number]", "", BROKEN),
    Mutation("there are more cells than memory", "coll/messages/cells.cpp", "number < is_own_.size()", "true", BROKEN),
    Mutation("a cell goes back before it is read", "coll/messages/cells.cpp", "  return open_ = ", "  for (std::size_t i = half_; i > 0; --i) stack_.push_back(static_cast<std::uint16_t>(i));\n  return open_ = ", MESSAGES),
    Mutation("exchanges have one place", "coll/plan/staging_places.h", "(turn_ + w) % 2 * slot_", "0 * (turn_ + w) * slot_", ("plain/test_group:consecutive", "explore/test_interleavings:take turns", "tsan/test_group:exchange places")),
    Mutation("the reader looks for an exchanged contribution where it lay before", "coll/execution/addresses.cpp", "block = static_cast<std::uint32_t>(std::exchange(rank, reader));", "rank = reader;", ("plain/test_group:exchange places",)),
    Mutation("all_gather delivers no own block", "coll/plan/plan.cpp", "    if (keeps_own_block(s, rank)) m.also = Where::output;\n", "", PLANS),
    Mutation("the root of a gather leaves out its own block", "coll/plan/plan.cpp", "? keeps_own_block(s, rank) : ranged", "? 0 : ranged", PLANS),
    Mutation("the root of a scatter delivers before the others have shown their slots", "coll/plan/plan.cpp", "  if (plan.delivers && step-- == 0) return false;\n", "", PLANS),
    Mutation("the root of a scatter counts on the slots of all ranks, and uses its own", "coll/plan/plan.cpp", "{Where::inbox, window, static_cast<int>(m.src.block)}", "{Where::inbox, window, rank}", PLANS),
    Mutation("an interruption makes a rank far", "coll/mesh/line_latency.h", "std::min(took, 2 * limit_)", "took", LINE_LATENCY),
    Mutation("a look that found something counts as one in vain", "coll/mesh/line_latency.h", "missed_ = found ? -1 : rank;", "missed_ = rank;", LINE_LATENCY),
    Mutation("a look long after one in vain is measured", "coll/mesh/line_latency.h", "before - at_ < kJustBefore * latency.limit_", "true", LINE_LATENCY),
    Mutation("each rank has its own distance on shared cores", "coll/mesh/line_latency.h", "lines_(core_for_each ? size : 1)", "lines_(size)", LINE_LATENCY),
    Mutation("any bytes go past the caches to a far rank", "coll/mesh/line_latency.h", "bytes >= kLeastBytes && far(rank)", "bytes > 0 && far(rank)", LINE_LATENCY),
    Mutation("one far rank is enough", "coll/mesh/line_latency.h", "2 * far_ > static_cast<int>(lines_.size()) - 1", "far_ > 0", LINE_LATENCY),
    # Letting others by, and what is kept for the same call again.
    Mutation("a rank never lets others by", "coll/execution/executor.cpp", "if (lets_by()) return Outcome::blocked;", "", LETTING_BY),
    Mutation("a rank that has attended lets others by", "coll/execution/executor.cpp", " || attends(mesh_.rank())) return", ") return", LETTING_BY),
    Mutation("one of four ranks is let by", "coll/execution/executor.cpp", "2 * attending >= mesh_.size()", "attending > 0", LETTING_BY),
    Mutation("ranks that have made their moves are let by", "coll/execution/executor.cpp", "tick_of(i) <= tick_;", "true;", LETTING_BY),
    Mutation("small operations let others by", "coll/execution/executor.cpp", "footprint(agreed.shape) >= mesh_.size() * kSliceBytes;", "true;", LETTING_BY),
    Mutation("the rank that is let by is not named", "coll/execution/executor.cpp", "tick_of(i) < tick_ + 1", "tick_of(i) < tick_", LETTING_BY),
    Mutation("a plan serves calls of another size", "coll/execution/meeting.cpp", "signature == signature_ && collective.largest", "collective.largest", ("plain/test_group:2 ranks",)),
    Mutation("the moves of another small collective are made", "coll/execution/small_moves.h", "plans_ == agreed.plans", "plans_ != 0", ("plain/test_group:2 ranks",)),
    Mutation("small collectives all stage in one place", "coll/execution/executor.cpp", "&small_moves_[agreed.q & 1]", "&small_moves_[0]", WHOLE),
    Mutation("a small collective uses the tensors of the one before", "coll/execution/small_moves.cpp", "    if (own)\n", "    if (false)\n", ("plain/test_group:2 ranks",)),
    Mutation("lists of small blocks are taken for one tensor", "coll/execution/small_moves.h", " && !agreed.collective().in.list && !agreed.collective().out.list", "", WHOLE),
    Mutation("products by a factor are small sums", "coll/execution/meeting.cpp", " &&\n                  agreed_.collective().op != ReduceOp::premul_sum", "", ("plain/test_group:reductions with a factor",)),
    Mutation("the plan that ranks agreed on instead is not made", "coll/execution/executor.cpp", "small_ && small_->known(meeting_.agreed())", "small_", ("plain/test_group:2 ranks",)),
    # Both ends of a message.
    Mutation("a piece is claimed with release", "shm/two_ends.h", f"own_->store(job_ + taken_ + 1, {SEQ})", f"own_->store(job_ + taken_ + 1, {RELEASE})", ENDS),
    Mutation("claims are looked at with acquire", "shm/two_ends.h", f"other_->load({SEQ})", f"other_->load({ACQUIRE})", ENDS),
    Mutation("the back does not see that the front has gone on", "shm/two_ends.h", ": end_ == End::back;", ": false;", ENDS),
    Mutation("another job's claims count", "shm/two_ends.h", "same_job ? taken_ + 1", "true ? taken_ + 1", ENDS),
    Mutation("the sender's count is not waited for", "coll/messages/inbox.cpp", "if (!it->rest) return moved > 0;", "if (!it->rest) it->rest = 0;", ("tsan/test_messenger:both ends",)),
    Mutation("the sender's count has no limit", "coll/messages/inbox.cpp", "if (*it->rest > pieces.n - copied)", "if (false)", BROKEN),
    Mutation("the message of a rank that has given up is taken", "coll/messages/inbox.cpp", "if (sender.aborted() || sender.left()) return moved > 0;", "", BROKEN),
    Mutation("a receive that was given up may be written to", "coll/messages/inbox.cpp", "if (receiving.front) receiving.front.revoke();", ";", BROKEN),
    # Posts and ticks.
    Mutation("a post is stamped with relaxed", "coll/execution/meeting.cpp", f"post.stamp.store(agreed_.q, {RELEASE})", f"post.stamp.store(agreed_.q, {RELAXED})", ("tsan/test_group",)),
    Mutation("stamps are read with relaxed", "coll/execution/meeting.h", f"post.stamp.load({SEQ})", f"post.stamp.load({RELAXED})", ("tsan/test_group",)),
    Mutation("stamps are read with acquire", "coll/execution/meeting.h", f"post.stamp.load({SEQ})", f"post.stamp.load({ACQUIRE})", WHOLE),
    Mutation("ticks are published with relaxed", "coll/execution/executor.cpp", f"tick().store(tick_, {RELEASE})", f"tick().store(tick_, {RELAXED})", ("tsan/test_group",)),
    Mutation("ticks are read with relaxed", "coll/execution/executor.cpp", f"tick().load({SEQ})", f"tick().load({RELAXED})", ("tsan/test_group",)),
    Mutation("one post instead of two", "coll/mesh/layout.h", "reinterpret_cast<Post*>(base_ + kPost)[q & 1]", "reinterpret_cast<Post*>(base_ + kPost)[0]", WHOLE),
    Mutation("one payload instead of two", "coll/mesh/layout.h", "(q & 1) * kMaxOneShotBytes", "0 * (q & 1) * kMaxOneShotBytes", WHOLE),
    Mutation("slots do not alternate between operations", "coll/execution/addresses.cpp", "rotation_.advance(plan.windows, plan.window_bytes);", "", WHOLE),
    Mutation("no synchronisation after direct", "coll/execution/executor.cpp", "if (step_ == plan.steps && plan.path != Path::direct)", "if (step_ == plan.steps)", WHOLE),
    # Two levels.
    Mutation("the root of a divided reduce stages nothing", "coll/plan/plan.cpp", "traits(s.kind).out_root_only && plan.split != Split::range;", "traits(s.kind).out_root_only;", PLANS),
    Mutation("contributions of all domains are filled at once", "coll/plan/two_levels.cpp", "if (staged) add(Role::fill, d);", "if (staged) add(Role::fill, 0);", PLANS),
    Mutation("a domain continues a sum in the step in which that is made", "coll/plan/two_levels.cpp", "add(Role::combine, d + staged);", "add(Role::combine, staged);", PLANS),
    Mutation("a result is fetched one step early", "coll/plan/two_levels.cpp", "if (!last && s.kind == Kind::all_reduce) add(Role::fetch, all + staged);", "if (!last && s.kind == Kind::all_reduce) add(Role::fetch, all + staged - 1);", PLANS),
    Mutation("blocks are spread when they are fetched", "coll/plan/two_levels.cpp", "add(Role::fetch, 1), add(Role::spread, 2)", "add(Role::fetch, 1), add(Role::spread, 1)", PLANS),
    Mutation("partial sums may fill more than a slot", "coll/plan/two_levels.cpp", "s.domains.least_size() * units(slot, s.partial_size)", "s.domains.least_size() * units(slot, s.element_size)", PLANS),
    Mutation("the lower ranks' sum is left out", "coll/execution/executor.cpp", "if (move.carries()) part.carried = addresses_.of(", "if (false) part.carried = addresses_.of(", DOMAINS),
    Mutation("a partial sum is rounded", "coll/execution/executor.cpp", "part.keeps = move.keeps();", "", DOMAINS),
    Mutation("a mean is of one domain", "coll/execution/executor.cpp", "part.ranks = static_cast<std::size_t>(mesh_.size());", "", DOMAINS),
    Mutation("factors are those of the first ranks", "coll/execution/executor.cpp", "meeting_.agreed().factors.data() + move.src.first", "meeting_.agreed().factors.data()", DOMAINS),
    Mutation("partial sums share slots with results", "coll/execution/addresses.cpp", "partial ? 2 : side.where", "partial ? 1 : side.where", DOMAINS),
    Mutation("slots are located too late for partial sums", "coll/execution/meeting.cpp", "return (direct && !partial_sums) ||", "return direct ||", DOMAINS),
    Mutation("every block is at the first one's place", "coll/execution/addresses.cpp", "if (!agreed_.plan.two_level || !per_rank) return 0;", "return 0;", DOMAINS),
    Mutation("ranks of a domain need not follow each other", "coll/plan/domains.cpp", "if (other == by_rank[rank]) return {};", ";", DOMAINS),
    Mutation("a partial sum is multiplied like a contribution", "kernels/kernels.cpp", "with_factor[0] = 1;", "with_factor[0] = factors.empty() ? 1 : factors[0];", ("plain/test_kernels:in parts",)),
    Mutation("slots do not grow where ranks share cores", "coll/plan/tuning.cpp", "slot_bytes_by_cores(size, core_for_each)", "slot_bytes_by_cores(size, true)", ("plain/test_plan:tuning", "plain/test_group:different cores",)),
    Mutation("slots of many ranks are as large as those of few", "coll/plan/tuning.cpp", "return std::clamp(kOneOfEachRank / static_cast<std::uint32_t>(ranks), kSmall, kLarge);", "return kLarge;", ("plain/test_group:share cores",)),
    Mutation("a post rings no bell", "coll/mesh/bells.h", "if (i != rank_) bell_of(i).ring_after_fence(from);", ";", WHOLE),
    Mutation("signatures are not compared", "coll/execution/meeting.cpp", "if (differs(signature) && odd_rank_ < 0)", "if (false)", ("plain/test_group:different operations",)),
    Mutation("pairs are not compared", "coll/execution/meeting.cpp", "if (pairwise_) compare_pairs();", "", ("plain/test_group:pairs",)),
    Mutation("equal parts that differ are no mistake", "coll/execution/meeting.cpp", "return *equal_parts_ != signature;", "return false;", ("plain/test_group:do not list",)),
    Mutation("the first step beside lists is kept", "coll/execution/meeting.cpp", "(first_step_made_ && !pairwise_) ||", "first_step_made_ ||", ("plain/test_group:stages them again",)),
    Mutation("slots of mixed ranks are located too early", "coll/execution/meeting.cpp", "return (direct && !partial_sums) || (!pairwise_ && all_have_staged());", "return true;", WHOLE),
    Mutation("a root that stages late is not waited for", "coll/execution/meeting.cpp", "if (mapped && agreed_.stages(i)) return false;", "if (mapped && agreed_.stages(i) && !agreed_.plan.only_root_stages) return false;", WHOLE),
    Mutation("slots of another plan are taken for this one's", "coll/execution/addresses.cpp", "if (known == agreed_.plans) return;", "if (known) return;", ("plain/test_group:2 ranks",)),
    Mutation("slots of ranks that stage nothing are looked up", "coll/execution/addresses.cpp", "if (i == mesh_.rank() || !agreed_.stages(i)) continue;", "if (i == mesh_.rank()) continue;", WHOLE),
    Mutation("a rank that took one step does not look for ranks that hope for none", "coll/execution/meeting.cpp", " && small_) return true;", " && is_one_shot(agreed_.shape, mesh_.tuning(), false)) return true;", ("plain/test_group:2 ranks",)),
    Mutation("only one rank's cores count", "coll/mesh/topology.cpp", "any[word] |= set[word];", "any[word] = set[word];", ("plain/test_group:bound",)),
    # Messages.
    Mutation("a ring is announced with relaxed", "coll/messages/pipe.cpp", f"line.ring.store(ring.offset, {RELEASE})", f"line.ring.store(ring.offset, {RELAXED})", ("tsan/test_messenger",)),
    Mutation("a ring is looked for with acquire", "coll/messages/messenger.cpp", f"block.send(mesh_.rank()).ring.load({SEQ})", f"block.send(mesh_.rank()).ring.load({ACQUIRE})", ("explore/test_interleavings:single",)),
    Mutation("a rank that only sends looks at no answers", "coll/messages/channel.cpp", "    while (take_records(done)) moved = true;\n", "    ;\n", ("plain/test_messenger:only sends",)),
    Mutation("a sent record rings no bell", "coll/messages/pipe.cpp", "  mesh_.bells().ring_soon(peer_);\n  return true;", "  return true;", ("explore/test_interleavings:message",)),
    Mutation("a reader that made room rings no bell", "coll/messages/channel.cpp", "if (moved) pipe_.announce_room();", "", ("explore/test_interleavings:message",)),
    Mutation("a message overtakes one that waits for room", "coll/messages/outbox.cpp", "    room &= !waits_for_room(*it);\n", "", ("explore/test_interleavings:end in their order",)),
    Mutation("a message that begins overtakes one that waits for room", "coll/messages/outbox.cpp", "if (room) push_pieces(sending_.back());", "push_pieces(sending_.back());", ("explore/test_interleavings:end in their order",)),
    Mutation("the sender of a small message hears of no misfit", "coll/messages/inbox.cpp", "  answers_.add(nack);", "  if (e.record != Record::eager) answers_.add(nack);", ("plain/test_messenger:does not fit",)),
    Mutation("arrived messages are not preferred", "coll/messages/inbox.cpp", "  if (it == unexpected_.end()) return false;", "  return false;", MESSAGES),
    # Windows.
    Mutation("a signal is stored with relaxed", "coll/windows/window.cpp", f"count.store(sent + 1, {RELEASE})", f"count.store(sent + 1, {RELAXED})", ("explore/test_interleavings:signals: none",)),
    Mutation("a signal is looked for with acquire", "coll/windows/window.cpp", f"taking.seen = count.load({SEQ})", f"taking.seen = count.load({ACQUIRE})", ("explore/test_interleavings:signals: a rank that sleeps",)),
    Mutation("a signal rings no bell", "coll/windows/accesses.cpp", "      if (t.peer != mesh_.rank()) mesh_.bells().ring_soon(t.peer);\n", "", ("explore/test_interleavings:signals: a rank that sleeps",)),
    Mutation("each of several waits looks anew", "coll/windows/window.cpp", "if (taking.pass != pass) {", "if (taking.pass != pass || taking.taken == taking.seen) {", ("explore/test_interleavings:signals: two waits",)),
    Mutation("a signal ends two waits", "coll/windows/window.cpp", "  ++taking.taken;\n", "  taking.taken += (pass & 1);\n", ("plain/test_windows:as many waits",)),
    Mutation("that a window is closed is seen before its last signal", "coll/windows/window.cpp", "if (taking.taken == taking.seen) return false;", "if (taking.taken == taking.seen || taking.closed) return false;", ("plain/test_windows:gets its last signal",)),
    Mutation("a wait goes on when the window is closed", "coll/windows/accesses.cpp", "if (!signalled && !closed_only(t)) {", "if (!signalled) {", ("plain/test_windows:gets its last signal",)),
    Mutation("a row is used again while another rank has the window", "coll/windows/window.cpp", "    return !peers.empty() && std::all_of", "    return true || std::all_of", ("plain/test_windows:rows",)),
    Mutation("a row keeps the signals of its last window", "coll/windows/window.cpp", "state->row->signals(i, channel, channels).store(0,", "state->row->signals(i, channel, channels).fetch_add(0,", ("plain/test_windows:rows",)),
    Mutation("signals of all channels have one counter", "coll/windows/window.cpp", "kPerLine + channel];", "kPerLine];", ("plain/test_windows:two channels",)),
    Mutation("a row serves windows of more channels", "coll/windows/window.cpp", "state->channels == channels && ", "", ("plain/test_windows:two channels",)),
    Mutation("a channel is not checked", "pg/request/one_sided.cpp", "channel >= access.channels", "false", ("tests/distributed/test_symmetric_memory.py::test_wrong_ranks_channels_and_sizes_are_refused[cpu]",)),
    Mutation("a barrier leaves a round out", "pg/symmetric/memory.cpp", "distance *= 2", "distance *= 4", ("tests/distributed/test_symmetric_memory.py::test_no_rank_leaves_a_barrier_before_all_have_come[3-cpu]",)),
    Mutation("signals keep the interpreter's lock", "pg/symmetric/memory.cpp", "without_gil([&] { window_->wait_signal_on", "[](auto&& f) { f(); }([&] { window_->wait_signal_on", ("tests/distributed/test_symmetric_memory.py::test_channels_serve_threads_of_one_process",)),
    Mutation("symmetric memory of a group that is gone serves its name", "pg/symmetric/allocator.cpp", "if (known && known->is_of(*backend))", "if (known)", ("tests/distributed/test_symmetric_memory.py::test_a_later_group_of_the_same_name_is_connected_anew[cpu]",)),
    Mutation("sizes of symmetric memory are not compared", "pg/symmetric/memory.cpp", "if (window_->bytes(rank) != window_->bytes(0))", "if (false)", ("tests/distributed/test_symmetric_memory.py::test_ranks_that_allocate_or_call_something_else_get_an_error_on_both_sides[cpu]",)),
    Mutation("rows of an expert are not aligned", "pg/symmetric/row_exchange.cpp", "if (i > 0 && how.align)", "if (false)", ("tests/distributed/test_symmetric_operators.py::test_rows_go_to_the_experts_and_back[2-cpu]",)),
    Mutation("a signal overtakes a put into another node", "hosts/remote_accesses.cpp", "put.first == t.window && put.second != t.peer", "false", ("plain/test_hosts:does not overtake",)),
    Mutation("an envelope overtakes the bytes of the one before it", "hosts/remote_accesses.cpp", "if (!from.landing->ended()) return moved;", "if (!from.landing->ended()) break;", ("plain/test_hosts:in any order of calls",)),
    Mutation("a put between nodes ends before it has landed", "hosts/remote_accesses.cpp", "return peer(t.peer).landed >= access.number;", "return true;", ("plain/test_hosts:does not overtake",)),
    Mutation("a closed window is forgotten while a peer has it", "hosts/remote_accesses.cpp", "  if (over(mine)) windows_.erase(it);", "  windows_.erase(it);", ("plain/test_hosts:goes nowhere",)),
    Mutation("a put from another node is not checked", "hosts/remote_accesses.cpp", "if (window && (e.offset > window->bytes || e.bytes > window->bytes - e.offset))", "if (false)", ("plain/test_hosts:accesses that no rank sends",)),
    Mutation("nothing drives a group for the peers' accesses", "hosts/group.h", "(leaving_ && !unacknowledged_.empty()) || accesses_.serving()", "leaving_ && !unacknowledged_.empty()", ("plain/test_hosts:goes nowhere",)),
    Mutation("a signal overtakes the rest of a long put", "coll/windows/accesses.cpp", "if (!put(t)) break;", "put(t);", ("plain/test_windows:of every size",)),
    Mutation("an access overtakes one on hold", "coll/progress/messages.cpp", "&first_like(*op) == op) return op;", "(&first_like(*op) == op || op->transfer().window)) return op;", ("plain/test_windows:keeps back those",)),
    Mutation("an access waits for messages on hold", "coll/progress/messages.cpp", "while (first->transfer().window != op.transfer().window) first", "while (false) first", ("plain/test_windows:and no access",)),
    Mutation("a put into a rank that left is carried out", "coll/group/group.cpp", "if (!t.send || t.peer == rank() || !mesh_->member(t.peer).gone()) return", "return", ("plain/test_windows:a rank that left",)),
    Mutation("a wait for a signal has no deadline", "coll/group/group.cpp", "{messenger_.overdue(), accesses_.overdue()}", "{messenger_.overdue()}", ("plain/test_windows:times out",)),
    Mutation("a rank that left is not missed by a wait for its signal", "coll/group/group.cpp", "return message ? message : accesses_.needs(rank);", "return message;", ("plain/test_windows:a rank that left",)),
    Mutation("a misaligned row of a window is taken", "coll/windows/window.cpp", "if (it.row % kLine != 0)", "if (false)", ("plain/test_windows:cannot be",)),
    Mutation("a put may end behind the tensor", "pg/request/one_sided.cpp", " || t.numel() > target.elements - offset)", ")", (WINDOW_ERRORS + "test_accesses_with_wrong_arguments_raise_before_a_byte_moves",)),
    Mutation("a put may have another type", "pg/request/one_sided.cpp", "if (t.scalar_type() != target.type)", "if (false)", (WINDOW_ERRORS + "test_accesses_with_wrong_arguments_raise_before_a_byte_moves",)),
    Mutation("a window keeps nothing", "pg/backend/window.cpp", "owning ? std::make_shared<at::Tensor>(*tensor) : nullptr", "owning ? nullptr : nullptr", ("tests/distributed/test_windows_memory.py::test_memory_is_kept_while_another_rank_has_the_window",)),
    Mutation("deregistering waits for no access", "pg/backend/window.cpp", "    wait_for_accesses(backend->getBackendOptions()->timeout);\n", "", ("tests/distributed/test_windows.py::test_deregistering_waits_for_what_is_under_way",)),
    Mutation("a forked child closes its parent's window", "pg/backend/window.cpp", "if (is_forked_from(*group)) new", "if (false) new", (WINDOW_ERRORS + "test_a_forked_child_cannot_use_the_parents_window",)),
    # Which thread drives.
    Mutation("a rank that stops waiting hands nothing over", "coll/progress/engine.cpp", "// sync: waiters\n    engine_.hand_over();", "// sync: waiters", ("explore/test_interleavings:flight", "plain/test_group")),
    Mutation("a thread that hands over rings no bell", "coll/progress/engine.cpp", "  ring();  // another waiter may have found", "  // another waiter may have found", ("explore/test_interleavings:flight",)),
    Mutation("no thread starts the background", "coll/progress/engine.cpp", "    background_.push_back(\n        start_thread<Thread>(\"that drives operations in the background\", [this] { run_background(); }));", "    ;", ("plain/test_group:left alone",)),
    Mutation("parked threads are not told", "coll/progress/engine.cpp", "  background_work_.notify_one();", "", ("explore/test_interleavings:flight", "plain/test_group")),
    Mutation("callbacks count as driving", "coll/progress/engine.cpp", "  if (role_ != static_cast<int>(Role::other))\n    // sync", "  if (false)\n    // sync", ("plain/test_group:callbacks",)),
    Mutation("a region is entered with relaxed", "shm/region_table.cpp", f"size_.store(number + 1, {RELEASE})", f"size_.store(number + 1, {RELAXED})", ("tsan/test_regions",)),
    Mutation("an end is stored with relaxed", "coll/task/operation.h", f"finished_.store(true, {RELEASE})", f"finished_.store(true, {RELAXED})", ("tsan/test_group:sees its error",)),
    Mutation("a spin lock is left with relaxed", "base/sync.h", f"locked_.store(false, {RELEASE})", f"locked_.store(false, {RELAXED})", ("tsan/test_group",)),
    Mutation("a lock that kept a thread from driving is released without a ring", "coll/progress/communicator.cpp", "  group_.engine_.ring();\n", "", ("explore/test_interleavings:only looks",)),
    Mutation("messages that end are not told of their success", "coll/progress/communicator.cpp", "  messages_.settle(done);\n", "", ("plain/test_group:has come succeeds",)),
    Mutation("what a staged step needs is left out of the post", "coll/execution/addresses.cpp", "    use_own_slot(mesh_.own().post(agreed_.q).payload);", "    static Payload unseen;\n    use_own_slot(unseen);", ("plain/test_group:2 ranks",)),
    Mutation("an operation that did not end at once is not counted", "coll/progress/communicator.cpp", "    op.set_counted();\n    engine_.add_pending();\n  }\n  wake_peers();", "  }\n  wake_peers();", ("plain/test_group:left alone",)),
    Mutation("an end wakes no thread of this process", "coll/progress/communicator.cpp", "  engine_.ring();  // another thread", "  // another thread", ("explore/test_interleavings:threads",)),
    Mutation("a rank that has joined waits for no other rank", "coll/group/joining.cpp", "if (m.joined()) continue;", "continue;", ("plain/test_group:waits in vain",)),
    Mutation("a rank that left before it joined counts as one that has joined", "coll/group/joining.cpp", "if (gone >= 0)", "if (gone >= 0) return true;\n    if (false)", ("plain/test_group:before it has joined",)),
    Mutation("a rank that has waited in vain does not say so", "coll/group/group.cpp", "group->mesh_->give_up(error.what());", "", ("plain/test_group:waits in vain",)),
    Mutation("an abort is announced with relaxed", "coll/mesh/mesh.cpp", f"presence.store(kAborted, {RELEASE})", f"presence.store(kAborted, {RELAXED})", ("tsan/test_group",)),
    Mutation("an abort is looked for with acquire", "coll/mesh/member.h", f"presence.load({SEQ}) & kAborted", f"presence.load({ACQUIRE}) & kAborted", ("explore/test_interleavings:leaves",)),
    Mutation("a rank that leaves rings no bell", "coll/mesh/mesh.cpp", "OCCL_FAULT_POINT(\"mesh.left\");\n  if (!members_.empty()) bells_.ring_all();", "", ("explore/test_interleavings:leaves",)),
    Mutation("a death ends only what needs the dead", "coll/group/group.cpp", "if (!died && !needed_by) continue;", "if (!needed_by) continue;", ("plain/test_survivors:a death ends",)),
    Mutation("every end is a death", "shm/peer.h", "header().ending.load(std::memory_order_acquire) == 0;", "true;", ("plain/test_survivors:a death ends",)),
    Mutation("an endpoint makes no room for descriptors", "shm/endpoint.cpp", "  make_room_for_descriptors();\n", "", ("plain/test_endpoint:makes room",)),
    Mutation("with several threads there is no room for descriptors", "shm/descriptors.cpp", "std::thread(use_descriptor, last).detach()", "use_descriptor(0)", ("plain/test_endpoint:makes room",)),
    Mutation("a death that is handled late hits the next peer", "shm/endpoint.cpp", "peer->has_exited();", "peer->set_exited();", ("plain/test_endpoint:handled late",)),
    Mutation("a forked child offers its parent's regions", "shm/region_table.cpp", "first_ = size();", "", ("plain/test_regions:forked child",)),
    Mutation("a stopped process is not seen to be stopped", "shm/process_status.cpp", "return fields.starts_with(\"T\") ||", "return", ("plain/test_endpoint:a stopped process",)),
    Mutation("any user is shown the stack of a process", "occl/stacks.py", "if user in (0, os.geteuid()):", "if user >= 0:", ("tests/test_stacks.py::test_another_user_is_shown_nothing",)),
    Mutation("a program that computes is called stuck", "occl/distributed/long_waits.py", "self.after and self.idle():", "self.after:", ("tests/distributed/test_long_waits.py::test_a_rank_that_computes_does_not_complain",)),
    Mutation("a picture that could not be described is forgotten", "occl/distributed/long_waits.py", "        if claimed is None:  #", "        if False:  #", ("tests/distributed/test_long_waits.py::test_a_picture_is_described_once_and_a_new_one_as_soon_as_this_process_may",)),
    Mutation("an operation that times out says nothing of the late rank", "occl/distributed/long_waits.py", "if said := sentences():", "if said := []:", ("tests/distributed/test_long_waits.py::test_an_operation_that_times_out_says_what_the_late_rank_does",)),
    Mutation("a rank is called as in a group that the text does not name", "occl/tools/top/stuck.py", "return f\"rank {known[0]}\" if known", "return f\"rank {number}\" if known", ("tests/distributed/test_long_waits.py::test_a_rank_is_called_as_in_the_group_that_waits",)),
    Mutation("a forked child keeps its parent's name for stacks", "occl/stacks.py", "        _listener.close()\n        _listener = None\n", "        pass\n", ("tests/test_stacks.py::test_a_forked_child_does_not_keep_the_name_of_its_parent",)),
    Mutation("the status of a process that has not been waited for is not read", "shm/process_status.cpp", "!fields.starts_with(\"Z\")", "true", ("plain/test_endpoint:another one has ended",)),
    Mutation("a header's next group is taken for the last one", "coll/mesh/member.h", " ||\n           header.incarnation.load(std::memory_order_seq_cst) != incarnation", "", ("plain/test_group:past groups",)),
    Mutation("failed buffers are released at once", "coll/progress/communicator.cpp", "const bool keep = op.error() && op.exposed();", "const bool keep = false;", ("plain/test_group:buffers",)),
    # Checks of what peers write.
    Mutation("ticks have no limit", "coll/execution/executor.cpp", "if (reached > tick + 1)", "if (false)", BROKEN),
    Mutation("stamps of the future are accepted", "coll/execution/meeting.cpp", "if (stamp > agreed_.q)", "if (false)", BROKEN),
    Mutation("block sizes have no limit", "coll/execution/meeting.cpp", "if (largest > kMaxBlockBytes / agreed_.shape.element_size)", "if (false)", BROKEN),
    Mutation("offsets in control regions are not checked", "shm/peer.cpp", "if (offset > control_size_ || bytes > control_size_ - offset)", "if (false)", BROKEN),
    Mutation("offsets in regions are not checked", "shm/peer.cpp", "if (ref.offset > size || bytes > size - ref.offset)", "if (false)", BROKEN),
    Mutation("records may be longer than the ring", "coll/messages/pipe.cpp", "record_bytes(e) > bytes || ", "", BROKEN),
    Mutation("a ring may lie anywhere", "coll/messages/pipe.cpp", "    fail_if(ring % kLine != 0);\n", "", BROKEN),
    Mutation("beginnings may be longer than the message", "coll/messages/inbox.cpp", "if (!fits(t, e) || received > t.bytes()) return", "if (!fits(t, e)) return", BROKEN),
    Mutation("text of peers is printed as it is", "base/error.h", "if (!fine) out[i] = '?';", "", HOSTILE),
    Mutation("slots may be smaller than a line for each rank", "coll/plan/tuning.cpp", "+ line, lines)", "+ line, line)", ("plain/test_plan:tuning", "plain/test_group:place in a slot",)),
    # Which processes get in.
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
    Mutation("a member that never came is rung", "coll/mesh/mesh.cpp", "members.push_back({std::move(peers[i]), block, ", "members_.push_back({peers[i], block}), members.push_back({std::move(peers[i]), block, ", ("asan/invitation",)),
    Mutation("regions are as large where addresses are limited", "shm/address_space.cpp", "  if (most == 0) return usual;", "  return usual;", ("tests/faults/test_resources.py::test_four_ranks_work_within_16_gib_of_address_space",)),
    Mutation("blocks are used again while they are read", "shm/arena.cpp", "if (!retired.unread()) return false;", "", ENDPOINT),
    # Streams: what is issued there begins, and is waited for, there.
    Mutation("a collective does not wait for its stream", "pg/backend/process_group.cpp", "const Mode mode = streams.idle() ? Mode::background : Mode::held;\n  auto work", "const Mode mode = Mode::background;\n  auto work", BEGINS),
    Mutation("a coalesced block does not wait for its stream", "pg/backend/process_group.cpp", "if (!streams.idle()) mode = Mode::held;", "", BEGINS),
    Mutation("what is held is released at once", "pg/backend/process_group.cpp", "if (mode == Mode::held) release_after(streams, work);\n  if (!async)", "if (mode == Mode::held) work->release();\n  if (!async)", BEGINS),
    Mutation("one idle stream is enough", "pg/backend/side_streams.cpp", "return std::all_of(streams_.begin()", "return std::any_of(streams_.begin()", TWO_DEVICES),
    Mutation("the first stream to come releases", "pg/backend/process_group.cpp", "if (left->fetch_sub(1, std::memory_order_acq_rel) == 1)", "if (left->fetch_sub(1, std::memory_order_acq_rel) > 1)", TWO_DEVICES),
    Mutation("only the first tensor's stream counts", "pg/backend/process_group.cpp", "for (const Request& request : requests) streams.add(request);", "streams.add(requests.front());", TWO_DEVICES),
    Mutation("a synchronous call is not waited for by its stream", "pg/backend/process_group.cpp", "if (!async) work->wait();", "", GOES_ON),
    Mutation("a block that is begun anew sends what was left", "pg/backend/process_group.cpp", "raised an exception\");\n  forget_coalesced();\n", "raised an exception\");\n", ("tests/distributed/test_point_to_point_errors.py::test_a_block_that_was_not_ended_is_forgotten",)),
    Mutation("a block goes on after a call that was refused", "pg/backend/process_group.cpp", "~Forgetting() { group.forget_coalesced(); }", "~Forgetting() {}", ("tests/distributed/test_point_to_point_errors.py::test_a_batch_is_sent_as_a_whole_or_not_at_all",)),
    Mutation("a coalesced call is sent before the block ends", "pg/backend/process_group.cpp", "for (Request& request : requests) coalescing_.push_back(std::move(request));", "for (Request& request : requests) coalesced_->add(std::move(request), Mode::background);", ("tests/distributed/test_point_to_point_errors.py::test_a_batch_is_sent_as_a_whole_or_not_at_all",)),
    Mutation("no stream waits for a work", "pg/backend/work.cpp", "self->wait_on_host(kNoTimeout, Waiting::stream); }", "(void)self; }", GOES_ON),
    Mutation("the host waits for a work on a stream", "pg/backend/work.cpp", "if (timeout == kNoTimeout && streams_wait())", "if (false)", GOES_ON),
    Mutation("a stream waits where the host gave a timeout", "pg/backend/work.cpp", "if (timeout == kNoTimeout && streams_wait())", "if (streams_wait())", (STREAMS + "test_a_wait_with_a_timeout_holds_up_the_host",)),
    Mutation("one device's stream waits for all", "pg/backend/work.cpp", "if (part.request.stream || !streams.add(part.request)) return false;", "if (!streams.add(part.request) && &part == &parts_.front()) return false;", TWO_DEVICES),
    # Devices of other packages.
    Mutation("a call does not wait for another package's stream", "pg/request/staging.cpp", "return !offers_of(stream.device()).synchronize || stream.query();", "return true;", FOREIGN_STREAM),
    Mutation("a result is on its way when its work has ended", "pg/backend/copies.cpp", "if (request.stream && !copies.empty()) pg::synchronize(stream_for_copies(*request.stream));", "", ("tests/foreign/test_group.py::test_a_result_is_there_for_every_stream",)),
    Mutation("memory of another package's device is the host's", "pg/request/dense_copies.cpp", "return is_on_host(t) && is_dense(t, density);", "return is_dense(t, density);", ("tests/foreign/test_group.py::test_operations_give_what_they_give_on_the_cpu[in place-2]",)),
    Mutation("the driving thread makes copies that can hang", "pg/backend/work.cpp", "if (!on_device) return step(), true;", "return step(), true;", FOREIGN_HANGS),
    Mutation("a device's failure is no error", "pg/backend/work.cpp", "    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));\n", "", ("tests/foreign/test_bad_input.py::test_a_device_that_is_lost_ends_the_group_with_its_reason",)),
    Mutation("the next piece is copied when it begins", "pg/backend/work.cpp", "  if (first && pieces && !pieces->at_last()) copy_next_piece_in();\n", "", ("tests/foreign/test_pieces.py::test_the_next_piece_is_copied_while_an_operation_waits_for_a_peer",)),
    Mutation("a piece is copied out when the last one is", "pg/backend/work.cpp", "    copy_piece_out();\n    operation", "    operation", ("tests/foreign/test_pieces.py::test_results_have_the_bits_of_the_whole[reductions-2]",)),
    Mutation("pieces agree on their own sizes", "pg/request/pieces.cpp", "part.largest = part.count();", "part.largest = part.volume = part.count();", ("tests/foreign/test_pieces.py::test_ranks_that_call_differently_are_told_before_a_byte_moves",)),
    # Listeners that need time.
    Mutation("a message on hold has no deadline", "coll/group/group.cpp", "  if (const auto [op, held] = overdue_on_hold(); op) throw diagnosis_.timed_out(*op, *held, {});\n", "", (*SLOW, "tests/foreign/test_bad_input.py::test_a_stream_that_does_not_end_is_named_by_the_timeout_of_messages[0]")),
    Mutation("what only completes needs its peers", "coll/group/group.cpp", "  if (completing()) return check_deadlines(done);\n", "", SLOW),
    Mutation("a listener that needs time is not asked again", "coll/progress/collectives.cpp", "    if (then == Listener::Next::later) continue;\n", "", SLOW),
    Mutation("a message begins before its listener is ready", "coll/progress/messages.cpp", "  if (next == Listener::Next::later) return;\n", "", SLOW),
    Mutation("a message that completes is lost when the group ends", "coll/progress/messages.cpp", "    op.set_error(error);\n    done.push(op);\n  }\n  machine_.fail_messages", "  }\n  machine_.fail_messages", SLOW),
    Mutation("no thread is told that a hold has ended", "coll/progress/engine.cpp", "  op.make_ready();\n  hand_over();\n", "  op.make_ready();\n", ("explore/test_interleavings:another thread ends a hold",)),
    # Parts of a work: in the group's order, and all of them.
    Mutation("only the first part is released", "pg/backend/work.cpp", "  for (Part& part : parts_) engine().release(*group_, part.operation);", "  engine().release(*group_, parts_.front().operation);", (STREAMS + "test_a_collective_begins_when_its_stream_comes_to_it[coalesced-10-False]",)),
    Mutation("copies before are made when it is issued", "pg/backend/work.cpp", "operation(*this, point_to_lists(this->request).task, Deadline::after(this->request.timeout)) {}", "operation(*this, point_to_lists(this->request).task, Deadline::after(this->request.timeout)) { copy_all(this->request, this->request.before), this->request.before.clear(); }", (WORKS + "[copies_keep_their_place-2-cpu]",)),
    Mutation("copies after are made again when others have begun", "pg/backend/work.cpp", "  }\n  last = work.one_less();\n", "  }\n  copy_all(request, request.after), last = work.one_less();\n", (STREAMS + "test_outputs_are_copied_before_the_next_operation_begins",)),
    Mutation("a call of several collectives ends with its first", "coll/progress/collectives.cpp", "Listener::Next::ends : op.listener().succeeded(op);", "Listener::Next::ends : (op.listener().succeeded(op), Listener::Next::ends);", ("tests/distributed/test_capabilities.py::test_sparse_sums_are_asynchronous[cpu]",)),
    Mutation("a copy waits for the stream it is driven from", "pg/backend/copies.cpp", "else if (tensor.is_privateuseone())", "else if (false)", POLLS),
    Mutation("a work ends before its event for the profiler", "pg/backend/work.cpp", "  if (recordFunctionEndCallback_) recordFunctionEndCallback_();\n  open_.store(0, std::memory_order_release);  // pairs with ended()", "  open_.store(0, std::memory_order_release);\n  if (recordFunctionEndCallback_) recordFunctionEndCallback_();", ("tests/distributed/test_instruments.py::test_an_event_ends_before_its_work[cpu]",)),
    Mutation("no event says what a call moves", "pg/backend/process_group.cpp", "if (at::hasCallbacks()) [[unlikely]]", "if (false)", ("tests/distributed/test_instruments.py::test_a_profile_says_what_every_call_moves[cpu]",)),
    Mutation("the flight recorder does not hear of ends", "pg/backend/work.cpp", "for (const auto& observer : observers_) observer->end(end);", "", (RECORDER + "test_messages_have_entries", RECORDER + "test_the_analyser_finds_nothing_wrong_with_calls_that_are_right")),
    Mutation("messages and collectives have the same numbers", "pg/observe/flight_recorder.cpp", "kMessages = 1'000'000'000;", "kMessages = 0;", (RECORDER + "test_messages_have_entries",)),
    Mutation("a rank outside of a call does not look", "pg/observe/flight_recorder.cpp", "if (!communicator->error()) communicator->look();", "", (RECORDER + "test_a_missing_rank_is_found_and_has_written_its_file_too",)),
    Mutation("callbacks come before the end", "pg/backend/work.cpp", "  open_.store(0, std::memory_order_release);  // pairs with ended()\n  return true;", "  tell();\n  open_.store(0, std::memory_order_release);\n  return false;", (WORKS + "[callbacks_come_after_the_end-2-cpu]",)),
    Mutation("futures of the device wait for the end", "pg/backend/work.cpp", "if (!late && ordered_by_streams()) {", "if (false) {", (FUTURES + "[calls_of_callbacks_keep_their_place]",)),
    Mutation("the event of a future is that of the default stream", "pg/backend/work.cpp", "    const device::RecordsOf this_work(end_of_future_);\n", "", (FUTURES + "[rows_come_with_the_end]",)),
    Mutation("rows of an all_gather stay empty", "pg/backend/work.cpp", "    copy_to(rows);\n  }\n", "  }\n", (FUTURES + "[rows_come_with_the_end]",)),
    Mutation("a future is complete before its CPU tensor", "pg/backend/work.cpp", "return t.is_privateuseone() && !t.is_sparse();", "return !t.is_sparse();", (FUTURES + "[mixed_futures_end_with_the_work]",)),
    Mutation("streams of callbacks keep errors", "device/runtime/stream.cpp", "    queue.forget(queue.error());\n", "", (FUTURES + "[errors_pass_through_callbacks]",)),
    Mutation("callbacks call when they like", "pg/backend/process_group.cpp", "  if (callbacks->fits(number)) return;\n", "  if (number > 0) return;\n", ("tests/distributed/test_futures.py::test_a_callback_that_communicates_too_late_is_refused",)),
    Mutation("a future that comes late hears nothing", "pg/backend/work.cpp", "  if (late) settle(future_);", "", (WORKS + "[late_futures-2-cpu]",)),
    Mutation("the end is not remembered for late futures", "pg/backend/work.cpp", "    told_ = true;\n", "", (WORKS + "[late_futures-2-cpu]",)),
    Mutation("a work drives while its callbacks run", "pg/backend/work.cpp", "  const coll::Engine::Callback callback(engine());\n", "", CALLBACKS),
    Mutation("a work is waited for up to its first part", "pg/backend/work.cpp", "; it is still in flight\")));\n  }", "; it is still in flight\")));\n    break;\n  }", (WORKS + "[a_block_ends_with_its_last_message-2-cpu]",)),
    Mutation("a work ends with its first part", "pg/backend/work.cpp", "if (open_.fetch_sub(1, std::memory_order_acq_rel) != 2) return false;", "open_.fetch_sub(1, std::memory_order_acq_rel);", (WORKS + "[a_block_ends_with_its_last_message-2-cpu]",)),
    Mutation("abort hooks are called for each call that the end of a group fails", "pg/observe/abort_hooks.cpp", "  if (group_->error())\n    hooks_->group_ends();  // all of its calls fail now\n  else\n", "", ("tests/distributed/test_abort_hooks.py::test_hooks_are_called_once_before_all_calls_of_a_group_fail[cpu-death]",)),
    Mutation("abort hooks are called for mistakes", "pg/observe/abort_hooks.cpp", "    case Errc::mismatch:\n", "", ("tests/distributed/test_abort_hooks.py::test_hooks_are_not_told_of_mistakes_nor_of_a_destroyed_group[cpu]",)),
    Mutation("abort hooks are called when calls have failed already", "pg/backend/work.cpp", "void WorkOCCL::Part::ending(coll::Operation&) noexcept {\n", "void WorkOCCL::Part::ending(coll::Operation&) noexcept {\n  last = work.one_less();\n  if (last) return;\n", ("tests/distributed/test_abort_hooks.py::test_hooks_are_called_once_before_all_calls_of_a_group_fail[cpu-death]",)),
    Mutation("a work counts as pending no more when its hook is called", "pg/observe/completion_hook.cpp", "  try {\n    hook_", "  {\n    std::lock_guard lock(mutex_);\n    --pending_;\n    none_.notify_all();\n  }\n  try {\n    hook_", (CAPABLE + "test_pending_works_are_those_whose_hook_has_not_returned[cpu]",)),
    # Where ranks meet.
    Mutation("a round is complete whatever the ranks announced before", "pg/rendezvous/attempt.cpp", "all_first ? 1u : 0u", "1u", ("tests/distributed/test_attempts.py::test_processes_that_were_killed_in_an_attempt_are_replaced",)),
    Mutation("a store's bundle is believed", "pg/rendezvous/store_values.cpp", "if (all.size() != count) return {};", "", ("tests/distributed/test_attempts.py::test_a_value_that_no_rank_has_stored_is_an_error",)),
    Mutation("a number of no carrier is taken", "pg/rendezvous/carrier_agreement.cpp", " || number >= limit) return", ") return", ("tests/distributed/test_attempts.py::test_a_value_that_no_rank_has_stored_is_an_error",)),
    Mutation("a second process of one rank is not noticed", "pg/rendezvous/attempt.cpp", "if (own.attempt != mine_.attempt) {", "if (false) {", ("tests/distributed/test_attempts.py::test_processes_that_contradict_each_other_learn_of_it_at_once",)),
    Mutation("other numbers of ranks are not noticed", "pg/rendezvous/attempt.cpp", "    look_at_next();\n", "", ("tests/distributed/test_attempts.py::test_processes_that_contradict_each_other_learn_of_it_at_once",)),
    Mutation("the rank with the store ends it at once", "pg/backend/group_lifecycle.cpp", "wait_until_others_go_on(*serves_store_);", "(void)0;", ("tests/distributed/test_attempts.py::test_a_rank_with_the_store_may_end_when_it_has_made_the_group",)),
    Mutation("a rank that makes no group tells no other rank", "pg/rendezvous/rendezvous.cpp", "board.refuse(error);  // the others", "// the others", ("tests/distributed/test_init.py::test_a_rank_that_cannot_begin_tells_the_others_why",)),
    # Groups over several nodes.
    Mutation("ranks with other versions are not refused", "pg/rendezvous/rendezvous.cpp", "  board.compare(builds,", "  if (false) board.compare(builds,", ("tests/hosts/test_refusals.py::test_ranks_with_different_versions_make_no_group",)),
    Mutation("an error names the part of a call that ran inside the node", "hosts/in_flight.cpp", "  node_operation->operation.make_part_of(whole);\n", "", NAMED),
    Mutation("an error names a rank by its number in the node", "coll/group/diagnosis.cpp", "mesh.shown_rank());", "mesh.rank());", NAMED),
    Mutation("ranks with other engines are not refused", "pg/rendezvous/rendezvous.cpp", "    board.compare(engines,", "    if (false) board.compare(engines,", ("tests/hosts/test_refusals.py::test_ranks_with_different_engines_make_no_group",)),
    Mutation("a store is waited for without a deadline", "pg/rendezvous/store_client.h", "if (deadline.passed()) fail", "if (false) fail", ("tests/hosts/test_refusals.py::test_a_store_that_is_cut_off_is_an_error_in_time",)),
    Mutation("scratch memory of a window is used again too early", "hosts/schedule.cpp", "  if (item.window < stages) return std::nullopt;\n  return", "  return std::nullopt;\n  return", ("plain/test_programs:every collective",)),
    Mutation("sums of nodes are combined in another order on each", "hosts/sharded_program.cpp", "std::vector{mine, theirs} : std::vector{theirs, mine}", "std::vector{mine, theirs} : std::vector{mine, theirs}", ("plain/test_programs:order of the nodes",)),
    Mutation("narrow floats are exchanged as they are", "hosts/reduction_tree.cpp", "? DType::f32 : dtype;", "? dtype : dtype;", ("plain/test_programs:rounded once",)),
    Mutation("a long broadcast goes from the root's node to every node", "hosts/algorithm_choice.cpp", "  if (flat <= binomial && flat <= chain) return", "  return", ("plain/test_programs:least possible",)),
    Mutation("the sums that a rank receives overlap", "hosts/sharded_program.cpp", "+ 3 * index) * line", "+ index) * line", ("plain/test_programs:every collective",)),
    Mutation("a node that was folded exchanges sums as well", "hosts/reduction_tree.h", "{ return node < 2 * extra_ && node % 2 == 1; }", "{ return false && node; }", ("plain/test_programs:one tree",)),
    Mutation("the program of another shape is run", "hosts/program_cache.cpp", "program->shape() == shape", "program->shape().kind == shape.kind", ("plain/test_programs:same shape",)),
    Mutation("every collective makes a program", "hosts/program_cache.cpp", "program->shape() == shape", "false && program->shape() == shape", ("plain/test_programs:same shape",)),
    Mutation("the sums of nodes are written into the input", "hosts/program.cpp", "sum.where == Where::in ? wide : sum", "sum", ("plain/test_programs:every collective",)),
    Mutation("the factor of a rank that is alone is left out", "hosts/program.h", " && shape_.op != ReduceOp::premul_sum", "", ("plain/test_programs:every collective",)),
    Mutation("an input is overwritten while it is sent", "hosts/sharded_program.cpp", "held(stage, rail), true)", "held(stage, rail))", ("plain/test_programs:every collective",)),
    Mutation("a tensor that is moved loses what it had", "pg/backend/shared_tensors.cpp", "  std::memcpy(memory.get(), storage.data(), bytes);\n", "", ("tests/distributed/test_share.py::test_a_storage_moves_below_all_tensors_that_have_it",)),
    Mutation("memory of NumPy is moved", "pg/backend/shared_tensors.cpp", "if (!storage.resizable())", "if (false)", ("tests/distributed/test_share.py::test_memory_that_is_not_pytorchs_alone_stays",)),
    Mutation("the steps of another window are run again", "hosts/program.cpp", "window * static_cast<std::size_t>(stages_)", "window / 2 * static_cast<std::size_t>(stages_)", ("plain/test_programs:same again",)),
    Mutation("leaders send headers that they do not have", "hosts/preamble.cpp", "std::min(have, nodes - i * have)", "kRadix", ("plain/test_programs:leaders have the headers",)),
    Mutation("small sums take a message for each node", "hosts/algorithm_choice.cpp", "  return doubling <= scattered;", "  return nodes == 2;", ("plain/test_programs:logarithmic",)),
    Mutation("the headers of a node are not compared", "hosts/preamble.cpp", "if (!fits(headers[i], headers.front())) {", "if (false) {", ("plain/test_hosts:different operations",)),
    Mutation("the headers of other nodes are not compared", "hosts/preamble.cpp", "if (!fits(headers[m], headers[node])) {", "if (false) {", ("plain/test_hosts:different operations",)),
    Mutation("pairs of an all_to_all are not compared", "hosts/program_run.cpp", "if (count != static_cast<std::int64_t>(check_count->expected))", "if (false)", ("plain/test_hosts:pairs do not fit",)),
    Mutation("other nodes are not told of an end", "hosts/group.cpp", "  send_notices(Notice::ended,", "  if (leads()) return;\n  send_notices(Notice::ended,", ("plain/test_hosts:an abort on one rank",)),
    Mutation("other nodes are not told that a rank leaves", "hosts/group.cpp", "  send_notices(Notice::left, \"\");\n", "", ("plain/test_hosts:has left",)),
    Mutation("a collective ends although its headers have not arrived", "hosts/group.cpp", "if (!unacknowledged_.arrived(Channel::preamble))\n", "if (false)\n", ("plain/test_hosts:have this rank's headers",)),
    Mutation("a collective ends with a rank that it does not need any more", "hosts/group.cpp", "tolerate(info_.lost(peer, *link_, *broken));", "throw info_.lost(peer, *link_, *broken);", ("plain/test_hosts:has ended meanwhile",)),
    Mutation("a rank leaves although a message has not arrived", "hosts/p2p.cpp", "Channel::envelopes, envelope, until);", "Channel::envelopes, envelope, Deadline::after(std::chrono::seconds(0)));", ("plain/test_hosts:a small message has been received",)),
    Mutation("a receive from any rank is taken twice", "hosts/p2p.cpp", "!node_.withdraw(it->node_operation->operation)", "false", ("plain/test_hosts:from any rank",)),
    Mutation("a message between nodes is not compared", "hosts/p2p.cpp", "  if (!ack->good) {\n    op.set_error", "  if (false) {\n    op.set_error", ("plain/test_hosts:does not fit its receive",)),
    Mutation("the sender says whether a message is small", "hosts/p2p.cpp", "  if (is_small(t)) {\n    if (t.bytes() > 0) std::memcpy(t.buffer.data", "  if (e.id & 1) {\n    if (t.bytes() > 0) std::memcpy(t.buffer.data", ("asan/hosts", "tests/hosts/test_engines.py::test_a_rank_of_another_node_does_not_say_where_a_message_lies")),
    Mutation("an ack of any message counts", "hosts/p2p.cpp", "ack->id == 0 || ack->id >= peer.next_id", "false", ("plain/test_hosts:no rank sends",)),
    Mutation("a second ack of a message counts", "hosts/p2p.cpp", "it->payload || !repeats", "!repeats", ("plain/test_hosts:a second one",)),
    Mutation("any notice says that a rank has left", "hosts/group.cpp", "if (pending.content->number != Notice::left)", "if (false)", ("plain/test_hosts:no rank sends",)),
    Mutation("a group takes any number", "hosts/subgroup.cpp", "if (!link->can_come_from(0, ids_broadcast.ids.number))", "if (false)", ("plain/test_hosts_subgroup:no group can have",)),
    Mutation("in Gloo's place a rank that cannot connect nodes keeps no other rank from it", "occl/distributed/place_agreement.py", "unable.setdefault(vote[\"cannot\"], []).append(rank)", "pass", ("tests/hosts/test_in_place_of_gloo.py::test_gloo_stays_where_a_rank_cannot_connect_nodes_and_the_rank_is_named",)),
    Mutation("TCP takes the place of a transport that encrypts", "occl/distributed/tcp.py", "if not asked and (why := why_gloo()):", "if why := \"\":", ("tests/hosts/test_in_place_of_gloo.py::test_a_rank_says_why_it_cannot_connect_nodes",)),
    Mutation("hosts without RDMA devices take UCX", "occl/distributed/ucx.py", 'return "this host has no RDMA device"', 'return ""', ("tests/hosts/test_carriers.py::test_tcp_is_taken_where_there_are_no_rdma_devices",)),
    Mutation("a connection needs no key", "tcp/engine.cpp", "greeting.to != address_.key", "false", ("plain/test_tcp:without the key",)),
    Mutation("strangers stay for as long as they like", "tcp/engine.cpp", "while (!strangers_.empty() && strangers_.front().until.passed()) strangers_.pop_front();", "", ("plain/test_tcp:are closed in the end",)),
    Mutation("without descriptors a rank asks for ever", "tcp/engine.cpp", "      deaf_until_ = Deadline::after(kDeaf);\n      return listen(false);", "      return;", ("plain/test_tcp:without descriptors",)),
    Mutation("whoever has the key speaks for every rank", "tcp/engine.cpp", "return known == by_rank_.end() || &known->second->connection == &by;", "return true;", ("plain/test_tcp:speaks for no rank",)),
    Mutation("ranks that connect to each other take either connection", "tcp/connection.cpp", "if (state_ != State::none && own_key_ < key_)", "if (false)", ("plain/test_tcp:at the same moment",)),
    Mutation("a peer on this machine has as much under way as one far away", "tcp/send_queue.cpp", "if (near_) setsockopt", "if (false) setsockopt", ("plain/test_tcp:on this machine",)),
    Mutation("a long message is sent at once", "tcp/send_queue.cpp", "add(request);\n  write(fd, Frames::urgent);", "add(request);\n  write(fd, Frames::all);", ("plain/test_tcp:goes ahead of",)),
    Mutation("a short message overtakes a long one of its tag", "tcp/send_queue.cpp", "before != held_.end()", "false", ("plain/test_tcp:in their order",)),
    Mutation("what came before a write failed is not read", "tcp/connection.cpp", "bool drained = false;", "bool drained = false;\n  if (queue_.failure() != ucx::abi::kOk) close(queue_.failure());", ("plain/test_tcp:arrives whole though",)),
    Mutation("a message that broke off never ends", "tcp/connection.cpp", "message->receive->finish(why);", "(void)0;", ("plain/test_tcp:breaks off",)),
    Mutation("a peer may send more than a receive that was withdrawn", "tcp/connection.cpp", "if (!receive && bytes > longest) return false;", "", ("plain/test_tcp:withdrawn",)),
    Mutation("a forked child keeps connections", "tcp/socket.cpp", "for (const int fd : open_sockets) close(fd);", "", ("plain/test_tcp:that it forked lives on",)),
    Mutation("a send over a connection that is over never ends", "tcp/engine.cpp", "    late_.emplace_back(&request, peer.connection.status());\n", "", ("plain/test_tcp:that is over",)),
    Mutation("a rank without the carrier keeps no other rank from it", "pg/rendezvous/carrier_agreement.cpp", "if (first->carrier == at_) {", "if (true) {", ("tests/hosts/test_carriers.py::test_tcp_is_taken_where_a_rank_has_no_ucx_and_the_rank_is_named",)),
    Mutation("versions of the carrier are not compared", "pg/rendezvous/carrier_agreement.cpp", "if (offers[rank].version == offers[0].version) continue;", "continue;", ("tests/hosts/test_carriers.py::test_tcp_is_taken_where_ranks_have_different_versions",)),
    Mutation("nobody learns that a rank could not connect", "pg/rendezvous/carrier_agreement.cpp", "    board.put_for_all(unconnected());\n", "", ("tests/hosts/test_carriers.py::test_ranks_whose_neighbours_could_not_connect_wait_for_no_timeout",)),
    Mutation("ranks rely on UCX before a message has arrived", "pg/rendezvous/between.cpp", "    greet(*link, nodes, rank, deadline, *stopped);\n", "", ("tests/hosts/test_carriers.py::test_tcp_is_taken_where_a_rank_can_reach_no_other_over_ucx",)),
    Mutation("a node has the cores of its machine for itself", "pg/rendezvous/rendezvous.cpp", "  info.cores = cores_here(cards, cards[rank].place.kernel);\n", "", CORES),
    Mutation("a node of a subgroup has the cores of its machine for itself", "hosts/subgroup.cpp", "info.cores.push_back(parent_info.cores[of]);", "info.cores.clear();", CORES),
    Mutation("a group that breaks a connection breaks all", "pg/transport/inter_node.cpp", "broken_.find(rank)", "broken_.begin()", ("tests/hosts/test_engines.py::test_a_group_that_gives_up_a_message_breaks_only_the_connection_to_that_rank",)),
    Mutation("threads that wait for messages stay without work", "pg/transport/waiters.cpp", "constexpr std::chrono::seconds kIdle{1};", "constexpr std::chrono::seconds kIdle{1000};", ("tests/hosts/test_threads.py::test_threads_grow_with_peers_and_not_with_groups",)),
    Mutation("a rank does not answer the end of a group", "pg/transport/control_channel.cpp", "if (frame->answer) send_end(rank, number, false);", "", ("tests/hosts/test_threads.py::test_threads_grow_with_peers_and_not_with_groups",)),
    Mutation("a thread waits for a peer of which no group expects anything", "pg/transport/control_channel.cpp", "if (!peer.wanted()) {", "if (false) {", ("tests/hosts/test_threads.py::test_threads_grow_with_peers_and_not_with_groups",)),
    Mutation("the length of a frame is not compared", "pg/transport/control_channel.cpp", "if (receive.bytes != frame.bytes) return false;", "", ("tests/hosts/test_engines.py::test_a_frame_that_no_rank_sends_is_an_error",)),
    Mutation("a message that no thread waits for counts as ended", "pg/transport/waiters.cpp", "if (!work) end(\"\");", "end(\"\");", ("tests/hosts/test_engines.py::test_a_message_that_no_thread_can_wait_for_is_given_up",)),
    Mutation("memory that an engine may use is released", "coll/progress/communicator.cpp", "  if (keeps_memory()) return;\n", "", ("tests/hosts/test_engines.py::test_memory_stays_if_an_engine_does_not_end_a_message_at_its_abort",)),
    Mutation("machines of one snapshot are one place", "pg/rendezvous/node_discovery.cpp", "  card.place.hardware = hash_of(addresses());\n", "", ("tests/hosts/test_nodes.py::test_machines_made_from_one_snapshot_are_different_nodes",)),
    Mutation("a thread that connects asks for the GIL of an interpreter that has ended", "bind/group.cpp", "  const Stay with;\n", "", ("tests/hosts/test_refusals.py::test_a_thread_that_still_connects_does_not_end_the_process_at_its_exit",)),
    Mutation("messages after the last one of an attempt are read", "hosts/subgroup_handshake.cpp", "while (!made_) {", "for (;;) {", ("plain/test_hosts_subgroup:side by side",)),
    Mutation("an answer to any call counts", "hosts/subgroup_handshake.cpp", "if (message.call == own_call_) other.answered = own_call_;", "other.answered = own_call_;", ("plain/test_hosts_subgroup:earlier call",)),
    Mutation("a call of a rank that gave up stays open", "hosts/subgroup_handshake.cpp", "if (own_call_) messages_.post(other.rank, message(Kind::over, own_call_));", "", ("plain/test_hosts_subgroup:too late for",)),
    Mutation("a rank that gave up is heard by those that came later", "hosts/subgroup_handshake.cpp", "(message.call == other.answered || !message.late)", "true", ("plain/test_hosts_subgroup:gave up is not",)),
    Mutation("a first rank does not look after its node while others decide", "hosts/subgroup.cpp", "    if (const auto error = part.trouble()) throw *error;\n", "", ("plain/test_hosts_subgroup:gives up after",)),
    Mutation("other nodes are not told why a group is not made", "hosts/subgroup.cpp", "    if (handshake) handshake->fail_with(error);\n", "", ("plain/test_hosts_subgroup:cannot take part",)),
    Mutation("contradictions between nodes are told at the timeout", "hosts/subgroup_handshake.cpp", "if (other.dispute.passed()) fail(", "if (false) fail(", ("plain/test_hosts_subgroup:different nodes that",)),
    Mutation("ranks of one node need not want the same ranks of others", "coll/group/subgroup.h", "return whole.empty() ? ranks : whole;", "return ranks;", ("plain/test_hosts_subgroup:of one node that",)),
    Mutation("a rank that is not reached keeps others from being called", "hosts/subgroup_handshake.cpp", "    for (const Other& other : others_) messages_.post(other.rank, message(Kind::call, own_call_));\n  for (Other& other : others_) read(other);", "    for (Other& other : others_) messages_.post(other.rank, message(Kind::call, own_call_)), read(other);\n  for (Other& other : others_) read(other);", ("plain/test_hosts_subgroup:not reached any",)),
    Mutation("the ranks of a node do not learn that others are not reached", "hosts/subgroup.cpp", "  try {\n    part =", "  try {\n    if (handshake) handshake->begin();\n    part =", ("plain/test_hosts_subgroup:not reached any",)),
    # The queues behind streams, and the marks behind events.
    Mutation("a queue is idle when its last task has begun", "memory/queue.cpp", "return finished_ == issued_;", "return tasks_.empty();", QUEUE),
    Mutation("a second thread takes tasks beside the first", "memory/queue.cpp", "    running_ = true;\n", "", QUEUE),
    Mutation("a queue whose thread has ended stays as it is", "memory/queue.cpp", "running_ = false;  // under", "// under", QUEUE),
    Mutation("the last exception of a queue is kept", "memory/queue.cpp", "if (error && !error_) error_ = error;", "if (error) error_ = error;", QUEUE),
    Mutation("no thread hears that a mark is passed", "memory/queue.cpp", "  condition_.notify_all();\n", "", QUEUE),
    Mutation("no thread hears that a task has finished", "memory/queue.cpp", "    done_.notify_all();\n", "", QUEUE),
    Mutation("a wait for a queue ends one task early", "memory/queue.cpp", "return finished_ >= target;", "return finished_ + 1 >= target;", QUEUE),
    Mutation("an event is recorded at once", "device/runtime/stream.cpp", "    if (query(stream))\n      mark->pass", "    if (query(stream) || true)\n      mark->pass", HOST_WAITS),
    Mutation("a stream does not wait for an event", "device/runtime/stream.cpp", "  if (!is_default(stream))\n    return enqueue", "  if (!is_default(stream)) return;\n  if (false)\n    return enqueue", BUSY),
    Mutation("a stream waits for the latest recording", "device/runtime/stream.cpp", "[mark = event->mark] {\n      mark->wait();", "[event, mark = event->mark] {\n      event->mark->wait();", (ON_DEV + "test_a_stream_waits_for_the_recording_it_saw",)),
    Mutation("the default stream does not wait for an event", "device/runtime/stream.cpp", "  if (!event->mark->passed()) wait_on_host(*event->mark, Interrupts::with_the_lock);\n  rethrow(*event);\n", "", HOST_WAITS),
    Mutation("an event carries no error to streams", "device/runtime/stream.cpp", "      if (mark->error()) std::rethrow_exception(mark->error());\n", "", (ON_DEV + "test_an_event_carries_the_error_of_its_stream",)),
    Mutation("an event carries no error to the host", "device/runtime/stream.cpp", "Interrupts::with_the_lock);\n  rethrow(*event);\n", "Interrupts::with_the_lock);\n", (ON_DEV + "test_an_event_carries_the_error_of_its_stream",)),
    Mutation("a forked process keeps its parent's thread pool", "device/runtime/device.cpp", "  if (is_forked()) make_thread_pool_anew();\n", "", ("tests/device/test_accelerator.py::test_a_forked_child_makes_its_thread_pool_before_autograd_starts_threads",)),
    Mutation("no thread waits for an event", "device/runtime/stream.cpp", "  if (!event->mark->passed()) wait_on_host(*event->mark);\n", "", HOST_WAITS),
    Mutation("no thread waits for a stream", "device/runtime/stream.cpp", "  Queue& queue = queue_of(stream);\n  wait_on_host(queue);\n", "  Queue& queue = queue_of(stream);\n", HOST_WAITS),
    Mutation("no thread waits for a device", "device/runtime/stream.cpp", "  each_queue(index, [](Queue& queue) { wait_on_host(queue); });\n", "", HOST_WAITS),
    Mutation("a computation does not wait for its stream", "device/ops/fallback.cpp", "  wait_for_queued(target.device);\n", "", HOST),
    Mutation("compiled code does not wait for its stream", "device/ops/run_compiled.cpp", "  wait_for_queued(index);\n", "", HOST),
    Mutation("a copy does not wait for its stream", "device/ops/storage_ops.cpp", "if (t->device().type() == kType) wait_for_queued(t->device().index());", ";", (ON_DEV + "test_a_blocking_copy_on_a_side_stream_comes_after_what_is_queued",)),
    Mutation("a copy waits for one of two streams", "device/ops/storage_ops.cpp", "for (const Tensor* t : {static_cast<const Tensor*>(&self), &src})", "for (const Tensor* t : {static_cast<const Tensor*>(&self)})", (ON_DEV + "test_a_copy_between_devices_waits_for_the_streams_of_both",)),
    Mutation("any memory may be copied later", "device/ops/storage_ops.cpp", "return t.has_storage() && is_pinned(t.storage().data());", "return t.has_storage();", (ON_DEV + "test_non_blocking_copy_of_ordinary_memory_is_done_at_the_return",)),
    Mutation("a queued copy is of what the tensors become", "device/ops/storage_ops.cpp", "[to = as_it_is(self), from = as_it_is(src)]", "[to = self, from = src]", (ON_DEV + "test_non_blocking_copy_is_of_what_the_tensors_were",)),
    Mutation("a tensor is resized before its stream is there", "device/ops/storage_ops.cpp", "  wait_for_queued(self.device().index());\n  OnDevice guard", "  OnDevice guard", HOST),
    Mutation("a storage is resized before its stream is there", "device/runtime/hooks.cpp", "    wait_for_queued(impl->device().index());", "   ", HOST),
    Mutation("a storage is moved before its stream is there", "device/ops/cpu_aliases.cpp", "  wait_for_queued(dev.device().index());", " ", HOST),
    Mutation("memory is free before its streams are there", "device/runtime/allocator.cpp", "      enqueue(stream, [share] {});\n", "", ("tests/device/test_memory.py::test_record_stream_delays_reuse",)),
    Mutation("the first stream to come frees memory", "device/runtime/allocator.cpp", "    streams.push_back(stream);\n", "    streams.assign(1, stream);\n", ("tests/device/test_memory.py::test_record_stream_delays_reuse",)),
    Mutation("wrappers of the CPU's allocator form a loop", "device/runtime/cpu_allocator.cpp", "(t_state.entered++)) {}", "(0 * t_state.entered++)) {}", ("tests/device/test_cpu_allocator.py::test_a_wrapper_on_both_sides_makes_no_loop",)),
    Mutation("the CPU's allocator stays when sharing ends", "device/runtime/cpu_allocator.cpp", "    ours.give_way();\n", "", ("tests/device/test_cpu_allocator.py::test_the_end_of_sharing_puts_back_what_was_in_front",)),
    Mutation("the end of sharing takes the CPU's allocator from the device", "device/runtime/cpu_allocator.cpp", "  if (ours.is_in_front()) g_gives_way = false;\n", "", ("tests/device/test_cpu_allocator.py::test_it_stays_where_the_device_needs_it",)),
    Mutation("streams do not hold a block", "memory/heap.cpp", "  block_at(p)->held = true;\n", "", ("plain/test_heap",)),
    Mutation("a stream's thread keeps its graph", "device/runtime/stream.cpp", "    c10::GradMode::set_enabled(false);\n", "", (ON_DEV + "test_tasks_run_without_gradients_on_the_device_of_their_stream",)),
    # Python.
    Mutation("ranks stay after a failure", "occl/testing/session.py", "if not team.well or course.planned or left:", "if course.planned or left:", KEPT_RANKS),
    Mutation("ranks stay as a test has left them", "occl/testing/session.py", "if not team.well or course.planned or left:", "if not team.well or course.planned:", KEPT_RANKS),
    Mutation("a stream does not wait for a stream", "torch_occl/dev/streams.py", "self.wait_event(stream.record_event())", "stream.record_event()", BUSY),
    Mutation("an event is recorded on the current stream", "torch_occl/dev/streams.py", "event.record(self)", "event.record()", BUSY),
    Mutation("streams are given back in the order they were taken", "torch_occl/dev/streams.py", "for stream in reversed(self._before.pop()):", "for stream in self._before.pop():", NESTED),
    Mutation("a context that was entered twice gives back what it found first", "torch_occl/dev/streams.py", "reversed(self._before.pop())", "reversed(self._before.pop(0))", NESTED),
    Mutation("the CPU looks before the stream is there", "torch_occl/dev/interchange.py", "    streams.current_stream(tensor.device).synchronize()\n", "", HOST),
    # Order within the core.
    Mutation("results are staged where parts are", "coll/execution/addresses.cpp", "side.where == Where::result ? 1 : 0;", "0;", WHOLE),
    Mutation("a step begins before the last one has ended elsewhere", "coll/execution/executor.cpp", "  arrivals_.restart();\n  stage_ = Stage::sync;\n", "  stage_ = Stage::sync;\n", WHOLE),
    Mutation("a tick rings no bell", "coll/execution/executor.cpp", "  OCCL_FAULT_POINT(\"tick.stamped\");\n  mesh_.bells().ring_for_arrival_soon();", "  OCCL_FAULT_POINT(\"tick.stamped\");", ("explore/test_interleavings:every path",)),
    Mutation("a collective on hold begins", "coll/progress/collectives.cpp", "    if (!op.ready()) {\n      activity_.held(op);\n      return moved;\n    }\n", "", HOLD),
    Mutation("a message on hold begins", "coll/progress/messages.cpp", "if (op->ready() && &first_like", "if (&first_like", HOLD),
    Mutation("a message passes one on hold", "coll/progress/messages.h", "{ waiting_.push(op); }", "{\n    OperationList held;\n    if (op.ready()) held.take(waiting_);\n    waiting_.push(op);\n    waiting_.take(held);\n  }", HOLD),
    Mutation("what is released is left to the next look", "coll/progress/engine.cpp", "  op.make_ready();\n  poll(group);", "  op.make_ready();", ("explore/test_interleavings:released",)),
    Mutation("a release looks before it releases", "coll/progress/engine.cpp", "  op.make_ready();\n  poll(group);", "  poll(group);\n  op.make_ready();", ("explore/test_interleavings:released",)),
    Mutation("a rank that goes to sleep does not look once more", "coll/progress/engine.cpp", "      moved = drive_all(true);\n", "      moved = false;\n", ("explore/test_interleavings:every path",)),
    Mutation("an end is told before it is stored", "coll/progress/communicator.cpp", "    op->finish();\n  }\n  engine_.ring();  // another thread of this process may wait for one of them\n  while (!done.empty()) {\n    Operation& op = done.pop();\n    const bool keep = op.error() && op.exposed();\n    op.listener().completed(op);\n", "  }\n  engine_.ring();  // another thread of this process may wait for one of them\n  while (!done.empty()) {\n    Operation& op = done.pop();\n    const bool keep = op.error() && op.exposed();\n    op.listener().completed(op);\n    op.finish();\n", ("plain/test_group:ended together",)),
    Mutation("ends are told one by one", "coll/progress/communicator.cpp", "    op->finish();\n  }\n  engine_.ring();  // another thread of this process may wait for one of them\n  while (!done.empty()) {\n    Operation& op = done.pop();\n    const bool keep = op.error() && op.exposed();\n", "  }\n  engine_.ring();  // another thread of this process may wait for one of them\n  while (!done.empty()) {\n    Operation& op = done.pop();\n    const bool keep = op.error() && op.exposed();\n    op.finish();\n", ("plain/test_group:ended together",)),
    Mutation("a rank leaves before it has told why", "coll/group/group.cpp", "  mesh_->check_aborts();\n  check_gone(false, done);", "  check_gone(false, done);\n  mesh_->check_aborts();", ("plain/test_group:heard to have aborted",)),
    Mutation("a rank that has left has not done its part", "coll/group/group.cpp", "    if (advance_collectives(done) || advance_messages(done) || messenger_.hear(i, done)) return;\n", "", ("explore/test_interleavings:done its part",)),
    Mutation("a refused call is not told", "coll/group/refusals.cpp", f"if (refusal.number.load({ACQUIRE}) != number)", "if (true)", ("plain/test_survivors:refused call is told why",)),
    Mutation("a refused call that was made is told all the same", "coll/group/refusals.cpp", f"block.post(i).number.load({RELAXED}) >= number", "false", ("plain/test_survivors:not why its rank exits",)),
    Mutation("a message made again is not forgiven", "coll/progress/communicator.cpp", "  if (op.is_transfer()) messages_.machine().clear_refusal(op.transfer());\n", "", ("plain/test_survivors:message that was refused at first",)),
    Mutation("what was kept is not released", "coll/progress/communicator.cpp", "    kept.take(exposed_);\n", "", ("plain/test_group:buffers",)),
    Mutation("a rank that closes does not leave", "coll/progress/communicator.cpp", "    leave();\n", "", ("plain/test_survivors:refused call is told why",)),
    Mutation("notes without operations are left", "coll/progress/communicator.cpp", "    set_answers_due(messages_.machine().owes_answers());\n", "", ("plain/test_messenger:no room",)),
    Mutation("what arrives last is received first", "coll/messages/inbox.cpp", "unexpected_.push_back(std::move(message));", "unexpected_.push_front(std::move(message));", ("plain/test_messenger:same tag",)),
    Mutation("a record's room is given back before it is read", "coll/messages/pipe.cpp", "  reader_.peek_first(e);\n", "  reader_.peek_first(e);\n  shm::RingReader(reader_).release(record_bytes(e));\n", MESSAGES),
    Mutation("bytes of a message that did not fit are an error", "coll/messages/inbox.cpp", "return refused_.take(e.id, e.bytes);", "return false;", BROKEN),
    Mutation("a message may send more than was granted", "coll/messages/outbox.cpp", "sending.granted ? bytes : std::min<std::size_t>(bytes, mesh_.tuning().unasked_bytes)", "bytes", MESSAGES),
    Mutation("a rank keeps any number of bytes without a receive", "coll/messages/inbox.cpp", "  if (arrived + e.bytes > unasked(it->envelope)) return false;\n", "", BROKEN),
    Mutation("the reason comes after the end", "coll/mesh/mesh.cpp", "  std::strncpy(header.reason.data(), reason, header.reason.size() - 1);\n  OCCL_FAULT_POINT(\"group.reason\");\n  header.presence.store(kAborted, std::memory_order_release);", "  header.presence.store(kAborted, std::memory_order_release);\n  std::strncpy(header.reason.data(), reason, header.reason.size() - 1);", ("tsan/test_group:abort ends",)),
    Mutation("memory is used again while peers are in the group", "coll/mesh/mesh.cpp", "return !members.empty() && std::all_of(members.begin(), members.end(), std::mem_fn(&Member::gone));", "return true;", ("plain/test_group:have left",)),
    Mutation("a verdict is given before it is written", "coll/group/monitored_barrier.cpp", f"    if (ranks.empty()) own.passed.store(number, {SEQ});  // sync: barrier-passed\n    own.decided.store(number, {SEQ}); ", f"    own.decided.store(number, {SEQ});\n    if (ranks.empty()) own.passed.store(number, {SEQ});", ("explore/test_interleavings:monitored",)),
    Mutation("a rank that comes to a monitored barrier rings no bell", "coll/group/monitored_barrier.cpp", "// sync: barrier-arrived\n  mesh.bells().ring_all();", "// sync: barrier-arrived", ("explore/test_interleavings:monitored",)),
    Mutation("a thread that always moves never checks", "coll/progress/engine.cpp", "if (++moves_ % kMoves != 0) return false;", "return false;", ("plain/test_engine",)),
    Mutation("a group that moves is not checked", "coll/progress/communicator.cpp", "    if (checks) {", "    if (checks && !moved) {", ("plain/test_engine:checked too",)),
    Mutation("a message that is in hand when memory ends is lost", "coll/progress/messages.cpp", "    if (!op || done.has(*op)) continue;", "    continue;", ("plain/test_survivors:no memory",)),
    Mutation("a send that has ended is not told of its misfit", "coll/messages/messenger.cpp", "return channels_[rank] && channels_[rank]->hear(done);", "return false && done.empty() && rank;", ("plain/test_messenger:waits in vain",)),
    Mutation("a sender that stops does not say so", "coll/messages/outbox.cpp", "answers_.add(Record::rest, e.id);  // no more", ";  // no more", ("plain/test_messenger:however many",)),
    Mutation("one peer is told of refused messages", "coll/group/refusals.cpp", "  else if (text.compare(0", "  else if (true || text.compare(0", ("plain/test_survivors:peers of all",)),
    Mutation("a late rank reads the verdict of a later barrier", "coll/group/monitored_barrier.cpp", "!= number) return std::nullopt;  // sync", "== 0) return std::nullopt;  // sync", ("plain/test_survivors:long after",)),
    Mutation("limits of inner control groups are not read", "shm/cgroups.cpp", "    if (!part.empty()) all.push_back", "    if (part.empty()) all.push_back", ("plain/test_cgroups",)),
    Mutation("a heap keeps its cache when memory ends", "memory/heap.cpp", "    decommit_free_blocks();\n    return extend(size);", "    return extend(size);", ("plain/test_heap:its cache back",)),
    Mutation("other heaps keep their caches when memory ends", "memory/heap.cpp", "region->heap->empty_cache();", "(void)region;", ("plain/test_heap:other heaps",)),
    Mutation("a forked child gives its parent's pages back", "memory/heap.cpp", "  if (private_) return;", "  ", ("plain/test_heap:forked child",)),
    Mutation("dtypes of fewer than eight bits are not copied", "device/ops/storage_ops.cpp", "C10_UNLIKELY(lacks_copy(to.scalar_type()))", "false", ("tests/device/test_tensors.py::test_dtypes_without_arithmetic_are_copied_byte_by_byte_in_every_layout",)),
    Mutation("only errors of PyTorch are refusals", "pg/backend/process_group.cpp", "  } catch (...) {\n    // Whatever", "  } catch (const c10::Error&) {\n    // Whatever", ("tests/distributed/test_point_to_point_errors.py::test_the_peers_of_all_messages_that_were_refused_together_learn_why",)),
    Mutation("monitored barriers do not alternate", "coll/group/monitored_barrier.cpp", "show(own.absent[number & 1]", "show(own.absent[0]", ("plain/test_survivors:names the ranks",)),
    Mutation("an offer rings no bell", "coll/group/subgroup.cpp", "offers().show(offer_);\n    parent_.mesh().bells().ring_all();", "offers().show(offer_);", ("explore/test_interleavings:shrink",)),
    Mutation("half an offer is taken", "coll/mesh/offer.h", "if (number() != shown.number) return std::nullopt;", "", ("explore/test_interleavings:offer",)),
    Mutation("a rank joins before all have seen the same offers", "coll/group/subgroup.cpp", "return it->offer.agreed == seen;", "return true;", ("plain/test_subgroup:seen the same",)),
    Mutation("a failure is heard again and again", "coll/group/subgroup.cpp", "memory_.failures[rank] = failure.number;", "", ("plain/test_subgroup:cannot take part",)),
    Mutation("ranks that contradict each other are told at the timeout", "coll/group/subgroup.cpp", "if (!all && dispute_.passed())", "if (false)", ("plain/test_subgroup:another order",)),
    Mutation("threads make groups of one parent side by side", "coll/group/turn.h", "return !busy.exchange(true, std::memory_order_seq_cst);", "return true;", ("plain/test_subgroup:threads of one", "tsan/test_subgroup:threads of one")),
    # ---- what a rank shows of itself
    Mutation("the end of an operation is not marked while it is written", "coll/observe/activity.cpp", "  const Writing writing(r);\n  r.stage.set(static_cast<std::uint64_t>(Stage::idle));", "  r.stage.set(static_cast<std::uint64_t>(Stage::idle));", ("plain/test_activity:half",)),
    Mutation("the time until all ranks have come is not counted", "coll/observe/activity.cpp", "if (const Ticks waited = times.met - times.posted) c.meeting.add(waited);", "", ACTIVITY),
    Mutation("an operation that failed counts as a good one", "coll/observe/activity.cpp", "  if (op.error())\n    c.failed.add(1);\n  else\n    c.operations.add(1), c.bytes.add(bytes_);", "  c.operations.add(1), c.bytes.add(bytes_);", ACTIVITY),
    Mutation("a record of a group that has ended is not used again", "coll/observe/activity.cpp", "  endpoint_->arena().retire({{offset_, sizeof(ActivityRecord)}}, [] { return true; });", "", ACTIVITY),
    Mutation("the rank that came last is not kept", "coll/execution/arrivals.h", "        latest_ = rank;\n", "", ACTIVITY),
    Mutation("top names ranks that have come", "occl/tools/top/groups.py", "position(self.ranks[r].record) < mine", "position(self.ranks[r].record) <= mine", (TOP + "test_a_straggler_is_waited_for_and_late",)),
    Mutation("top takes a forked child for its parent", "occl/tools/top/processes.py", "if own == _own_pid(pid):", "if own:", (TOP + "test_a_forked_child_is_not_taken_for_its_parent",)),
    Mutation("top reads what another version wrote", "occl/tools/top/records.py", "if version != layout.PROTOCOL:", "if version > layout.PROTOCOL:", (TOP + "test_another_version_is_refused_in_a_sentence",)),
]  # fmt: skip

NOT_CAUGHT = {
    "shm/bell.h: the word is read, or changed, with less than seq_cst": "it is only changed by atomic additions, "
    "whose newest value the kernel compares: no order with other atomics hangs on it that sleepers does not give",
    "coll/execution/executor.cpp: ticks are read with acquire": "a sleeper's look at ticks comes after its atomic addition; the "
    "explorer finds the missed wake-up only in long runs (EXPLORE_FACTOR=50)",
    "coll/task/operation.h: whether an operation is ready is read with acquire": "the explorer finds the missed wake-up "
    "only in long runs (EXPLORE_FACTOR=150)",
    "coll/progress/communicator.h: pending and answers_due with relaxed": "hints: the locks order what they stand for",
    "coll/progress/spin.h: all that is relaxed": "hints about how long to look",
    "pg/backend/work.cpp: the rows of a future are filled under the Work's lock": "it shows only where a device hangs "
    "in that copy, and another thread then asks the Work",
    "hosts/subgroup_handshake.h: kGrace is 0": "which rank gives up first is then left to the scheduler, and the tests "
    "must not depend on that: they give the ranks that know less a longer timeout",
}
"""Changes, most of them of orderings, that no test is known to see, and why that is so."""


def apply(mutation: Mutation, root: Path) -> str:
    """Writes the mutation into the sources below ``root``; returns the text as it was."""
    path = root / mutation.path
    text = path.read_text()
    if (count := text.count(mutation.old)) != 1:
        raise ValueError(f"{mutation.name}: its text occurs {count} times in {mutation.file}")
    path.write_text(text.replace(mutation.old, mutation.new))
    return text


PYTEST = "pytest"


def mode_of(test: str) -> str:
    return PYTEST if test.startswith("tests/") else test.split("/")[0]


LIMITS = {"explore": 600, PYTEST: 240}
LIMIT = 60
"""Seconds for one test, in these modes and in the others. The explorer sees by itself that nothing goes on."""

SIDE_BY_SIDE = 9
"""Runs of one test at a time, where it runs several times."""


def failure(test: str, root: Path) -> str | None:
    """How a test fails (or crashes, or hangs) with the sources below ``root``, or None."""
    if mode_of(test) == PYTEST:
        return failure_of_pytest([test], root)
    where, _, part = test.partition(":")
    mode, program = where.split("/")
    fuzz = root / "tests" / "fuzz" / f"{program}.cpp"
    source = Path("tests", "fuzz" if fuzz.exists() else "cpp", f"{program}.cpp")
    built = cpp_build.build(mode, source, root)
    corpus = root / "tests" / "fuzz" / "corpus" / f"{program}.txt"
    arguments = [str(corpus)] if fuzz.exists() else [part] if part else []
    quiet = {"ASAN_OPTIONS": "detect_leaks=0", "TSAN_OPTIONS": "halt_on_error=1", "EXPLORE_FACTOR": "30"}
    prefix = ["setarch", "--addr-no-randomize"] if mode == "tsan" else []
    return failure_of([*prefix, str(built), *arguments], root, quiet | os.environ, LIMITS.get(mode, LIMIT))


PYTEST_COMMAND = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider"]


def failure_of_pytest(tests: list[str], root: Path) -> str | None:
    environment = os.environ | {"PYTHONPATH": str(root)}
    return failure_of([*PYTEST_COMMAND, "-x", *tests], root, environment, LIMITS[PYTEST])


def failure_of(command: list[str], root: Path, environment: dict[str, str], limit: float) -> str | None:
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {limit} seconds"
    return (
        done.stdout.decode(errors="replace") + f"exit status {done.returncode}" if done.returncode else None
    )


@contextlib.contextmanager
def tree() -> Iterator[Path]:
    """A copy of the tree to put mutations in: below the checkout, for compiler caches that know it."""
    (cpp_build.ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutations-", dir=cpp_build.ROOT / "build") as folder:
        copy_tree(Path(folder))
        yield Path(folder)


def copy_tree(root: Path, built: bool = True) -> None:
    """Copies what the tests are built from and run with, and what has been built of it."""
    without = shutil.ignore_patterns("__pycache__", "*.so")
    for folder in ("csrc", "tests", "occl", "torch_occl", "examples/backend_template"):
        shutil.copytree(cpp_build.ROOT / folder, root / folder, ignore=without)
    shutil.copy2(cpp_build.ROOT / "pyproject.toml", root / "pyproject.toml")
    objects = cpp_build.ROOT / "build" / "cpp"
    if built and objects.exists():  # with their times: then little is to be built anew
        shutil.copytree(objects, root / "build" / "cpp", ignore=shutil.ignore_patterns("fuzz", "torch.h*"))
    if built and extension.is_built():
        extension.put_back(root)


def caught_by(mutation: Mutation, root: Path, times: int = 1) -> list[str | None]:
    """The first test that fails with the mutation, or None; so many times. The tree is as before afterwards."""
    before = apply(mutation, root)
    extended = mutation.path.parts[0] == "csrc" and PYTEST in map(mode_of, mutation.tests)
    try:
        if extended:
            extension.build(root, mutation.path)
        if times > 1 and all(mode_of(test) == PYTEST for test in mutation.tests):
            return caught_in_one_process(mutation.tests, root, times)
        first = first_failure(mutation.tests, root)
        if first and mode_of(first) == "explore":
            return [first] * times  # the explorer chooses the same schedules each time
        again = (first,) if first else mutation.tests
        with ThreadPoolExecutor(SIDE_BY_SIDE) as runs:  # side by side, for one that hangs takes long
            return [first, *runs.map(lambda _: first_failure(again, root), range(times - 1))]
    finally:
        (root / mutation.path).write_text(before)
        if extended:
            extension.put_back(root)


def first_failure(tests: tuple[str, ...], root: Path) -> str | None:
    return next((test for test in tests if failure(test, root)), None)


def caught_in_one_process(tests: tuple[str, ...], root: Path, times: int) -> list[str | None]:
    """As caught_by. PyTorch is imported once for all times, unless a test ends the process or hangs."""
    command = [*PYTEST_COMMAND, "-p", "tests.support.repeat", *tests]
    environment = os.environ | {
        "PYTHONPATH": str(root),
        "OCCL_TEST_TIMES": str(times),
        "OCCL_TEST_LIMIT": "10",
    }
    text = failure_of(command, root, environment, LIMITS[PYTEST]) or ""
    failed = Counter(re.findall(r"^FAILED (\S+)", text, re.MULTILINE)).most_common(1)
    if text and not failed:
        with ThreadPoolExecutor(SIDE_BY_SIDE) as runs:
            return list(runs.map(lambda _: first_failure(tests, root), range(times)))
    test, count = failed[0] if failed else (None, 0)
    return [test] * count + [None] * (times - count)


def check_unmutated(tests: set[str], root: Path) -> None:
    """Ends the program if a test fails as it is."""
    python = sorted(test for test in tests if mode_of(test) == PYTEST)
    failures = {test: failure(test, root) for test in sorted(tests - set(python))}
    if python:
        failures["pytest"] = failure_of_pytest(python, root)
    for test, how in failures.items():
        if how:
            sys.exit(f"{test} fails without any mutation: {how}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    modes = [*cpp_build.MODES, PYTEST]
    parser.add_argument("--modes", nargs="*", default=modes, help=f"only tests in some of {modes}")
    parser.add_argument("--times", type=int, default=1, help="how often to run the tests of each")
    parser.add_argument("parts", nargs="*", help="only mutations with one of these in their name or file")
    args = parser.parse_args()
    chosen = [
        replace(m, tests=tests)
        for m in MUTATIONS
        if not args.parts or any(part in m.name or part in m.file for part in args.parts)
        if (tests := tuple(test for test in m.tests if mode_of(test) in args.modes))
    ]
    always = 0
    with tree() as root:
        check_unmutated({test for mutation in chosen for test in mutation.tests}, root)
        for mutation in chosen:
            by = caught_by(mutation, root, args.times)
            caught = [test for test in by if test]
            always += len(caught) == args.times
            how_often = f"caught {len(caught)}/{args.times}" if caught else "SURVIVED"
            tests = ", ".join(dict.fromkeys(caught))
            print(f"{how_often}: {mutation.name} [{mutation.file}] {tests}", flush=True)
    print(f"{always} of {len(chosen)} mutations caught{' each time' if args.times > 1 else ''}")
    sys.exit(always < len(chosen))


if __name__ == "__main__":
    main()
