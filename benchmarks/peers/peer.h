// What all programs in this folder share, so that every library is measured in the same way: the command
// loop, the data, the start of a timed section, the clock and the check of every result. It is the
// counterpart of occl/bench/measure.py; the two must agree about data, sizes and what is timed.
//
//   harness (Python, one process per rank)            program (one process per rank)
//                                          <--------  ready VERSION
//   prepare OPERATION DTYPE WHOLE CALLS    -------->  makes buffers and calls
//                                          <--------  ok | unsupported
//   run ROUND CALLS                        -------->  fills, times, checks
//                                          <--------  seconds SECONDS | error TEXT
//
// Between commands a program sleeps in read(), so that it takes no core from those that are being measured.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;
using Call = std::function<void()>;
inline constexpr auto kPatience = std::chrono::seconds(120);

enum class Op {
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  reduce,
  gather,
  scatter,
  send_recv,
  put,
  barrier,
  unknown
};

enum class Type { f32, bf16, f16 };
inline std::size_t size_of(Type type) { return type == Type::f32 ? 4 : 2; }

/// The names are those of occl/bench/operations.py, without the data type.
inline Op parse_op(const std::string& name) {
  static const char* const names[] = {"all_reduce",
                                      "broadcast",
                                      "all_gather_single",
                                      "reduce_scatter_single",
                                      "all_to_all_single",
                                      "reduce",
                                      "gather",
                                      "scatter",
                                      "send_recv",
                                      "put",
                                      "barrier"};
  for (int i = 0; i < static_cast<int>(Op::unknown); ++i)
    if (name == names[i]) return static_cast<Op>(i);
  return Op::unknown;
}

inline Type parse_type(const std::string& name) {
  if (name == "float32") return Type::f32;
  if (name == "bfloat16") return Type::bf16;
  if (name == "float16") return Type::f16;
  throw std::runtime_error("unknown data type " + name);
}

/// One kind of call on `whole` elements (of the largest tensor), `part` of them for each rank.
struct Task {
  Op op;
  Type type;
  std::size_t whole, part;

  bool in_place() const { return op == Op::all_reduce || op == Op::broadcast || op == Op::reduce; }
  std::size_t input() const { return op == Op::all_gather || op == Op::gather ? part : whole; }
  std::size_t output() const { return op == Op::reduce_scatter || op == Op::scatter ? part : whole; }
};

/// The memory of one call: `in` and `out` are the same where the operation is in place.
struct Buffers {
  std::byte *in, *out;
};

/// A library that is measured.
class Library {
 public:
  int rank = 0, size = 1;

  virtual ~Library() = default;
  virtual std::string version() = 0;
  virtual bool offers(Op op, Type type) = 0;
  /// Results of this task are compared with the right ones.
  virtual bool computes(const Task&) { return true; }
  /// At least so much memory that the library can work on; the memory of the last time is free again.
  virtual std::byte* memory(std::size_t bytes) {
    if (bytes > heap_bytes_) {
      if (heap_) munmap(heap_, heap_bytes_);
      heap_ = map(bytes, -1);
      heap_bytes_ = bytes;
    }
    return heap_;
  }
  /// A call without arguments, which blocks until this rank's part is done.
  virtual Call bind(const Task& task, Buffers buffers) = 0;

 protected:
  static std::byte* map(std::size_t bytes, int fd) {
    void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED,
                   fd, 0);
    if (p == MAP_FAILED) throw std::runtime_error("no memory: mmap failed");
    return static_cast<std::byte*>(p);
  }
  friend class Gate;

 private:
  std::byte* heap_ = nullptr;
  std::size_t heap_bytes_ = 0;
};

