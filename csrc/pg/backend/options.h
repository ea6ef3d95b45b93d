// The options of one group: ProcessGroupOCCL.Options in Python.
#pragma once

#include <string>
#include <variant>

#include "coll/plan/tuning.h"
#include "pg/compat/options_base.h"

namespace occl::pg {

class Options final : public OptionsBase {
 public:
  explicit Options(std::chrono::milliseconds timeout = kBackendDefaultTimeout)
      : OptionsBase("occl", timeout) {}
  /// A copy of `given`. Options of another class give their timeout, names and ranks.
  static Options of(const c10d::Backend::Options& given);

  c10::intrusive_ptr<Options> copy() const { return c10::make_intrusive<Options>(*this); }
  c10::intrusive_ptr<c10d::Backend::Options> clone() const override { return copy(); }

  const NamedNumbers& numbers() const { return numbers_; }
  /// Raises ValueError for a name that coll/plan/tuning.h does not know.
  void set_numbers(NamedNumbers numbers);

  /// Bytes of shared memory through which this rank stages tensors that peers cannot map; 0: the default.
  std::uint64_t staging_bytes() const { return staging_bytes_; }
  void set_staging_bytes(std::uint64_t bytes) { staging_bytes_ = bytes; }

  /// What carries messages between nodes: a backend, "ucx", "tcp", "gloo", or nothing, which leaves it to
  /// OCCL_INTER_NODE.
  using Carrier = std::variant<std::monostate, std::string, c10::intrusive_ptr<c10d::Backend>>;
  const Carrier& inter_node() const { return inter_node_; }
  /// Raises ValueError for another name.
  void set_inter_node(Carrier carrier);

  /// The defaults, overridden by OCCL_TUNING, overridden by these options. Throws Error(invalid_argument) for
  /// a bad OCCL_TUNING.
  Tuning tuning() const;

 private:
  NamedNumbers numbers_;
  std::uint64_t staging_bytes_ = 0;
  Carrier inter_node_;
};

}  // namespace occl::pg
