#include "pg/request/tensor_blocks.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/hash.h"
#include "kernels/kernels.h"
#include "pg/compat/premul_sum.h"
#include "pg/request/checks.h"
#include "pg/request/dense_copies.h"
#include "pg/request/errors.h"
#include "pg/request/overlap.h"

namespace occl::pg {

namespace {

/// By at::ScalarType.
constexpr DType kDTypeOf[] = {
    DType::u8,          DType::i8,
    DType::i16,         DType::i32,
    DType::i64,         DType::f16,
    DType::f32,         DType::f64,
    DType::complex32,   DType::c64,
    DType::c128,        DType::boolean,
    DType::qint8,       DType::quint8,
    DType::qint32,      DType::bf16,
    DType::quint4x2,    DType::quint2x4,
    DType::bits1x8,     DType::bits2x4,
    DType::bits4x2,     DType::bits8,
    DType::bits16,      DType::f8_e5m2,
    DType::f8_e4m3fn,   DType::f8_e5m2fnuz,
    DType::f8_e4m3fnuz, DType::u16,
    DType::u32,         DType::u64,
    DType::uint1,       DType::uint2,
    DType::uint3,       DType::uint4,
    DType::uint5,       DType::uint6,
    DType::uint7,       DType::int1,
    DType::int2,        DType::int3,
    DType::int4,        DType::int5,
    DType::int6,        DType::int7,
    DType::f8_e8m0fnu,  DType::float4_e2m1fn_x2,
};
constexpr DType at_number(at::ScalarType type) { return kDTypeOf[static_cast<int>(type)]; }
static_assert(at_number(at::kComplexHalf) == DType::complex32 && at_number(at::kBool) == DType::boolean &&
              at_number(at::kQInt32) == DType::qint32 && at_number(at::kBFloat16) == DType::bf16 &&
              at_number(at::kQUInt2x4) == DType::quint2x4 && at_number(at::kBits16) == DType::bits16 &&
              at_number(at::kFloat8_e4m3fnuz) == DType::f8_e4m3fnuz && at_number(at::kUInt64) == DType::u64 &&
              at_number(at::ScalarType::UInt7) == DType::uint7 &&
              at_number(at::ScalarType::Int7) == DType::int7 &&
              at_number(at::ScalarType::Float4_e2m1fn_x2) == DType::float4_e2m1fn_x2);

}  // namespace

DType dtype_of(const at::Tensor& tensor) {
  const auto number = static_cast<std::size_t>(tensor.scalar_type());
  return number < std::size(kDTypeOf) ? kDTypeOf[number] : DType::bytes;
}

std::size_t count_of(const at::Tensor& t) {
  const auto elements = static_cast<std::size_t>(t.numel());
  // In these two types several elements share a byte, for which nbytes() does not allow.
  if (t.scalar_type() == at::kQUInt4x2) return (elements + 1) / 2;
  if (t.scalar_type() == at::kQUInt2x4) return (elements + 3) / 4;
  return is_opaque(dtype_of(t)) ? t.nbytes() : elements;
}

coll::Block block_of(const at::Tensor& t) { return {static_cast<std::byte*>(t.data_ptr()), count_of(t)}; }

void set_reduction(const char* call, coll::Collective& c, const c10d::ReduceOp& op) {
  const auto number = static_cast<int>(op.op_);
  if (number < 0 || number >= kReduceOps) invalid(call, "invalid reduce operation number ", number);
  c.op = static_cast<ReduceOp>(number);  // c10d's numbers and the core's are the same, see below
  if (!kernels::supported(c.dtype, c.op)) {
    const bool bitwise = c.op == ReduceOp::band || c.op == ReduceOp::bor || c.op == ReduceOp::bxor;
    const std::string begin =
        bitwise ? concat("Cannot use ReduceOp.", name_of(c.op), " with non-integral dtype: ") : "";
    invalid(call, begin, "ReduceOp.", name_of(c.op), " has no meaning for ", name_of(c.dtype), " tensors");
  }
  if (c.op != ReduceOp::premul_sum) return;
  const auto* supplement = dynamic_cast<const PreMulSumSupplement*>(op.supplement_.get());
  if (!supplement) invalid(call, "ReduceOp.PREMUL_SUM needs a factor");
  if (supplement->tensor_factor.defined() && supplement->tensor_factor.is_complex())
    invalid(call, "the factor of ReduceOp.PREMUL_SUM must be real, got a tensor of ",
            c10::str(supplement->tensor_factor.scalar_type()));
  c.factor = supplement->tensor_factor.defined() ? supplement->tensor_factor.item<double>()
                                                 : supplement->double_factor;
}
static_assert(static_cast<int>(ReduceOp::sum) == c10d::ReduceOp::SUM &&
              static_cast<int>(ReduceOp::avg) == c10d::ReduceOp::AVG &&
              static_cast<int>(ReduceOp::product) == c10d::ReduceOp::PRODUCT &&
              static_cast<int>(ReduceOp::min) == c10d::ReduceOp::MIN &&
              static_cast<int>(ReduceOp::max) == c10d::ReduceOp::MAX &&
              static_cast<int>(ReduceOp::band) == c10d::ReduceOp::BAND &&
              static_cast<int>(ReduceOp::bor) == c10d::ReduceOp::BOR &&
              static_cast<int>(ReduceOp::bxor) == c10d::ReduceOp::BXOR &&
              static_cast<int>(ReduceOp::premul_sum) == c10d::ReduceOp::PREMUL_SUM);

coll::Blocks whole(const at::Tensor& t) {
  const coll::Block block = block_of(t);
  return {block.data, block.count, 1, nullptr};
}

std::uint32_t order_of(const at::Tensor& t) {
  if (t.is_contiguous()) return 0;
  std::vector<int64_t> dims;
  for (int64_t d = 0; d < t.dim(); ++d)
    if (t.size(d) > 1) dims.push_back(d);
  std::sort(dims.begin(), dims.end(), [&](int64_t a, int64_t b) { return t.stride(a) > t.stride(b); });
  std::uint64_t hash = kHashStart;
  for (const int64_t d : dims) hash = hashed(hash, static_cast<std::uint64_t>(d));
  return static_cast<std::uint32_t>(hash >> 32) | 1;
}

void set_even(coll::Collective& c, std::size_t count) { c.largest = c.volume = count; }

void set_dense(coll::Collective& c, const at::Tensor& t) {
  set_even(c, count_of(t));
  if (const std::uint32_t order = order_of(t))
    c.volume = coll::kUneven | (hashed(hashed(kHashStart, c.volume), order) & (coll::kUneven - 1));
}

namespace {

/// A list without a tensor for each rank. c10d's checks have a text for each kind of call.
[[noreturn]] void wrong_length(const char* call, coll::Kind kind, const char* side, std::size_t got,
                               std::size_t ranks) {
  if (kind == coll::Kind::all_to_all)
    invalid(call, side, " tensor list size ", got, " does not match world size ", ranks);
  if (kind == coll::Kind::all_gather)
    invalid(call, "invalid ", side, " tensor list at index 0 (expected length ", ranks, ", got ", got, ")");
  const std::string title = side[0] == 'i' ? "Input" : "Output";
  invalid(call, "Incorrect ", side, " list size ", got, ". ", title, " list size should be ", ranks,
          ", same as size of the process group.");
}

coll::Blocks list_blocks(const char* call, Request& request, const Tensors& tensors,
                         const at::Tensor& reference, std::size_t expected, bool written) {
  if (tensors.size() != expected)
    wrong_length(call, request.collective().kind, written ? "output" : "input", tensors.size(), expected);
  auto& blocks = written ? request.out : request.in;
  blocks.reserve(expected);
  coll::Blocks out{nullptr, 0, static_cast<std::uint32_t>(expected), nullptr};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    check_tensor(call, tensors[i]);
    check_alike(call, tensors[i], reference, i);
    const StandIn t =
        written ? for_writing(call, request, tensors[i]) : for_reading(call, request, tensors[i]);
    blocks.push_back(block_of(*t));
    out.count = std::max(out.count, blocks.back().count);
  }
  return out;
}

}  // namespace

coll::Blocks input_list(const char* call, Request& request, const Tensors& tensors,
                        const at::Tensor& reference, std::size_t expected) {
  return list_blocks(call, request, tensors, reference, expected, false);
}

coll::Blocks output_list(const char* call, Request& request, const Tensors& tensors,
                         const at::Tensor& reference, std::size_t expected) {
  const auto blocks = list_blocks(call, request, tensors, reference, expected, true);
  check_outputs(call, tensors);
  return blocks;
}

void set_listed(coll::Collective& c, const std::vector<coll::Block>& blocks) {
  std::vector<std::size_t> counts;
  for (const coll::Block& block : blocks) counts.push_back(block.count);
  coll::set_sizes(c, counts);
}

}  // namespace occl::pg
