#include "pg/errors.h"

#include "pg/argument_error.h"

namespace occl::pg {

void raise(const Error& error) {
  const c10::SourceLocation here{__func__, __FILE__, static_cast<uint32_t>(__LINE__)};
  switch (error.code()) {
    case Errc::invalid_argument:
      throw ArgumentError(here, error.what());
    case Errc::not_implemented:
      throw c10::NotImplementedError(here, error.what());
    case Errc::out_of_memory:
      throw c10::OutOfMemoryError(here, error.what());
    default:
      throw c10::DistBackendError(here, error.what());
  }
}

std::exception_ptr as_exception(const Error& error) {
  try {
    raise(error);
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace occl::pg
