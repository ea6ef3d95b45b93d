#include "pg/request/errors.h"

#include <chrono>
#include <mutex>

#include "base/as_error.h"

namespace occl::pg {
namespace {

constexpr const char* kNoText = "an exception without a text";

using Clock = std::chrono::steady_clock;
constexpr std::chrono::seconds kHolds{5};

std::mutex the_addition_mutex;
std::string the_addition;      // to errors of operations that time out
Clock::time_point added_at{};  // 0: there is none

std::string text_of(const Error& error) {
  if (error.code() != Errc::timeout) return error.what();
  std::lock_guard lock(the_addition_mutex);
  const bool holds = added_at != Clock::time_point{} && Clock::now() - added_at < kHolds;
  return holds ? concat(error.what(), ". ", the_addition) : error.what();
}

}  // namespace

void add_to_timeouts(std::string text) {
  std::lock_guard lock(the_addition_mutex);
  the_addition = std::move(text);
  added_at = Clock::now();
}

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
      throw c10::DistBackendError(here, text_of(error));
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
