#include "pg/process/python_hooks.h"

#include <utility>

namespace occl::pg {
namespace {

std::function<void()> the_interrupt_check = [] {};
std::function<void()> the_return_check;

std::function<void(const std::function<void()>&)> the_way_without_gil = [](const auto& f) { f(); };
Unwrap the_unwrap = [](const auto& backend) { return backend; };

PrepareInterNode the_prepare_inter_node;
PrepareUcx the_prepare_ucx;
PrepareTcp the_prepare_tcp;

}  // namespace

void set_interrupt_check(std::function<void()> check) { the_interrupt_check = std::move(check); }
const std::function<void()>& interrupt_check() { return the_interrupt_check; }

void set_return_check(std::function<void()> check) { the_return_check = std::move(check); }
const std::function<void()>& return_check() { return the_return_check; }

void without_gil(const std::function<void()>& f) { the_way_without_gil(f); }
void set_without_gil(std::function<void(const std::function<void()>& f)> how) {
  the_way_without_gil = std::move(how);
}

c10::intrusive_ptr<c10d::Backend> unwrapped(const c10::intrusive_ptr<c10d::Backend>& backend) {
  return the_unwrap(backend);
}
void set_unwrap(Unwrap unwrap) { the_unwrap = std::move(unwrap); }

void set_prepare_ucx(PrepareUcx prepare) { the_prepare_ucx = std::move(prepare); }
PreparedUcx prepare_ucx(bool one_network, bool asked) { return the_prepare_ucx(one_network, asked); }

void set_prepare_tcp(PrepareTcp prepare) { the_prepare_tcp = std::move(prepare); }
PreparedTcp prepare_tcp(bool one_network, bool asked) { return the_prepare_tcp(one_network, asked); }

void set_prepare_inter_node(PrepareInterNode prepare) { the_prepare_inter_node = std::move(prepare); }
PreparedInterNode prepare_inter_node(bool one_network) { return the_prepare_inter_node(one_network); }

}  // namespace occl::pg
