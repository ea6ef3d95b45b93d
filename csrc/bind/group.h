// The Python class of a group, which the parts of its binding fill.
#pragma once

#include "bind/bind.h"
#include "pg/backend/process_group.h"

namespace occl::bind {

using GroupClass = py::class_<pg::ProcessGroupOCCL, c10::intrusive_ptr<pg::ProcessGroupOCCL>, c10d::Backend>;

/// Adds the nested class Options.
void bind_options(GroupClass& group);
/// Adds the methods that make windows, and the classes of these, which PyTorch has from 2.14 on.
void bind_window(py::module_& module, GroupClass& group);

}  // namespace occl::bind
