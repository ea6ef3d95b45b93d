// What the memory system allows: the bytes that an operation must move, moved without any communication. The
// ranks see each other's buffers, know in advance where they are, and never wait for one another.
//
//   roofline ADDRESS RANK SIZE cached|streaming
//
// What must be moved, for tensors of S bytes and N ranks: a reduction reads all inputs and writes all outputs
// once, anything else reads and writes each output once; the work is divided evenly among the ranks. Buffers
// lie in huge pages where the system gives them.
#ifdef __AVX__
#include <immintrin.h>
#endif

#include <memory>

#include "peer.h"

namespace {

using namespace bench;

// As many floats as a streaming store has, and how to store past the caches.
#if defined(__AVX512F__)
using Vector = __m512;
inline void stream(float* to, Vector v) { _mm512_stream_ps(to, v); }
inline void finish() { _mm_sfence(); }
#elif defined(__AVX__)
using Vector = __m256;
inline void stream(float* to, Vector v) { _mm256_stream_ps(to, v); }
inline void finish() { _mm_sfence(); }
#else
typedef float Vector __attribute__((vector_size(16)));
inline void stream(float* to, Vector v) { std::memcpy(to, &v, sizeof(v)); }
inline void finish() {}
#endif
constexpr std::size_t kFloats = sizeof(Vector) / sizeof(float);

inline Vector load(const float* from) {
  Vector v;
  std::memcpy(&v, from, sizeof(v));
  return v;
}

/// dsts[i] = sum of srcs[i] for lo <= i < hi. SRCS and DSTS: their numbers where the compiler may know them.
template <bool kStream, int SRCS, int DSTS>
void combine(const std::vector<const float*>& srcs, const std::vector<float*>& dsts, std::size_t lo,
             std::size_t hi) {
  const std::size_t ns = SRCS ? SRCS : srcs.size(), nd = DSTS ? DSTS : dsts.size();
  const float* const* s = srcs.data();
  float* const* d = dsts.data();
  std::size_t i = lo;
  const auto one = [&] {
    float sum = s[0][i];
    for (std::size_t k = 1; k < ns; ++k) sum += s[k][i];
    for (std::size_t k = 0; k < nd; ++k) d[k][i] = sum;
    ++i;
  };
  if constexpr (kStream) {
    // A streaming store must be aligned; where the destinations differ in alignment, none can be.
    const auto off = [&](std::size_t k) {
      return reinterpret_cast<std::uintptr_t>(d[k] + i) % sizeof(Vector);
    };
    while (i < hi && off(0)) one();
    for (std::size_t k = 1; k < nd; ++k)
      if (i < hi && off(k)) return combine<false, SRCS, DSTS>(srcs, dsts, i, hi);
  }
  for (; i + 4 * kFloats <= hi; i += 4 * kFloats) {
    Vector sum[4];
    for (int u = 0; u < 4; ++u) sum[u] = load(s[0] + i + u * kFloats);
    for (std::size_t k = 1; k < ns; ++k)
      for (int u = 0; u < 4; ++u) sum[u] += load(s[k] + i + u * kFloats);
    for (std::size_t k = 0; k < nd; ++k)
      for (int u = 0; u < 4; ++u) {
        if constexpr (kStream)
          stream(d[k] + i + u * kFloats, sum[u]);
        else
          std::memcpy(d[k] + i + u * kFloats, &sum[u], sizeof(Vector));
      }
  }
  while (i < hi) one();
  if constexpr (kStream) finish();
}

class Roofline : public Library {
 public:
  static constexpr std::size_t kBytes = std::size_t{4} << 30;  // address space of each rank, not memory

  Roofline(const std::string& address, int rank_, int size_, bool streaming) : streaming_(streaming) {
    rank = rank_, size = size_;
    const std::size_t bytes = kBytes * size;
    base_ = map(bytes, shared_memory(address + ".memory", rank, bytes));
    pin(rank, size);
    madvise(base_, bytes, MADV_HUGEPAGE);  // a wish
  }

  std::string version() override { return std::to_string(sizeof(Vector) * 8) + "-bit vectors"; }
  bool offers(Op op, Type) override { return op != Op::barrier; }
  // 16-bit types move the right bytes with the wrong sums: converting them is no part of moving.
  bool computes(const Task& task) override { return task.type == Type::f32; }

  std::byte* memory(std::size_t bytes) override {
    if (bytes > kBytes) throw std::runtime_error("larger than the roofline's memory");
    return base_ + kBytes * rank;
  }

