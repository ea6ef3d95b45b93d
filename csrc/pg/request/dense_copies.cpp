#include "pg/request/dense_copies.h"

#include <ATen/ATen.h>

#include "pg/request/checks.h"
#include "pg/request/overlap.h"
#include "pg/request/staging.h"

namespace occl::pg {
namespace {

bool is_dense(const at::Tensor& t, Density density) {
  return density == Density::contiguous ? t.is_contiguous() : t.is_non_overlapping_and_dense();
}

bool can_be_moved(const at::Tensor& t, Density density) { return is_on_host(t) && is_dense(t, density); }

at::Tensor dense_like(const char* call, const at::Tensor& t, Density density) {
  if (t.scalar_type() == at::kQUInt4x2 || t.scalar_type() == at::kQUInt2x4)
    check_dense(call, t, density);  // elements share bytes, so none can be copied alone
  return host_like(
      t, density == Density::contiguous ? at::MemoryFormat::Contiguous : at::MemoryFormat::Preserve);
}

}  // namespace

void check_dense(const char* call, const at::Tensor& t, Density density) {
  if (!is_dense(t, density))
    invalid(call, "invalid tensor layout: tensors must ",
            density == Density::contiguous ? "be contiguous" : "have no gaps and no overlap in memory",
            ", and this one has sizes ", c10::str(t.sizes()), " and strides ", c10::str(t.strides()),
            "; call .contiguous() first");
}

StandIn for_reading(const char* call, Request& request, const at::Tensor& t, Density density) {
  if (can_be_moved(t, density)) return StandIn::borrowed(t);
  await_stream(request, t);
  at::Tensor copy = dense_like(call, t, density);
  request.before.emplace_back(copy, t);
  return StandIn::owned(std::move(copy));
}

StandIn for_writing(const char* call, Request& request, const at::Tensor& t, Density density) {
  if (can_be_moved(t, density)) return StandIn::borrowed(t);
  await_stream(request, t);
  check_written(call, t);
  at::Tensor copy = dense_like(call, t, density);
  request.after.emplace_back(t, copy);
  return StandIn::owned(std::move(copy));
}

StandIn for_both(const char* call, Request& request, const at::Tensor& t, bool reads, bool writes) {
  if (!writes) return for_reading(call, request, t, Density::any_order);
  StandIn stand_in = for_writing(call, request, t, Density::any_order);
  if (reads && !stand_in->is_same(t)) request.before.emplace_back(*stand_in, t);
  return stand_in;
}

}  // namespace occl::pg
