#include "pg/process/python_hooks.h"

#include <utility>

namespace occl::pg {
namespace {

std::function<void()> the_interrupt_check = [] {};
std::function<void()> the_return_check;
PrepareInterNode the_prepare_inter_node;

}  // namespace

void set_interrupt_check(std::function<void()> check) { the_interrupt_check = std::move(check); }
const std::function<void()>& interrupt_check() { return the_interrupt_check; }

void set_return_check(std::function<void()> check) { the_return_check = std::move(check); }
const std::function<void()>& return_check() { return the_return_check; }

void set_prepare_inter_node(PrepareInterNode prepare) { the_prepare_inter_node = std::move(prepare); }
PreparedInterNode prepare_inter_node(bool one_network) { return the_prepare_inter_node(one_network); }

}  // namespace occl::pg