  Call bind(const Task& task, Buffers b) override {
    // Buffers have the same place in each rank's memory.
    const auto other = [&](std::byte* p, int r, std::size_t elements) {
      return reinterpret_cast<float*>(p + kBytes * r - kBytes * rank + elements * size_of(task.type));
    };
    const auto floats = [&](std::size_t n) { return (n * size_of(task.type) + 3) / 4; };
    std::vector<int> ranks(size);
    for (int r = 0; r < size; ++r) ranks[r] = r;
    std::vector<Call> moves;
    const auto move = [&](std::vector<const float*> from, std::vector<float*> to, std::size_t lo,
                          std::size_t hi) {
      if (lo < hi && !to.empty()) moves.push_back(make(std::move(from), std::move(to), lo, hi));
    };
    const std::size_t whole = floats(task.whole), part = floats(task.part), root = 0;
    const std::size_t each = (whole + size * 16 - 1) / (size * 16) * 16;  // ranges begin on cache lines
    const std::size_t lo = std::min(whole, each * rank), hi = std::min(whole, each * (rank + 1));
    std::vector<const float*> all_in;
    std::vector<float*> all_out;
    for (const int r : ranks) {
      all_in.push_back(other(b.in, r, task.op == Op::reduce_scatter ? rank * task.part : 0));
      if (task.op != Op::broadcast || r != 0) all_out.push_back(other(b.out, r, 0));
    }
    switch (task.op) {
      case Op::all_reduce:
        move(all_in, all_out, lo, hi);
        break;
      case Op::reduce:
        move(all_in, {other(b.out, root, 0)}, lo, hi);
        break;
      case Op::broadcast:
        move({other(b.in, root, 0)}, all_out, lo, hi);
        break;
      case Op::reduce_scatter:
        move(all_in, {other(b.out, rank, 0)}, 0, part);
        break;
      case Op::all_gather:
        for (const int r : ranks) move({all_in[r]}, {other(b.out, rank, r * task.part)}, 0, part);
        break;
      case Op::all_to_all:
        for (const int r : ranks)
          move({other(b.in, r, rank * task.part)}, {other(b.out, rank, r * task.part)}, 0, part);
        break;
      case Op::gather:
        move({other(b.in, rank, 0)}, {other(b.out, root, rank * task.part)}, 0, part);
        break;
      case Op::scatter:
        move({other(b.in, root, rank * task.part)}, {other(b.out, rank, 0)}, 0, part);
        break;
      case Op::put:  // by one core, as a put is: the other rank rests
        if (rank % 2 == 0 && rank + 1 < size) {
          move({other(b.in, rank, 0)}, {other(b.out, rank + 1, 0)}, 0, whole);
          move({other(b.in, rank + 1, 0)}, {other(b.out, rank, 0)}, 0, whole);
        }
        break;
      case Op::send_recv:  // both ways in one call; both ranks of a pair copy all the time
        if ((rank ^ 1) < size) move({other(b.in, rank ^ 1, 0)}, {other(b.out, rank, 0)}, 0, whole);
        break;
      default:
        break;
    }
    return [moves] {
      for (const Call& move : moves) move();
    };
  }

 private:
  Call make(std::vector<const float*> from, std::vector<float*> to, std::size_t lo, std::size_t hi) const {
    if (from.size() == 1 && to.size() == 1 && !streaming_)
      return [=] { std::memcpy(to[0] + lo, from[0] + lo, (hi - lo) * sizeof(float)); };
    const auto with = [&](auto srcs, auto dsts) -> Call {
      if (streaming_) return [=] { combine<true, srcs, dsts>(from, to, lo, hi); };
      return [=] { combine<false, srcs, dsts>(from, to, lo, hi); };
    };
    const auto is = [&](std::size_t srcs, std::size_t dsts) {
      return from.size() == srcs && to.size() == dsts;
    };
    using std::integral_constant;
    if (is(2, 2)) return with(integral_constant<int, 2>{}, integral_constant<int, 2>{});
    if (is(2, 1)) return with(integral_constant<int, 2>{}, integral_constant<int, 1>{});
    if (is(1, 1)) return with(integral_constant<int, 1>{}, integral_constant<int, 1>{});
    return with(integral_constant<int, 0>{}, integral_constant<int, 0>{});
  }

  const bool streaming_;
  std::byte* base_;
};

}  // namespace

int main(int argc, char** argv) {
  return guarded([&] {
    if (argc != 5) throw std::runtime_error("usage: roofline ADDRESS RANK SIZE cached|streaming");
    Roofline roofline(argv[1], std::atoi(argv[2]), std::atoi(argv[3]), std::string(argv[4]) == "streaming");
    return serve(roofline, argv[1]);
  });
}
