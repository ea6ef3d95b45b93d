// Element types and reduce operations, with their names. The numbers are part of the wire format: two ranks
// compare them, so they only ever grow.
#pragma once

#include <cstddef>
#include <cstdint>

namespace occl {

enum class DType : std::uint8_t {
  u8,
  i8,
  i16,
  i32,
  i64,
  u16,
  u32,
  u64,
  f16,
  bf16,
  f32,
  f64,
  f8_e4m3fn,
  f8_e5m2,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  f8_e8m0fnu,
  c64,
  c128,
  boolean,
  bytes,  // dtypes that are not listed. From here on: moved, never reduced; one element is one byte
  complex32,
  qint8,
  quint8,
  qint32,
  quint4x2,
  quint2x4,
  bits1x8,
  bits2x4,
  bits4x2,
  bits8,
  bits16,
  uint1,
  uint2,
  uint3,
  uint4,
  uint5,
  uint6,
  uint7,
  int1,
  int2,
  int3,
  int4,
  int5,
  int6,
  int7,
  float4_e2m1fn_x2,
};
inline constexpr int kDTypes = static_cast<int>(DType::float4_e2m1fn_x2) + 1;

enum class ReduceOp : std::uint8_t { sum, avg, product, min, max, band, bor, bxor, premul_sum, none };
inline constexpr int kReduceOps = static_cast<int>(ReduceOp::none);

struct DTypeInfo {
  const char* name;  // as PyTorch prints it, without the "torch."
  std::size_t size;  // bytes of one element
};

inline constexpr DTypeInfo kDTypeInfo[kDTypes] = {
    {"uint8", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"uint16", 2},
    {"uint32", 4},
    {"uint64", 8},
    {"float16", 2},
    {"bfloat16", 2},
    {"float32", 4},
    {"float64", 8},
    {"float8_e4m3fn", 1},
    {"float8_e5m2", 1},
    {"float8_e4m3fnuz", 1},
    {"float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", 1},
    {"complex64", 8},
    {"complex128", 16},
    {"bool", 1},
    {"bytes", 1},
    {"complex32", 1},
    {"qint8", 1},
    {"quint8", 1},
    {"qint32", 1},
    {"quint4x2", 1},
    {"quint2x4", 1},
    {"bits1x8", 1},
    {"bits2x4", 1},
    {"bits4x2", 1},
    {"bits8", 1},
    {"bits16", 1},
    {"uint1", 1},
    {"uint2", 1},
    {"uint3", 1},
    {"uint4", 1},
    {"uint5", 1},
    {"uint6", 1},
    {"uint7", 1},
    {"int1", 1},
    {"int2", 1},
    {"int3", 1},
    {"int4", 1},
    {"int5", 1},
    {"int6", 1},
    {"int7", 1},
    {"float4_e2m1fn_x2", 1},
};

inline constexpr const char* kReduceOpName[kReduceOps + 1] = {"SUM",  "AVG", "PRODUCT", "MIN",        "MAX",
                                                              "BAND", "BOR", "BXOR",    "PREMUL_SUM", "NONE"};

/// Moved, never reduced; one element is one byte.
constexpr bool is_opaque(DType t) { return t >= DType::bytes; }

/// Names and sizes of values that may come from a peer: out of range is "?" and 1, never undefined.
constexpr const char* name_of(DType t) {
  return static_cast<int>(t) < kDTypes ? kDTypeInfo[static_cast<int>(t)].name : "?";
}
constexpr std::size_t size_of(DType t) {
  return static_cast<int>(t) < kDTypes ? kDTypeInfo[static_cast<int>(t)].size : 1;
}
constexpr const char* name_of(ReduceOp op) {
  return static_cast<int>(op) <= kReduceOps ? kReduceOpName[static_cast<int>(op)] : "?";
}

}  // namespace occl