/// A small file that one rank writes whole and the others wait for.
inline void publish(const std::string& path, const std::string& content) {
  std::ofstream(path + ".new", std::ios::binary) << content;
  if (std::rename((path + ".new").c_str(), path.c_str()) != 0)
    throw std::runtime_error("cannot write " + path);
}
inline std::string await(const std::string& path) {
  for (const auto end = Clock::now() + kPatience; Clock::now() < end;) {
    if (std::ifstream file(path, std::ios::binary); file) {
      std::ostringstream content;
      content << file.rdbuf();
      return content.str();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  throw std::runtime_error("waited in vain for " + path);
}

/// A descriptor of memory that all ranks share. Rank 0 makes it, and must keep it open.
inline int shared_memory(const std::string& path, int rank, std::size_t bytes) {
  if (rank == 0) {
    const int fd = memfd_create("bench", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0)
      throw std::runtime_error("cannot make shared memory");
    publish(path, "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd));
    return fd;
  }
  const int fd = open(await(path).c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) throw std::runtime_error("cannot open the shared memory of rank 0");
  return fd;
}

/// A barrier that spins, so that ranks leave it within less than a microsecond of each other.
class Gate {
 public:
  Gate(const std::string& path, int rank, int size)
      : rank_(rank), size_(size), crowded_(size > static_cast<int>(std::thread::hardware_concurrency())) {
    const std::size_t bytes = sizeof(Counter) * size;
    counters_ = reinterpret_cast<Counter*>(Library::map(bytes, shared_memory(path, rank, bytes)));
  }
  /// `asleep`: where ranks share cores it sleeps between looks, and takes no core from those still timed.
  void wait(bool asleep = false) {
    counters_[rank_].round.store(++round_, std::memory_order_release);  // pairs with the load below
    const auto end = Clock::now() + kPatience;
    for (int i = 0; i < size_; ++i)
      for (int turn = 1; counters_[i].round.load(std::memory_order_acquire) < round_; ++turn) {
        if (crowded_ && asleep)
          std::this_thread::sleep_for(std::chrono::microseconds(200));
        else if (crowded_)
          sched_yield();
        if (turn % 1024 == 0 && Clock::now() > end) throw std::runtime_error("another rank does not come");
      }
  }

 private:
  struct alignas(64) Counter {
    std::atomic<std::uint64_t> round;
  };
  Counter* counters_;
  int rank_, size_;
  bool crowded_;
  std::uint64_t round_ = 0;
};

/// Small integers, whose sums are exact in any order: element i of call c is
///
///     i % period + offset(rank, round, c)
///
/// so a sum over ranks is a multiple of the pattern plus the sum of the offsets. 16-bit types count exactly
/// to 256 only, so there both terms stay below 128 / size.
class Data {
 public:
  Data(Type type, int size) : type_(type) {
    const int limit = 128 / size > 1 ? 128 / size : 1;
    period_ = type == Type::f32 ? 1021 : limit;
    offsets_ = type == Type::f32 ? 8191 : limit;
  }
  long offset(int rank, long round, long call) const {
    return (call * 61 + round * 3967 + rank * 7) % offsets_;
  }
  /// values[i] = (start + i) % period * factor + offset
  void fill(std::byte* values, std::size_t n, std::size_t start, long factor, long offset) const {
    if (type_ == Type::f32)
      fill_as(reinterpret_cast<float*>(values), n, start, factor, offset, [](long v) { return float(v); });
    else
      fill_as(reinterpret_cast<std::uint16_t*>(values), n, start, factor, offset,
              [this](long v) { return half(v); });
  }
  /// What no right result contains.
  void spoil(std::byte* values, std::size_t n) const {
    if (type_ == Type::f32)
      std::fill_n(reinterpret_cast<float*>(values), n, -1.0f);
    else
      std::fill_n(reinterpret_cast<std::uint16_t*>(values), n, half(-1));
  }
  /// Throws unless values[i] are as `fill` makes them.
  void check(const std::byte* values, std::size_t n, std::size_t start, long factor, long offset) const {
    constexpr std::size_t kChunk = 16384;
    std::byte expected[kChunk * 4];
    for (std::size_t at = 0; at < n; at += kChunk) {
      const std::size_t count = std::min(kChunk, n - at), item = size_of(type_);
      fill(expected, count, start + at, factor, offset);
      if (std::memcmp(expected, values + at * item, count * item) == 0) continue;
      std::size_t i = 0;
      while (std::memcmp(expected + i * item, values + (at + i) * item, item) == 0) ++i;
      throw std::runtime_error("element " + std::to_string(at + i) + " of a block of " + std::to_string(n) +
                               " is wrong");
    }
  }

 private:
  /// The bits of a small integer, exactly.
  std::uint16_t half(long v) const {
    if (type_ == Type::bf16) {
      const float f = static_cast<float>(v);
      std::uint32_t bits;
      std::memcpy(&bits, &f, 4);
      return static_cast<std::uint16_t>(bits >> 16);
    }
    const std::uint16_t sign = v < 0 ? 0x8000 : 0;
    const auto magnitude = static_cast<std::uint32_t>(v < 0 ? -v : v);
    if (magnitude == 0) return sign;
    const int exponent = 31 - __builtin_clz(magnitude);
    return static_cast<std::uint16_t>(sign | (exponent + 15) << 10 |
                                      ((magnitude << (10 - exponent)) & 0x3ff));
  }
  template <class T, class Convert>
  void fill_as(T* values, std::size_t n, std::size_t start, long factor, long offset, Convert convert) const {
    T table[1021];
    for (int j = 0; j < period_; ++j) table[j] = convert(j * factor + offset);
    for (std::size_t i = 0; i < n;) {
      const std::size_t j = (start + i) % period_, run = std::min(n - i, period_ - j);
      std::memcpy(values + i, table + j, run * sizeof(T));
      i += run;
    }
  }

  Type type_;
  int period_, offsets_;
};

/// The calls of one task and the data they work on.
class Arena {
 public:
  Arena(Library& library, const Task& task, int calls)
      : library_(library), task_(task), data_(task.type, library.size) {
    const std::size_t item = size_of(task.type), in = task.input() * item, out = task.output() * item;
    const auto line = [](std::size_t bytes) { return (bytes + 127) / 64 * 64; };
    const std::size_t warm = line(library.size * item);
    const std::size_t inputs = line(in * calls), outputs = task.in_place() ? 0 : line(out * calls);
    std::byte* base = library.memory(2 * warm + inputs + outputs);
    std::memset(base, 0, 2 * warm);
    const Task small{task.op, task.type, static_cast<std::size_t>(library.size), 1};
    warm_ = library.bind(small, {base, task.in_place() ? base : base + warm});
    base += 2 * warm;
    for (int i = 0; i < calls; ++i) {
      std::byte* input = base + i * in;
      buffers_.push_back({input, task.in_place() ? input : base + inputs + i * out});
      calls_.push_back(library.bind(task, buffers_.back()));
    }
  }

  /// Seconds that this rank took for the first `calls` calls, all on fresh data.
  double run(Gate& gate, long round, int calls) {
    if (task_.op != Op::barrier)
      for (std::size_t c = 0; c < buffers_.size(); ++c) {
        data_.spoil(buffers_[c].out, task_.output());
        data_.fill(buffers_[c].in, task_.input(), 0, 1, data_.offset(library_.rank, round, c));
      }
    gate.wait();  // the wait for the others may be long: warm up after it
    warm_();
    gate.wait();
    const auto started = Clock::now();
    for (int c = 0; c < calls; ++c) calls_[c]();
    const std::chrono::duration<double> took = Clock::now() - started;
    gate.wait(true);  // checking takes cores from the others, and the roofline's ranks write their results
    if (task_.op != Op::barrier && library_.computes(task_))
      for (int c = 0; c < calls; ++c) check(round, c);
    return took.count();
  }

 private:
  void check(long round, int c) const {
    const int me = library_.rank, size = library_.size;
    const std::size_t part = task_.part, whole = task_.whole, item = size_of(task_.type);
    const std::byte* out = buffers_[c].out;
    long sum = 0;
    for (int r = 0; r < size; ++r) sum += data_.offset(r, round, c);
    const auto of = [&](int r) { return data_.offset(r, round, c); };
    switch (task_.op) {
      case Op::all_reduce:
        return data_.check(out, whole, 0, size, sum);
      case Op::reduce:
        return me ? void() : data_.check(out, whole, 0, size, sum);
      case Op::broadcast:
        return data_.check(out, whole, 0, 1, of(0));
      case Op::reduce_scatter:
        return data_.check(out, part, me * part, size, sum);
      case Op::scatter:
        return data_.check(out, part, me * part, 1, of(0));
      case Op::send_recv:
      case Op::put:
        return (me ^ 1) < size ? data_.check(out, whole, 0, 1, of(me ^ 1)) : void();
      case Op::gather:
        if (me) return;
        [[fallthrough]];
      case Op::all_gather:
        for (int r = 0; r < size; ++r) data_.check(out + r * part * item, part, 0, 1, of(r));
        return;
      case Op::all_to_all:
        for (int r = 0; r < size; ++r) data_.check(out + r * part * item, part, me * part, 1, of(r));
        return;
      default:
        return;
    }
  }

  Library& library_;
  const Task task_;
  const Data data_;
  std::vector<Buffers> buffers_;
  Call warm_;
  std::vector<Call> calls_;
};

/// The calling thread stays on a core of its own, if there are enough.
inline void pin(int rank, int size) {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0 || CPU_COUNT(&allowed) < size) return;
  for (int core = 0, seen = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || seen++ != rank) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof(one), &one);
  }
}

