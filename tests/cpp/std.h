// The standard headers that most of csrc and tests/cpp include. They are compiled once for each mode of
// tests/support/cpp_build.py, which is half of the time that a file takes. Every file includes what it uses
// all the same: the extension is built without this.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <shared_mutex>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <unordered_map>
#include <variant>
#include <vector>
