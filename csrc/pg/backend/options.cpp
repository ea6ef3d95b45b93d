#include "pg/backend/options.h"

#include <algorithm>

#include "pg/compat/reconfigure.h"
#include "pg/process/environment.h"
#include "pg/request/errors.h"

namespace occl::pg {

Options Options::of(const c10d::Backend::Options& given) {
  if (const auto* same = dynamic_cast<const Options*>(&given)) return *same;
  Options options(given.timeout);
  options.group_name = given.group_name;
  options.group_desc = given.group_desc;
  options.global_ranks_in_group = given.global_ranks_in_group;
  let_reconfigure_make(options, made_by_reconfigure(given));
  return options;
}

void Options::set_numbers(NamedNumbers numbers) {
  translated([&] {
    Tuning checked;
    for (const auto& [name, number] : numbers) set(checked, name, number);
  });
  numbers_ = std::move(numbers);
}

void Options::set_inter_node(Carrier carrier) {
  if (const auto* name = std::get_if<std::string>(&carrier))
    translated([&] { check_carrier(*name, "Options.inter_node"); });
  inter_node_ = std::move(carrier);
}

Tuning Options::tuning() const {
  Tuning tuning = tuning_from_environment();
  for (const auto& [name, number] : numbers_) set(tuning, name, number);
  if (staging_bytes_) {  // two areas of two slots
    set(tuning, "area_bytes", std::max<std::uint64_t>(staging_bytes_ / 2, 1));
    set(tuning, "slot_bytes", std::max<std::uint64_t>(staging_bytes_ / 4, 1));
  }
  return tuning;
}

}  // namespace occl::pg