/// Answers the harness until it hangs up. `address`: FOLDER/NAME, to which the harness listens with ".RANK".
inline int serve(Library& library, const std::string& address) {
  const std::string path = address + "." + std::to_string(library.rank);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  if (path.size() >= sizeof(name.sun_path)) throw std::runtime_error("too long a path: " + path);
  std::memcpy(name.sun_path, path.c_str(), path.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof(name)) != 0)
    throw std::runtime_error("cannot connect to the harness at " + path);
  const auto say = [fd](const std::string& text) {
    const std::string line = text + "\n";
    if (write(fd, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      throw std::runtime_error("the harness is gone");
  };
  std::string version = library.version();
  say("ready " + version.substr(0, version.find_first_of("\r\n")));

  Gate gate(address + ".gate", library.rank, library.size);
  std::unique_ptr<Arena> arena;
  FILE* commands = fdopen(fd, "r");
  for (char line[256]; std::fgets(line, sizeof(line), commands);) {
    std::istringstream words(line);
    std::string command, op, type;
    words >> command;
    if (command == "prepare") {
      std::size_t whole = 0;
      int calls = 0;
      words >> op >> type >> whole >> calls;
      const Task task{parse_op(op), parse_type(type), whole, whole / library.size};
      arena.reset();
      if (task.op == Op::unknown || !library.offers(task.op, task.type)) {
        say("unsupported");
        continue;
      }
      arena = std::make_unique<Arena>(library, task, calls);
      say("ok");
    } else {
      long round = 0;
      int calls = 0;
      words >> round >> calls;
      char answer[64];
      std::snprintf(answer, sizeof(answer), "seconds %.9e", arena->run(gate, round, calls));
      say(answer);
    }
  }
  return 0;
}

/// The body of main: errors go to stderr, which the harness shows.
inline int guarded(const std::function<int()>& body) {
  try {
    return body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace bench
