// The conversion of any exception to an Error, also where there is no memory left to make one.
#pragma once

#include <exception>
#include <new>
#include <type_traits>

#include "base/error.h"

namespace occl {

// What ends operations copies errors where nothing may throw.
static_assert(std::is_nothrow_copy_constructible_v<Error> && std::is_nothrow_copy_assignable_v<Error>);

/// Made when the library is loaded.
inline const Error kNoMemory(Errc::system, "this process has no ordinary memory left");

/// An Error as it is; of other exceptions their text.
inline Error as_error(const std::exception& exception) noexcept {
  if (const auto* error = dynamic_cast<const Error*>(&exception)) return *error;
  if (dynamic_cast<const std::bad_alloc*>(&exception)) return kNoMemory;
  try {
    return {Errc::system, exception.what()};
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

}  // namespace occl
