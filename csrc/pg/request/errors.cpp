#include "pg/request/errors.h"

#include "base/as_error.h"

namespace occl::pg {
namespace {

constexpr const char* kNoText = "an exception without a text";

}  // namespace

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

std::string text_of(const std::exception_ptr& exception) {
  std::string text;
  try {
    std::rethrow_exception(exception);
  } catch (const c10::Error& error) {
    text = error.what_without_backtrace();
  } catch (const std::exception& error) {
    text = as_error(error).what();
  } catch (...) {  // not an exception of C++'s library
  }
  return text.empty() ? kNoText : text;
}

std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.empty() ? kNoText : text.substr(0, text.find('\n'));
}

}  // namespace occl::pg
